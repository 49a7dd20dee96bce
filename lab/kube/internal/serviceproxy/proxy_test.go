package serviceproxy

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// testOctet keeps the addresses of concurrent test runs apart, and away from labs, whose
// addresses are below 127.100.0.0.
var testOctet = byte(100 + os.Getpid()%100)

// testAddress replaces 78 in an address by this run's octet.
func testAddress(address string) string {
	return strings.ReplaceAll(address, ".78.", fmt.Sprintf(".%d.", testOctet))
}

const (
	patience = 10 * time.Second
	thisNode = "node-1"
)

// testProxy is a proxy on an address of its own, so that tests can run in parallel.
type testProxy struct {
	*Proxy
	t      *testing.T
	subnet int
}

// testOptions are those of a node that is not known, and has no labels.
func testOptions(subnet int) Options {
	return Options{
		NodeName: thisNode,
		Address:  netip.AddrFrom4([4]byte{127, testOctet, byte(subnet), 1}),
		Topology: func() map[string]string { return nil },
		Node:     func() *v1.Node { return nil },
		Log:      slog.New(slog.DiscardHandler),
	}
}

func newTestProxy(t *testing.T, subnet int) *testProxy {
	t.Helper()
	t.Parallel()
	p := &testProxy{t: t, subnet: subnet, Proxy: New(testOptions(subnet))}
	p.OnServiceSynced()
	p.OnEndpointSlicesSynced()
	t.Cleanup(p.Close)
	return p
}

// freePort returns a port that was free on the proxy's address a moment ago;
// nobody else uses that address.
func (p *testProxy) freePort() uint16 {
	p.t.Helper()
	listener, err := net.Listen("tcp4", p.options.Address.String()+":0")
	if err != nil {
		p.t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).AddrPort().Port()
}

func (p *testProxy) nodePortService(adjust ...func(*v1.Service)) (*v1.Service, string) {
	number := p.freePort()
	service := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: v1.ServiceSpec{
			Type:      v1.ServiceTypeLoadBalancer,
			ClusterIP: testAddress("10.78.0.9"), ClusterIPs: []string{testAddress("10.78.0.9")},
			Ports: []v1.ServicePort{
				{Port: 80, Protocol: v1.ProtocolTCP, NodePort: int32(number), TargetPort: intstr.FromInt32(8080)},
			},
		},
	}
	for _, change := range adjust {
		change(service)
	}
	return service, fmt.Sprintf("%s:%d", p.options.Address, number)
}

func localPolicy(service *v1.Service) {
	service.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
}

func clientIPAffinity(service *v1.Service) {
	seconds := int32(60)
	service.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	service.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{
		ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds},
	}
}

// podBackend is a pod's endpoint: EndpointSlices have it as 10.x.y.z, and it serves on 127.x.y.z.
type podBackend struct {
	address string
	node    string
	ready   bool
}

func (p *testProxy) endpointSlice(number int32, backends ...podBackend) *discovery.EndpointSlice {
	protocol, name := v1.ProtocolTCP, ""
	slice := &discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-1",
			Labels: map[string]string{discovery.LabelServiceName: "web"},
		},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: &name, Port: &number, Protocol: &protocol}},
	}
	for _, b := range backends {
		slice.Endpoints = append(slice.Endpoints, discovery.Endpoint{
			Addresses:  []string{b.address},
			NodeName:   &b.node,
			Conditions: discovery.EndpointConditions{Ready: &b.ready, Serving: &b.ready},
		})
	}
	return slice
}

// servePod accepts on the loopback address of a pod until the test ends.
func (p *testProxy) servePod(pod string, number int32, handle func(*net.TCPConn)) {
	p.t.Helper()
	listener, err := net.Listen("tcp4", fmt.Sprintf("127%s:%d", strings.TrimPrefix(pod, "10"), number))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				handle(connection.(*net.TCPConn))
			}()
		}
	}()
}

func answerWith(what string) func(*net.TCPConn) {
	return func(c *net.TCPConn) { _, _ = io.WriteString(c, what) }
}

func (p *testProxy) podAddress(host int) string {
	return fmt.Sprintf(testAddress("10.78.%d.%d"), p.subnet, 100+host)
}

