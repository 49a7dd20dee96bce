package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/ccmlab/ccmlab/lab/console"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
)

// watchers are those who look on all along.
type watchers struct {
	mu     sync.Mutex
	events []string // as they came: number, type and ID
	first  int64    // the number before that of the first
	last   int64
}

func (w *world) startWatchers(ctx context.Context) (*watchers, error) {
	newest, err := w.cloud.NewestEvent(ctx)
	if err != nil {
		return nil, err
	}
	watch := &watchers{first: newest, last: newest}
	w.beside.Go(func() error {
		err := w.cloud.Follow(ctx, newest, func(ev api.Event) error {
			watch.mu.Lock()
			defer watch.mu.Unlock()
			if ev.Seq != watch.last+1 {
				w.report("event %d came after %d", ev.Seq, watch.last)
			}
			watch.last = ev.Seq
			watch.events = append(watch.events, eventText(ev))
			return nil
		}, nil)
		if ctx.Err() == nil {
			w.report("the events cannot be followed: %w", err)
		}
		return nil
	})
	factory := informers.NewSharedInformerFactory(w.kube, 0)
	nodes := factory.Core().V1().Nodes().Informer()
	_, err = nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: w.nodeDeleted})
	factory.StartWithContext(ctx)
	w.beside.Go(func() error {
		<-ctx.Done()
		factory.Shutdown()
		return nil
	})
	w.beside.Go(func() error { return w.keepPageOpen(ctx) })
	return watch, err
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
	w.mu.Lock()
	defer w.mu.Unlock()
	if ok && !w.ended[id] {
		w.report("node %s was deleted, and its instance %s was not asked to end", node.Name, id)
	}
}

// checkEventLog reads all events again: they are those that came. What it has compared it forgets.
func (w *world) checkEventLog(ctx context.Context) error {
	w.watch.mu.Lock()
	events, first, last := w.watch.events, w.watch.first, w.watch.last
	w.watch.mu.Unlock()
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
		return &violation{error: err}
	case err != nil:
		return err
	case !slices.Equal(events, again):
		return &violation{error: fmt.Errorf("%d events came, and the log has %d between %d and %d", len(events), len(again), first, last)}
	case newest-last > 1000:
		return fmt.Errorf("the follower has got event %d, of %d", last, newest)
	}
	w.watch.mu.Lock()
	defer w.watch.mu.Unlock()
	w.watch.events, w.watch.first = slices.Clone(w.watch.events[len(events):]), last
	return nil
}

// pageBound is how long the page may take to answer.
const pageBound = 5 * time.Second

// getFromPage gets something of the lab's page.
func (w *world) getFromPage(ctx context.Context, path string) (*http.Response, error) {
	page, err := console.OpenWindow(w.lab.State.Path())
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page.URL()+path, nil)
	if err != nil {
		return nil, err
	}
	page.Authorize(req)
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.Join(fmt.Errorf("%s answers %s", req.URL.Path, resp.Status), resp.Body.Close())
	}
	return resp, err
}

// keepPageOpen reads the page's stream, and opens it again when it breaks, as a browser does.
func (w *world) keepPageOpen(ctx context.Context) error {
	for ctx.Err() == nil {
		err := w.readPage(ctx)
		w.journal.add(line{What: "the page's stream ended", Round: w.round}, err)
		waitFor(ctx, time.Second)
	}
	return nil
}

func (w *world) readPage(ctx context.Context) error {
	stream, err := w.getFromPage(ctx, "stream")
	if err != nil {
		return err
	}
	defer func() { _ = stream.Body.Close() }()
	lines := bufio.NewReader(stream.Body)
	for {
		if _, err := lines.ReadString('\n'); err != nil {
			return err
		}
	}
}

// checkPicture compares what the page shows with what is there.
func (w *world) checkPicture(ctx context.Context, f facts) error {
	ctx, cancel := context.WithTimeout(ctx, pageBound)
	defer cancel()
	resp, err := w.getFromPage(ctx, "scene.json")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	var shown []scene.Thing
	if err := json.NewDecoder(resp.Body).Decode(&shown); err != nil {
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
