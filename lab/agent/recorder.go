package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
	"github.com/ccmlab/ccmlab/lab/follow"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// Recorder writes the timeline. After a restart it continues where it was: what
// the file already has is not written again.
type Recorder struct {
	// Picture, unless nil, records the objects that are watched, too.
	Picture *Picture
	// OnComponent is called when a component has started or ended, with the change.
	OnComponent func(timeline.Change)

	log        timeline.Log
	serviceTag string
	slog       *slog.Logger

	seq int64 // newest event of the cloud that is recorded
	// What an earlier run recorded: subjects of watches, Events by their keys, and the last
	// entry of each component.
	knownSubjects, knownEvents map[string]bool
	components                 map[string]timeline.Entry
}

// NewRecorder makes a recorder that appends to the log.
func NewRecorder(log timeline.Log, serviceTag string, logger *slog.Logger) (*Recorder, error) {
	r := &Recorder{
		OnComponent: func(timeline.Change) {},
		log:         log, serviceTag: serviceTag, slog: logger,
		knownSubjects: map[string]bool{}, knownEvents: map[string]bool{}, components: map[string]timeline.Entry{},
	}
	entries, err := log.Read()
	for _, e := range entries {
		r.seq = max(r.seq, e.CloudSeq)
		switch e.Source {
		case timeline.SourceEvent:
			r.knownEvents[e.EventKey] = true
		case timeline.SourceLab:
			r.components[e.Subject] = e
			r.knownSubjects[e.Subject] = e.Failed
		default:
			r.knownSubjects[e.Subject] = true
		}
	}
	return r, err
}

// Record records what happens now.
func (r *Recorder) Record(changes ...timeline.Change) {
	for _, c := range changes {
		r.logWriteError(r.log.Add(c))
	}
}

func (r *Recorder) logWriteError(err error) {
	if err != nil {
		r.slog.Error("writing the timeline", "error", err)
	}
}

// Event records an event of the cloud. An event that is recorded already is skipped.
func (r *Recorder) Event(ev api.Event) {
	if ev.Seq <= r.seq {
		return
	}
	r.seq = ev.Seq
	for _, c := range timeline.Cloud(ev, r.serviceTag) {
		r.logWriteError(r.log.AddAt(ev.Time, c))
	}
}

// Watch records the changes of Nodes, Services, Pods and Events until ctx ends. While there is
// no API server it waits, as informers do.
func (r *Recorder) Watch(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(follow.StripObject))
	core := factory.Core().V1()
	node := func(n *corev1.Node) bool { return r.knownSubjects["node/"+n.Name] }
	service := func(s *corev1.Service) bool { return r.knownSubjects[timeline.ServiceSubject(s)] }
	pod := func(p *corev1.Pod) bool { return r.knownSubjects[timeline.PodSubject(p)] }
	event := func(e *corev1.Event) bool { return r.knownEvents[timeline.EventKey(e)] }
	if err := errors.Join(
		recordChanges(r, core.Nodes().Informer(), node, timeline.Node),
		recordChanges(r, core.Services().Informer(), service, timeline.Service),
		recordChanges(r, core.Pods().Informer(), pod, timeline.Pod),
		recordChanges(r, core.Events().Informer(), event, timeline.Event),
	); err != nil {
		return fmt.Errorf("watching the cluster: %w", err)
	}
	prune := func() {}
	if r.Picture != nil {
		var err error
		if prune, err = r.Picture.watchObjects(factory); err != nil {
			return fmt.Errorf("watching the cluster: %w", err)
		}
	}
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)
	if ctx.Err() == nil {
		prune()
	}
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

// refusalPollInterval is how long it may go unseen that the cloud refuses the CCM.
const refusalPollInterval = 2 * time.Second

// CCMRefusals records, until ctx ends, when the cloud begins to refuse the CCM, and when it no longer does. refusal
// returns why it does, or "".
func (r *Recorder) CCMRefusals(ctx context.Context, refusal func(context.Context) string) error {
	refused := r.knownSubjects[labscene.RefusedCCM("").ID]
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		why := refusal(ctx)
		if ctx.Err() != nil || (why != "") == refused {
			return
		}
		refused = why != ""
		t := labscene.RefusedCCM(why)
		c := timeline.Change{Source: timeline.SourceLab, Subject: t.ID, What: "accepted", Detail: "by the cloud again"}
		if refused {
			c.What, c.Detail, c.Failed = "refused", "the cloud refuses the CCM: "+why, true
		}
		r.Record(c)
		if r.Picture == nil {
			return
		}
		if refused {
			r.Picture.setObject(t)
		} else {
			r.Picture.removeObject(t.ID)
		}
	}, refusalPollInterval)
	return nil
}

// recordChanges records what diff finds whenever an object of the informer changes. An object that
// is in the first list counts as new unless it is known.
func recordChanges[O any](
	r *Recorder,
	informer cache.SharedIndexInformer,
	known func(*O) bool,
	diff func(before, after *O) []timeline.Change,
) error {
	isNew := func(o *O) bool { return !known(o) }
	return follow.Objects(informer, isNew, func(before, after *O) { r.Record(diff(before, after)...) })
}
