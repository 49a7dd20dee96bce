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
	if err != nil {
		p.t.Fatal(err)
	}
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

// dialUDPFrom returns a client's socket, which takes replies from the node port only.
func (p *testProxy) dialUDPFrom(host byte, at string) *net.UDPConn {
	p.t.Helper()
	to := netip.MustParseAddrPort(at)
	from := net.UDPAddr{IP: net.IPv4(127, testOctet, byte(p.subnet), host)}
	socket, err := net.DialUDP("udp4", &from, net.UDPAddrFromAddrPort(to))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { socket.Close() })
	_ = socket.SetDeadline(time.Now().Add(patience))
	return socket
}

// exchangeDatagram sends a datagram to a serveUDP, and returns the parts of its reply.
func exchangeDatagram(t *testing.T, client *net.UDPConn, text string) (pod, saw, echoed string) {
	t.Helper()
	if _, err := client.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, maxDatagram)
	n, err := client.Read(answer)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.SplitN(string(answer[:n]), "|", 3)
	if len(parts) != 3 {
		t.Fatalf("the answer is %q", answer[:n])
	}
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
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s", what)
		}
	}
}

func TestFlowKeepsItsEndpoint(t *testing.T) {
	p := newTestProxy(t, 40)
	service, at := p.nodePortService(overUDP)
	p.OnServiceAdd(service)
	p.serveUDP(p.podAddress(0), 5353, "pod-0")
	p.serveUDP(p.podAddress(1), 5353, "pod-1")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode), p.readyEndpoint(1, "node-2"))
	first, second := p.dialUDPFrom(77, at), p.dialUDPFrom(77, at)
	want, _, _ := exchangeDatagram(t, first, "hello")
	if other, _, _ := exchangeDatagram(t, second, "hello"); other == want {
		t.Errorf("%s got both clients", other)
	}
	for _, text := range []string{"", "x", strings.Repeat("x", 60000)} {
		pod, saw, echoed := exchangeDatagram(t, first, text)
		if pod != want || echoed != text || saw != p.options.Address.String() {
			t.Errorf(
				"%d bytes came back from %s, which saw %s; want %d from %s, which sees the node", len(echoed), pod, saw,
				len(text), want,
			)
		}
	}
	if n := p.openUDPPort().flowCount(); n != 2 {
		t.Errorf("%d flows of two clients", n)
	}
}

func TestFlowEndsWithItsEndpoint(t *testing.T) {
	p := newTestProxy(t, 41)
	service, at := p.nodePortService(overUDP)
	p.OnServiceAdd(service)
	p.serveUDP(p.podAddress(0), 5353, "pod-0")
	p.serveUDP(p.podAddress(1), 5353, "pod-1")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode))
	client := p.dialUDPFrom(77, at)
	expect := func(want, when string) {
		t.Helper()
		if pod, _, _ := exchangeDatagram(t, client, "hello"); pod != want {
			t.Errorf("%s: %s answered, want %s", when, pod, want)
		}
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
	if n := p.openUDPPort().flowCount(); n != 0 {
		t.Errorf("%d flows without an endpoint", n)
	}
}

func TestDeletedServiceEndsFlows(t *testing.T) {
	p := newTestProxy(t, 42)
	service, at := p.nodePortService(overUDP)
	p.OnServiceAdd(service)
	p.serveUDP(p.podAddress(0), 5353, "pod-0")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode))
	client := p.dialUDPFrom(77, at)
	exchangeDatagram(t, client, "hello")
	port := p.openUDPPort()
	p.OnServiceDelete(service)
	p.syncPorts()
	if n := port.flowCount(); n != 0 {
		t.Errorf("%d flows are left", n)
	}
	_, err := client.Write([]byte("hello"))
	if err == nil {
		_, err = client.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a datagram to a port that is none any more: %v", err)
	}
}

func TestIdlestFlowIsEvicted(t *testing.T) {
	p := newTestProxy(t, 43)
	p.limits.flows = 2
	service, at := p.nodePortService(overUDP)
	p.OnServiceAdd(service)
	p.serveUDP(p.podAddress(0), 5353, "pod-0")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode))
	clients := []*net.UDPConn{p.dialUDPFrom(77, at), p.dialUDPFrom(78, at), p.dialUDPFrom(79, at)}
	for range 3 {
		for i, client := range clients {
			text := fmt.Sprint("from ", i)
			if _, _, echoed := exchangeDatagram(t, client, text); echoed != text {
				t.Errorf("client %d got %q", i, echoed)
			}
			if n := p.openUDPPort().flowCount(); n > 2 {
				t.Errorf("%d flows", n)
			}
		}
	}
	u := p.openUDPPort()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.flows[clients[0].LocalAddr().(*net.UDPAddr).AddrPort()] != nil {
		t.Error("who had been silent longest was not the one to go")
	}
}

