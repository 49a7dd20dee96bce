package publish

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Port{
		"8080":                         {"127.0.0.1:8080", "default", "web", 0},
		"0.0.0.0:8080":                 {"0.0.0.0:8080", "default", "web", 0},
		":8080":                        {":8080", "default", "web", 0},
		"[::1]:8080=cart":              {"[::1]:8080", "default", "cart", 0},
		"9090=shop/cart:80":            {"127.0.0.1:9090", "shop", "cart", 80},
		"0.0.0.0:9090=shop/cart-2:443": {"0.0.0.0:9090", "shop", "cart-2", 443},
	} {
		got, err := Parse(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "x", "0", "65536", "name:80", "80=", "80=/x", "80=x/", "80=x:0", "80=x:y", "1:2:3",
	} {
		_, err := Parse(text)
		assert.ErrorContains(t, err, strconv.Quote(text))
	}
}

const (
	waitBound = 30 * time.Second
	waitTick  = 20 * time.Millisecond
)

func newService(address string, ports ...corev1.ServicePort) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	s.Spec.Ports = ports
	if address != "" {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	}
	return s
}

func TestBalancerAddress(t *testing.T) {
	udp := corev1.ServicePort{Protocol: corev1.ProtocolUDP, Port: 53}
	tcp := corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: 80}
	other := corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: 81}
	named := newService("", tcp)
	named.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "web.example.com"}}
	for name, tc := range map[string]struct {
		port    int32
		service any
		want    string
		err     string
	}{
		"the first TCP port": {0, newService("127.30.64.1", udp, tcp, other), "127.30.64.1:80", ""},
		"the port named":     {81, newService("127.30.64.1", udp, tcp, other), "127.30.64.1:81", ""},
		"a host name":        {0, named, "web.example.com:80", ""},
		"UDP only":           {0, newService("127.30.64.1", udp), "", "no TCP port"},
		"no such port":       {82, newService("127.30.64.1", tcp), "", "no TCP port 82"},
		"no address yet":     {0, newService("", tcp), "", "no load balancer's address yet"},
		"no Service":         {0, nil, "", "no such Service"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Port{Port: tc.port}.balancerAddress(tc.service)
			assert.Equal(t, tc.want, got)
			if tc.err != "" {
				assert.ErrorContains(t, err, tc.err)
			}
		})
	}
}

// Each connection goes to the address that the balancer has when the connection is made.
func TestServeFollowsTheService(t *testing.T) {
	answer := func(text string) (host string, port int32) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, text)
		}))
		t.Cleanup(server.Close)
		address := server.Listener.Addr().(*net.TCPAddr)
		return address.IP.String(), int32(address.Port)
	}
	firstHost, firstPort := answer("first")
	secondHost, secondPort := answer("second")
	tcp := func(port int32) corev1.ServicePort {
		return corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: port}
	}
	kube := fake.NewClientset(newService("", tcp(firstPort)))
	port := Port{Listen: "127.0.0.1:0", Namespace: "default", Service: "web"}
	listeners, err := Listen(t.Context(), []Port{port})
	require.NoError(t, err)
	address := listeners.byAddress[port.Listen].Addr().String()
	_, err = Listen(t.Context(), []Port{{Listen: address}})
	require.ErrorContains(t, err, "address already in use")
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- listeners.Serve(ctx, kube, slog.New(slog.DiscardHandler)) }()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func() string {
		response, err := client.Get("http://" + address)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = response.Body.Close() }()
		body, _ := io.ReadAll(response.Body)
		return string(body)
	}
	assert.Contains(t, ask(), "reset", "while there is no address")
	for _, step := range []struct {
		want, host string
		port       int32
	}{{"first", firstHost, firstPort}, {"second", secondHost, secondPort}} {
		_, err := kube.CoreV1().Services("default").
			Update(ctx, newService(step.host, tcp(step.port)), metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool { return strings.Contains(ask(), step.want) }, waitBound, waitTick)
	}
	cancel()
	require.NoError(t, <-served)
	_, err = net.Dial("tcp", address)
	assert.ErrorContains(t, err, "refused")
}
