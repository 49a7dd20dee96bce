package agent

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
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

	last  timeline.Entry  // newest entry of an earlier run
	known map[string]bool // subjects of an earlier run
}

// NewRecorder reads what is there.
func NewRecorder(log timeline.Log, serviceTag string, logger *slog.Logger) (*Recorder, error) {
	r := &Recorder{log: log, serviceTag: serviceTag, slog: logger, known: map[string]bool{}}
	entries, err := log.Read()
	for _, e := range entries {
		r.last = e
		r.known[e.Subject] = true
	}
	return r, err
}

func (r *Recorder) add(changes []timeline.Change) {
	for _, c := range changes {
		if err := r.log.Add(c.Subject, c.What, c.Detail); err != nil {
			r.slog.Error("writing the timeline", "error", err)
		}
	}
}

// Event takes an event of the cloud.
func (r *Recorder) Event(ev api.Event) {
	if ev.Time.After(r.last.Time) {
		r.add(timeline.Cloud(ev, r.serviceTag))
	}
}

// Watch follows Nodes and Services until ctx ends. Before the API server is
// there it waits, as informers do.
func (r *Recorder) Watch(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	err1 := watch(r, factory.Core().V1().Nodes().Informer(), "node", timeline.Node)
	err2 := watch(r, factory.Core().V1().Services().Informer(), "service", timeline.Service)
	if err1 != nil || err2 != nil {
		return fmt.Errorf("watching the cluster: %w, %w", err1, err2)
	}
	factory.StartWithContext(ctx)
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

type object interface {
	*corev1.Node | *corev1.Service
	GetName() string
}

func watch[T object](r *Recorder, informer cache.SharedIndexInformer, kind string, diff func(before, after T) []timeline.Change) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if o, ok := obj.(T); ok && (!initial || !r.known[kind+"/"+o.GetName()]) {
				r.add(diff(nil, o))
			}
		},
		UpdateFunc: func(before, after any) {
			b, ok1 := before.(T)
			a, ok2 := after.(T)
			if ok1 && ok2 {
				r.add(diff(b, a))
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if o, ok := obj.(T); ok {
				r.add(diff(o, nil))
			}
		},
	})
	return err
}
