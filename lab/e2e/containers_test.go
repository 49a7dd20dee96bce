package e2e

// What a simulated container can do, and what the kubelet, whose code is
// genuine, makes of it.

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
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

func TestContainers(t *testing.T) {
	f := newFixture(t)
	f.lab("up", "--nodes", "1", "--profile", "instant")
	cfg, err := clientcmd.BuildConfigFromFlags("", f.dir("kubeconfig", "operator.yaml"))
	require.NoError(t, err)
	cfg.QPS = -1 // Many look at once, and what they look for passes.
	c := &containers{fixture: f, kube: kubernetes.NewForConfigOrDie(cfg), port: int(f.status().Services[0].Port)}
	t.Run("a zone that the Node gets late is in the answer", func(t *testing.T) { // Alone: it is all pods' Node.
		part := *c
		part.fixture = f.in(t)
		part.zoneComesLate()
	})
	for name, test := range map[string]func(*containers){
		"readiness reaches the EndpointSlice":               (*containers).readiness,
		"a failed liveness probe restarts":                  (*containers).liveness,
		"a startup probe holds the others back":             (*containers).startup,
		"an exit code is told, and back-off comes":          (*containers).exits,
		"restartPolicy decides what an exit is":             (*containers).restartPolicies,
		"env, downward API and ConfigMap are in the answer": (*containers).shows,
		"logs are followed":                                 (*containers).logs,
		"grace is given, and no more":                       (*containers).grace,
		"init containers come first, sidecars stay":         (*containers).sidecars,
		"no ports, and UDP":                                 (*containers).ports,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			part := *c
			part.fixture = f.in(t)
			test(&part)
		})
	}
}

// containers are those of one lab. Each test has pods of its own.
type containers struct {
	*fixture
	kube *kubernetes.Clientset
	port int
}

// container serves the demo's port, without probes.
func (c *containers) container(name string) corev1.Container {
	return corev1.Container{
		Name: name, Image: "whatever:1", Ports: []corev1.ContainerPort{{ContainerPort: int32(c.port)}},
	}
}

// probe asks every second, and one failure is enough. That an answer is late is none.
func (c *containers) probe(path string) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt(c.port)}},
		PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 60,
	}
}

// run creates a pod and returns it when it runs.
func (c *containers) run(name string, spec corev1.PodSpec) *corev1.Pod {
	c.t.Helper()
	_, err := c.kube.CoreV1().Pods("default").Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": name}}, Spec: spec,
	}, metav1.CreateOptions{})
	require.NoError(c.t, err)
	return c.awaitPod(name, "run", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning && p.Status.PodIP != ""
	})
}

