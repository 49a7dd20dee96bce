// Package hollowkubelet runs genuine kubelet code as an ordinary process, and replaces what that
// code needs of a machine. Begin with New. It does not know which container runtime it gets.
//
// The kubelet is that of k8s.io/kubernetes, assembled as k8s.io/kubernetes/pkg/kubemark does it:
// node status, leases, pod workers, probes, volumes, API and authorization are upstream's.
// Replaced are the container runtime (by the caller's), the machine that cadvisor measures,
// cgroups, mounts, and every path outside the root directory.
package hollowkubelet

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	internalapi "k8s.io/cri-api/pkg/apis"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubemark"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
)

// Options say which node the kubelet is.
type Options struct {
	Name    string
	Address netip.Addr
	Port    int
	// TLSCertFile and TLSPrivateKeyFile are those of the kubelet's API. ClientCAFile has the CA of
	// its clients' certificates.
	TLSCertFile       string
	TLSPrivateKeyFile string
	ClientCAFile      string
	// CloudProvider is the kubelet's --cloud-provider: CloudProviderExternal, or "" for a node that
	// no cloud controller manager initializes.
	CloudProvider string
	// ProviderID is the kubelet's --provider-id; "" leaves the Node's to a cloud controller manager.
	ProviderID string
	// RootDirectory is an absolute path. Nothing is written outside it.
	RootDirectory string
	// StatusUpdateFrequency and LeaseDurationSeconds decide how soon the control plane notices that
	// the node is down.
	StatusUpdateFrequency time.Duration
	LeaseDurationSeconds  int32
	CPUs                  int
	Memory                resource.Quantity
	// MaxOpenFiles is the process's limit of open files, which the kubelet sets again.
	MaxOpenFiles int64
}

// Kubelet is a kubelet that Start starts.
type Kubelet struct {
	server options.KubeletServer
	deps   *kubelet.Dependencies
}

// New returns a kubelet of an API server, a container runtime and a probe manager.
func New(
	ctx context.Context,
	o Options,
	client *restclient.Config,
	runtime internalapi.RuntimeService,
	images internalapi.ImageManagerService,
	probes *ProbeManager,
) (*Kubelet, error) {
	flags := kubeletFlags(o)
	config, err := kubeletConfiguration(o)
	if err != nil {
		return nil, err
	}
	api, heartbeat, events, err := newClients(client, config)
	if err != nil {
		return nil, err
	}
	machine := &fakeCadvisor{name: o.Name, cpus: o.CPUs, memory: o.Memory}
	deps := kubemark.NewHollowKubelet(flags, config, api, heartbeat, machine, images, runtime,
		&containerManager{ContainerManager: cm.NewStubContainerManager()}).KubeletDeps
	deps.EventClient = events.CoreV1()
	// kubemark sets a FakeRecorder so that the kubelet does not open /dev/kmsg. This module does
	// that in another way (package kmsgparser). Without a recorder the kubelet makes its own.
	deps.Recorder = nil
	deps.OSInterface = confinedOS{root: o.RootDirectory}
	deps.HostUtil = fakeHostUtil{hostutil.NewFakeHostUtil(nil)}
	deps.VolumePlugins = simulatedVolumes(deps.VolumePlugins, probes)
	deps.ProbeManager = probes
	deps.Options = append(
		deps.Options, probes.attachToKubelet, dialHooksOnLoopback, machineAddress(o.Address).attachToKubelet,
	)
	if deps.TLSOptions, err = kubeletapp.InitializeTLS(ctx, flags, config); err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	auth, reloadClientCA, err := kubeletapp.BuildAuth(types.NodeName(o.Name), api, *config)
	if err != nil {
		return nil, fmt.Errorf("authentication of the kubelet's clients: %w", err)
	}
	deps.Auth = auth
	reloadClientCA(ctx.Done())
	return &Kubelet{
		server: options.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *config},
		deps:   deps,
	}, nil
}

// Start starts the kubelet and returns; it stops with the process.
func (k *Kubelet) Start(ctx context.Context) error {
	return kubeletapp.RunKubelet(ctx, &k.server, k.deps)
}

// newClients returns the three clients of a kubelet (cmd/kubelet/app/server.go, run). That for
// events has its own rate limit; that for heartbeats has a timeout and no rate limit.
func newClients(
	base *restclient.Config,
	config *kubeletconfig.KubeletConfiguration,
) (api, heartbeat, events *kubernetes.Clientset, err error) {
	base = restclient.CopyConfig(base)
	base.ContentType = config.ContentType
	base.QPS = float32(config.KubeAPIQPS)
	base.Burst = int(config.KubeAPIBurst)
	if api, err = kubernetes.NewForConfig(base); err != nil {
		return nil, nil, nil, err
	}
	eventConfig := restclient.CopyConfig(base)
	eventConfig.QPS = float32(config.EventRecordQPS)
	eventConfig.Burst = int(config.EventBurst)
	if events, err = kubernetes.NewForConfig(eventConfig); err != nil {
		return nil, nil, nil, err
	}
	heartbeatConfig := restclient.CopyConfig(base)
	heartbeatConfig.Timeout = min(
		config.NodeStatusUpdateFrequency.Duration, time.Duration(config.NodeLeaseDurationSeconds)*time.Second,
	)
	heartbeatConfig.QPS = -1
	heartbeat, err = kubernetes.NewForConfig(heartbeatConfig)
	return api, heartbeat, events, err
}