// readAnswer connects and reads to the end. A reset may also be the error of the dial.
func readAnswer(t *testing.T, at string) (string, error) {
	t.Helper()
	connection, err := net.DialTimeout("tcp4", at, patience)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(patience))
	answer, err := io.ReadAll(connection)
	return string(answer), err
}

func mustDial(t *testing.T, at string) *net.TCPConn {
	t.Helper()
	connection, err := net.DialTimeout("tcp4", at, patience)
	if err != nil {
		t.Fatal(err)
	}
	_ = connection.SetDeadline(time.Now().Add(patience))
	return connection.(*net.TCPConn)
}

func TestNothingIsServedBeforeInitialList(t *testing.T) {
	t.Parallel()
	p := &testProxy{
		t: t, subnet: 1,
		Proxy: New(testOptions(1)),
	}
	defer p.Close()
	service, at := p.nodePortService()
	p.OnServiceAdd(service)
	p.OnServiceSynced()
	p.syncPorts()
	if connection, err := net.Dial("tcp4", at); err == nil {
		connection.Close()
		t.Error("a node port was opened before the endpoints were known")
	}
}

func TestClusterPolicyUsesAllReadyEndpoints(t *testing.T) {
	p := newTestProxy(t, 2)
	service, at := p.nodePortService()
	var pods []podBackend
	for i, name := range []string{"node-1", "node-2", "node-3"} {
		pods = append(pods, podBackend{p.podAddress(i), name, name != "node-3"})
		p.servePod(p.podAddress(i), 8080, answerWith(name))
	}
	p.OnServiceAdd(service)
	p.OnEndpointSliceAdd(p.endpointSlice(8080, pods...))
	p.syncPorts()

	answers := map[string]int{}
	for range 10 {
		answer, err := readAnswer(t, at)
		if err != nil {
			t.Fatal(err)
		}
		answers[answer]++
	}
	if answers["node-1"] != 5 || answers["node-2"] != 5 {
		t.Errorf("answers came from %v", answers)
	}
}

// Where a Service's status has the node's address, its port is served there, and on what is attached to the node.
func TestPortsOfTheStatusAndAttachedAddresses(t *testing.T) {
	p := newTestProxy(t, 14)
	service, at := p.nodePortService()
	service.Spec.Ports[0].Port = int32(p.freePort())
	own, attached := p.options.Address, netip.AddrFrom4([4]byte{127, testOctet, 14, 2})
	p.servePod(p.podAddress(0), 8080, answerWith("pod"))
	p.OnServiceAdd(service)
	p.OnEndpointSliceAdd(p.endpointSlice(8080, podBackend{p.podAddress(0), thisNode, true}))
	p.syncPorts()

	answers := func(address netip.Addr, port int32) bool {
		answer, _ := readAnswer(t, netip.AddrPortFrom(address, uint16(port)).String())
		return answer == "pod"
	}
	nodePort, port := service.Spec.Ports[0].NodePort, service.Spec.Ports[0].Port
	expect := func(when string, ownPort, attachedNodePort, attachedPort bool) {
		t.Helper()
		if !answers(own, nodePort) {
			t.Errorf("%s: the node port %s does not answer", when, at)
		}
		got := []bool{answers(own, port), answers(attached, nodePort), answers(attached, port)}
		if want := []bool{ownPort, attachedNodePort, attachedPort}; !slices.Equal(got, want) {
			t.Errorf("%s: its own address serves the port, the attached one the node port, and the port: %v, want %v",
				when, got, want)
		}
	}
	expect("at first", false, false, false)
	p.SetAttached([]netip.Addr{attached})
	p.syncPorts()
	expect("with an attached address", false, true, false)
	published := service.DeepCopy()
	published.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{
		{IP: attached.String(), IPMode: new(v1.LoadBalancerIPModeProxy)}, {IP: own.String()},
	}
	p.OnServiceUpdate(service, published)
	p.syncPorts()
	expect("with the node's address in the status", true, true, true)
	p.SetAttached(nil)
	p.syncPorts()
	expect("detached", true, false, false)
	p.OnServiceUpdate(published, service)
	p.syncPorts()
	expect("without a status", false, false, false)
}