func TestIdleFlowExpires(t *testing.T) {
	p := newTestProxy(t, 44)
	p.limits.unreplied = 50 * time.Millisecond
	service, at := p.nodePortService(overUDP)
	p.OnServiceAdd(service)
	p.serveUDP(p.podAddress(0), 5353, "")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode))
	if _, err := p.dialUDPFrom(77, at).Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
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
	service, at := p.nodePortService(overUDP)
	p.OnServiceAdd(service)
	p.serveUDP(p.podAddress(0), 5353, "pod-0")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode))
	client := p.dialUDPFrom(77, at)
	exchangeDatagram(t, client, "hello")
	port := p.openUDPPort()
	port.mu.Lock()
	f := port.flows[client.LocalAddr().(*net.UDPAddr).AddrPort()]
	port.mu.Unlock()
	if f == nil || time.Until(port.flowExpiry(f)) < 30*time.Minute {
		t.Error("an answer does not keep a flow")
	}
}

func TestRefusedDatagramEndsItsFlow(t *testing.T) {
	p := newTestProxy(t, 45)
	service, at := p.nodePortService(overUDP)
	p.OnServiceAdd(service)
	p.serveUDP(p.podAddress(1), 5353, "pod-1")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode), p.readyEndpoint(1, thisNode))
	client := p.dialUDPFrom(77, at)
	var err error
	for range 10 { // A datagram that nobody takes is lost, and its sender sends it again.
		if _, err = client.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		_ = client.SetReadDeadline(time.Now().Add(time.Second))
		if _, err = client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	if err != nil {
		t.Errorf("the endpoint that is there was not found: %v", err)
	}
}

func TestLocalPolicyOfDatagrams(t *testing.T) {
	p := newTestProxy(t, 46)
	service, at := p.nodePortService(overUDP, localPolicy)
	p.OnServiceAdd(service)
	p.serveUDP(p.podAddress(0), 5353, "here")
	p.serveUDP(p.podAddress(1), 5353, "there")
	p.setEndpoints(onlyUDP, p.readyEndpoint(1, "node-2"))
	// Dropped: the port is there and takes it, and that is all.
	if _, err := p.openUDPPort().flowFor(netip.MustParseAddrPort("127.0.0.1:1")); !errors.Is(err, errNoEndpoints) {
		t.Errorf("without an endpoint here: %v", err)
	}
	client := p.dialUDPFrom(77, at)
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode), p.readyEndpoint(1, "node-2"))
	pod, saw, _ := exchangeDatagram(t, client, "hello")
	if want := client.LocalAddr().(*net.UDPAddr).IP.String(); pod != "here" || saw != want {
		t.Errorf("%s answered, and saw %s; want here, and %s", pod, saw, want)
	}
}

func TestSessionAffinityOfFlows(t *testing.T) {
	p := newTestProxy(t, 47)
	service, at := p.nodePortService(overUDP, clientIPAffinity)
	p.OnServiceAdd(service)
	p.serveUDP(p.podAddress(0), 5353, "pod-0")
	p.serveUDP(p.podAddress(1), 5353, "pod-1")
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode), p.readyEndpoint(1, thisNode))
	want, _, _ := exchangeDatagram(t, p.dialUDPFrom(77, at), "hello")
	other, _, _ := exchangeDatagram(t, p.dialUDPFrom(78, at), "hello")
	if other == want {
		t.Errorf("%s got both clients", other)
	}
	for range 3 {
		if got, _, _ := exchangeDatagram(t, p.dialUDPFrom(77, at), "hello"); got != want {
			t.Errorf("a new flow of a client went to %s, want %s", got, want)
		}
	}
	p.setEndpoints(onlyUDP, p.readyEndpoint(0, thisNode, terminatingAndServing), p.readyEndpoint(1, thisNode))
	if got, _, _ := exchangeDatagram(t, p.dialUDPFrom(79, at), "hello"); got != "pod-1" {
		t.Errorf("a new client went to %s, which ends", got)
	}
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
	if got := fourAnswers(t, at); got != "map[connected:4]" {
		t.Error(got)
	}
	client := p.dialUDPFrom(77, at)
	exchangeDatagram(t, client, "hello")

	without := service.DeepCopy()
	without.Spec.Ports = without.Spec.Ports[1:]
	p.OnServiceUpdate(service, without)
	p.syncPorts()
	if _, err := readAnswer(t, at); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the port of TCP, which has gone: %v", err)
	}
	exchangeDatagram(t, client, "still there")
}
