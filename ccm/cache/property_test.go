package cache_test

// Whatever comes in which order, versions never go back, and in the end what is
// known is what the cloud has.

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// world is a cloud whose lists and events come as they please.
type world struct {
	*harness
	mu   sync.Mutex
	now  map[string]api.Instance
	past []map[string]api.Instance // what a stale list may show

	untold, told []api.Event
	isOpen       bool
	made         int // how many instances there ever were
	answers      versionWatcher
}

// change makes the next version of an instance, or with no state its end.
func (w *world) change(id string, state api.InstanceState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.past = append(w.past, maps.Clone(w.now))
	i, exists := w.now[id]
	if !exists {
		i = instance(id, 0, state)
	}
	i.Version++
	kind := api.EventUpdated
	if i.State = state; state == "" {
		i.State, kind = api.InstanceTerminated, api.EventDeleted
		delete(w.now, id)
	} else {
		w.now[id] = i
	}
	w.untold = append(w.untold, api.Event{Type: kind, Instance: &i})
}

// setLists has the cloud list in some way from now on.
func (w *world) setLists(mode string, delay time.Duration) {
	w.cloud.mu.Lock()
	defer w.cloud.mu.Unlock()
	w.cloud.listInstances = func() ([]api.Instance, error) {
		w.mu.Lock()
		shown := slices.Collect(maps.Values(w.now))
		switch {
		case mode == "stale" && len(w.past) > 0:
			shown = slices.Collect(maps.Values(w.past[len(w.past)/2]))
		case mode == "partial":
			shown = shown[:len(shown)/2]
		case mode == "empty":
			shown = nil
		}
		w.mu.Unlock()
		time.Sleep(delay)
		if mode == "error" {
			return nil, errors.New("503")
		}
		return shown, nil
	}
}

// toggleStream breaks the stream, or resumes it with events that it has told before.
func (w *world) toggleStream() {
	if w.isOpen = !w.isOpen; !w.isOpen {
		w.cloud.breakStream()
		return
	}
	w.cloud.openStream()
	w.untold = append(slices.Clone(w.told[max(0, len(w.told)-2):]), w.untold...)
}

// tell tells of what happened, in order.
func (w *world) tell() {
	for w.isOpen && len(w.untold) > 0 {
		ev := w.untold[0]
		w.untold, w.told = w.untold[1:], append(w.told, ev)
		w.cloud.sendEvent(ev.Type, *ev.Instance)
	}
}

// ask asks for the first instances by their IDs and names.
func (w *world) ask(t *rapid.T, count int) {
	for n := range count {
		saw := w.answers.begin(t)
		if found, err := w.GetInstance(w.t.Context(), instanceID(n)); err == nil {
			saw(found)
		}
		saw = w.answers.begin(t)
		named, _ := w.ListInstances(w.t.Context(), client.InstanceFilter{Name: "node-" + instanceID(n)})
		for _, found := range named {
			saw(&found)
		}
	}
}

func instanceID(n int) string { return fmt.Sprintf("i-%03d", n) }

// versionWatcher is what users of the cache saw.
type versionWatcher struct {
	mu   sync.Mutex
	seen map[string]int64
}

// begin returns what checks an instance by what had been seen when the question for it began.
func (v *versionWatcher) begin(t *rapid.T) (saw func(i *api.Instance)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := maps.Clone(v.seen)
	return func(i *api.Instance) {
		v.mu.Lock()
		defer v.mu.Unlock()
		if i.Version < before[i.ID] {
			t.Errorf("%s was seen at version %d, and then at %d", i.ID, before[i.ID], i.Version)
		}
		v.seen[i.ID] = max(v.seen[i.ID], i.Version)
	}
}

func TestVersionsNeverGoBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failure any // rapid wants its panics where it began.
		inBubble(t, func(r *harness) {
			defer func() { failure = recover() }()
			checkWorld(rt, r)
		})
		if failure != nil {
			panic(failure)
		}
	})
}

func checkWorld(t *rapid.T, r *harness) {
	w := &world{harness: r, now: map[string]api.Instance{}, answers: versionWatcher{seen: map[string]int64{}}}
	changes := versionWatcher{seen: map[string]int64{}}
	w.Subscribe(func(c cache.Change) {
		if c.Instance != nil {
			changes.begin(t)(c.Instance)
		}
	})
	w.setLists("", 0)
	w.cloud.getInstance = func(id string) (*api.Instance, error) { // the truth
		w.mu.Lock()
		defer w.mu.Unlock()
		if i, exists := w.now[id]; exists {
			return &i, nil
		}
		return nil, notFound()
	}
	changeOne := func(t *rapid.T, states ...api.InstanceState) {
		if len(w.now) > 0 {
			id := rapid.SampledFrom(slices.Sorted(maps.Keys(w.now))).Draw(t, "id")
			w.change(id, rapid.SampledFrom(states).Draw(t, "state"))
		}
	}
	var asking sync.WaitGroup
	t.Repeat(map[string]func(*rapid.T){
		"create": func(*rapid.T) { w.change(instanceID(w.made), api.InstancePending); w.made++ },
		"change": func(t *rapid.T) {
			changeOne(t, api.InstanceRunning, api.InstanceStopped, api.InstanceTerminated)
		},
		"delete": func(t *rapid.T) { changeOne(t, "") },
		"stream": func(*rapid.T) { w.toggleStream() },
		"tell":   func(*rapid.T) { w.tell() },
		"lists": func(t *rapid.T) {
			mode := rapid.SampledFrom([]string{"", "stale", "partial", "empty", "error"}).Draw(t, "mode")
			delay := time.Duration(rapid.IntRange(0, 3).Draw(t, "seconds")) * time.Second
			w.setLists(mode, delay)
		},
		"wait": func(t *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
		},
		"ask":           func(t *rapid.T) { w.ask(t, w.made) },
		"ask meanwhile": func(t *rapid.T) { count := w.made; asking.Go(func() { w.ask(t, count) }) },
	})
	asking.Wait()

	w.setLists("", 0)
	if !w.isOpen {
		w.toggleStream()
	}
	w.tell()
	time.Sleep(20 * time.Minute)
	for n := range w.made {
		found, err := w.GetInstance(r.t.Context(), instanceID(n))
		have, exists := w.now[instanceID(n)]
		if !exists {
			assert.True(t, client.IsNotFound(err), "%s: %v", instanceID(n), err)
			continue
		}
		if assert.NoError(t, err) {
			assert.Equal(t, have, *found)
		}
		assert.Equal(t, []api.Instance{have}, w.named("node-"+instanceID(n)))
	}
}
