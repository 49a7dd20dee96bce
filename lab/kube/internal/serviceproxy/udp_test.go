package serviceproxy

// Datagrams through node ports: to whom they go, whom the answers come from, and
// when a flow ends.

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

func udp(service *v1.Service) { service.Spec.Ports[0].Protocol = v1.ProtocolUDP }

// serveUDP answers with a pod's name, whom it saw, and what it was sent. With no
// name it takes all and says nothing.
func (l *lab) serveUDP(pod string, number int32, name string) {
	l.t.Helper()
	socket, err := net.ListenPacket("udp4", fmt.Sprintf("127%s:%d", strings.TrimPrefix(pod, "10"), number))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { socket.Close() })
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

// client is a socket that takes answers from the node port alone.
func (l *lab) client(host byte, at string) *net.UDPConn {
	l.t.Helper()
	to := netip.MustParseAddrPort(at)
	from := net.UDPAddr{IP: net.IPv4(127, octet, byte(l.subnet), host)}
	socket, err := net.DialUDP("udp4", &from, net.UDPAddrFromAddrPort(to))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { socket.Close() })
	_ = socket.SetDeadline(time.Now().Add(patience))
	return socket
}

// exchange sends a datagram, and gives the parts of the answer.
func exchange(t *testing.T, client *net.UDPConn, text string) (pod, saw, echoed string) {
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

// port is the only node port that is open.
func (l *lab) port() *udpPort {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, port := range l.nodePorts {
		return port.forwarder.(*udpPort)
	}
	l.t.Fatal("no node port is open")
	return nil
}

func (u *udpPort) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.flows)
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s", what)
		}
	}
}

func TestDatagramsOfAClientGoToOneEndpoint(t *testing.T) {
	l := newLab(t, 40)
	service, at := l.service(udp)
	l.OnServiceAdd(service)
	l.serveUDP(l.pod(0), 5353, "pod-0")
	l.serveUDP(l.pod(1), 5353, "pod-1")
	l.know(onlyUDP, l.endpoint(0, thisNode), l.endpoint(1, "node-2"))
	first, second := l.client(77, at), l.client(77, at)
	want, _, _ := exchange(t, first, "hello")
	if other, _, _ := exchange(t, second, "hello"); other == want {
		t.Errorf("%s got both clients", other)
	}
	for _, text := range []string{"", "x", strings.Repeat("x", 60000)} {
		pod, saw, echoed := exchange(t, first, text)
		if pod != want || echoed != text || saw != l.options.Address.String() {
			t.Errorf("%d bytes came back from %s, which saw %s; want %d from %s, which sees the node", len(echoed), pod, saw, len(text), want)
		}
	}
	if n := l.port().count(); n != 2 {
		t.Errorf("%d flows of two clients", n)
	}
}

func TestFlowEndsWithItsEndpoint(t *testing.T) {
	l := newLab(t, 41)
	service, at := l.service(udp)
	l.OnServiceAdd(service)
	l.serveUDP(l.pod(0), 5353, "pod-0")
	l.serveUDP(l.pod(1), 5353, "pod-1")
	l.know(onlyUDP, l.endpoint(0, thisNode))
	client := l.client(77, at)
	expect := func(want, when string) {
		t.Helper()
		if pod, _, _ := exchange(t, client, "hello"); pod != want {
			t.Errorf("%s: %s answered, want %s", when, pod, want)
		}
	}
	expect("pod-0", "at first")
	l.know(onlyUDP, l.endpoint(0, thisNode), l.endpoint(1, thisNode))
	expect("pod-0", "there is another")
	l.know(onlyUDP, l.endpoint(0, thisNode, terminating), l.endpoint(1, thisNode))
	expect("pod-0", "it ends, but serves")
	l.know(onlyUDP, l.endpoint(0, thisNode, ending), l.endpoint(1, thisNode))
	expect("pod-1", "it serves no longer")
	l.know(onlyUDP, l.endpoint(0, thisNode))
	expect("pod-0", "the other has gone")
	l.know(onlyUDP)
	if n := l.port().count(); n != 0 {
		t.Errorf("%d flows without an endpoint", n)
	}
}

