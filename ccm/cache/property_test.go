package cache_test

// Whatever comes in which order, versions never go back, and in the end what is
// known is what the cloud has.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// propertyCloud is a cloud whose lists and events come as they please.
type propertyCloud struct {
	core.Cloud // nil: nobody asks for anything but instances

	mu     sync.Mutex
	now    map[string]api.Instance
	past   []map[string]api.Instance // what a stale list may show
	log    []api.Event               // what was not yet told
	mode   string                    // of lists
	delay  time.Duration             // of lists
	open   bool
	change chan struct{} // closed and replaced when there is something to tell
}

func (w *propertyCloud) edit(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn()
	close(w.change)
	w.change = make(chan struct{})
}

// set makes the next version of an instance, or its end.
func (w *propertyCloud) set(id string, state api.InstanceState) {
	w.edit(func() {
		w.past = append(w.past, maps.Clone(w.now))
		i, ok := w.now[id]
		if !ok {
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
		w.log = append(w.log, api.Event{Type: kind, Instance: &i})
	})
}

// GetInstance shows the truth.
func (w *propertyCloud) GetInstance(_ context.Context, id string) (*api.Instance, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i, ok := w.now[id]; ok {
		return &i, nil
	}
	return nil, notFound()
}

func (w *propertyCloud) ListInstances(context.Context, client.InstanceFilter) ([]api.Instance, error) {
	w.mu.Lock()
	mode, delay, shown := w.mode, w.delay, slices.Collect(maps.Values(w.now))
	switch mode {
	case "stale":
		if len(w.past) > 0 {
			shown = slices.Collect(maps.Values(w.past[len(w.past)/2]))
		}
	case "partial":
		shown = shown[:len(shown)/2]
	case "empty":
		shown = nil
	}
	w.mu.Unlock()
	time.Sleep(delay)
	if mode == "error" {
		return nil, errors.New("503")
	}
	return shown, nil
}

// Follow tells the log in order, each event once or, as after a break, again.
func (w *propertyCloud) Follow(
	ctx context.Context,
	_ int64,
	fn func(api.Event) error,
	onBreak func(error),
	_ ...client.EventFilter,
) error {
	open := false
	var last []api.Event
	for {
		w.mu.Lock()
		change, want, events := w.change, w.open, []api.Event(nil)
		if want {
			events, w.log = w.log, nil
		}
		w.mu.Unlock()
		if want != open {
			if open = want; open {
				onBreak(nil)
				events = append(last, events...)
			} else {
				onBreak(errors.New("broken"))
			}
		}
		for _, ev := range events {
			if err := fn(ev); err != nil {
				return err
			}
			last = append(last[max(0, len(last)-2):], ev)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-change:
		}
	}
}

// versionWatcher is what users of the cache saw.
type versionWatcher struct {
	mu   sync.Mutex
	seen map[string]int64
}

// before is what had been seen when something began.
func (s *versionWatcher) before() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.seen)
}

func (s *versionWatcher) saw(t *rapid.T, before map[string]int64, i *api.Instance) {
	if i.Version < before[i.ID] {
		t.Errorf("%s was seen at version %d, and then at %d", i.ID, before[i.ID], i.Version)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[i.ID] = max(s.seen[i.ID], i.Version)
}

func TestVersionsNeverGoBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failure any // rapid wants its panics where it began.
		synctest.Test(t, func(*testing.T) {
			defer func() { failure = recover() }()
			checkWorld(rt)
		})
		if failure != nil {
			panic(failure)
		}
	})
}

func checkWorld(t *rapid.T) {
	w := &propertyCloud{now: map[string]api.Instance{}, change: make(chan struct{}), open: true}
	v := cache.New(w, options(func(_, _ string) {}))
	answers, changes := &versionWatcher{seen: map[string]int64{}}, &versionWatcher{seen: map[string]int64{}}
	v.Subscribe(func(c cache.Change) {
		if c.Instance != nil {
			changes.saw(t, changes.before(), c.Instance)
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { v.Run(ctx); close(done) }()
	defer func() { stop(); <-done; time.Sleep(time.Minute) }()
	synctest.Wait()

	var next int
	var asking sync.WaitGroup
	pick := func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.now) == 0 {
			return ""
		}
		return rapid.SampledFrom(slices.Sorted(maps.Keys(w.now))).Draw(t, "id")
	}
	ask := func(among int) {
		for i := range among {
			before := answers.before()
			if found, err := v.GetInstance(ctx, instanceID(i)); err == nil {
				answers.saw(t, before, found)
			}
			before = answers.before()
			named, _ := v.ListInstances(ctx, client.InstanceFilter{Name: "node-" + instanceID(i)})
			for _, found := range named {
				answers.saw(t, before, &found)
			}
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"create": func(*rapid.T) { w.set(instanceID(next), api.InstancePending); next++ },
		"change": func(t *rapid.T) {
			if one := pick(); one != "" {
				w.set(one, rapid.SampledFrom(
					[]api.InstanceState{api.InstanceRunning, api.InstanceStopped, api.InstanceTerminated},
				).Draw(t, "state"))
			}
		},
		"delete": func(*rapid.T) {
			if one := pick(); one != "" {
				w.set(one, "")
			}
		},
		"stream": func(*rapid.T) { w.edit(func() { w.open = !w.open }) },
		"lists": func(t *rapid.T) {
			mode := rapid.SampledFrom([]string{"", "stale", "partial", "empty", "error"}).Draw(t, "mode")
			delay := time.Duration(rapid.IntRange(0, 3).Draw(t, "seconds")) * time.Second
			w.edit(func() { w.mode, w.delay = mode, delay })
		},
		"wait": func(t *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
		},
		"ask":           func(*rapid.T) { ask(next) },
		"ask meanwhile": func(*rapid.T) { among := next; asking.Go(func() { ask(among) }) },
		"settle":        func(*rapid.T) { synctest.Wait() },
	})
	asking.Wait()

	w.edit(func() { w.open, w.mode, w.delay = true, "", 0 })
	time.Sleep(20 * time.Minute)
	synctest.Wait()
	for i := range next {
		found, err := v.GetInstance(ctx, instanceID(i))
		have, ok := w.now[instanceID(i)]
		if !ok {
			assert.True(t, client.IsNotFound(err), "%s: %v", instanceID(i), err)
			continue
		}
		if assert.NoError(t, err) {
			assert.Equal(t, have, *found)
		}
		named, err := v.ListInstances(ctx, client.InstanceFilter{Name: "node-" + instanceID(i)})
		assert.NoError(t, err)
		assert.Equal(t, []api.Instance{have}, named)
	}
}

func instanceID(i int) string { return fmt.Sprintf("i-%03d", i) }
