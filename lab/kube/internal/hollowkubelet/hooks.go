package hollowkubelet

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	kubeletpkg "k8s.io/kubernetes/pkg/kubelet"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"

	"github.com/ccmlab/ccmlab/lab/kube/internal/podnet"
)

// dialHooksOnLoopback is a kubelet.Option that has lifecycle hooks dial the loopback addresses of
// pods. NewMainKubelet makes the hooks' HTTP client, which only private fields lead to: those of
// the kubelet, its runtime manager, and the manager's handler runner.
func dialHooksOnLoopback(k *kubeletpkg.Kubelet) {
	client, err := hookTransport(k)
	if err != nil {
		panic(err) // The pinned kubelet has changed: every test with a hollow node fails.
	}
	client.DialContext = dialLoopback
}

// hookTransport returns the transport of the lifecycle hooks' HTTP client.
func hookTransport(k *kubeletpkg.Kubelet) (*http.Transport, error) {
	var manager kubecontainer.Runtime
	if err := readField(k, "containerRuntime", &manager); err != nil {
		return nil, err
	}
	var runner kubecontainer.HandlerRunner
	if err := readField(manager, "runner", &runner); err != nil {
		return nil, err
	}
	var doer kubetypes.HTTPDoer
	if err := readField(runner, "httpDoer", &doer); err != nil {
		return nil, err
	}
	client, _ := doer.(*http.Client)
	if client == nil {
		return nil, fmt.Errorf("lifecycle hooks are sent by a %T and not by an HTTP client", doer)
	}
	transport, _ := client.Transport.(*http.Transport)
	if transport == nil {
		return nil, fmt.Errorf("lifecycle hooks are sent by a %T and not by an HTTP transport", client.Transport)
	}
	return transport, nil
}

// dialLoopback dials a pod where it is served.
func dialLoopback(ctx context.Context, network, address string) (net.Conn, error) {
	if at, err := netip.ParseAddrPort(address); err == nil {
		address = podnet.ServedAt(at).String()
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, address)
}
