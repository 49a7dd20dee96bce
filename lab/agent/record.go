package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// Recorder writes the timeline. After a restart it goes on where it was: what
// the file already tells is not told again.
type Recorder struct {
	log        timeline.Log
	serviceTag string
	slog       *slog.Logger

	seq int64 // newest event of the cloud that is told
	// Of an earlier run: subjects of watches, Events by their keys, and what was
	// last told of each component.
	known, events map[string]bool
	components    map[string]timeline.Entry
}

// NewRecorder reads what is there.
func NewRecorder(log timeline.Log, serviceTag string, logger *slog.Logger) (*Recorder, error) {
	r := &Recorder{
		log: log, serviceTag: serviceTag, slog: logger,
		known: map[string]bool{}, events: map[string]bool{}, components: map[string]timeline.Entry{},
	}
	entries, err := log.Read()
	for _, e := range entries {
		r.seq = max(r.seq, e.CloudSeq)
		switch e.Source {
		case timeline.SourceEvent:
			r.events[e.EventKey] = true
		case timeline.SourceLab:
			r.components[e.Subject] = e
		default:
			r.known[e.Subject] = true
		}
	}
	return r, err
}

// Tell records what happens now.
func (r *Recorder) Tell(changes ...timeline.Change) {
	for _, c := range changes {
		r.check(r.log.Add(c))
	}
}

func (r *Recorder) check(err error) {
	if err != nil {
		r.slog.Error("writing the timeline", "error", err)
	}
}

// Event takes an event of the cloud; one that was told already is passed over.
func (r *Recorder) Event(ev api.Event) {
	if ev.Seq <= r.seq {
		return
	}
	r.seq = ev.Seq
	for _, c := range timeline.Cloud(ev, r.serviceTag) {
		r.check(r.log.AddAt(ev.Time, c))
	}
}

// Watch follows Nodes, Services, Pods and Events until ctx ends. Before the API
// server is there it waits, as informers do.
func (r *Recorder) Watch(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim))
	core := factory.Core().V1()
	node := func(n *corev1.Node) bool { return r.known["node/"+n.Name] }
	service := func(s *corev1.Service) bool { return r.known[timeline.ServiceSubject(s)] }
	pod := func(p *corev1.Pod) bool { return r.known[timeline.PodSubject(p)] }
	event := func(e *corev1.Event) bool { return r.events[timeline.EventKey(e)] }
	if err := errors.Join(
		watch(r, core.Nodes().Informer(), node, timeline.Node),
		watch(r, core.Services().Informer(), service, timeline.Service),
		watch(r, core.Pods().Informer(), pod, timeline.Pod),
		watch(r, core.Events().Informer(), event, timeline.Event),
	); err != nil {
		return fmt.Errorf("watching the cluster: %w", err)
	}
	factory.StartWithContext(ctx)
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

// slim keeps what nobody looks at out of memory.
func slim(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

func watch[T *corev1.Node | *corev1.Service | *corev1.Pod | *corev1.Event](r *Recorder, informer cache.SharedIndexInformer, known func(T) bool, diff func(before, after T) []timeline.Change) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if o, ok := obj.(T); ok && (!initial || !known(o)) {
				r.Tell(diff(nil, o)...)
			}
		},
		UpdateFunc: func(before, after any) {
			b, ok1 := before.(T)
			a, ok2 := after.(T)
			if ok1 && ok2 {
				r.Tell(diff(b, a)...)
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if o, ok := obj.(T); ok {
				r.Tell(diff(o, nil)...)
			}
		},
	})
	return err
}
