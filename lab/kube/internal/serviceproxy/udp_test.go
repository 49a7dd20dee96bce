package serviceproxy

import (
	"errors"
	"fmt"
	"net"
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
	"k8s.io/apimachinery/pkg/util/intstr"
)

var onlyUDP = []discovery.EndpointPort{slicePort("", v1.ProtocolUDP, 5353)}

func overUDP(service *v1.Service) { service.Spec.Ports[0].Protocol = v1.ProtocolUDP }

// serveUDP replies with a pod's name, the source address that it saw, and the datagram. Without
// a name it does not reply.
func (p *testProxy) serveUDP(pod string, number int32, name string) {
	p.t.Helper()
	socket, err := net.ListenPacket("udp4", fmt.Sprintf("127%s:%d", strings.TrimPrefix(pod, "10"), number))
	require.NoError(p.t, err)
	p.t.Cleanup(func() { socket.Close() })
	go func() {
		datagram := make([]byte, maxDatagram)
		for {
			n, from, err := socket.ReadFrom(datagram)
			if err != nil {
				return
			}
			if name != "" {
				saw := from.(*net.UDPAddr).IP
				_, _ = socket.WriteTo(fmt.Appendf(nil, "%s|%s|%s", name, saw, datagram[:n]), from)
			}
		}
	}()
}

// serveServiceOverUDP adds a Service. Pods 0 and 1 answer with their names, and pod 0 is its endpoint.
func (p *testProxy) serveServiceOverUDP(adjust ...func(*v1.Service)) (*v1.Service, string) {
	p.t.Helper()
	service, at := p.nodePortService(append(adjust, overUDP)...)
	p.OnServiceAdd(service)
	p.serveUDP(p.podAddress(0), 5353, "pod-0")
	p.serveUDP(p.podAddress(1), 5353, "pod-1")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode))
	return service, at
}

// dialUDPFrom returns a client's socket, which takes replies from the node port only.
func (p *testProxy) dialUDPFrom(host byte, at string) *net.UDPConn {
	p.t.Helper()
	to := netip.MustParseAddrPort(at)
	from := net.UDPAddr{IP: net.IPv4(127, testOctet, byte(p.subnet), host)}
	socket, err := net.DialUDP("udp4", &from, net.UDPAddrFromAddrPort(to))
	require.NoError(p.t, err)
	p.t.Cleanup(func() { socket.Close() })
	_ = socket.SetDeadline(time.Now().Add(patience))
	return socket
}

// exchangeDatagram sends a datagram to a serveUDP, and returns the parts of its reply.
func exchangeDatagram(t *testing.T, client *net.UDPConn, text string) (pod, saw, echoed string) {
	t.Helper()
	_, err := client.Write([]byte(text))
	require.NoError(t, err)
	answer := make([]byte, maxDatagram)
	n, err := client.Read(answer)
	require.NoError(t, err)
	parts := strings.SplitN(string(answer[:n]), "|", 3)
	require.Len(t, parts, 3)
	return parts[0], parts[1], parts[2]
}

// openUDPPort returns the node port that is open.
func (p *testProxy) openUDPPort() *udpPort {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, port := range p.nodePorts {
		return port.forwarder.(*udpPort)
	}
	p.t.Fatal("no node port is open")
	return nil
}

func (u *udpPort) flowCount() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.flows)
}

func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, time.Millisecond, what)
}

func TestFlowKeepsItsEndpoint(t *testing.T) {
	p := newTestProxy(t, 40)
	_, at := p.serveServiceOverUDP()
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode), p.readyEndpoint(1, "node-2"))
	first, second := p.dialUDPFrom(77, at), p.dialUDPFrom(77, at)
	want, _, _ := exchangeDatagram(t, first, "hello")
	other, _, _ := exchangeDatagram(t, second, "hello")
	assert.NotEqual(t, want, other, "of two clients")
	for _, text := range []string{"", "x", strings.Repeat("x", 60000)} {
		pod, saw, echoed := exchangeDatagram(t, first, text)
		assert.Equal(t, want, pod)
		assert.Equal(t, p.options.Address.String(), saw)
		assert.True(t, echoed == text, "%d bytes came back, want %d", len(echoed), len(text))
	}
	assert.Equal(t, 2, p.openUDPPort().flowCount())
}