func (c *containers) awaitPod(name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
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
func (c *containers) awaitRestart(pod, container string, n int32) corev1.ContainerStatus {
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
func (c *containers) url(p *corev1.Pod, path string) string {
	return fmt.Sprintf("http://127%s:%d%s", strings.TrimPrefix(p.Status.PodIP, "10"), c.port, path)
}

// tell gives a pod's container a command, which it must obey.
func (c *containers) tell(p *corev1.Pod, command string) {
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
func (c *containers) awaitEvents(pod string, reasons ...string) {
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

func (c *containers) kubectl(args ...string) (string, error) {
	out, err := c.command(
		"kube/kubectl", append([]string{"--kubeconfig", c.dir("kubeconfig", "operator.yaml")}, args...)...,
	).CombinedOutput()
	return string(out), err
}

// demoPod is one of the demo's, ready.
func (c *containers) demoPod() *corev1.Pod {
	c.t.Helper()
	list, err := c.kube.CoreV1().Pods("default").List(c.t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	require.NoError(c.t, err)
	require.NotEmpty(c.t, list.Items)
	return c.awaitPod(list.Items[0].Name, "be ready", func(p *corev1.Pod) bool { return statusOf(p, "web").Ready })
}

func (c *containers) readiness() {
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

func (c *containers) liveness() {
	web := c.container("web")
	web.LivenessProbe = c.probe("/livez")
	pod := c.run("alive", corev1.PodSpec{Containers: []corev1.Container{web}})
	c.tell(pod, "/fail?probe=liveness")
	status := c.awaitRestart("alive", "web", 1)
	assert.Zero(c.t, status.LastTerminationState.Terminated.ExitCode, "it had time to end")
	c.awaitEvents("alive", "Scheduled", "Pulled", "Created", "Started", "Unhealthy", "Killing")

	// The run that is over, and the one that has forgotten what the first was told.
	out, err := c.kubectl("logs", "alive", "--previous")
	require.NoError(c.t, err, out)
	assert.Contains(c.t, out, "GET /livez: the liveness probe fails, as it was told to")
	out, err = c.kubectl("logs", "alive")
	require.NoError(c.t, err, out)
	assert.Contains(c.t, out, "listening on")
	assert.NotContains(c.t, out, "the liveness probe fails")
}

// The startup probe is told to fail before it is asked. While it fails the
// liveness probe, which fails too, is not even asked.
func (c *containers) startup() {
	web := c.container("web")
	web.StartupProbe, web.LivenessProbe, web.ReadinessProbe = c.probe("/startupz"), c.probe("/livez"), c.probe("/readyz")
	web.StartupProbe.InitialDelaySeconds, web.StartupProbe.FailureThreshold = 20, 1000
	pod := c.run("startup", corev1.PodSpec{Containers: []corev1.Container{web}})
	c.tell(pod, "/fail?probe=startup")
	c.tell(pod, "/fail?probe=liveness")
	log := func() string {
		out, err := c.kubectl("logs", "startup")
		require.NoError(c.t, err, out)
		return out
	}
	c.await("the startup probe to fail some times", func(context.Context) error {
		if n := strings.Count(log(), "the startup probe fails"); n < 3 {
			return fmt.Errorf("it failed %d times", n)
		}
		return nil
	})
	status := statusOf(c.awaitPod("startup", "be there", func(*corev1.Pod) bool { return true }), "web")
	assert.False(c.t, status.Ready)
	assert.False(c.t, *status.Started)
	assert.NotContains(c.t, log(), "the liveness probe fails")

	c.tell(pod, "/recover?probe=startup")
	c.awaitRestart("startup", "web", 1)
	out, err := c.kubectl("logs", "startup", "--previous")
	require.NoError(c.t, err, out)
	assert.Contains(c.t, out, "the liveness probe fails")
	c.awaitPod("startup", "be ready", func(p *corev1.Pod) bool { return statusOf(p, "web").Ready })
}

func (c *containers) exits() {
	web := c.container("web")
	web.ReadinessProbe = c.probe("/readyz")
	pod := c.run("exits", corev1.PodSpec{Containers: []corev1.Container{web}})
	c.tell(pod, "/exit?code=3")
	status := c.awaitRestart("exits", "web", 1)
	ended := status.LastTerminationState.Terminated
	require.NotNil(c.t, ended)
	assert.Equal(c.t, int32(3), ended.ExitCode)
	assert.Equal(c.t, "Error", ended.Reason)

	// A kubelet backs off from the second exit on, and says so when it looks at the
	// pod again: that may be when the first, short back-off is over.
	exits := status.RestartCount
	c.awaitPod("exits", "be backed off from", func(p *corev1.Pod) bool {
		status = statusOf(p, "web")
		if status.State.Running != nil && status.RestartCount == exits {
			c.tell(pod, "/exit?code=4&after=10ms")
			exits++
		}
		return status.State.Waiting != nil && status.State.Waiting.Reason == "CrashLoopBackOff"
	})
	assert.Equal(c.t, int32(4), status.LastTerminationState.Terminated.ExitCode)
	c.awaitEvents("exits", "BackOff")
	c.awaitRestart("exits", "web", exits)
}

func (c *containers) restartPolicies() {
	for name, test := range map[string]struct {
		policy corev1.RestartPolicy
		code   int
		phase  corev1.PodPhase
	}{
		"never-failed":    {corev1.RestartPolicyNever, 3, corev1.PodFailed},
		"never-completed": {corev1.RestartPolicyNever, 0, corev1.PodSucceeded},
		"onfailure":       {corev1.RestartPolicyOnFailure, 0, corev1.PodSucceeded},
	} {
		pod := c.run(
			name, corev1.PodSpec{Containers: []corev1.Container{c.container("job")}, RestartPolicy: test.policy},
		)
		if test.policy == corev1.RestartPolicyOnFailure {
			c.tell(pod, "/exit?code=1")
			c.awaitRestart(name, "job", 1)
		}
		c.tell(pod, "/exit?code="+strconv.Itoa(test.code))
		c.awaitPod(name, "end", func(p *corev1.Pod) bool { return p.Status.Phase == test.phase })
	}
}

func (c *containers) shows() {
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

	c.hidesSecrets()
}

// zoneComesLate has a pod that is bound while the API server's admission knows no
// zone of its Node: it never gets the label (KEP-4742), and answers rightly.
func (c *containers) zoneComesLate() {
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
func (c *containers) labelZone(node, value string) {
	c.t.Helper()
	patch := fmt.Sprintf(
		`{"metadata":{"labels":{%q:%s,%q:%s}}}`, corev1.LabelTopologyZone, value, corev1.LabelFailureDomainBetaZone,
		value,
	)
	_, err := c.kube.CoreV1().Nodes().
		Patch(c.t.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(c.t, err)
}

func (c *containers) hidesSecrets() {
	_, err := c.kube.CoreV1().Secrets("default").Create(c.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "hidden"}, StringData: map[string]string{"PASSWORD": "open-sesame"},
	}, metav1.CreateOptions{})
	require.NoError(c.t, err)
	web := c.container("web")
	web.EnvFrom = []corev1.EnvFromSource{
		{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "hidden"}}},
	}
	web.Env = []corev1.EnvVar{{Name: "URL", Value: "db://$(PASSWORD)@db"}, {Name: "COLOUR", Value: "blue"}}
	web.VolumeMounts = []corev1.VolumeMount{{Name: "hidden", MountPath: "/hidden"}}
	pod := c.run("secret", corev1.PodSpec{Containers: []corev1.Container{web}, Volumes: []corev1.Volume{
		{Name: "hidden", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "hidden"}}},
	}})
	text, err := fetch(c.url(pod, "/?format=json"))
	require.NoError(c.t, err)
	assert.Contains(c.t, text, `"env":{"COLOUR":"blue","PASSWORD":"(from a Secret)","URL":"(from a Secret)"}`)
	assert.NotContains(c.t, text, "sesame")
	assert.NotContains(c.t, text, "files")
}

func (c *containers) logs() {
	pod := c.run("logs", corev1.PodSpec{Containers: []corev1.Container{c.container("web")}})
	follow := c.command(
		"kube/kubectl", "--kubeconfig", c.dir("kubeconfig", "operator.yaml"), "logs", "--follow", "logs",
	)
	out, err := follow.StdoutPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, follow.Start())
	defer func() {
		_ = follow.Process.Kill()
		_ = follow.Wait()
	}()
	lines := bufio.NewScanner(out)
	next := func(want string) {
		c.t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		require.Fail(c.t, "the log ended without "+want)
	}
	next("listening on")
	for _, path := range []string{"/first", "/second"} {
		_, err := fetch(c.url(pod, path))
		require.NoError(c.t, err)
		next("GET " + path + " from ")
	}
}

// grace looks at a pod that is deleted while it answers.
func (c *containers) grace() {
	for name, test := range map[string]struct {
		delay    string
		grace    int64
		answered bool
		code     int32
	}{
		"grace-enough": {"2s", 60, true, 0},
		"grace-short":  {"4m", 1, false, 137},
	} {
		pod := c.run(name, corev1.PodSpec{
			Containers: []corev1.Container{c.container("web")}, TerminationGracePeriodSeconds: &test.grace,
		})
		answer := make(chan error, 1)
		go func() {
			response, err := http.Get(c.url(pod, "/?delay="+test.delay))
			if err == nil {
				_, err = io.ReadAll(response.Body)
				_ = response.Body.Close()
			}
			answer <- err
		}()
		c.await("the request to be there", func(context.Context) error {
			out, err := c.kubectl("logs", name)
			if err == nil && !strings.Contains(out, "GET /?delay=") {
				err = errors.New(out)
			}
			return err
		})
		assert.Equal(c.t, test.code, c.exitCodeOfDeleted(name), name)
		err := <-answer
		assert.Equal(c.t, test.answered, err == nil, "%s: %v", name, err)
	}
}

// exitCodeOfDeleted deletes a pod and returns what its container ended with.
func (c *containers) exitCodeOfDeleted(name string) int32 {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), bound)
	defer cancel()
	changes, err := c.kube.CoreV1().Pods("default").
		Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(c.t, err)
	defer changes.Stop()
	require.NoError(c.t, c.kube.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{}))
	for event := range changes.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		require.True(c.t, ok)
		if ended := statusOf(pod, "web").State.Terminated; ended != nil {
			return ended.ExitCode
		}
	}
	require.Fail(c.t, "pod "+name+" does not end")
	return 0
}

