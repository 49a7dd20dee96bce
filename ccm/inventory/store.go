package inventory

// What is known of one kind of resource, and which of two contradicting reports
// is believed.

import (
	"context"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// keepLost is for how long it is remembered that a resource was deleted, or
// missing: a list that is staler than that may show it again as it once was.
const keepLost = time.Hour

// facts are what counts of a resource of any kind.
type facts struct {
	id, project string
	version     int64
	key         string // what it is found by beside its ID; may be empty
	ours        bool   // the cluster's
	complete    bool   // has what no resource is without
	ended       bool   // exists no more, although the cloud still shows it
}

// moment is when something was learned. Ticks order moments; times may be equal.
type moment struct {
	tick uint64
	at   time.Time
}

type entry[T any] struct {
	item    T // never changed in place
	facts   facts
	seen    moment // when it was known last to be so
	missing bool
}

// shelf holds one kind of resource. The inventory's mu guards what changes.
type shelf[T any] struct {
	kind  api.ResourceKind
	list  func(context.Context) ([]T, error)
	facts func(*T) facts
	clone func(T) T

	known  map[string]*entry[T]            // by ID
	byKey  map[string]map[string]*entry[T] // by key and ID
	gone   map[string]time.Time            // by ID: when it was learned to be deleted
	listed moment                          // when the newest good list began; zero when there is none
	needed bool                            // somebody has asked

	flight singleflight.Group
	wake   chan struct{}
}

func newShelf[T any](kind api.ResourceKind, list func(context.Context) ([]T, error), of func(*T) facts, clone func(T) T) *shelf[T] {
	s := &shelf[T]{kind: kind, list: list, facts: of, clone: clone, wake: make(chan struct{}, 1)}
	s.forget()
	return s
}

func (s *shelf[T]) forget() {
	s.known, s.byKey, s.gone, s.listed = map[string]*entry[T]{}, map[string]map[string]*entry[T]{}, map[string]time.Time{}, moment{}
}

// poke has the keeper look whether there is something to list.
func (s *shelf[T]) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// confirm takes in what the cloud says is there, and gives what the subscribers
// are told of it, if it is news.
func (s *shelf[T]) confirm(item T, f facts, m moment) (Change, bool) {
	if _, gone := s.gone[f.id]; gone {
		return Change{}, false
	}
	e := s.known[f.id]
	switch {
	case e == nil || f.version > e.facts.version:
		s.put(item, f, m)
		return s.change(changeKindOf(f), item), true
	case !e.facts.ours: // This is from before it lost the cluster's tag.
		return Change{}, false
	case m.tick > e.seen.tick:
		e.seen = m
	}
	if !e.missing {
		return Change{}, false
	}
	e.missing = false
	return s.change(Updated, e.item), !e.facts.ended
}

// learn takes in an event, and gives what the subscribers are told of it, if it
// is news.
func (s *shelf[T]) learn(item T, f facts, deleted bool, m moment) (Change, bool) {
	e := s.known[f.id]
	_, gone := s.gone[f.id]
	switch {
	case gone, e == nil && !f.ours:
		return Change{}, false
	case deleted: // Final, whatever its version: the cloud gives no ID twice.
		s.bury(f.id, m.at)
		return s.change(Deleted, item), true
	case e != nil && f.version <= e.facts.version:
		return Change{}, false
	}
	s.put(item, f, m).missing = !f.ours
	return s.change(changeKindOf(f), item), true
}

// take takes in a whole list. With the first there is nothing to compare it
// with, and subscribers are told only that it was made.
func (s *shelf[T]) take(items []T, began moment) []Change {
	first := s.listed.tick == 0
	s.listed = began
	var changes []Change
	shown := make(map[string]bool, len(items))
	for _, item := range items {
		f := s.facts(&item)
		if !f.ours {
			continue
		}
		shown[f.id] = true
		if c, news := s.confirm(item, f, began); news && !first {
			changes = append(changes, c)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.known)) {
		e := s.known[id]
		if shown[id] || e.missing || e.seen.tick > began.tick {
			continue
		}
		e.missing = true
		if !e.facts.ended { // That it is gone has been said.
			changes = append(changes, s.change(Missing, e.item))
		}
	}
	s.sweep(began.at)
	if first {
		changes = append(changes, Change{Kind: Relisted})
	}
	return changes
}

// sweep drops what has been lost for so long that nothing stale shows it.
func (s *shelf[T]) sweep(now time.Time) {
	lost := func(at time.Time) bool { return now.Sub(at) > keepLost }
	maps.DeleteFunc(s.gone, func(_ string, at time.Time) bool { return lost(at) })
	for _, e := range s.known {
		if e.missing && lost(e.seen.at) {
			s.drop(e)
		}
	}
}

func (s *shelf[T]) put(item T, f facts, m moment) *entry[T] {
	if old := s.known[f.id]; old != nil {
		s.drop(old)
	}
	e := &entry[T]{item: item, facts: f, seen: m}
	s.known[f.id] = e
	if f.key != "" {
		if s.byKey[f.key] == nil {
			s.byKey[f.key] = map[string]*entry[T]{}
		}
		s.byKey[f.key][f.id] = e
	}
	return e
}

func (s *shelf[T]) drop(e *entry[T]) {
	delete(s.known, e.facts.id)
	same := s.byKey[e.facts.key]
	delete(same, e.facts.id)
	if len(same) == 0 {
		delete(s.byKey, e.facts.key)
	}
}

func (s *shelf[T]) bury(id string, at time.Time) {
	if e := s.known[id]; e != nil {
		s.drop(e)
	}
	s.gone[id] = at
}

// having are copies of those with a key that are not missing, by ID.
func (s *shelf[T]) having(key string, also func(*entry[T]) bool) []T {
	return s.answer(s.byKey[key], also)
}

// all are copies of all that are not missing, by ID.
func (s *shelf[T]) all(also func(*entry[T]) bool) []T { return s.answer(s.known, also) }

func (s *shelf[T]) answer(from map[string]*entry[T], also func(*entry[T]) bool) []T {
	var found []*entry[T]
	for _, e := range from {
		if !e.missing && also(e) {
			found = append(found, e)
		}
	}
	byID(found)
	var items []T
	for _, e := range found {
		items = append(items, s.clone(e.item))
	}
	return items
}

// changeKindOf is what a resource's newest version says has become of it.
func changeKindOf(f facts) ChangeKind {
	switch {
	case f.ended:
		return Deleted
	case !f.ours:
		return Missing
	default:
		return Updated
	}
}

func (s *shelf[T]) change(kind ChangeKind, item T) Change {
	c := Change{Kind: kind}
	item = s.clone(item)
	switch item := any(&item).(type) {
	case *api.Instance:
		c.Instance = item
	case *api.LoadBalancer:
		c.LoadBalancer = item
	case *api.Route:
		c.Route = item
	}
	return c
}

func cloneInstance(i api.Instance) api.Instance {
	i.Addresses, i.Tags, i.StateReason = slices.Clone(i.Addresses), maps.Clone(i.Tags), clonePtr(i.StateReason)
	return i
}

func cloneBalancer(lb api.LoadBalancer) api.LoadBalancer {
	lb.AddressID, lb.IPv6Address, lb.StateReason = clonePtr(lb.AddressID), clonePtr(lb.IPv6Address), clonePtr(lb.StateReason)
	lb.HealthCheck, lb.Tags = clonePtr(lb.HealthCheck), maps.Clone(lb.Tags)
	lb.IPFamilies, lb.Listeners = slices.Clone(lb.IPFamilies), slices.Clone(lb.Listeners)
	lb.SourceRanges, lb.Targets = slices.Clone(lb.SourceRanges), slices.Clone(lb.Targets)
	return lb
}

func cloneRoute(r api.Route) api.Route {
	r.Tags, r.StateReason = maps.Clone(r.Tags), clonePtr(r.StateReason)
	return r
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
