package runtime

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/labels"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ccmlab/ccmlab/lab/kube/internal/podnet"
)

// sandbox is a pod as the runtime has it. Runtime.mu guards it.
type sandbox struct {
	id             string
	config         *runtimeapi.PodSandboxConfig
	runtimeHandler string
	createdAt      time.Time
	state          runtimeapi.PodSandboxState
	hostNetwork    bool
	// address is the pod's; the zero value for host network pods and stopped sandboxes.
	address netip.Addr
}

// RunPodSandbox assigns an address to a pod.
func (r *Runtime) RunPodSandbox(
	_ context.Context,
	config *runtimeapi.PodSandboxConfig,
	runtimeHandler string,
) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return "", status.Error(codes.Unavailable, "the simulated node is going down")
	}
	namespaces := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	s := &sandbox{
		id:             newID(),
		config:         config,
		runtimeHandler: runtimeHandler,
		createdAt:      time.Now(),
		state:          runtimeapi.PodSandboxState_SANDBOX_READY,
		hostNetwork:    namespaces.GetNetwork() == runtimeapi.NamespaceMode_NODE,
	}
	if !s.hostNetwork {
		if r.networkErr != nil {
			return "", status.Errorf(codes.Unavailable, "network is not ready: %v", r.networkErr)
		}
		address, err := r.pool.takeAddress()
		if err != nil {
			return "", status.Error(codes.ResourceExhausted, err.Error())
		}
		s.address = address
	}
	r.sandboxes[s.id] = s
	return s.id, nil
}

// StopPodSandbox kills the sandbox's containers and frees its address. As CRI requires, it is no
// error if the sandbox is stopped or removed already.
func (r *Runtime) StopPodSandbox(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return nil
	}
	for _, c := range r.containersOf(id) {
		r.endContainerLocked(c, exitCodeKilled, "")
	}
	s.state = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	if s.address.IsValid() {
		r.pool.freeAddress(s.address)
		s.address = netip.Addr{}
	}
	return nil
}

// RemovePodSandbox stops the sandbox, and removes it and its containers.
func (r *Runtime) RemovePodSandbox(ctx context.Context, id string) error {
	if err := r.StopPodSandbox(ctx, id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containersOf(id) {
		delete(r.containers, c.id)
	}
	delete(r.sandboxes, id)
	return nil
}

// PodSandboxStatus returns a sandbox's state. The kubelet takes the pod's address from it.
func (r *Runtime) PodSandboxStatus(_ context.Context, id string, _ bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return nil, notFound("sandbox", id)
	}
	network := &runtimeapi.PodSandboxNetworkStatus{}
	if s.address.IsValid() {
		network.Ip = s.address.String()
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Id:        s.id,
		Metadata:  s.config.GetMetadata(),
		State:     s.state,
		CreatedAt: unixNano(s.createdAt),
		Network:   network,
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
		Labels:         s.config.GetLabels(),
		Annotations:    s.config.GetAnnotations(),
		RuntimeHandler: s.runtimeHandler,
	}}, nil
}

// ListPodSandbox lists the sandboxes that match the filter.
func (r *Runtime) ListPodSandbox(
	_ context.Context,
	filter *runtimeapi.PodSandboxFilter,
) ([]*runtimeapi.PodSandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*runtimeapi.PodSandbox
	for _, s := range r.sandboxes {
		if filter.GetId() != "" && filter.GetId() != s.id ||
			filter.GetState() != nil && filter.GetState().GetState() != s.state ||
			!matchesLabels(filter.GetLabelSelector(), s.config.GetLabels()) {
			continue
		}
		list = append(list, &runtimeapi.PodSandbox{
			Id:             s.id,
			Metadata:       s.config.GetMetadata(),
			State:          s.state,
			CreatedAt:      unixNano(s.createdAt),
			Labels:         s.config.GetLabels(),
			Annotations:    s.config.GetAnnotations(),
			RuntimeHandler: s.runtimeHandler,
		})
	}
	return list, nil
}

// UpdatePodSandboxResources accepts any resources: none are enforced.
func (r *Runtime) UpdatePodSandboxResources(
	context.Context,
	*runtimeapi.UpdatePodSandboxResourcesRequest,
) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// containersOf returns the containers of a sandbox. It needs r.mu.
func (r *Runtime) containersOf(sandboxID string) []*container {
	var members []*container
	for _, c := range r.containers {
		if c.sandbox.id == sandboxID {
			members = append(members, c)
		}
	}
	return members
}

// loopbackAddress returns the address on which the sandbox's ports are served. It needs r.mu.
func (r *Runtime) loopbackAddress(s *sandbox) netip.Addr {
	if s.hostNetwork {
		return r.options.NodeAddress
	}
	return podnet.ToLoopback(s.address)
}

// matchesLabels reports whether a list's filter selects an object with these labels.
func matchesLabels(selector, of map[string]string) bool {
	return labels.SelectorFromSet(selector).Matches(labels.Set(of))
}

// newID returns an ID of the length that real runtimes use: kubectl and the kubelet shorten IDs for
// display.
func newID() string {
	var bytes [32]byte
	_, _ = rand.Read(bytes[:]) // never fails since Go 1.24
	return hex.EncodeToString(bytes[:])
}