func (c *containers) sidecars() {
	always := corev1.ContainerRestartPolicyAlways
	sidecar := c.container("sidecar")
	sidecar.RestartPolicy, sidecar.ReadinessProbe = &always, c.probe("/readyz")
	c.run("sidecars", corev1.PodSpec{
		InitContainers: []corev1.Container{
			{Name: "first", Image: "init:1"}, sidecar, {Name: "second", Image: "init:1"},
		},
		Containers: []corev1.Container{{Name: "main", Image: "main:1"}},
	})
	pod := c.awaitPod("sidecars", "be ready", func(p *corev1.Pod) bool {
		return statusOf(p, "main").Ready && statusOf(p, "sidecar").Ready
	})
	first, second := statusOf(pod, "first").State.Terminated, statusOf(pod, "second").State.Terminated
	require.NotNil(c.t, first)
	require.NotNil(c.t, second)
	assert.Equal(c.t, []string{"Completed", "Completed"}, []string{first.Reason, second.Reason})
	assert.False(c.t, statusOf(pod, "main").State.Running.StartedAt.Before(&second.FinishedAt))

	c.tell(pod, "/fail?probe=readiness")
	c.awaitPod("sidecars", "be not ready", func(p *corev1.Pod) bool { return !statusOf(p, "sidecar").Ready })
	c.tell(pod, "/exit?code=5")
	assert.Equal(c.t, int32(5), c.awaitRestart("sidecars", "sidecar", 1).LastTerminationState.Terminated.ExitCode)
	pod = c.awaitPod("sidecars", "be ready again", func(p *corev1.Pod) bool { return statusOf(p, "sidecar").Ready })
	assert.Zero(c.t, statusOf(pod, "main").RestartCount)
}

func (c *containers) ports() {
	c.run("silent", corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "silent:1"}}})
	out, err := c.kubectl("logs", "silent")
	require.NoError(c.t, err, out)
	assert.Contains(c.t, out, "it declares no port")
	assert.Zero(c.t, c.exitCodeOfDeleted("silent"))

	dns := c.container("dns")
	dns.Ports[0].Protocol = corev1.ProtocolUDP
	pod := c.run("udp", corev1.PodSpec{Containers: []corev1.Container{dns}})
	connection, err := net.Dial("udp4", strings.TrimPrefix(c.url(pod, ""), "http://"))
	require.NoError(c.t, err)
	defer func() { _ = connection.Close() }()
	require.NoError(c.t, connection.SetDeadline(time.Now().Add(bound)))
	_, err = connection.Write([]byte("ping"))
	require.NoError(c.t, err)
	answer := make([]byte, 1<<10)
	n, err := connection.Read(answer)
	require.NoError(c.t, err)
	assert.Regexp(c.t, `^Hello from pod udp \(10\.\S+\) on node-1 in zone \S+\nping$`, string(answer[:n]))
}
