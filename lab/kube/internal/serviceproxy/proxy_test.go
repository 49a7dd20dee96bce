package serviceproxy

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	require.NoError(p.t, err)
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
	return service, p.at(number)
}

// at is a port on the proxy's address.
func (p *testProxy) at(port uint16) string { return fmt.Sprintf("%s:%d", p.options.Address, port) }

// serveService adds a Service with a node port and these endpoints, and returns it and where it is served.
func (p *testProxy) serveService(adjust func(*v1.Service), endpoints ...discovery.Endpoint) (*v1.Service, string) {
	service, at := p.nodePortService(adjust)
	p.OnServiceAdd(service)
	p.setEndpoints([]discovery.EndpointPort{slicePort("", service.Spec.Ports[0].Protocol, 8080)}, endpoints...)
	return service, at
}

// update replaces a Service by a changed copy, and syncs.
func (p *testProxy) update(service *v1.Service, change func(*v1.Service)) *v1.Service {
	changed := service.DeepCopy()
	change(changed)
	p.OnServiceUpdate(service, changed)
	p.syncPorts()
	return changed
}

func clusterPolicy(service *v1.Service) {
	service.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster
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

// servePod accepts on the loopback address of a pod until the test ends.
func (p *testProxy) servePod(pod string, number int32, handle func(*net.TCPConn)) {
	p.t.Helper()
	listener, err := net.Listen("tcp4", fmt.Sprintf("127%s:%d", strings.TrimPrefix(pod, "10"), number))
	require.NoError(p.t, err)
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

// expectClosed requires that nobody listens.
func expectClosed(t *testing.T, at string) {
	t.Helper()
	_, err := readAnswer(t, at)
	assert.ErrorIs(t, err, syscall.ECONNREFUSED, at)
}

func expectFree(t *testing.T, at string) {
	t.Helper()
	listener, err := net.Listen("tcp4", at)
	require.NoError(t, err)
	listener.Close()
}

func mustDial(t *testing.T, at string) *net.TCPConn {
	t.Helper()
	connection, err := net.DialTimeout("tcp4", at, patience)
	require.NoError(t, err)
	_ = connection.SetDeadline(time.Now().Add(patience))
	return connection.(*net.TCPConn)
}

func TestNothingIsServedBeforeInitialList(t *testing.T) {
	t.Parallel()
	p := &testProxy{t: t, subnet: 1, Proxy: New(testOptions(1))}
	defer p.Close()
	service, at := p.nodePortService()
	p.OnServiceAdd(service)
	p.OnServiceSynced()
	p.syncPorts()
	expectClosed(t, at)
}

func TestClusterPolicyUsesAllReadyEndpoints(t *testing.T) {
	p := newTestProxy(t, 2)
	for i, name := range []string{"node-1", "node-2", "node-3"} {
		p.servePod(p.podAddress(i), 8080, answerWith(name))
	}
	_, at := p.serveService(clusterPolicy, p.readyEndpoint(0, "node-1"), p.readyEndpoint(1, "node-2"),
		p.readyEndpoint(2, "node-3", notReady))
	assert.Equal(t, "map[node-1:2 node-2:2]", fourAnswers(t, at))
}

// Where a Service's status has the node's address, its port is served there, and on what is attached to the node.
func TestPortsOfTheStatusAndAttachedAddresses(t *testing.T) {
	p := newTestProxy(t, 14)
	own, attached := p.options.Address, netip.AddrFrom4([4]byte{127, testOctet, 14, 2})
	p.servePod(p.podAddress(0), 8080, answerWith("pod"))
	service, at := p.serveService(func(s *v1.Service) { s.Spec.Ports[0].Port = int32(p.freePort()) },
		p.readyEndpoint(0, thisNode))
	answers := func(address netip.Addr, port int32) bool {
		answer, _ := readAnswer(t, netip.AddrPortFrom(address, uint16(port)).String())
		return answer == "pod"
	}
	nodePort, port := service.Spec.Ports[0].NodePort, service.Spec.Ports[0].Port
	expect := func(when string, ownPort, attachedNodePort, attachedPort bool) {
		t.Helper()
		assert.True(t, answers(own, nodePort), "%s: the node port %s", when, at)
		assert.Equal(t, ownPort, answers(own, port), "%s: the port on its own address", when)
		assert.Equal(t, attachedNodePort, answers(attached, nodePort), "%s: the node port on the attached one", when)
		assert.Equal(t, attachedPort, answers(attached, port), "%s: the port on the attached one", when)
	}
	expect("at first", false, false, false)
	p.SetAttached([]netip.Addr{attached})
	p.syncPorts()
	expect("with an attached address", false, true, false)
	published := p.update(service, func(s *v1.Service) {
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{
			{IP: attached.String(), IPMode: new(v1.LoadBalancerIPModeProxy)}, {IP: own.String()},
		}
	})
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
		3: {clusterPolicy, testAddress("127.78.3.1")},
		4: {localPolicy, testAddress("127.78.4.77")},
	} {
		t.Run(test.want, func(t *testing.T) {
			p := newTestProxy(t, subnet)
			p.servePod(p.podAddress(0), 8080, func(c *net.TCPConn) { _, _ = io.WriteString(c, clientAddress(c).String()) })
			_, at := p.serveService(test.adjust, p.readyEndpoint(0, thisNode))
			from := &net.TCPAddr{IP: net.IPv4(127, testOctet, byte(subnet), 77)}
			connection, err := (&net.Dialer{LocalAddr: from, Timeout: patience}).Dial("tcp4", at)
			require.NoError(t, err)
			defer connection.Close()
			got, _ := io.ReadAll(connection)
			assert.Equal(t, test.want, string(got), "what the endpoint saw")
		})
	}
}

func TestLocalPolicyWithoutEndpointResets(t *testing.T) {
	p := newTestProxy(t, 5)
	p.servePod(p.podAddress(0), 8080, answerWith("elsewhere"))
	p.servePod(p.podAddress(1), 8080, answerWith("here"))
	_, at := p.serveService(localPolicy, p.readyEndpoint(0, "node-2"))
	assert.Equal(t, "map[reset:4]", fourAnswers(t, at))
	before, after := p.endpointSlice(), p.endpointSlice()
	after.Ports = onlyTCP
	after.Endpoints = []discovery.Endpoint{p.readyEndpoint(0, "node-2"), p.readyEndpoint(1, thisNode)}
	p.OnEndpointSliceUpdate(before, after)
	p.syncPorts()
	assert.Equal(t, "map[here:4]", fourAnswers(t, at))
}

func TestRefusingEndpointIsSkipped(t *testing.T) {
	p := newTestProxy(t, 6)
	p.servePod(p.podAddress(1), 8080, answerWith("alive"))
	_, at := p.serveService(clusterPolicy, p.readyEndpoint(0, thisNode), p.readyEndpoint(1, thisNode))
	assert.Equal(t, "map[alive:4]", fourAnswers(t, at))
}

func TestHalfCloseIsPassedOn(t *testing.T) {
	p := newTestProxy(t, 7)
	p.servePod(p.podAddress(0), 8080, func(c *net.TCPConn) {
		all, _ := io.ReadAll(c) // ends only if the end of the request is passed on
		_, _ = fmt.Fprintf(c, "%d bytes", len(all))
	})
	_, at := p.serveService(clusterPolicy, p.readyEndpoint(0, thisNode))
	connection := mustDial(t, at)
	defer connection.Close()
	_, err := io.WriteString(connection, strings.Repeat("x", 1<<20))
	require.NoError(t, err)
	require.NoError(t, connection.CloseWrite())
	answer, err := io.ReadAll(connection)
	require.NoError(t, err)
	assert.Equal(t, "1048576 bytes", string(answer))
}

func TestSessionAffinityOfConnections(t *testing.T) {
	p := newTestProxy(t, 8)
	p.servePod(p.podAddress(0), 8080, answerWith("first"))
	p.servePod(p.podAddress(1), 8080, answerWith("second"))
	_, at := p.serveService(clientIPAffinity, p.readyEndpoint(0, thisNode), p.readyEndpoint(1, thisNode))
	want, err := readAnswer(t, at)
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("map[%s:4]", want), fourAnswers(t, at))
}