func TestServiceThatGoesTakesItsFlowsAlong(t *testing.T) {
	l := newLab(t, 42)
	service, at := l.service(udp)
	l.OnServiceAdd(service)
	l.serveUDP(l.pod(0), 5353, "pod-0")
	l.know(onlyUDP, l.endpoint(0, thisNode))
	client := l.client(77, at)
	exchange(t, client, "hello")
	port := l.port()
	l.OnServiceDelete(service)
	l.sync()
	if n := port.count(); n != 0 {
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

func TestFlowsAreBounded(t *testing.T) {
	l := newLab(t, 43)
	l.limits.flows = 2
	service, at := l.service(udp)
	l.OnServiceAdd(service)
	l.serveUDP(l.pod(0), 5353, "pod-0")
	l.know(onlyUDP, l.endpoint(0, thisNode))
	clients := []*net.UDPConn{l.client(77, at), l.client(78, at), l.client(79, at)}
	for range 3 {
		for i, client := range clients {
			text := fmt.Sprint("from ", i)
			if _, _, echoed := exchange(t, client, text); echoed != text {
				t.Errorf("client %d got %q", i, echoed)
			}
			if n := l.port().count(); n > 2 {
				t.Errorf("%d flows", n)
			}
		}
	}
	u := l.port()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.flows[clients[0].LocalAddr().(*net.UDPAddr).AddrPort()] != nil {
		t.Error("who had been silent longest was not the one to go")
	}
}

func TestFlowEndsInSilence(t *testing.T) {
	l := newLab(t, 44)
	l.limits.unreplied = 50 * time.Millisecond
	service, at := l.service(udp)
	l.OnServiceAdd(service)
	l.serveUDP(l.pod(0), 5353, "")
	l.know(onlyUDP, l.endpoint(0, thisNode))
	if _, err := l.client(77, at).Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	port := l.port()
	received := func() bool { // The turn is taken with the flow, and stays taken.
		port.mu.Lock()
		defer port.mu.Unlock()
		return port.choice.turn == 1
	}
	await(t, "the flow", received)
	await(t, "the end of a flow without an answer", func() bool { return port.count() == 0 })
}

func TestAnswerKeepsAFlow(t *testing.T) {
	l := newLab(t, 49)
	l.limits.assured = time.Hour
	service, at := l.service(udp)
	l.OnServiceAdd(service)
	l.serveUDP(l.pod(0), 5353, "pod-0")
	l.know(onlyUDP, l.endpoint(0, thisNode))
	client := l.client(77, at)
	exchange(t, client, "hello")
	port := l.port()
	port.mu.Lock()
	f := port.flows[client.LocalAddr().(*net.UDPAddr).AddrPort()]
	port.mu.Unlock()
	if f == nil || time.Until(port.expires(f)) < 30*time.Minute {
		t.Error("an answer does not keep a flow")
	}
}

func TestRefusedDatagramEndsItsFlow(t *testing.T) {
	l := newLab(t, 45)
	service, at := l.service(udp)
	l.OnServiceAdd(service)
	l.serveUDP(l.pod(1), 5353, "pod-1")
	l.know(onlyUDP, l.endpoint(0, thisNode), l.endpoint(1, thisNode))
	client := l.client(77, at)
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

func TestLocalPolicyHoldsForDatagrams(t *testing.T) {
	l := newLab(t, 46)
	service, at := l.service(udp, local)
	l.OnServiceAdd(service)
	l.serveUDP(l.pod(0), 5353, "here")
	l.serveUDP(l.pod(1), 5353, "there")
	l.know(onlyUDP, l.endpoint(1, "node-2"))
	// Dropped: the port is there and takes it, and that is all.
	if _, err := l.port().flowOf(netip.MustParseAddrPort("127.0.0.1:1")); !errors.Is(err, errNoEndpoints) {
		t.Errorf("without an endpoint here: %v", err)
	}
	client := l.client(77, at)
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	l.know(onlyUDP, l.endpoint(0, thisNode), l.endpoint(1, "node-2"))
	pod, saw, _ := exchange(t, client, "hello")
	if want := client.LocalAddr().(*net.UDPAddr).IP.String(); pod != "here" || saw != want {
		t.Errorf("%s answered, and saw %s; want here, and %s", pod, saw, want)
	}
}

func TestAffinityHoldsForFlows(t *testing.T) {
	l := newLab(t, 47)
	service, at := l.service(udp, sticky)
	l.OnServiceAdd(service)
	l.serveUDP(l.pod(0), 5353, "pod-0")
	l.serveUDP(l.pod(1), 5353, "pod-1")
	l.know(onlyUDP, l.endpoint(0, thisNode), l.endpoint(1, thisNode))
	want, _, _ := exchange(t, l.client(77, at), "hello")
	other, _, _ := exchange(t, l.client(78, at), "hello")
	if other == want {
		t.Errorf("%s got both clients", other)
	}
	for range 3 {
		if got, _, _ := exchange(t, l.client(77, at), "hello"); got != want {
			t.Errorf("a new flow of a client went to %s, want %s", got, want)
		}
	}
	l.know(onlyUDP, l.endpoint(0, thisNode, terminating), l.endpoint(1, thisNode))
	if got, _, _ := exchange(t, l.client(79, at), "hello"); got != "pod-1" {
		t.Errorf("a new client went to %s, which ends", got)
	}
}

func TestOneNumberIsAPortOfTCPAndOneOfUDP(t *testing.T) {
	l := newLab(t, 48)
	service, at := l.service(func(s *v1.Service) {
		s.Spec.Ports[0].Name = "tcp"
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{
			Name: "udp", Port: 80, Protocol: v1.ProtocolUDP, NodePort: s.Spec.Ports[0].NodePort, TargetPort: intstr.FromInt32(5353),
		})
	})
	l.OnServiceAdd(service)
	l.serve(l.pod(0), 8080, says("connected"))
	l.serveUDP(l.pod(0), 5353, "pod-0")
	l.know([]discovery.EndpointPort{slicePort("tcp", v1.ProtocolTCP, 8080), slicePort("udp", v1.ProtocolUDP, 5353)}, l.endpoint(0, thisNode))
	if got := answers(t, at); got != "map[connected:4]" {
		t.Error(got)
	}
	client := l.client(77, at)
	exchange(t, client, "hello")

	without := service.DeepCopy()
	without.Spec.Ports = without.Spec.Ports[1:]
	l.OnServiceUpdate(service, without)
	l.sync()
	if _, err := ask(t, at); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the port of TCP, which has gone: %v", err)
	}
	exchange(t, client, "still there")
}
