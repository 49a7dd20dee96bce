package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/console"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
)

// follower has the cloud's events as they came.
type follower struct {
	mu     sync.Mutex
	events []string // number, type and ID
	first  int64    // the number before that of the first
	last   int64
}

// startWatchers has the events followed, and Nodes and the page watched, until the world ends.
func (w *world) startWatchers() error {
	newest, err := w.cloud.NewestEvent(w.ctx)
	if err != nil {
		return err
	}
	w.events = &follower{first: newest, last: newest}
	w.beside.Go(func() {
		err := w.cloud.Follow(w.ctx, newest, w.eventCame, nil)
		if w.ctx.Err() == nil {
			w.report("the events cannot be followed: %w", err)
		}
	})
	factory := informers.NewSharedInformerFactory(w.kube, 0)
	_, err = factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: w.nodeDeleted})
	factory.StartWithContext(w.ctx)
	w.beside.Go(func() {
		<-w.ctx.Done()
		factory.Shutdown()
	})
	w.beside.Go(w.keepPageOpen)
	return err
}

// eventCame reports an event that came twice, or not in its order.
func (w *world) eventCame(ev api.Event) error {
	w.events.mu.Lock()
	defer w.events.mu.Unlock()
	if ev.Seq != w.events.last+1 {
		w.report("event %d came after %d", ev.Seq, w.events.last)
	}
	w.events.last = ev.Seq
	w.events.events = append(w.events.events, eventText(ev))
	return nil
}

func eventText(ev api.Event) string { return fmt.Sprintf("%d %s %s", ev.Seq, ev.Type, ev.ID) }

// nodeDeleted reports a Node that went though its instance was not asked to end.
func (w *world) nodeDeleted(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	id, ok := contract.InstanceIDFromProviderID(node.Spec.ProviderID)
	if _, ended := w.ended.Load(id); ok && !ended {
		w.report("node %s was deleted, and its instance %s was not asked to end", node.Name, id)
	}
}

// checkEventLog reads all events again: they are those that came. What it has compared it forgets.
func (w *world) checkEventLog(ctx context.Context) error {
	w.events.mu.Lock()
	events, first, last := w.events.events, w.events.first, w.events.last
	w.events.mu.Unlock()
	var again []string
	newest, err := w.cloud.NewestEvent(ctx)
	if err != nil {
		return err
	}
	err = w.cloud.Watch(ctx, first, false, func(ev api.Event) error {
		if ev.Seq <= last {
			again = append(again, eventText(ev))
		}
		return nil
	})
	switch {
	case client.HasCode(err, api.EventsExpired):
		return cluster.Permanent(err)
	case err != nil:
		return err
	case !slices.Equal(events, again):
		return cluster.Permanent(
			fmt.Errorf("%d events came, and the log has %d between %d and %d", len(events), len(again), first, last),
		)
	case newest-last > 1000:
		return fmt.Errorf("the follower has got event %d, of %d", last, newest)
	}
	w.events.mu.Lock()
	defer w.events.mu.Unlock()
	w.events.events, w.events.first = slices.Clone(w.events.events[len(events):]), last
	return nil
}

// keepPageOpen reads the page's stream, and opens it again when it breaks, as a browser does.
func (w *world) keepPageOpen() {
	for w.ctx.Err() == nil {
		w.journal.add(w.readPage(), "the page's stream ended")
		waitFor(w.ctx, time.Second)
	}
}

func (w *world) readPage() error {
	page, err := console.OpenWindow(w.lab.State.Path())
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(w.ctx, http.MethodGet, page.URL()+"stream", nil)
	if err != nil {
		return err
	}
	page.Authorize(req)
	req.Close = true
	stream, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Body.Close() }()
	if stream.StatusCode != http.StatusOK {
		return errors.New(stream.Status)
	}
	_, err = io.Copy(io.Discard, stream.Body)
	return err
}

// checkPicture compares what the page shows with what is there.
func (w *world) checkPicture(ctx context.Context, f facts) error {
	page, err := console.OpenWindow(w.lab.State.Path())
	if err != nil {
		return err
	}
	shown, err := page.Objects(ctx)
	if err != nil {
		return err
	}
	states := map[string]string{}
	for _, t := range shown {
		ended := t.Kind == scene.KindInstance && t.State == string(api.InstanceTerminated)
		if slices.Contains([]scene.Kind{scene.KindInstance, labscene.KindNode, labscene.KindService}, t.Kind) && !ended {
			states[t.ID] = t.State
		}
	}
	want := 0
	for _, i := range f.instances {
		want++
		if s := states["instance/"+i.Name]; s != string(i.State) {
			return fmt.Errorf("the page says of instance %s that it is %q; it is %s", i.Name, s, i.State)
		}
	}
	for i := range f.nodes {
		want++
		if states["node/"+f.nodes[i].Name] == "" {
			return fmt.Errorf("the page does not show node %s", f.nodes[i].Name)
		}
	}
	for i := range f.services {
		if t, shown := labscene.OfService(&f.services[i]); shown {
			want++
			if states[t.ID] != t.State {
				return fmt.Errorf("the page says of %s %q, not %q", t.ID, states[t.ID], t.State)
			}
		}
	}
	if want != len(states) {
		return fmt.Errorf(
			"the page shows %d instances, Nodes and Services, and there are %d: %s", len(states), want,
			strings.Join(slices.Sorted(maps.Keys(states)), " "),
		)
	}
	return nil
}
