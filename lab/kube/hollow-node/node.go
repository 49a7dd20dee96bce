package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/version"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/lab/kube/internal/hollowkubelet"
	"github.com/ccmlab/ccmlab/lab/kube/internal/runtime"
	"github.com/ccmlab/ccmlab/lab/kube/internal/serviceproxy"
)

// restoreTimeout bounds restoreNetwork, for an API server that does not answer. The kubelet can
// wait for the API server itself.
const restoreTimeout = time.Second

// runNode runs the node until ctx is done. All listeners are closed then, except the kubelet's
// port, which closes with the process.
func runNode(ctx context.Context, o nodeOptions) error {
	if err := checkPortIsFree(o); err != nil {
		return err
	}
	kubeletClient, err := clientConfig(o.kubeconfig, "kubelet")
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	proxyClient, err := clientConfig(o.proxyKubeconfig, "kube-proxy")
	if err != nil {
		return fmt.Errorf("--proxy-kubeconfig: %w", err)
	}
	node, err := startNodeWatch(ctx, kubeletClient, o.Name)
	if err != nil {
		return err
	}
	proxy, err := startProxy(ctx, o, proxyClient, node)
	if err != nil {
		return err
	}
	defer proxy.Close()

	probes := hollowkubelet.NewProbeManager()
	containers := runtime.New(runtime.Options{
		NodeName:       o.Name,
		NodeAddress:    o.Address,
		Zone:           node.currentZone,
		Pod:            probes.Pod,
		Event:          probes.Event,
		StateDirectory: o.RootDirectory,
		Log:            newLogger("runtime"),
	})
	defer func() { _ = containers.Close(context.Background()) }()
	if err := restoreNetwork(ctx, containers, kubeletClient, o.Name); err != nil {
		klog.InfoS("The kubelet will learn the podCIDR", "node", o.Name, "reason", err.Error())
	}
	o.MaxOpenFiles = openFilesLimit()
	kubelet, err := hollowkubelet.New(ctx, o.Options, kubeletClient, containers, containers, probes)
	if err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	if err := kubelet.Start(ctx); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	<-ctx.Done()
	klog.InfoS("Stopping: the node goes down at once", "node", o.Name)
	return nil
}

// restoreNetwork passes the podCIDR of a node that is registered already to the runtime: the
// network configuration of a real machine survives a reboot. The kubelet passes the podCIDR on only after
// its first status update; until then it would fail every pod once, and back off for seconds.
func restoreNetwork(ctx context.Context, containers *runtime.Runtime, config *restclient.Config, name string) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return containers.UpdateRuntimeConfig(ctx, &runtimeapi.RuntimeConfig{
		NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: strings.Join(node.Spec.PodCIDRs, ",")},
	})
}

// startProxy starts the stand-in for kube-proxy.
func startProxy(
	ctx context.Context,
	o nodeOptions,
	config *restclient.Config,
	node *nodeWatch,
) (*serviceproxy.Proxy, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("--proxy-kubeconfig: %w", err)
	}
	proxy := serviceproxy.New(serviceproxy.Options{
		NodeName: o.Name,
		Address:  o.Address,
		Topology: node.currentLabels,
		Node:     node.lastSeen,
		Log:      newLogger("service proxy"),
	})
	go proxy.Run(ctx, client)
	go followAttached(ctx, o.attachedFile, proxy.SetAttached)
	return proxy, node.onLabelsChange(proxy.TopologyChanged)
}

// clientConfig returns a client's configuration with the component's name as user agent, so that
// the API server's audit log and objects' managedFields look like those of a real node.
func clientConfig(kubeconfig, component string) (*restclient.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.UserAgent = fmt.Sprintf("%s/%s (hollow-node)", component, version.Get().GitVersion)
	return config, nil
}

// checkPortIsFree reports early, and in one line, that the kubelet's port is taken.
func checkPortIsFree(o nodeOptions) error {
	listener, err := net.Listen("tcp4", netip.AddrPortFrom(o.Address, uint16(o.Port)).String())
	if err != nil {
		return fmt.Errorf("the kubelet's port is not free: %w", err)
	}
	return listener.Close()
}

// openFilesLimit returns the process's hard limit of open files. An ordinary user cannot raise it,
// so that the kubelet's default of a million would be refused.
func openFilesLimit() int64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return int64(min(limit.Max, 1<<20))
}

func newLogger(name string) *slog.Logger {
	return slog.New(logr.ToSlogHandler(klog.Background().WithName(name)))
}
