package runtime

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ccmlab/ccmlab/lab/kube/internal/podnet"
)

type sandbox struct {
	id             string
	config         *runtimeapi.PodSandboxConfig
	runtimeHandler string
	createdAt      time.Time
	state          runtimeapi.PodSandboxState
	hostNetwork    bool
	// address is the pod's, and the zero value for host network pods and for
	// sandboxes that were stopped.
	address netip.Addr
}

// RunPodSandbox gives a pod its address.
func (r *Runtime) RunPodSandbox(_ context.Context, config *runtimeapi.PodSandboxConfig, runtimeHandler string) (string, error) {
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
		address, err := r.pool.take()
		if err != nil {
			return "", status.Error(codes.ResourceExhausted, err.Error())
		}
		s.address = address
	}
	r.sandboxes[s.id] = s
	return s.id, nil
}

// StopPodSandbox ends the sandbox's containers and frees its address. Stopping
// what is stopped or gone already is no error (CRI demands it).
func (r *Runtime) StopPodSandbox(_ context.Context, id string) error {
	r.mu.Lock()
	s := r.sandboxes[id]
	if s == nil {
		r.mu.Unlock()
		return nil
	}
	members := r.containersOf(id)
	r.mu.Unlock()

	for _, c := range members {
		r.kill(c)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	s.state = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	if s.address.IsValid() {
		r.pool.free(s.address)
		s.address = netip.Addr{}
	}
	return nil
}

// RemovePodSandbox forgets the sandbox and its containers.
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

// PodSandboxStatus tells the pod's address, which is how it reaches the API.
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

// ListPodSandbox lists the sandboxes that the filter lets through.
func (r *Runtime) ListPodSandbox(_ context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*runtimeapi.PodSandbox
	for _, s := range r.sandboxes {
		if filter.GetId() != "" && filter.GetId() != s.id ||
			filter.GetState() != nil && filter.GetState().GetState() != s.state ||
			!selects(filter.GetLabelSelector(), s.config.GetLabels()) {
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
func (r *Runtime) UpdatePodSandboxResources(context.Context, *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// containersOf needs r.mu.
func (r *Runtime) containersOf(sandboxID string) []*container {
	var members []*container
	for _, c := range r.containers {
		if c.sandbox.id == sandboxID {
			members = append(members, c)
		}
	}
	return members
}

// realised returns where the sandbox's ports are served. It needs r.mu.
func (r *Runtime) realised(s *sandbox) netip.Addr {
	if s.hostNetwork {
		return r.options.NodeAddress
	}
	return podnet.ToLoopback(s.address)
}

func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// newID returns an ID as long as those of real runtimes: kubectl and the kubelet
// shorten them for display.
func newID() string {
	var bytes [32]byte
	_, _ = rand.Read(bytes[:]) // never fails since Go 1.24
	return hex.EncodeToString(bytes[:])
}
