package serviceproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
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

// octet keeps two runs at once, and a lab beside them, apart: labs live below
// 127.100.0.0.
var octet = byte(100 + os.Getpid()%100)

// at puts an address, written with 78, where this run is.
func at(address string) string {
	return strings.ReplaceAll(address, ".78.", fmt.Sprintf(".%d.", octet))
}

const (
	patience = 10 * time.Second
	thisNode = "node-1"
)

// lab is a proxy on an address of its own, so that tests may run side by side.
type lab struct {
	*Proxy
	t      *testing.T
	subnet int
}

func newLab(t *testing.T, subnet int) *lab {
	t.Helper()
	t.Parallel()
	l := &lab{t: t, subnet: subnet, Proxy: New(Options{
		NodeName: thisNode,
		Address:  netip.AddrFrom4([4]byte{127, octet, byte(subnet), 1}),
	})}
	l.OnServiceSynced()
	l.OnEndpointSlicesSynced()
	t.Cleanup(l.Close)
	return l
}

// freePort returns a port that was free on the proxy's address a moment ago;
// nobody else uses that address.
func (l *lab) freePort() uint16 {
	l.t.Helper()
	listener, err := net.Listen("tcp4", l.options.Address.String()+":0")
	if err != nil {
		l.t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).AddrPort().Port()
}