func TestFlowEndsWithItsEndpoint(t *testing.T) {
	p := newTestProxy(t, 41)
	_, at := p.serveServiceOverUDP()
	client := p.dialUDPFrom(77, at)
	expect := func(want, when string) {
		t.Helper()
		pod, _, _ := exchangeDatagram(t, client, "hello")
		assert.Equal(t, want, pod, when)
	}
	expect("pod-0", "at first")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode), p.readyEndpoint(1, thisNode))
	expect("pod-0", "there is another")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode, terminatingAndServing), p.readyEndpoint(1, thisNode))
	expect("pod-0", "it ends, but serves")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode, terminatingNotServing), p.readyEndpoint(1, thisNode))
	expect("pod-1", "it serves no longer")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode))
	expect("pod-0", "the other has gone")
	p.setEndpoints(onlyUDP)
	assert.Zero(t, p.openUDPPort().flowCount(), "without an endpoint")
}

func TestDeletedServiceEndsFlows(t *testing.T) {
	p := newTestProxy(t, 42)
	service, at := p.serveServiceOverUDP()
	client := p.dialUDPFrom(77, at)
	exchangeDatagram(t, client, "hello")
	port := p.openUDPPort()
	p.OnServiceDelete(service)
	p.syncPorts()
	assert.Zero(t, port.flowCount())
	_, err := client.Write([]byte("hello"))
	if err == nil {
		_, err = client.Read(make([]byte, 1))
	}
	assert.ErrorIs(t, err, syscall.ECONNREFUSED, "a datagram to a port that is none any more")
}

func TestIdlestFlowIsEvicted(t *testing.T) {
	p := newTestProxy(t, 43)
	p.limits.flows = 2
	_, at := p.serveServiceOverUDP()
	clients := []*net.UDPConn{p.dialUDPFrom(77, at), p.dialUDPFrom(78, at), p.dialUDPFrom(79, at)}
	for range 3 {
		for i, client := range clients {
			text := fmt.Sprint("from ", i)
			_, _, echoed := exchangeDatagram(t, client, text)
			assert.Equal(t, text, echoed)
			assert.LessOrEqual(t, p.openUDPPort().flowCount(), 2)
		}
	}
	u := p.openUDPPort()
	u.mu.Lock()
	defer u.mu.Unlock()
	longestSilent := clients[0].LocalAddr().(*net.UDPAddr).AddrPort()
	assert.Nil(t, u.flows[longestSilent])
}

func TestIdleFlowExpires(t *testing.T) {
	p := newTestProxy(t, 44)
	p.limits.unreplied = 50 * time.Millisecond
	service, at := p.nodePortService(overUDP)
	p.OnServiceAdd(service)
	p.serveUDP(p.podAddress(0), 5353, "")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode))
	_, err := p.dialUDPFrom(77, at).Write([]byte("hello"))
	require.NoError(t, err)
	port := p.openUDPPort()
	received := func() bool { // The turn is taken with the flow, and stays taken.
		port.mu.Lock()
		defer port.mu.Unlock()
		return port.picker.nextIndex == 1
	}
	waitUntil(t, "the flow", received)
	waitUntil(t, "the end of a flow without an answer", func() bool { return port.flowCount() == 0 })
}

