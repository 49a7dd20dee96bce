package hollowkubelet

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	kubeletpkg "k8s.io/kubernetes/pkg/kubelet"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/prober"
	"k8s.io/kubernetes/pkg/kubelet/prober/results"
	"k8s.io/kubernetes/pkg/kubelet/status"

	"github.com/ccmlab/ccmlab/lab/kube/internal/podnet"
)

// Probes is the kubelet's probe manager: upstream's, which dials the realised
// address (127.x.y.z) of a pod instead of the one in its status (10.x.y.z).
// HTTP, HTTPS, TCP and gRPC probes are really dialled; exec probes run what the
// simulated runtime has in place of processes.
//
// The kubelet calls AddPod for a pod before it creates the pod's containers
// (Kubelet.SyncPod), and RemovePod when they have ended. So Probes is also what
// knows the pods that the runtime cannot learn of through CRI.
type Probes struct {
	prober.Manager
	readiness results.Manager

	mu   sync.RWMutex
	pods map[types.UID]*v1.Pod
}

// NewProbes returns a probe manager that works once a kubelet has been made with
// it.
func NewProbes() *Probes {
	return &Probes{pods: map[types.UID]*v1.Pod{}}
}

// Pod returns a pod that has, or is about to have, containers here, or nil. It is
// the kubelet's own and must not be changed.
func (p *Probes) Pod(uid string) *v1.Pod {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.pods[types.UID(uid)]
}

// AddPod starts the pod's probes.
func (p *Probes) AddPod(ctx context.Context, pod *v1.Pod) {
	p.mu.Lock()
	p.pods[pod.UID] = pod
	p.mu.Unlock()
	p.Manager.AddPod(ctx, pod)
}

// RemovePod stops the pod's probes.
func (p *Probes) RemovePod(pod *v1.Pod) {
	p.mu.Lock()
	delete(p.pods, pod.UID)
	p.mu.Unlock()
	p.Manager.RemovePod(pod)
}

// CleanupPods forgets all pods but those that should run.
func (p *Probes) CleanupPods(desired map[types.UID]sets.Empty) {
	p.mu.Lock()
	maps.DeleteFunc(p.pods, func(uid types.UID, _ *v1.Pod) bool {
		_, keep := desired[uid]
		return !keep
	})
	p.mu.Unlock()
	p.Manager.CleanupPods(desired)
}

// attach is a kubelet.Option: NewMainKubelet calls it when the parts exist that a
// prober works with. They are the kubelet's private fields, and nothing exported
// leads to them, hence the reflection; a test guards names and types against the
// pinned version.
func (p *Probes) attach(k *kubeletpkg.Kubelet) {
	statuses, err := p.build(k)
	if err != nil {
		panic(err) // a test would have failed: the pinned kubelet changed
	}
	statuses.AddPodUpdateNotifier(p)
}

// OnPodUpdated has a new container probed at once. The kubelet asks for that, too
// (UpdatePodStatus), but just before it stores the status with the container's
// ID: the prober finds none, and the container is not ready for a period more.
func (p *Probes) OnPodUpdated(pod *v1.Pod, podStatus v1.PodStatus, _ bool) {
	for _, c := range podStatus.ContainerStatuses {
		if _, probed := p.readiness.Get(kubecontainer.ParseContainerID(c.ContainerID)); c.State.Running != nil && !probed {
			p.UpdatePodStatus(context.Background(), pod, podStatus.DeepCopy())
			return
		}
	}
}

// OnPodRemoved is called for a pod that has ended, of which there is nothing to
// probe.
func (p *Probes) OnPodRemoved(*v1.Pod) {}

// build makes the prober of the kubelet's parts, and returns the one that tells
// of pods' statuses.
func (p *Probes) build(k *kubeletpkg.Kubelet) (status.Manager, error) {
	var (
		statuses          status.Manager
		liveness, startup results.Manager
		runner            kubecontainer.CommandRunner
		recorder          record.EventRecorderLogger
	)
	for _, field := range []struct {
		name string
		into any
	}{
		{"statusManager", &statuses},
		{"livenessManager", &liveness},
		{"readinessManager", &p.readiness},
		{"startupManager", &startup},
		{"runner", &runner},
		{"recorder", &recorder},
	} {
		if err := readField(k, field.name, field.into); err != nil {
			return nil, err
		}
	}
	p.Manager = prober.NewManager(realisedStatus{statuses}, liveness, p.readiness, startup, runner, recorder)
	return statuses, nil
}

// readField copies a private field of a struct, given a pointer to it, into the
// variable that into points to, if they are of one type.
func readField(of any, name string, into any) error {
	target := reflect.ValueOf(into).Elem()
	var field reflect.Value
	if pointer := reflect.ValueOf(of); pointer.Kind() == reflect.Pointer && pointer.Elem().Kind() == reflect.Struct {
		field = pointer.Elem().FieldByName(name)
	}
	if !field.IsValid() || field.Type() != target.Type() {
		return fmt.Errorf("this kubelet's %T has no field %s of type %s", of, name, target.Type())
	}
	target.Set(reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem())
	return nil
}

// realisedStatus is a status manager for the prober, which takes the address to
// dial from the pod's status (pkg/kubelet/prober/worker.go, doProbe).
type realisedStatus struct{ status.Manager }

func (s realisedStatus) GetPodStatus(uid types.UID) (v1.PodStatus, bool) {
	podStatus, ok := s.Manager.GetPodStatus(uid)
	if address, err := podnet.ToLoopbackString(podStatus.PodIP); err == nil {
		podStatus.PodIP = address
	}
	return podStatus, ok
}
