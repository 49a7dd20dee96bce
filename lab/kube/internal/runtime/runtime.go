// Package runtime is a container runtime (CRI) without containers. Begin with Runtime, which
// implements what the kubelet calls.
//
// A sandbox is an address of the node's podCIDR. A container is a log file and a server on each of
// its ports, which answers with its identity, environment and files, and misbehaves as commands
// say (package demoserver). Nothing of the image runs: the container's command is accepted and
// ignored, init containers, a Job's containers without ports and probes, exec probes and exec hooks
// succeed at once, and kubectl exec has three commands. What the kubelet decides about pods (restarts,
// back-off, probes, termination) is genuine, because genuine kubelet code decides it.
//
// All state is in memory. A restarted process has lost its sandboxes, as a rebooted machine has,
// and the kubelet creates them again.
//
// The package imports k8s.io/cri-api but not k8s.io/kubernetes, so that its tests build in
// seconds. It knows neither the kubelet nor the API server.
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
	// interfaceVersion is the one that kuberuntime requires (kubeRuntimeAPIVersion in
	// pkg/kubelet/kuberuntime/kuberuntime_manager.go).
	interfaceVersion = "0.1.0"
)

// Options say which machine the runtime simulates.
type Options struct {
	// NodeName is part of what containers answer.
	NodeName string
	// NodeAddress is where host ports and the containers of host network pods listen.
	NodeAddress netip.Addr
	// Zone returns the node's current zone, or "" while it has none.
	Zone func() string
	// Pod returns a pod of the node by its UID, or nil. CRI does not have all that a pod's spec
	// says of its containers.
	Pod func(uid string) *v1.Pod
	// Event records an Event about a pod.
	Event func(podUID, reason, message string)
	// StateDirectory is an absolute path: that of the kubelet's volumes, reported as the place of the
	// (empty) image store.
	StateDirectory string
	// Log is the runtime's own log.
	Log *slog.Logger
}

// Runtime implements RuntimeService and ImageManagerService of
// k8s.io/cri-api/pkg/apis.
type Runtime struct {
	options Options

	// mu guards all up to closed, and the fields of sandboxes and containers. Nobody waits or
	// blocks while holding it.
	mu         sync.Mutex
	pool       *addressPool
	networkErr error
	sandboxes  map[string]*sandbox
	containers map[string]*container
	images     map[string]*runtimeapi.Image
	closed     bool

	streams streamServer
}

// New returns a runtime whose network is not ready: the kubelet passes the node's podCIDR to
// UpdateRuntimeConfig.
func New(options Options) *Runtime {
	return &Runtime{
		options:    options,
		networkErr: fmt.Errorf("the node has no podCIDR yet"),
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
		images:     map[string]*runtimeapi.Image{},
	}
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

// Status reports the network as not ready until the podCIDR is known, as a runtime without CNI
// configuration does. The kubelet then keeps the node NotReady and starts no pods.
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

// RuntimeConfig is empty: there are no cgroups.
func (r *Runtime) RuntimeConfig(context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{}, nil
}

// UpdateRuntimeConfig sets the node's podCIDR. The kubelet joins several with commas
// (pkg/kubelet/kubelet_node_status.go, updateNode); the first IPv4 one is used. Running sandboxes
// keep their addresses.
func (r *Runtime) UpdateRuntimeConfig(_ context.Context, config *runtimeapi.RuntimeConfig) error {
	podCIDRs := config.GetNetworkConfig().GetPodCidr()
	if podCIDRs == "" {
		return nil
	}
	pool, err := addressPoolFor(podCIDRs)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.networkErr = err
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if r.pool != nil && r.pool.prefix == pool.prefix {
		return nil // A new pool would assign addresses again that were just freed.
	}
	for _, s := range r.sandboxes {
		if s.address.IsValid() {
			pool.reserveAddress(s.address)
		}
	}
	r.pool = pool
	r.options.Log.Info("pod network is ready", "podCIDR", pool.prefix.String(),
		"realisedAs", podnet.ToLoopback(pool.prefix.Addr()).String())
	return nil
}

// addressPoolFor returns the pool of the first IPv4 range.
func addressPoolFor(podCIDRs string) (*addressPool, error) {
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

// Close kills every container and closes all listeners. It is a power cut, not a shutdown:
// containers get no grace period.
func (r *Runtime) Close(context.Context) error {
	r.mu.Lock()
	r.closed = true
	for _, c := range r.containers {
		r.endContainerLocked(c, exitCodeKilled, "")
	}
	r.mu.Unlock()
	r.streams.close()
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
