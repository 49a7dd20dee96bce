package hollowkubelet

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
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
	"github.com/ccmlab/ccmlab/lab/kube/internal/runtime"
)

// ProbeManager is upstream's probe manager, except that it dials a pod where it is served
// (127.x.y.z) instead of at the address in the pod's status (10.x.y.z). HTTP, HTTPS, TCP and gRPC
// probes are genuine; exec probes succeed, since the simulated runtime runs nothing.
//
// The kubelet calls AddPod for a pod before it creates the pod's containers (Kubelet.SyncPod), and
// RemovePod when they have ended. So ProbeManager also has the pods' specs, which the runtime does
// not get through CRI.
type ProbeManager struct {
	prober.Manager
	readiness results.Manager
	recorder  record.EventRecorderLogger

	mu   sync.RWMutex
	pods map[types.UID]*v1.Pod
}

// NewProbeManager returns a probe manager that works once New has made a kubelet with it.
func NewProbeManager() *ProbeManager {
	return &ProbeManager{pods: map[types.UID]*v1.Pod{}}
}

// Pod returns a pod that has containers or is about to have some, with its ports as they are served,
// or nil. It must not be changed.
func (p *ProbeManager) Pod(uid string) *v1.Pod {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.pods[types.UID(uid)]
}

// Event records an Event about a pod.
func (p *ProbeManager) Event(podUID, reason, message string) {
	if pod := p.Pod(podUID); pod != nil {
		p.recorder.Event(pod, v1.EventTypeNormal, reason, message)
	}
}

// AddPod starts the pod's probes.
func (p *ProbeManager) AddPod(ctx context.Context, pod *v1.Pod) {
	pod = runtime.ServedPod(pod)
	p.mu.Lock()
	p.pods[pod.UID] = pod
	p.mu.Unlock()
	p.Manager.AddPod(ctx, pod)
}

// RemovePod stops the pod's probes.
func (p *ProbeManager) RemovePod(pod *v1.Pod) {
	p.mu.Lock()
	delete(p.pods, pod.UID)
	p.mu.Unlock()
	p.Manager.RemovePod(pod)
}

// CleanupPods stops the probes of all pods but those that should run.
func (p *ProbeManager) CleanupPods(desired map[types.UID]sets.Empty) {
	p.mu.Lock()
	maps.DeleteFunc(p.pods, func(uid types.UID, _ *v1.Pod) bool {
		_, keep := desired[uid]
		return !keep
	})
	p.mu.Unlock()
	p.Manager.CleanupPods(desired)
}

// attachToKubelet is a kubelet.Option. NewMainKubelet calls it once the parts of a prober exist.
// They are private fields of the kubelet, hence the reflection; a test checks their names and types
// in the pinned version.
func (p *ProbeManager) attachToKubelet(k *kubeletpkg.Kubelet) {
	statuses, err := p.newProber(k)
	if err != nil {
		panic(err) // The pinned kubelet has changed: a test fails, too.
	}
	statuses.AddPodUpdateNotifier(p)
}

// OnPodUpdated has a new container probed at once. The kubelet tries that too (UpdatePodStatus),
// but just before it stores the status with the container's ID. The prober then finds no ID, and
// the container stays unready for one more period.
func (p *ProbeManager) OnPodUpdated(pod *v1.Pod, podStatus v1.PodStatus, _ bool) {
	for _, c := range podStatus.ContainerStatuses {
		if _, probed := p.readiness.Get(kubecontainer.ParseContainerID(c.ContainerID)); c.State.Running != nil &&
			!probed {
			p.UpdatePodStatus(context.Background(), pod, podStatus.DeepCopy())
			return
		}
	}
}

// OnPodRemoved does nothing: a pod that has ended needs no probe.
func (p *ProbeManager) OnPodRemoved(*v1.Pod) {}

// newProber makes the prober from the kubelet's parts, and returns the kubelet's status manager.
func (p *ProbeManager) newProber(k *kubeletpkg.Kubelet) (status.Manager, error) {
	var (
		statuses          status.Manager
		liveness, startup results.Manager
		runner            kubecontainer.CommandRunner
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
		{"recorder", &p.recorder},
	} {
		if err := readField(k, field.name, field.into); err != nil {
			return nil, err
		}
	}
	p.Manager = prober.NewManager(loopbackStatus{statuses}, liveness, p.readiness, startup, runner, p.recorder)
	return statuses, nil
}

// readField copies a private field of the struct that of points to into the variable that into
// points to. Both must have the same type.
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

// loopbackStatus is a status manager with the loopback addresses of pods. The prober dials the
// address in a pod's status (pkg/kubelet/prober/worker.go, doProbe).
type loopbackStatus struct{ status.Manager }

func (l loopbackStatus) GetPodStatus(uid types.UID) (v1.PodStatus, bool) {
	podStatus, ok := l.Manager.GetPodStatus(uid)
	if address, err := netip.ParseAddr(podStatus.PodIP); err == nil {
		podStatus.PodIP = podnet.ToLoopback(address).String()
	}
	return podStatus, ok
}
