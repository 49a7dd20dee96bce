package e2e

// Deployments and Services that tests make, and what balancers carry to them. Each count looks at the balancer's own
// counters, so that an answer that came by another way is no answer.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/status"
	"github.com/ccmlab/ccmlab/manifests"
)

// deploymentOf is the demo's Deployment by another name.
func deploymentOf(t *testing.T, name string, replicas int32, env ...corev1.EnvVar) *appsv1.Deployment {
	t.Helper()
	documents := bytes.Split(manifests.Demo, []byte("\n---\n"))
	at := slices.IndexFunc(documents, func(d []byte) bool { return bytes.Contains(d, []byte("kind: Deployment\n")) })
	require.NotEqual(t, -1, at)
	var d appsv1.Deployment
	require.NoError(t, yaml.UnmarshalStrict(bytes.ReplaceAll(documents[at], []byte("web"), []byte(name)), &d))
	d.Spec.Replicas = &replicas
	c := &d.Spec.Template.Spec.Containers[0]
	c.Env = append(c.Env, env...)
	return &d
}

// serviceOf is a balancer for a Deployment's pods, on the demo's port.
func serviceOf(deployment, name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": deployment},
			Ports: []corev1.ServicePort{{Name: "tcp", Port: 8080, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

func (f *fixture) createService(s *corev1.Service) {
	f.t.Helper()
	_, err := f.kube("operator").CoreV1().Services(s.Namespace).Create(f.t.Context(), s, metav1.CreateOptions{})
	require.NoError(f.t, err)
}

// served awaits a Service's balancer.
func (f *fixture) served(name string) status.Service {
	f.t.Helper()
	var found status.Service
	f.eventually("service "+name+" to have its balancer", func(st status.Status) bool {
		for _, s := range st.Services {
			if s.Name == name {
				found = s
			}
		}
		return found.Address != "" && found.State == string(api.LoadBalancerActive)
	})
	return found
}

func (f *fixture) expose(s *corev1.Service) status.Service {
	f.t.Helper()
	f.createService(s)
	return f.answering(s.Name)
}

// answering awaits a Service's balancer and its first answer: nodes learn of a
// Service in their own time.
func (f *fixture) answering(name string) status.Service {
	f.t.Helper()
	s := f.served(name)
	f.await("the first answer of "+name, func(context.Context) error {
		_, err := fetch(url(s, "/"))
		return err
	})
	return s
}

// deploy awaits a Deployment's pods.
func (f *fixture) deploy(d *appsv1.Deployment) {
	f.t.Helper()
	_, err := f.kube("operator").AppsV1().Deployments(d.Namespace).Create(f.t.Context(), d, metav1.CreateOptions{})
	require.NoError(f.t, err)
	f.await("deployment "+d.Name, f.rolledOut(d.Name))
}

// rolledOut is an error as long as not all pods are new ones that are ready.
func (f *fixture) rolledOut(name string) func(context.Context) error {
	kube := f.kube("operator")
	return func(ctx context.Context) error {
		d, err := kube.AppsV1().Deployments(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pods, err := kube.CoreV1().Pods(metav1.NamespaceDefault).
			List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		want := *d.Spec.Replicas
		if err == nil && (d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas != want ||
			d.Status.ReadyReplicas != want || len(pods.Items) != int(want)) {
			err = fmt.Errorf(
				"%d pods, %d updated, %d ready of %d", len(pods.Items), d.Status.UpdatedReplicas,
				d.Status.ReadyReplicas, want,
			)
		}
		return err
	}
}

// startProbes has a pod on each node, whatever its taints, and awaits so many.
func (f *fixture) startProbes(n int) map[string]corev1.Pod {
	f.t.Helper()
	d := deploymentOf(f.t, "probe", 1)
	d.Spec.Template.Spec.Affinity, d.Spec.Template.Spec.TopologySpreadConstraints = nil, nil
	d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	daemons := f.kube("operator").AppsV1().DaemonSets(metav1.NamespaceDefault)
	if _, err := daemons.Get(f.t.Context(), "probe", metav1.GetOptions{}); err != nil {
		_, err := daemons.Create(f.t.Context(), &appsv1.DaemonSet{
			ObjectMeta: d.ObjectMeta,
			Spec:       appsv1.DaemonSetSpec{Selector: d.Spec.Selector, Template: d.Spec.Template},
		}, metav1.CreateOptions{})
		require.NoError(f.t, err)
	}
	f.await("a probe on each node", func(context.Context) error { return equal(n, len(f.probes())) })
	return f.probes()
}

// probes are those that are ready, by node.
func (f *fixture) probes() map[string]corev1.Pod {
	byNode := map[string]corev1.Pod{}
	for _, p := range f.pods("app=probe") {
		if podReady(p) {
			byNode[p.Spec.NodeName] = p
		}
	}
	return byNode
}

func (f *fixture) pods(selector string) []corev1.Pod {
	f.t.Helper()
	list, err := f.kube("operator").CoreV1().Pods("").List(f.t.Context(), metav1.ListOptions{LabelSelector: selector})
	require.NoError(f.t, err)
	return list.Items
}

// podPID is a command that tells the process of the container that is $0.
const podPID = `crictl inspect --output go-template --template '{{.info.pid}}' "$0"`

func containerID(p corev1.Pod) string {
	if len(p.Status.ContainerStatuses) == 0 {
		return "none"
	}
	return strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
}

// inPod runs a program of the node in a pod's network: the pods' image holds
// none but its server.
func (f *fixture) inPod(p corev1.Pod, command ...string) (string, error) {
	if p.Name == "" {
		return "", errors.New("there is no such pod yet")
	}
	args := []string{
		"exec", f.container(p.Spec.NodeName), "bash", "-c",
		`pid=$(` + podPID + `) && exec nsenter --net --target "$pid" -- "$@"`, containerID(p),
	}
	return f.tryDocker(append(args, command...)...)
}

func (f *fixture) stats(s status.Service, protocol api.Protocol) api.ListenerStats {
	f.t.Helper()
	stats, err := f.api().LoadBalancerStats(f.t.Context(), s.BalancerID)
	require.NoError(f.t, err)
	for _, l := range stats.Listeners {
		if l.Protocol == protocol {
			return l
		}
	}
	require.Fail(f.t, "no such listener", "%s of %s", protocol, s.Name)
	return api.ListenerStats{}
}

// statsAtRest are the figures of a balancer when they have not changed for a second: those of a network
// balancer may be a moment old, and somebody else, such as the lab's agent, may have read them.
func (f *fixture) statsAtRest(s status.Service, protocol api.Protocol) (last api.ListenerStats) {
	f.t.Helper()
	var since time.Time
	f.await("the balancer's figures to be at rest", func(context.Context) error {
		if now := f.stats(s, protocol); since.IsZero() || now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < time.Second {
			return errNotYet
		}
		return nil
	})
	return last
}

func url(s status.Service, path string) string {
	return "http://" + net.JoinHostPort(s.Address, strconv.Itoa(int(s.Port))) + path
}

// answers asks a Service so often that each of its pods may answer, and gives
// the answers' number by their text. Its balancer must have carried them all.
func (f *fixture) answers(name string, requests int) map[string]int {
	f.t.Helper()
	s := f.served(name)
	before := f.statsAtRest(s, api.ProtocolTCP)
	texts := map[string]int{}
	for range requests {
		answer, err := fetch(url(s, "/"))
		require.NoError(f.t, err)
		require.Contains(f.t, answer, "Hello from pod ")
		texts[answer]++
	}
	// A network balancer's counters may be a moment old.
	f.await("the balancer itself to have carried them", func(context.Context) error {
		after := f.stats(s, api.ProtocolTCP)
		return errors.Join(
			equal(int64(requests), after.Connections-before.Connections),
			equal(before.FailedConnections, after.FailedConnections),
		)
	})
	return texts
}

// datagram sends one, and gives the answer.
func datagram(address, text string) (string, error) {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	answer := make([]byte, 1<<16)
	if err := conn.SetDeadline(time.Now().Add(fetchBound)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(text)); err != nil {
		return "", err
	}
	n, err := conn.Read(answer)
	return string(answer[:n]), err
}
