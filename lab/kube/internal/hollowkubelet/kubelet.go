// Package hollowkubelet answers how genuine kubelet code runs as an ordinary
// process: which parts of its environment are replaced, and by what.
//
// The kubelet is k8s.io/kubernetes' own, put together the way
// k8s.io/kubernetes/pkg/kubemark does it: node status, leases, pod workers,
// probes, volumes, its API and its authorization are upstream's. Replaced are the
// container runtime (the caller's), the machine that cadvisor would measure,
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
	// TLSCertFile and TLSPrivateKeyFile serve the kubelet's API; ClientCAFile
	// signs the certificates of those who may ask.
	TLSCertFile       string
	TLSPrivateKeyFile string
	ClientCAFile      string
	// CloudProvider is as kubelet's --cloud-provider: CloudProviderExternal, or
	// "" for a node that no cloud controller manager is going to finish.
	CloudProvider string
	// RootDirectory is an absolute path. Nothing is written outside it.
	RootDirectory string
	// StatusUpdateFrequency and LeaseDurationSeconds decide how soon the control
	// plane sees that the node has gone.
	StatusUpdateFrequency time.Duration
	LeaseDurationSeconds  int32
	CPUs                  int
	Memory                resource.Quantity
	// MaxOpenFiles is the process's own limit: the kubelet sets it again.
	MaxOpenFiles int64
}

// Kubelet is a kubelet that Run starts.
type Kubelet struct {
	server options.KubeletServer
	deps   *kubelet.Dependencies
}

// New prepares a kubelet that talks to the API server with the given
// configuration, and to the given runtime.
func New(ctx context.Context, o Options, client *restclient.Config, runtime internalapi.RuntimeService, images internalapi.ImageManagerService, probes *Probes) (*Kubelet, error) {
	flags := kubeletFlags(o)
	config, err := kubeletConfiguration(o)
	if err != nil {
		return nil, err
	}
	api, heartbeat, events, err := clients(client, config)
	if err != nil {
		return nil, err
	}
	machine := &machine{name: o.Name, cpus: o.CPUs, memory: o.Memory}
	deps := kubemark.NewHollowKubelet(flags, config, api, heartbeat, machine, images, runtime,
		&containerManager{ContainerManager: cm.NewStubContainerManager()}).KubeletDeps
	deps.EventClient = events.CoreV1()
	// kubemark's FakeRecorder is there to keep the kubelet from /dev/kmsg, which
	// this module does in another way (see the package kmsgparser). Without a
	// recorder the kubelet makes its genuine one.
	deps.Recorder = nil
	deps.OSInterface = confinedOS{root: o.RootDirectory}
	deps.HostUtil = hostFiles{hostutil.NewFakeHostUtil(nil)}
	deps.Subpather = subPaths{confined: confinedOS{root: o.RootDirectory}}
	deps.VolumePlugins = ownedByWhoeverRuns(deps.VolumePlugins)
	deps.ProbeManager = probes
	deps.Options = append(deps.Options, probes.attach, realiseHooks, ownAddress(o.Address).attach)
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

// clients are the three that the kubelet has (cmd/kubelet/app/server.go, run):
// events have limits of their own, and heartbeats have none but a timeout.
func clients(base *restclient.Config, config *kubeletconfig.KubeletConfiguration) (api, heartbeat, events *kubernetes.Clientset, err error) {
	base = restclient.CopyConfig(base)
	base.ContentType = config.ContentType
	base.QPS = float32(config.KubeAPIQPS)
	base.Burst = int(config.KubeAPIBurst)
	if api, err = kubernetes.NewForConfig(base); err != nil {
		return nil, nil, nil, err
	}
	forEvents := restclient.CopyConfig(base)
	forEvents.QPS = float32(config.EventRecordQPS)
	forEvents.Burst = int(config.EventBurst)
	if events, err = kubernetes.NewForConfig(forEvents); err != nil {
		return nil, nil, nil, err
	}
	forHeartbeat := restclient.CopyConfig(base)
	forHeartbeat.Timeout = min(config.NodeStatusUpdateFrequency.Duration, time.Duration(config.NodeLeaseDurationSeconds)*time.Second)
	forHeartbeat.QPS = -1
	heartbeat, err = kubernetes.NewForConfig(forHeartbeat)
	return api, heartbeat, events, err
}
