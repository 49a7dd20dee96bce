package e2e

// What a simulated container can do, and what the kubelet, whose code is
// genuine, makes of it.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// containersEnd has containers fail, recover, end and be told of changes.
func (f *fixture) containersEnd(t *testing.T) {
	cfg, err := clientcmd.BuildConfigFromFlags("", f.dir("kubeconfig", "operator.yaml"))
	require.NoError(t, err)
	cfg.QPS = -1 // Many look at once, and what they look for passes.
	c := containers{fixture: f.in(t), kube: kubernetes.NewForConfigOrDie(cfg), port: int(f.status().Services[0].Port)}
	t.Run("a zone that the Node gets late is in the answer", func(t *testing.T) { c.in(t).zoneComesLate() }) // Alone.
	for name, test := range map[string]func(containers){
		"readiness reaches the EndpointSlice":               containers.readiness,
		"a failed liveness probe restarts":                  containers.liveness,
		"env, downward API and ConfigMap are in the answer": containers.shows,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(c.in(t))
		})
	}
}

// containers are those of one lab. Each test has pods of its own.
type containers struct {
	*fixture
	kube *kubernetes.Clientset
	port int
}

func (c containers) in(t *testing.T) containers {
	c.fixture = c.fixture.in(t)
	return c
}

// container serves the demo's port, without probes.
func (c containers) container(name string) corev1.Container {
	return corev1.Container{
		Name: name, Image: "whatever:1", Ports: []corev1.ContainerPort{{ContainerPort: int32(c.port)}},
	}
}

// probe asks every second, and one failure is enough. That an answer is late is none.
func (c containers) probe(path string) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt(c.port)}},
		PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 60,
	}
}

// run creates a pod and returns it when it runs.
func (c containers) run(name string, spec corev1.PodSpec) *corev1.Pod {
	c.t.Helper()
	_, err := c.kube.CoreV1().Pods("default").Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": name}}, Spec: spec,
	}, metav1.CreateOptions{})
	require.NoError(c.t, err)
	return c.awaitPod(name, "run", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning && p.Status.PodIP != ""
	})
}

func (c containers) awaitPod(name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	c.t.Helper()
	var found *corev1.Pod
	c.await("pod "+name+" to "+what, func(ctx context.Context) (err error) {
		if found, err = c.kube.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !ok(found) {
			text, _ := json.Marshal(found.Status)
			return fmt.Errorf("its status is %s", text)
		}
		return nil
	})
	return found
}

// awaitRestart awaits a container's nth restart, and that it runs again.
func (c containers) awaitRestart(pod, container string, n int32) corev1.ContainerStatus {
	c.t.Helper()
	var status corev1.ContainerStatus
	c.awaitPod(pod, "be restarted", func(p *corev1.Pod) bool {
		status = statusOf(p, container)
		return status.RestartCount >= n && status.State.Running != nil
	})
	return status
}

func statusOf(p *corev1.Pod, container string) corev1.ContainerStatus {
	for _, s := range slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses) {
		if s.Name == container {
			return s
		}
	}
	return corev1.ContainerStatus{}
}

// url is where a pod is realised.
func (c containers) url(p *corev1.Pod, path string) string {
	return fmt.Sprintf("http://127%s:%d%s", strings.TrimPrefix(p.Status.PodIP, "10"), c.port, path)
}

