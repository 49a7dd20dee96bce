package hollowkubelet

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// httpDoer is the last private field that hookTransport reads. Each hollow node that starts reads
// those before it.
func TestPinnedHandlerRunnerHasHTTPDoer(t *testing.T) {
	client := &http.Client{}
	var doer kubetypes.HTTPDoer
	require.NoError(t, readField(lifecycle.NewHandlerRunner(client, nil, nil, nil), "httpDoer", &doer))
	if doer != client {
		t.Errorf("found %v", doer)
	}
}

func TestHooksDialLoopbackAddress(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	requested := make(chan string, 1)
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		requested <- r.Host + r.URL.Path
	})}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()

	port := listener.Addr().(*net.TCPAddr).Port
	client := &http.Client{Transport: &http.Transport{DialContext: dialLoopback, DisableKeepAlives: true}}
	runner := lifecycle.NewHandlerRunner(client, nil, nil, nil)
	handler := &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{
		Host: "10.0.0.1", Port: intstr.FromInt(port), Path: "/bye", Scheme: v1.URISchemeHTTP,
	}}
	if message, err := runner.Run(
		context.Background(), kubecontainer.ContainerID{}, &v1.Pod{}, &v1.Container{}, handler,
	); err != nil {
		t.Fatal(message, err)
	}
	if got, want := <-requested, fmt.Sprintf("10.0.0.1:%d/bye", port); got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
}
