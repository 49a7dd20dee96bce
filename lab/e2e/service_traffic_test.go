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

// The demo has a second Service, with session affinity. Beside it is another of
// its kind, near, where each node sends to its own pod only, and one single pod
// with ports of several kinds.
func TestServiceTraffic(t *testing.T) {
	f := newFixture(t)
	f.lab("up")
	sticky := serviceOf("web", "sticky")
	sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	f.createService(sticky)
	f.makePatient("web")
	f.startSingle()
	f.startNear()

	t.Run("a node port is every node's", func(t *testing.T) { f.in(t).nodePortAnswers() })
	t.Run("an attached address leads to its node, and moves", func(t *testing.T) { f.in(t).attachedAddressMoves() })
	t.Run("each port of a Service leads to its own, TCP and UDP", func(t *testing.T) { f.in(t).severalPorts() })
	t.Run("with externalTrafficPolicy Local a node answers if it has a pod, and tells", func(t *testing.T) {
		f.in(t).localNodes()
	})
	t.Run("with session affinity a client has one pod", func(t *testing.T) { f.in(t).clientStays() })
	t.Run("no request fails while pods are replaced, go and come", func(t *testing.T) { f.in(t).rollingUpdate() })
}

func withLocalPolicy(s *corev1.Service) *corev1.Service {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	return s
}

// startSingle has two Services for one pod: any node leads to it, or its own.
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
	for _, s := range []*corev1.Service{
		serviceOf("single", "single"), withLocalPolicy(serviceOf("single", "single-near")),
	} {
		s.Spec.Ports = append(s.Spec.Ports,
			corev1.ServicePort{Name: "other", Port: 9000, TargetPort: intstr.FromInt32(9090)},
			corev1.ServicePort{
				Name: "udp", Port: 8080, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(8080),
			})
		f.expose(s)
	}
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

func (f *fixture) startNear() {
	f.t.Helper()
	f.deploy(patient(deploymentOf(f.t, "near", 3)))
	f.expose(withLocalPolicy(serviceOf("near", "near")))
}

// nodePorts are a Service's, by its ports' names.
func (f *fixture) nodePorts(service string) map[string]int32 {
	f.t.Helper()
	svc, err := f.kube("operator").CoreV1().Services(metav1.NamespaceDefault).
		Get(f.t.Context(), service, metav1.GetOptions{})
	require.NoError(f.t, err)
	ports := map[string]int32{"health": svc.Spec.HealthCheckNodePort}
	for _, p := range svc.Spec.Ports {
		ports[p.Name] = p.NodePort
	}
	return ports
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

func (f *fixture) nodePortAnswers() {
	number := f.nodePorts("single")["tcp"]
	for _, n := range f.status().Nodes {
		f.await("an answer on "+n.Name, func(context.Context) error {
			answer, err := fetch("http://" + at(n.Addresses[0], number))
			if err == nil && !strings.HasPrefix(answer, "Hello from pod single-") {
				err = fmt.Errorf("the answer is %q", answer)
			}
			return err
		})
	}
}

func (f *fixture) severalPorts() {
	s := f.served("single")
	node, ports := f.status().Nodes[0].Addresses[0], f.nodePorts("single")
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

// kubectl is for what users do with it.
func (f *fixture) kubectl(args ...string) (string, error) {
	cmd := f.command("kube/kubectl", args...)
	cmd.Args = append(cmd.Args, "--kubeconfig", f.dir("kubeconfig", "operator.yaml"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (f *fixture) localNodes() {
	s := f.served("single-near")
	f.awaitTargets(s, 1) // By now each node knows of the Service.
	here, ports := f.pods("app=single")[0].Spec.NodeName, f.nodePorts("single-near")
	for _, n := range f.status().Nodes {
		node := n.Addresses[0]
		code, weight, body := f.health(at(node, ports["health"]))
		answer, err := fetch("http://" + at(node, ports["tcp"]))
		text := fmt.Sprintf(
			"{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"single-near\"\n\t},\n\t\"localEndpoints\": %s,\n\t\"serviceProxyHealthy\": true\n}",
			weight,
		)
		assert.Equal(f.t, text, body)
		if n.Name == here {
			assert.Equal(f.t, []string{"200", "1"}, []string{code, weight}, n.Name)
			assert.Contains(f.t, answer, "on "+here)
			assert.NoError(f.t, err)
		} else {
			assert.Equal(f.t, []string{"503", "0"}, []string{code, weight}, n.Name)
			assert.Error(f.t, err, "%s has no pod, but answers", n.Name)
		}
	}
	answer, err := fetch(url(s, "/?format=json"))
	require.NoError(f.t, err)
	assert.NotContains(
		f.t, answer, nodeNamed(f.status(), here).Addresses[0]+":", "the pod sees who asked, and not the node",
	)
	echoed, err := datagram(at(s.Address, 8080), "hello")
	require.NoError(f.t, err)
	assert.Contains(f.t, echoed, "on "+here)
}

// health asks a health check node port.
func (f *fixture) health(address string) (code, weight, body string) {
	f.t.Helper()
	c := http.Client{Timeout: fetchBound, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + address)
	require.NoError(f.t, err)
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	require.NoError(f.t, err)
	return strconv.Itoa(resp.StatusCode), resp.Header.Get("X-Load-Balancing-Endpoint-Weight"), string(data)
}

func (f *fixture) clientStays() {
	s := f.answering("sticky")
	node, number := f.status().Nodes[0].Addresses[0], f.nodePorts("sticky")["tcp"]
	for _, address := range []string{at(s.Address, s.Port), at(node, number)} {
		f.await("an answer from "+address, func(context.Context) error {
			_, err := fetch("http://" + address)
			return err
		})
		pods := map[string]bool{}
		for range 9 { // Three of each, were they asked in turn.
			answer, err := fetch("http://" + address)
			require.NoError(f.t, err)
			pods[answer] = true
		}
		assert.Len(f.t, pods, 1, "%v", pods)
	}
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
		out, err := f.kubectl(append(verb, "deployment/web", "deployment/near")...)
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