// tell gives a pod's container a command, which it must obey.
func (c containers) tell(p *corev1.Pod, command string) {
	c.t.Helper()
	client := http.Client{Timeout: bound, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Post(c.url(p, command), "", nil)
	require.NoError(c.t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(c.t, err)
	require.Equal(c.t, http.StatusOK, response.StatusCode, string(body))
}

// awaitEvents awaits an Event of each reason about a pod.
func (c containers) awaitEvents(pod string, reasons ...string) {
	c.t.Helper()
	c.await("events of pod "+pod, func(ctx context.Context) error {
		list, err := c.kube.CoreV1().Events("default").
			List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, e := range list.Items {
			seen[e.Reason] = true
		}
		for _, reason := range reasons {
			if !seen[reason] {
				return fmt.Errorf("no %s, but %v", reason, seen)
			}
		}
		return nil
	})
}

// demoPod is one of the demo's, ready.
func (c containers) demoPod() *corev1.Pod {
	c.t.Helper()
	list, err := c.kube.CoreV1().Pods("default").List(c.t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	require.NoError(c.t, err)
	require.NotEmpty(c.t, list.Items)
	return c.awaitPod(list.Items[0].Name, "be ready", func(p *corev1.Pod) bool { return statusOf(p, "web").Ready })
}

func (c containers) readiness() {
	pod := c.demoPod()
	for _, step := range []struct {
		command string
		ready   bool
	}{{"/fail?probe=readiness", false}, {"/recover", true}} {
		ctx, cancel := context.WithTimeout(c.t.Context(), bound)
		defer cancel()
		changes, err := c.kube.DiscoveryV1().EndpointSlices("default").
			Watch(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
		require.NoError(c.t, err)
		defer changes.Stop()
		c.tell(pod, step.command)
		told := time.Now()
		for {
			event, open := <-changes.ResultChan()
			require.True(c.t, open, "no EndpointSlice says that %s is ready=%v", pod.Name, step.ready)
			slice, ok := event.Object.(*discoveryv1.EndpointSlice)
			require.True(c.t, ok)
			if readyIn(slice, pod.Name) == step.ready && event.Type != watch.Deleted {
				break
			}
		}
		c.t.Logf("%s: the EndpointSlice says ready=%v after %s", step.command, step.ready, time.Since(told).
			Round(time.Millisecond))
	}
	assert.Zero(c.t, statusOf(c.demoPod(), "web").RestartCount)
}

func readyIn(slice *discoveryv1.EndpointSlice, pod string) bool {
	return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool {
		return e.TargetRef != nil && e.TargetRef.Name == pod && *e.Conditions.Ready
	})
}

func (c containers) liveness() {
	web := c.container("web")
	web.LivenessProbe = c.probe("/livez")
	pod := c.run("alive", corev1.PodSpec{Containers: []corev1.Container{web}})
	c.tell(pod, "/fail?probe=liveness")
	status := c.awaitRestart("alive", "web", 1)
	assert.Zero(c.t, status.LastTerminationState.Terminated.ExitCode, "it had time to end")
	c.awaitEvents("alive", "Scheduled", "Pulled", "Created", "Started", "Unhealthy", "Killing")

	// The run that is over, and the one that has forgotten what the first was told.
	out, err := c.kubectlWith("", "logs", "alive", "--previous")
	require.NoError(c.t, err, out)
	assert.Contains(c.t, out, "GET /livez: the liveness probe fails, as it was told to")
	out, err = c.kubectlWith("", "logs", "alive")
	require.NoError(c.t, err, out)
	assert.Contains(c.t, out, "listening on")
	assert.NotContains(c.t, out, "the liveness probe fails")
}

func (c containers) shows() {
	pod := c.demoPod()
	type shown struct {
		Pod        string
		Env, Files map[string]string
	}
	look := func() (s shown, err error) {
		text, err := fetch(c.url(pod, "/?format=json"))
		return s, errors.Join(err, json.Unmarshal([]byte(text), &s))
	}
	before, err := look()
	require.NoError(c.t, err)
	const file = "/etc/demo/config/greeting"
	assert.Equal(c.t, "Good morning", before.Files[file])
	assert.Contains(c.t, before.Files["/etc/demo/pod/labels"], `app="web"`)
	assert.Len(c.t, before.Files, 2, "and no service account's token")
	assert.Equal(c.t, map[string]string{
		"GREETING": "Good morning", "POD_NAME": pod.Name, "POD_IP": pod.Status.PodIP, "NODE_NAME": pod.Spec.NodeName,
		"ZONE": pod.Labels[corev1.LabelTopologyZone],
	}, before.Env)

	patch := []byte(`{"data":{"greeting":"Good night"}}`)
	_, err = c.kube.CoreV1().ConfigMaps("default").
		Patch(c.t.Context(), "demo", types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(c.t, err)
	changed := time.Now()
	var after shown
	c.await("the changed file", func(context.Context) (err error) {
		if after, err = look(); err == nil && after.Files[file] != "Good night" {
			err = fmt.Errorf("files %v", after.Files)
		}
		return err
	})
	c.t.Logf("a changed ConfigMap was in the pod's file after %s", time.Since(changed).Round(time.Millisecond))
	assert.Equal(c.t, before.Env, after.Env, "a variable stays what it was")
}

// zoneComesLate has a pod that is bound while the API server's admission knows no
// zone of its Node: it never gets the label (KEP-4742), and answers rightly.
func (c containers) zoneComesLate() {
	const node, name = "node-1", "early"
	c.labelZone(node, "null")
	spec := corev1.PodSpec{NodeName: node, Containers: []corev1.Container{c.container("web")}}
	c.await("the admission to have seen the Node without a zone", func(ctx context.Context) error {
		pod, err := c.kube.CoreV1().Pods("default").
			Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && pod.Labels[corev1.LabelTopologyZone] != "" {
			err = errors.New("the pod gets the label")
		}
		return err
	})
	pod := c.run(name, spec)
	awaitAnswer := func(zone string) {
		want := fmt.Sprintf("Hello from pod %s (%s) on %s in zone %s", name, pod.Status.PodIP, node, zone)
		c.await("the answer: "+want, func(context.Context) error {
			answer, err := fetch(c.url(pod, "/"))
			if err == nil && answer != want {
				err = errors.New(answer)
			}
			return err
		})
	}
	awaitAnswer("(no zone label yet)")
	c.labelZone(node, `"nebula-1a"`)
	awaitAnswer("nebula-1a")
	pod = c.awaitPod(name, "be there", func(*corev1.Pod) bool { return true })
	assert.NotContains(c.t, pod.Labels, corev1.LabelTopologyZone)
}

// labelZone sets both labels of a Node's zone to a JSON value: of one of them alone
// the CCM would make the other.
func (c containers) labelZone(node, value string) {
	c.t.Helper()
	patch := fmt.Sprintf(
		`{"metadata":{"labels":{%q:%s,%q:%s}}}`, corev1.LabelTopologyZone, value, corev1.LabelFailureDomainBetaZone,
		value,
	)
	_, err := c.kube.CoreV1().Nodes().
		Patch(c.t.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(c.t, err)
}