func (l *lab) service(adjust ...func(*v1.Service)) (*v1.Service, string) {
	number := l.freePort()
	service := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: v1.ServiceSpec{
			Type:      v1.ServiceTypeLoadBalancer,
			ClusterIP: at("10.78.0.9"), ClusterIPs: []string{at("10.78.0.9")},
			Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP, NodePort: int32(number), TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, change := range adjust {
		change(service)
	}
	return service, fmt.Sprintf("%s:%d", l.options.Address, number)
}

func local(service *v1.Service) {
	service.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
}

func sticky(service *v1.Service) {
	seconds := int32(60)
	service.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	service.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
}

// backend is a pod: it serves on 127.x.y.z what EndpointSlices know as 10.x.y.z.
type backend struct {
	address string
	node    string
	ready   bool
}

func (l *lab) slice(number int32, backends ...backend) *discovery.EndpointSlice {
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

// serve accepts on the realised address of a pod until the test ends.
func (l *lab) serve(pod string, number int32, handle func(*net.TCPConn)) {
	l.t.Helper()
	listener, err := net.Listen("tcp4", fmt.Sprintf("127%s:%d", strings.TrimPrefix(pod, "10"), number))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { listener.Close() })
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

func says(what string) func(*net.TCPConn) {
	return func(c *net.TCPConn) { _, _ = io.WriteString(c, what) }
}

func (l *lab) pod(host int) string { return fmt.Sprintf(at("10.78.%d.%d"), l.subnet, 100+host) }

// ask returns an error also when the connection is reset before the kernel has
// told that it was made.
func ask(t *testing.T, at string) (string, error) {
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

func dial(t *testing.T, at string) *net.TCPConn {
	t.Helper()
	connection, err := net.DialTimeout("tcp4", at, patience)
	if err != nil {
		t.Fatal(err)
	}
	_ = connection.SetDeadline(time.Now().Add(patience))
	return connection.(*net.TCPConn)
}

func TestNothingIsServedBeforeAllWasListed(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, subnet: 1, Proxy: New(Options{NodeName: thisNode, Address: netip.MustParseAddr(at("127.78.1.1"))})}
	defer l.Close()
	service, at := l.service()
	l.OnServiceAdd(service)
	l.OnServiceSynced()
	l.sync()
	if connection, err := net.Dial("tcp4", at); err == nil {
		connection.Close()
		t.Error("a node port was opened before the endpoints were known")
	}
}

func TestClusterPolicySpreadsOverAllReadyEndpoints(t *testing.T) {
	l := newLab(t, 2)
	service, at := l.service()
	var pods []backend
	for i, name := range []string{"node-1", "node-2", "node-3"} {
		pods = append(pods, backend{l.pod(i), name, name != "node-3"})
		l.serve(l.pod(i), 8080, says(name))
	}
	l.OnServiceAdd(service)
	l.OnEndpointSliceAdd(l.slice(8080, pods...))
	l.sync()

	answers := map[string]int{}
	for range 10 {
		answer, err := ask(t, at)
		if err != nil {
			t.Fatal(err)
		}
		answers[answer]++
	}
	if answers["node-1"] != 5 || answers["node-2"] != 5 {
		t.Errorf("answers came from %v", answers)
	}
}

func TestEndpointsSeeTheNodeOrWithLocalPolicyTheClient(t *testing.T) {
	for subnet, test := range map[int]struct {
		adjust func(*v1.Service)
		want   string
	}{
		3: {func(*v1.Service) {}, at("127.78.3.1")},
		4: {local, at("127.78.4.77")},
	} {
		t.Run(test.want, func(t *testing.T) {
			l := newLab(t, subnet)
			service, at := l.service(test.adjust)
			l.serve(l.pod(0), 8080, func(c *net.TCPConn) {
				_, _ = io.WriteString(c, clientAddress(c).String())
			})
			l.OnServiceAdd(service)
			l.OnEndpointSliceAdd(l.slice(8080, backend{l.pod(0), thisNode, true}))
			l.sync()

			from := &net.TCPAddr{IP: net.IPv4(127, octet, byte(subnet), 77)}
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

func TestLocalPolicyResetsWhereThereIsNoEndpoint(t *testing.T) {
	l := newLab(t, 5)
	service, at := l.service(local)
	l.serve(l.pod(0), 8080, says("elsewhere"))
	l.serve(l.pod(1), 8080, says("here"))
	l.OnServiceAdd(service)
	slice := l.slice(8080, backend{l.pod(0), "node-2", true})
	l.OnEndpointSliceAdd(slice)
	l.sync()
	if answer, err := ask(t, at); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %q, %v; want a reset", answer, err)
	}

	l.OnEndpointSliceUpdate(slice, l.slice(8080, backend{l.pod(0), "node-2", true}, backend{l.pod(1), thisNode, true}))
	l.sync()
	for range 3 {
		if answer, err := ask(t, at); answer != "here" || err != nil {
			t.Errorf("got %q, %v", answer, err)
		}
	}
}

func TestDeadEndpointIsSkipped(t *testing.T) {
	l := newLab(t, 6)
	service, at := l.service()
	l.serve(l.pod(1), 8080, says("alive"))
	l.OnServiceAdd(service)
	l.OnEndpointSliceAdd(l.slice(8080, backend{l.pod(0), thisNode, true}, backend{l.pod(1), thisNode, true}))
	l.sync()
	for range 4 {
		if answer, err := ask(t, at); answer != "alive" || err != nil {
			t.Errorf("got %q, %v", answer, err)
		}
	}
}

func TestHalfCloseIsPassedOn(t *testing.T) {
	l := newLab(t, 7)
	service, at := l.service()
	l.serve(l.pod(0), 8080, func(c *net.TCPConn) {
		all, _ := io.ReadAll(c) // ends only if the end of the request is passed on
		_, _ = fmt.Fprintf(c, "%d bytes", len(all))
	})
	l.OnServiceAdd(service)
	l.OnEndpointSliceAdd(l.slice(8080, backend{l.pod(0), thisNode, true}))
	l.sync()

	connection := dial(t, at)
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

func TestClientStaysWithItsEndpointIfTheServiceSaysSo(t *testing.T) {
	l := newLab(t, 8)
	service, at := l.service(sticky)
	l.serve(l.pod(0), 8080, says("first"))
	l.serve(l.pod(1), 8080, says("second"))
	l.OnServiceAdd(service)
	l.OnEndpointSliceAdd(l.slice(8080, backend{l.pod(0), thisNode, true}, backend{l.pod(1), thisNode, true}))
	l.sync()
	want, err := ask(t, at)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if got, _ := ask(t, at); got != want {
			t.Errorf("moved from %s to %s", want, got)
		}
	}
}

func TestServiceThatGoesTakesPortAndConnectionsAlong(t *testing.T) {
	l := newLab(t, 9)
	service, at := l.service()
	l.serve(l.pod(0), 8080, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "x")
		_, _ = io.Copy(io.Discard, c)
	})
	l.OnServiceAdd(service)
	l.OnEndpointSliceAdd(l.slice(8080, backend{l.pod(0), thisNode, true}))
	l.sync()
	open := dial(t, at)
	defer open.Close()
	if _, err := open.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	l.OnServiceDelete(service)
	l.sync()
	if _, err := open.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the open connection: %v", err)
	}
	listener, err := net.Listen("tcp4", at)
	if err != nil {
		t.Fatalf("the port is still taken: %v", err)
	}
	listener.Close()
}

func TestPortThatIsTakenIsTriedAgain(t *testing.T) {
	l := newLab(t, 10)
	service, at := l.service()
	l.serve(l.pod(0), 8080, says("hello"))
	taken, err := net.Listen("tcp4", at)
	if err != nil {
		t.Fatal(err)
	}
	l.OnServiceAdd(service)
	l.OnEndpointSliceAdd(l.slice(8080, backend{l.pod(0), thisNode, true}))
	l.sync()
	if !l.shouldRetry() {
		t.Error("a failed bind is not going to be tried again")
	}
	taken.Close()
	l.sync()
	if answer, err := ask(t, at); answer != "hello" || err != nil {
		t.Errorf("got %q, %v", answer, err)
	}
	if l.shouldRetry() {
		t.Error("there is nothing left to try again")
	}
}

func TestSCTPIsLeftOut(t *testing.T) {
	l := newLab(t, 11)
	service, at := l.service(func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolSCTP })
	l.OnServiceAdd(service)
	l.sync()
	if len(l.unserved) != 1 || l.shouldRetry() {
		t.Errorf("unserved %v, retry %v", l.unserved, l.shouldRetry())
	}
	if connection, err := net.Dial("tcp4", at); err == nil {
		connection.Close()
		t.Error("TCP is served on an SCTP node port")
	}
}

func TestHealthCheckNodePortCountsLocalEndpoints(t *testing.T) {
	l := newLab(t, 12)
	health := l.freePort()
	service, _ := l.service(local, func(s *v1.Service) { s.Spec.HealthCheckNodePort = int32(health) })
	l.OnServiceAdd(service)
	l.sync()
	url := fmt.Sprintf("http://%s:%d/", l.options.Address, health)
	expectHealth(t, url, http.StatusServiceUnavailable, 0)

	l.OnEndpointSliceAdd(l.slice(8080, backend{l.pod(0), thisNode, true}, backend{l.pod(1), "node-2", true},
		backend{l.pod(2), thisNode, false}))
	l.sync()
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