func TestDeletedServiceClosesPortAndConnections(t *testing.T) {
	p := newTestProxy(t, 9)
	p.servePod(p.podAddress(0), 8080, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "x")
		_, _ = io.Copy(io.Discard, c)
	})
	service, at := p.serveService(clusterPolicy, p.readyEndpoint(0, thisNode))
	open := mustDial(t, at)
	defer open.Close()
	_, err := open.Read(make([]byte, 1))
	require.NoError(t, err)

	p.OnServiceDelete(service)
	p.syncPorts()
	_, err = open.Read(make([]byte, 1))
	require.Error(t, err)
	assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the open connection")
	expectFree(t, at)
}

func TestFailedBindIsRetried(t *testing.T) {
	p := newTestProxy(t, 10)
	service, at := p.nodePortService()
	p.servePod(p.podAddress(0), 8080, answerWith("hello"))
	taken, err := net.Listen("tcp4", at)
	require.NoError(t, err)
	p.OnServiceAdd(service)
	p.setEndpoints(onlyTCP, p.readyEndpoint(0, thisNode))
	assert.True(t, p.shouldRetry(), "the bind failed")
	taken.Close()
	p.syncPorts()
	assert.Equal(t, "map[hello:4]", fourAnswers(t, at))
	assert.False(t, p.shouldRetry(), "nothing is left")
}

func TestSCTPIsNotServed(t *testing.T) {
	p := newTestProxy(t, 11)
	_, at := p.serveService(func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolSCTP })
	assert.Len(t, p.unservedPorts, 1)
	assert.False(t, p.shouldRetry())
	expectClosed(t, at)
}

func TestHealthCheckNodePortCountsLocalEndpoints(t *testing.T) {
	p := newTestProxy(t, 12)
	health := p.freePort()
	p.serveService(localWithHealth(health))
	p.expectHealth(health, http.StatusServiceUnavailable, 0)
	p.setEndpoints(onlyTCP, p.readyEndpoint(0, thisNode), p.readyEndpoint(1, "node-2"),
		p.readyEndpoint(2, thisNode, notReady))
	p.expectHealth(health, http.StatusOK, 1)
}

func localWithHealth(port uint16) func(*v1.Service) {
	return func(s *v1.Service) {
		localPolicy(s)
		s.Spec.HealthCheckNodePort = int32(port)
	}
}

// expectHealth requires what a kube-proxy of the pinned version answers, byte for byte
// (pkg/proxy/healthcheck/service_health.go).
func (p *testProxy) expectHealth(port uint16, status, endpoints int) {
	p.t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(fmt.Sprintf("http://%s:%d/", p.options.Address, port))
	require.NoError(p.t, err)
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	assert.Equal(p.t, status, response.StatusCode)
	assert.Equal(p.t, "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\t"+
		fmt.Sprintf("\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": true\n}", endpoints), string(body))
	assert.Equal(p.t, "application/json", response.Header.Get("Content-Type"))
	assert.Equal(p.t, "nosniff", response.Header.Get("X-Content-Type-Options"))
	assert.Equal(p.t, fmt.Sprint(endpoints), response.Header.Get("X-Load-Balancing-Endpoint-Weight"))
}
