package hollowkubelet

import (
	"context"
	"fmt"
	"net"
	"net/http"

	kubeletpkg "k8s.io/kubernetes/pkg/kubelet"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"

	"github.com/ccmlab/ccmlab/lab/kube/internal/podnet"
)

// realiseHooks is a kubelet.Option. The client of the lifecycle hooks is made
// inside NewMainKubelet and can be reached only through private fields: of the
// kubelet, its runtime manager and that one's handler runner.
func realiseHooks(k *kubeletpkg.Kubelet) {
	client, err := hookClient(k)
	if err != nil {
		panic(err) // every hollow node of every test would have failed: the pinned kubelet changed
	}
	client.DialContext = dialRealised
}

func hookClient(k *kubeletpkg.Kubelet) (*http.Transport, error) {
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

func dialRealised(ctx context.Context, network, address string) (net.Conn, error) {
	if host, port, err := net.SplitHostPort(address); err == nil {
		if realised, err := podnet.ToLoopbackString(host); err == nil {
			address = net.JoinHostPort(realised, port)
		}
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, address)
}
