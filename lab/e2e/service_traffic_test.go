package e2e

// Traffic of Services on an embedded cluster: through balancers, through node
// ports, and while the pods behind them are replaced.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/status"
)

// Beside the demo is another of its kind, near, where each node sends to its own pod only, and one single pod with
// ports of several kinds.
func TestServiceTraffic(t *testing.T) {
	f := newFixture(t)
	f.lab("up")
	f.makePatient("web")
	f.startSingle()
	f.deploy(patient(deploymentOf(t, "near", 3)))
	near := serviceOf("near", "near")
	near.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	f.expose(near)

	t.Run("an attached address leads to its node, and moves", func(t *testing.T) { f.in(t).attachedAddressMoves() })
	t.Run("each port of a Service leads to its own, TCP and UDP", func(t *testing.T) { f.in(t).severalPorts() })
	t.Run("no request fails while pods are replaced, go and come", func(t *testing.T) { f.in(t).rollingUpdate() })
}

// startSingle has a Service with three ports for one pod.
func (f *fixture) startSingle() {
	f.t.Helper()
	d := patient(deploymentOf(f.t, "single", 1))
	pod := &d.Spec.Template.Spec
	other := *pod.Containers[0].DeepCopy()
	other.Name, other.Ports[0].ContainerPort = "other", 9090
	other.ReadinessProbe, other.LivenessProbe, other.Lifecycle = nil, nil, nil
	pod.Containers = append(pod.Containers, other)
	pod.Containers[0].Ports = append(
		pod.Containers[0].Ports, corev1.ContainerPort{ContainerPort: 8080, Protocol: corev1.ProtocolUDP},
	)
	f.deploy(d)
	s := serviceOf("single", "single")
	s.Spec.Ports = append(s.Spec.Ports,
		corev1.ServicePort{Name: "other", Port: 9000, TargetPort: intstr.FromInt32(9090)},
		corev1.ServicePort{Name: "udp", Port: 8080, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(8080)})
	f.expose(s)
}

// patient pods have more time than the demo's to be sent no more, and to answer a
// probe: on a busy machine those who tell of a pod, and the pod, are late.
func patient(d *appsv1.Deployment) *appsv1.Deployment {
	c := &d.Spec.Template.Spec.Containers[0]
	c.Lifecycle.PreStop.Sleep.Seconds = 15
	c.ReadinessProbe.TimeoutSeconds, c.LivenessProbe.TimeoutSeconds = 60, 60
	return d
}

// makePatient does that to one which is there, and awaits its new pods.
func (f *fixture) makePatient(name string) {
	f.t.Helper()
	deployments := f.kube("operator").AppsV1().Deployments(metav1.NamespaceDefault)
	f.await("a patient "+name, func(ctx context.Context) error {
		d, err := deployments.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			_, err = deployments.Update(ctx, patient(d), metav1.UpdateOptions{})
		}
		return err
	})
	f.await("deployment "+name, f.rolledOut(name))
}

func at(address string, port int32) string {
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}

// attachedAddressMoves attaches an address to one node's instance and then to another's. The demo's node port answers
// on it while it is attached.
func (f *fixture) attachedAddressMoves() {
	svc, err := f.kube("operator").CoreV1().Services(metav1.NamespaceDefault).
		Get(f.t.Context(), "web", metav1.GetOptions{})
	require.NoError(f.t, err)
	address, err := f.api().ReserveAddress(f.t.Context(), api.ReservedAddressCreate{})
	require.NoError(f.t, err)
	where := "http://" + at(address.IP, svc.Spec.Ports[0].NodePort)
	for _, n := range f.status().Nodes[:2] {
		_, err := f.api().AttachAddress(f.t.Context(), address.ID, api.AddressAttach{InstanceID: n.InstanceID})
		require.NoError(f.t, err)
		f.await("an answer on "+address.IP+", which "+n.Name+" has", func(context.Context) error {
			answer, err := fetch(where)
			if err == nil && !strings.HasPrefix(answer, "Hello from pod web-") {
				err = fmt.Errorf("the answer is %q", answer)
			}
			return err
		})
		_, err = f.api().DetachAddress(f.t.Context(), address.ID)
		require.NoError(f.t, err)
		f.await("nobody to answer on "+address.IP, func(context.Context) error {
			if answer, err := fetch(where); err == nil {
				return fmt.Errorf("the answer is %q", answer)
			}
			return nil
		})
	}
	require.NoError(f.t, f.api().ReleaseAddress(f.t.Context(), address.ID))
}

func (f *fixture) severalPorts() {
	s := f.served("single")
	svc, err := f.kube("operator").CoreV1().Services(metav1.NamespaceDefault).
		Get(f.t.Context(), s.Name, metav1.GetOptions{})
	require.NoError(f.t, err)
	node, ports := f.status().Nodes[0].Addresses[0], map[string]int32{}
	for _, p := range svc.Spec.Ports {
		ports[p.Name] = p.NodePort
	}
	for address, container := range map[string]string{
		at(s.Address, 8080): "single", at(s.Address, 9000): "other", at(node, ports["tcp"]): "single",
		at(node, ports["other"]): "other",
	} {
		answer, err := fetch("http://" + address + "/?format=json")
		require.NoError(f.t, err)
		var who struct{ Container string }
		require.NoError(f.t, json.Unmarshal([]byte(answer), &who), answer)
		assert.Equal(f.t, container, who.Container, address)
	}
	before := f.stats(s, api.ProtocolUDP)
	for _, address := range []string{at(s.Address, 8080), at(node, ports["udp"])} {
		answer, err := datagram(address, "hello")
		require.NoError(f.t, err, address)
		assert.Regexp(f.t, `^Hello from pod single-.*\nhello$`, answer, address)
	}
	assert.Equal(
		f.t, int64(1), f.stats(s, api.ProtocolUDP).Connections-before.Connections,
		"the balancer carried its own, and no other",
	)
}