func TestSourceAddressByTrafficPolicy(t *testing.T) {
	for subnet, test := range map[int]struct {
		adjust func(*v1.Service)
		want   string
	}{
		3: {func(*v1.Service) {}, testAddress("127.78.3.1")},
		4: {localPolicy, testAddress("127.78.4.77")},
	} {
		t.Run(test.want, func(t *testing.T) {
			p := newTestProxy(t, subnet)
			service, at := p.nodePortService(test.adjust)
			p.servePod(p.podAddress(0), 8080, func(c *net.TCPConn) {
				_, _ = io.WriteString(c, clientAddress(c).String())
			})
			p.OnServiceAdd(service)
			p.OnEndpointSliceAdd(p.endpointSlice(8080, podBackend{p.podAddress(0), thisNode, true}))
			p.syncPorts()

			from := &net.TCPAddr{IP: net.IPv4(127, testOctet, byte(subnet), 77)}
			connection, err := (&net.Dialer{LocalAddr: from, Timeout: patience}).Dial("tcp4", at)
			if err != nil {
				t.Fatal(err)
			}
			defer connection.Close()
			if got, _ := io.ReadAll(connection); string(got) != test.want {
				t.Errorf("the endpoint saw %s, want %s", got, test.want)
			}
		})
	}
}

func TestLocalPolicyWithoutEndpointResets(t *testing.T) {
	p := newTestProxy(t, 5)
	service, at := p.nodePortService(localPolicy)
	p.servePod(p.podAddress(0), 8080, answerWith("elsewhere"))
	p.servePod(p.podAddress(1), 8080, answerWith("here"))
	p.OnServiceAdd(service)
	slice := p.endpointSlice(8080, podBackend{p.podAddress(0), "node-2", true})
	p.OnEndpointSliceAdd(slice)
	p.syncPorts()
	if answer, err := readAnswer(t, at); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %q, %v; want a reset", answer, err)
	}

	p.OnEndpointSliceUpdate(
		slice,
		p.endpointSlice(8080, podBackend{p.podAddress(0), "node-2", true}, podBackend{p.podAddress(1), thisNode, true}),
	)
	p.syncPorts()
	for range 3 {
		if answer, err := readAnswer(t, at); answer != "here" || err != nil {
			t.Errorf("got %q, %v", answer, err)
		}
	}
}

func TestRefusingEndpointIsSkipped(t *testing.T) {
	p := newTestProxy(t, 6)
	service, at := p.nodePortService()
	p.servePod(p.podAddress(1), 8080, answerWith("alive"))
	p.OnServiceAdd(service)
	p.OnEndpointSliceAdd(
		p.endpointSlice(8080, podBackend{p.podAddress(0), thisNode, true}, podBackend{p.podAddress(1), thisNode, true}),
	)
	p.syncPorts()
	for range 4 {
		if answer, err := readAnswer(t, at); answer != "alive" || err != nil {
			t.Errorf("got %q, %v", answer, err)
		}
	}
}

func TestHalfCloseIsPassedOn(t *testing.T) {
	p := newTestProxy(t, 7)
	service, at := p.nodePortService()
	p.servePod(p.podAddress(0), 8080, func(c *net.TCPConn) {
		all, _ := io.ReadAll(c) // ends only if the end of the request is passed on
		_, _ = fmt.Fprintf(c, "%d bytes", len(all))
	})
	p.OnServiceAdd(service)
	p.OnEndpointSliceAdd(p.endpointSlice(8080, podBackend{p.podAddress(0), thisNode, true}))
	p.syncPorts()

	connection := mustDial(t, at)
	defer connection.Close()
	if _, err := io.WriteString(connection, strings.Repeat("x", 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := connection.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(connection); string(answer) != "1048576 bytes" || err != nil {
		t.Errorf("got %q, %v", answer, err)
	}
}

func TestSessionAffinityOfConnections(t *testing.T) {
	p := newTestProxy(t, 8)
	service, at := p.nodePortService(clientIPAffinity)
	p.servePod(p.podAddress(0), 8080, answerWith("first"))
	p.servePod(p.podAddress(1), 8080, answerWith("second"))
	p.OnServiceAdd(service)
	p.OnEndpointSliceAdd(
		p.endpointSlice(8080, podBackend{p.podAddress(0), thisNode, true}, podBackend{p.podAddress(1), thisNode, true}),
	)
	p.syncPorts()
	want, err := readAnswer(t, at)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if got, _ := readAnswer(t, at); got != want {
			t.Errorf("moved from %s to %s", want, got)
		}
	}
}

func TestDeletedServiceClosesPortAndConnections(t *testing.T) {
	p := newTestProxy(t, 9)
	service, at := p.nodePortService()
	p.servePod(p.podAddress(0), 8080, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "x")
		_, _ = io.Copy(io.Discard, c)
	})
	p.OnServiceAdd(service)
	p.OnEndpointSliceAdd(p.endpointSlice(8080, podBackend{p.podAddress(0), thisNode, true}))
	p.syncPorts()
	open := mustDial(t, at)
	defer open.Close()
	if _, err := open.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	p.OnServiceDelete(service)
	p.syncPorts()
	if _, err := open.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the open connection: %v", err)
	}
	listener, err := net.Listen("tcp4", at)
	if err != nil {
		t.Fatalf("the port is still taken: %v", err)
	}
	listener.Close()
}