func TestReplyExtendsFlow(t *testing.T) {
	p := newTestProxy(t, 49)
	p.limits.assured = time.Hour
	_, at := p.serveServiceOverUDP()
	client := p.dialUDPFrom(77, at)
	exchangeDatagram(t, client, "hello")
	port := p.openUDPPort()
	port.mu.Lock()
	f := port.flows[client.LocalAddr().(*net.UDPAddr).AddrPort()]
	port.mu.Unlock()
	require.NotNil(t, f)
	assert.Greater(t, time.Until(port.flowExpiry(f)), 30*time.Minute)
}

func TestRefusedDatagramEndsItsFlow(t *testing.T) {
	p := newTestProxy(t, 45)
	_, at := p.serveServiceOverUDP()
	p.setEndpoints(onlyUDP, p.readyEndpoint(2, thisNode), p.readyEndpoint(1, thisNode))
	client := p.dialUDPFrom(77, at)
	var err error
	for range 10 { // A datagram that nobody takes is lost, and its sender sends it again.
		_, err = client.Write([]byte("hello"))
		require.NoError(t, err)
		_ = client.SetReadDeadline(time.Now().Add(time.Second))
		if _, err = client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	assert.NoError(t, err, "the endpoint that is there was not found")
}

func TestLocalPolicyOfDatagrams(t *testing.T) {
	p := newTestProxy(t, 46)
	_, at := p.serveServiceOverUDP(localPolicy)
	p.setEndpoints(onlyUDP, p.readyEndpoint(1, "node-2"))
	// Dropped: the port is there and takes it, and that is all.
	_, err := p.openUDPPort().flowFor(netip.MustParseAddrPort("127.0.0.1:1"))
	require.ErrorIs(t, err, errNoEndpoints)
	client := p.dialUDPFrom(77, at)
	_, err = client.Write([]byte("hello"))
	require.NoError(t, err)
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode), p.readyEndpoint(1, "node-2"))
	pod, saw, _ := exchangeDatagram(t, client, "hello")
	assert.Equal(t, "pod-0", pod)
	assert.Equal(t, client.LocalAddr().(*net.UDPAddr).IP.String(), saw)
}

func TestSessionAffinityOfFlows(t *testing.T) {
	p := newTestProxy(t, 47)
	_, at := p.serveServiceOverUDP(clientIPAffinity)
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode), p.readyEndpoint(1, thisNode))
	podFor := func(host byte) string {
		pod, _, _ := exchangeDatagram(t, p.dialUDPFrom(host, at), "hello")
		return pod
	}
	want := podFor(77)
	assert.NotEqual(t, want, podFor(78), "of two clients")
	for range 3 {
		assert.Equal(t, want, podFor(77), "a new flow of a client")
	}
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode, terminatingAndServing), p.readyEndpoint(1, thisNode))
	assert.Equal(t, "pod-1", podFor(79), "pod-0 ends")
}

func TestTCPAndUDPShareNodePortNumber(t *testing.T) {
	p := newTestProxy(t, 48)
	service, at := p.nodePortService(func(s *v1.Service) {
		s.Spec.Ports[0].Name = "tcp"
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{
			Name: "udp", Port: 80, Protocol: v1.ProtocolUDP, NodePort: s.Spec.Ports[0].NodePort,
			TargetPort: intstr.FromInt32(5353),
		})
	})
	p.OnServiceAdd(service)
	p.servePod(p.podAddress(0), 8080, answerWith("connected"))
	p.serveUDP(p.podAddress(0), 5353, "pod-0")
	p.setEndpoints(
		[]discovery.EndpointPort{slicePort("tcp", v1.ProtocolTCP, 8080), slicePort("udp", v1.ProtocolUDP, 5353)},
		p.readyEndpoint(0, thisNode),
	)
	assert.Equal(t, "map[connected:4]", fourAnswers(t, at))
	client := p.dialUDPFrom(77, at)
	exchangeDatagram(t, client, "hello")

	p.update(service, func(s *v1.Service) { s.Spec.Ports = s.Spec.Ports[1:] })
	expectClosed(t, at)
	exchangeDatagram(t, client, "still there")
}