// rollingUpdate does to pods what users do, while requests come without pause: by
// connections of their own, and by one that is kept.
func (f *fixture) rollingUpdate() {
	services := []status.Service{f.served("web"), f.served("near")}
	f.awaitTargets(services[1], 3)
	before := map[string]api.ListenerStats{}
	ctx, stop := context.WithTimeout(f.t.Context(), 3*bound)
	defer stop()
	var load load
	for _, s := range services {
		before[s.Name] = f.stats(s, api.ProtocolTCP)
		load.start(ctx, s.Name+", a new connection each time", url(s, "/"), true)
		load.start(ctx, s.Name+", one connection", url(s, "/"), false)
	}
	do := func(verb ...string) {
		f.t.Helper()
		soFar := load.count()
		out, err := f.kubectlWith("", append(verb, "deployment/web", "deployment/near")...)
		require.NoError(f.t, err, out)
		f.await(strings.Join(verb, " "), func(ctx context.Context) error {
			return errors.Join(f.replaced(ctx, "web"), f.replaced(ctx, "near"))
		})
		f.await("requests after it", func(context.Context) error { return load.moreThan(soFar) })
	}
	do("rollout", "restart")
	do("rollout", "restart")
	do("scale", "--replicas", "1")
	f.awaitTargets(services[1], 1)
	f.await("one pod each", func(ctx context.Context) error {
		return errors.Join(f.rolledOut("web")(ctx), f.rolledOut("near")(ctx))
	})
	do("scale", "--replicas", "3")
	f.awaitTargets(services[1], 3)
	stop()
	load.running.Wait()
	assert.Empty(
		f.t, strings.Join(load.failed[:min(len(load.failed), 20)], "\n"), "%d failed, of %v", len(load.failed),
		load.asked,
	)
	for _, s := range services {
		assert.Equal(f.t, before[s.Name].FailedConnections, f.stats(s, api.ProtocolTCP).FailedConnections, s.Name)
	}
	f.t.Logf("requests: %v; failed: %d", load.asked, len(load.failed))
}

// replaced is an error as long as a Deployment has not the pods that it is to
// have. Those that go may still be there.
func (f *fixture) replaced(ctx context.Context, name string) error {
	d, err := f.kube("operator").AppsV1().Deployments(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want, s := *d.Spec.Replicas, d.Status
	return errors.Join(
		equal(d.Generation, s.ObservedGeneration), equal(want, s.Replicas), equal(want, s.UpdatedReplicas),
		equal(want, s.ReadyReplicas),
	)
}

// awaitTargets awaits that a Service's balancer knows which nodes are well: so
// many.
func (f *fixture) awaitTargets(s status.Service, well int) {
	f.t.Helper()
	f.await("the targets of "+s.Name, func(ctx context.Context) error {
		health, err := f.api().LoadBalancerHealth(ctx, s.BalancerID)
		if err != nil {
			return err
		}
		targets := map[string]int{}
		for _, t := range health.Targets {
			targets[string(t.Health)]++
		}
		return errors.Join(
			equal(well, targets[string(api.TargetHealthy)]), equal(3-well, targets[string(api.TargetUnhealthy)]),
		)
	})
}

// load asks without pause, and notes what fails.
type load struct {
	running sync.WaitGroup
	mu      sync.Mutex
	asked   map[string]int
	failed  []string
}

// pace keeps the load from being all that the machine does.
const pace = 20 * time.Millisecond

func (l *load) start(ctx context.Context, name, url string, anew bool) {
	c := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: anew}}
	l.running.Go(func() {
		defer c.CloseIdleConnections()
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for ctx.Err() == nil {
			began := time.Now()
			err := askOnce(c, url)
			l.note(name, began, err)
			<-tick.C
		}
	})
}

func (l *load) note(name string, began time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked == nil {
		l.asked = map[string]int{}
	}
	l.asked[name]++
	if err != nil {
		l.failed = append(
			l.failed,
			fmt.Sprintf("%s, number %d, asked at %s: %v", name, l.asked[name], began.Format(time.StampMilli), err),
		)
	}
}

func (l *load) count() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.asked)
}

// moreThan is an error as long as one has not asked since.
func (l *load) moreThan(before map[string]int) error {
	for name, n := range l.count() {
		if n <= before[name] {
			return fmt.Errorf("%s: %d so far", name, n)
		}
	}
	return nil
}

func askOnce(c *http.Client, url string) error {
	resp, err := c.Get(url)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(resp.Body)
	if err == nil && !strings.HasPrefix(string(body), "Hello from pod ") {
		err = fmt.Errorf("%s, and the answer is %q", resp.Status, body)
	}
	return errors.Join(err, resp.Body.Close())
}