func TestFailedBindIsRetried(t *testing.T) {
	p := newTestProxy(t, 10)
	service, at := p.nodePortService()
	p.servePod(p.podAddress(0), 8080, answerWith("hello"))
	taken, err := net.Listen("tcp4", at)
	if err != nil {
		t.Fatal(err)
	}
	p.OnServiceAdd(service)
	p.OnEndpointSliceAdd(p.endpointSlice(8080, podBackend{p.podAddress(0), thisNode, true}))
	p.syncPorts()
	if !p.shouldRetry() {
		t.Error("a failed bind is not going to be tried again")
	}
	taken.Close()
	p.syncPorts()
	if answer, err := readAnswer(t, at); answer != "hello" || err != nil {
		t.Errorf("got %q, %v", answer, err)
	}
	if p.shouldRetry() {
		t.Error("there is nothing left to try again")
	}
}

func TestSCTPIsNotServed(t *testing.T) {
	p := newTestProxy(t, 11)
	service, at := p.nodePortService(func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolSCTP })
	p.OnServiceAdd(service)
	p.syncPorts()
	if len(p.unservedPorts) != 1 || p.shouldRetry() {
		t.Errorf("unserved %v, retry %v", p.unservedPorts, p.shouldRetry())
	}
	if connection, err := net.Dial("tcp4", at); err == nil {
		connection.Close()
		t.Error("TCP is served on an SCTP node port")
	}
}

func TestHealthCheckNodePortCountsLocalEndpoints(t *testing.T) {
	p := newTestProxy(t, 12)
	health := p.freePort()
	service, _ := p.nodePortService(localPolicy, func(s *v1.Service) { s.Spec.HealthCheckNodePort = int32(health) })
	p.OnServiceAdd(service)
	p.syncPorts()
	url := fmt.Sprintf("http://%s:%d/", p.options.Address, health)
	expectHealth(t, url, http.StatusServiceUnavailable, 0)

	p.OnEndpointSliceAdd(p.endpointSlice(8080, podBackend{
		p.podAddress(0), thisNode, true,
	}, podBackend{p.podAddress(1), "node-2", true},
		podBackend{p.podAddress(2), thisNode, false}))
	p.syncPorts()
	expectHealth(t, url, http.StatusOK, 1)
}

func expectHealth(t *testing.T, url string, status, endpoints int) {
	t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	want := upstreamHealthBody(types.NamespacedName{Namespace: "default", Name: "web"}, endpoints)
	if response.StatusCode != status || string(body) != want {
		t.Errorf("got %d %s\nwant %d %s", response.StatusCode, body, status, want)
	}
	for header, value := range map[string]string{
		"Content-Type":                     "application/json",
		"X-Content-Type-Options":           "nosniff",
		"X-Load-Balancing-Endpoint-Weight": fmt.Sprint(endpoints),
	} {
		if got := response.Header.Get(header); got != value {
			t.Errorf("%s: %q, want %q", header, got, value)
		}
	}
}

// upstreamHealthBody is what a kube-proxy of the pinned version answers, byte for
// byte (pkg/proxy/healthcheck/service_health.go).
func upstreamHealthBody(name types.NamespacedName, endpoints int) string {
	return "{\n\t\"service\": {\n\t\t\"namespace\": \"" + name.Namespace + "\",\n\t\t\"name\": \"" + name.Name +
		"\"\n\t},\n\t\"localEndpoints\": " + fmt.Sprint(endpoints) + ",\n\t\"serviceProxyHealthy\": true\n}"
}
