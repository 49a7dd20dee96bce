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

	seq   int64           // newest event of the cloud that is told
	known map[string]bool // subjects of an earlier run
}

// NewRecorder reads what is there.
func NewRecorder(log timeline.Log, serviceTag string, logger *slog.Logger) (*Recorder, error) {
	r := &Recorder{log: log, serviceTag: serviceTag, slog: logger, known: map[string]bool{}}
	entries, err := log.Read()
	for _, e := range entries {
		r.seq = max(r.seq, e.CloudSeq)
		r.known[e.Subject] = true
	}
	return r, err
}

func (r *Recorder) add(changes []timeline.Change) {
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
		r.check(r.log.AddAt(ev.Time, ev.Seq, c))
	}
}

// Watch follows Nodes and Services until ctx ends. Before the API server is
// there it waits, as informers do.
func (r *Recorder) Watch(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	err1 := watch(r, factory.Core().V1().Nodes().Informer(), func(n *corev1.Node) string { return "node/" + n.Name }, timeline.Node)
	err2 := watch(r, factory.Core().V1().Services().Informer(), timeline.ServiceSubject, timeline.Service)
	if err1 != nil || err2 != nil {
		return fmt.Errorf("watching the cluster: %w, %w", err1, err2)
	}
	factory.StartWithContext(ctx)
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

func watch[T *corev1.Node | *corev1.Service](r *Recorder, informer cache.SharedIndexInformer, subject func(T) string, diff func(before, after T) []timeline.Change) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if o, ok := obj.(T); ok && (!initial || !r.known[subject(o)]) {
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
