// Package runtime answers the kubelet's calls to a container runtime (CRI)
// without any containers.
//
// A sandbox is an address out of the node's podCIDR. A container is a server on
// each of its ports that tells who it is, its environment and its files, and that
// can be told to misbehave; and a log file. Nothing of the image runs: the command
// is accepted and ignored, init containers succeed at once, and exec runs a few
// commands of the simulation's own, which see the container's environment and
// volumes. What the kubelet decides about pods (restarts, back-off, probes,
// termination) stays genuine, because it is genuine kubelet code that decides.
//
// All state is in memory: a restarted process has lost its sandboxes, as a
// rebooted machine has, and the kubelet creates them again.
//
// The package imports k8s.io/cri-api but not k8s.io/kubernetes, so that its
// tests build in seconds.
package runtime

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ccmlab/ccmlab/lab/kube/internal/podnet"
)

const (
	// Name prefixes container IDs and is the node's containerRuntimeVersion.
	Name = "simulated"
	// interfaceVersion is what kuberuntime insists on (kubeRuntimeAPIVersion in
	// pkg/kubelet/kuberuntime/kuberuntime_manager.go).
	interfaceVersion = "0.1.0"
)

// Options say which machine the runtime simulates.
type Options struct {
	// NodeName is told to whoever asks a container.
	NodeName string
	// NodeAddress is where containers of host network pods and host ports listen.
	NodeAddress netip.Addr
	// Zone returns the node's zone now, or "" while it has none.
	Zone func() string
	// Pod returns a pod of the node's by its UID, or nil: what its author wrote of
	// containers, CRI does not tell in full.
	Pod func(uid string) *v1.Pod
	// StateDirectory is reported as the place of the (empty) image store. All that
	// commands in containers may open lies in it: the kubelet's volumes, and what
	// containers write. An absolute path.
	StateDirectory string
	// Log receives what a runtime's own log would hold.
	Log *slog.Logger
}

// Runtime implements RuntimeService and ImageManagerService of
// k8s.io/cri-api/pkg/apis.
type Runtime struct {
	options Options

	// mu guards everything below, and the fields of sandboxes and containers.
	// Nothing that waits happens under it.
	mu         sync.Mutex
	pool       *addressPool
	networkErr error
	sandboxes  map[string]*sandbox
	containers map[string]*container
	images     map[string]*runtimeapi.Image
	closed     bool

	streams  streamServer
	cleaning sync.WaitGroup // removes what ended containers wrote
}

// New returns a runtime without network: the kubelet tells it the node's
// podCIDR through UpdateRuntimeConfig.
func New(options Options) *Runtime {
	if options.Zone == nil {
		options.Zone = func() string { return "" }
	}
	if options.Pod == nil {
		options.Pod = func(string) *v1.Pod { return nil }
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	r := &Runtime{
		options:    options,
		networkErr: fmt.Errorf("the node has no podCIDR yet"),
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
		images:     map[string]*runtimeapi.Image{},
	}
	r.removeScratch("") // of containers that a killed process had
	return r
}

// Version names the runtime; the kubelet shows it in the node's status.
func (r *Runtime) Version(context.Context, string) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version:           interfaceVersion,
		RuntimeName:       Name,
		RuntimeVersion:    "1.0.0",
		RuntimeApiVersion: "v1",
	}, nil
}

// Status reports the network as not ready until the podCIDR is known, as a
// runtime without CNI configuration does; the kubelet then keeps the node
// NotReady and starts no pods.
func (r *Runtime) Status(context.Context, bool) (*runtimeapi.StatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	if r.networkErr != nil {
		network.Status = false
		network.Reason = "NetworkPluginNotReady"
		network.Message = r.networkErr.Error()
	}
	ready := &runtimeapi.RuntimeCondition{Type: runtimeapi.RuntimeReady, Status: true}
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{ready, network}},
	}, nil
}

// RuntimeConfig has nothing to tell: there are no cgroups.
func (r *Runtime) RuntimeConfig(context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{}, nil
}

// UpdateRuntimeConfig learns the node's podCIDR. The kubelet joins several with
// commas (pkg/kubelet/kubelet_node_status.go, updateNode); the first IPv4 one is
// used. Running sandboxes keep the address that they have.
func (r *Runtime) UpdateRuntimeConfig(_ context.Context, config *runtimeapi.RuntimeConfig) error {
	podCIDRs := config.GetNetworkConfig().GetPodCidr()
	if podCIDRs == "" {
		return nil
	}
	pool, err := poolFor(podCIDRs)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.networkErr = err
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if r.pool != nil && r.pool.prefix == pool.prefix {
		return nil // a fresh pool would hand out again what was just freed
	}
	for _, s := range r.sandboxes {
		if s.address.IsValid() {
			pool.reserve(s.address)
		}
	}
	r.pool = pool
	r.options.Log.Info("pod network is ready", "podCIDR", pool.prefix.String(),
		"realisedAs", podnet.ToLoopback(pool.prefix.Addr()).String())
	return nil
}

func poolFor(podCIDRs string) (*addressPool, error) {
	for _, text := range strings.Split(podCIDRs, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("podCIDR %q: %w", text, err)
		}
		if prefix.Addr().Is4() {
			return newAddressPool(prefix)
		}
	}
	return nil, fmt.Errorf("podCIDR %q: no IPv4 range", podCIDRs)
}

// Close ends every container at once and closes all that the runtime listens
// on. It is a power cut, not a shutdown: containers get no grace.
func (r *Runtime) Close(context.Context) error {
	r.mu.Lock()
	r.closed = true
	var running []*container
	for _, c := range r.containers {
		running = append(running, c)
	}
	r.mu.Unlock()
	for _, c := range running {
		r.kill(c)
	}
	r.streams.close()
	r.cleaning.Wait()
	return nil
}

func notFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "%s %q is not there", kind, id)
}

func unixNano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
