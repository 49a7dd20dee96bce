package inventory

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/singleflight"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// tombstoneAge is for how long it is remembered that a resource was deleted, or is missing.
// Only a list that is staler than that could show it again as it once was.
const tombstoneAge = time.Hour

// facts are what the inventory needs to know of a resource of any kind.
type facts struct {
	id        string
	version   int64
	key       string // what it is found by beside its ID; may be empty
	ofCluster bool   // it carries the cluster's tag, or needs none
	ended     bool   // it exists no more, although the cloud still shows it
}

// moment is when something was learned. Ticks order moments; times may be equal.
type moment struct {
	tick uint64
	at   time.Time
}

// entry is one resource as it is known.
type entry[T any] struct {
	item        T // never changed in place
	facts       facts
	confirmedAt moment // when the cloud last showed it so
	missing     bool   // see Missing
}

// resourceStore holds one kind of resource, and decides which of two contradicting reports
// wins. The inventory's mu guards the fields that change.
type resourceStore[T any] struct {
	kind  api.ResourceKind
	list  func(context.Context) ([]T, error)
	facts func(*T) facts
	clone func(T) T

	entries   map[string]*entry[T]            // by ID
	byKey     map[string]map[string]*entry[T] // by key and ID
	deletedAt map[string]time.Time            // by ID: when it was learned to be deleted
	listed    moment                          // when the newest good list began; zero if there is none
	requested bool                            // somebody has asked for this kind

	failure listFailure // of the newest list, if it failed
	backoff backoff.ExponentialBackOff

	flight singleflight.Group // of lists
	wake   chan struct{}      // of relistWhenNeeded
}

func newResourceStore[T any](
	kind api.ResourceKind,
	list func(context.Context) ([]T, error),
	factsOf func(*T) facts,
	clone func(T) T,
) *resourceStore[T] {
	s := &resourceStore[T]{kind: kind, list: list, facts: factsOf, clone: clone, wake: make(chan struct{}, 1)}
	s.backoff = newListBackoff()
	s.reset()
	return s
}

// reset forgets all resources, and that they were listed.
func (s *resourceStore[T]) reset() {
	s.entries = map[string]*entry[T]{}
	s.byKey = map[string]map[string]*entry[T]{}
	s.deletedAt = map[string]time.Time{}
	s.listed = moment{}
}

// wakeKeeper has relistWhenNeeded look whether there is something to list.
func (s *resourceStore[T]) wakeKeeper() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// confirmItem records that the cloud showed the item at m. The change is for the
// subscribers if it is news.
func (s *resourceStore[T]) confirmItem(item T, f facts, m moment) (change Change, news bool) {
	if _, gone := s.deletedAt[f.id]; gone {
		return Change{}, false
	}
	e := s.entries[f.id]
	switch {
	case e == nil || f.version > e.facts.version || m.tick > e.confirmedAt.tick && isOtherAnswer(e, item, f):
		s.putEntry(item, f, m)
		return s.newChange(changeKindOf(f), item), true
	case !e.facts.ofCluster: // The item is from before it lost the cluster's tag.
		return Change{}, false
	case m.tick > e.confirmedAt.tick:
		e.confirmedAt = m
	}
	if !e.missing {
		return Change{}, false
	}
	e.missing = false
	return s.newChange(Updated, e.item), !e.facts.ended
}

// isOtherAnswer tells whether the item is not what is known of the same version. Then one of the two
// answers lacked an optional field by mistake, and the later one is kept until the next.
func isOtherAnswer[T any](e *entry[T], item T, f facts) bool {
	return f.version == e.facts.version && !e.missing && !reflect.DeepEqual(e.item, item)
}

// applyEvent records an event of the item. The change is for the subscribers if it is news.
func (s *resourceStore[T]) applyEvent(item T, f facts, deleted bool, m moment) (change Change, news bool) {
	e := s.entries[f.id]
	_, gone := s.deletedAt[f.id]
	switch {
	case gone, e == nil && !f.ofCluster:
		return Change{}, false
	case deleted: // Final, whatever its version: the cloud gives no ID twice.
		s.markDeleted(f.id, m.at)
		return s.newChange(Deleted, item), true
	case e != nil && f.version <= e.facts.version:
		return Change{}, false
	}
	s.putEntry(item, f, m).missing = !f.ofCluster
	return s.newChange(changeKindOf(f), item), true
}

// applyList records a whole list, and returns the changes for the subscribers. There is
// nothing to compare the first list with, so the only change is that it was made.
func (s *resourceStore[T]) applyList(items []T, began moment) []Change {
	first := s.listed.tick == 0
	s.listed = began
	var changes []Change
	shown := make(map[string]bool, len(items))
	for _, item := range items {
		f := s.facts(&item)
		if !f.ofCluster {
			continue
		}
		shown[f.id] = true
		if c, news := s.confirmItem(item, f, began); news && !first {
			changes = append(changes, c)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.entries)) {
		e := s.entries[id]
		if shown[id] || e.missing || e.confirmedAt.tick > began.tick {
			continue
		}
		e.missing = true
		if !e.facts.ended { // Otherwise it was reported as Deleted already.
			changes = append(changes, s.newChange(Missing, e.item))
		}
	}
	s.dropExpired(began.at)
	if first {
		changes = append(changes, Change{Kind: Relisted})
	}
	return changes
}

// dropExpired drops what has been deleted or missing for longer than tombstoneAge.
func (s *resourceStore[T]) dropExpired(now time.Time) {
	expired := func(at time.Time) bool { return now.Sub(at) > tombstoneAge }
	maps.DeleteFunc(s.deletedAt, func(_ string, at time.Time) bool { return expired(at) })
	for _, e := range s.entries {
		if e.missing && expired(e.confirmedAt.at) {
			s.dropEntry(e)
		}
	}
}

func (s *resourceStore[T]) putEntry(item T, f facts, m moment) *entry[T] {
	if old := s.entries[f.id]; old != nil {
		s.dropEntry(old)
	}
	e := &entry[T]{item: item, facts: f, confirmedAt: m}
	s.entries[f.id] = e
	if f.key != "" {
		if s.byKey[f.key] == nil {
			s.byKey[f.key] = map[string]*entry[T]{}
		}
		s.byKey[f.key][f.id] = e
	}
	return e
}

func (s *resourceStore[T]) dropEntry(e *entry[T]) {
	delete(s.entries, e.facts.id)
	same := s.byKey[e.facts.key]
	delete(same, e.facts.id)
	if len(same) == 0 {
		delete(s.byKey, e.facts.key)
	}
}

func (s *resourceStore[T]) markDeleted(id string, at time.Time) {
	if e := s.entries[id]; e != nil {
		s.dropEntry(e)
	}
	s.deletedAt[id] = at
}

// listByKey returns copies of the resources with that key that are not missing and for which
// also is true, in the order of their IDs.
func (s *resourceStore[T]) listByKey(key string, also func(*entry[T]) bool) []T {
	return s.copyItems(s.byKey[key], also)
}

// listAll is listByKey for resources of any key.
func (s *resourceStore[T]) listAll(also func(*entry[T]) bool) []T {
	return s.copyItems(s.entries, also)
}

func (s *resourceStore[T]) copyItems(from map[string]*entry[T], also func(*entry[T]) bool) []T {
	var found []*entry[T]
	for _, e := range from {
		if !e.missing && also(e) {
			found = append(found, e)
		}
	}
	sortByID(found)
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
	case !f.ofCluster:
		return Missing
	default:
		return Updated
	}
}

func (s *resourceStore[T]) newChange(kind ChangeKind, item T) Change {
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
	lb.AddressID, lb.IPv6Address = clonePtr(lb.AddressID), clonePtr(lb.IPv6Address)
	lb.StateReason, lb.HealthCheck, lb.Tags = clonePtr(lb.StateReason), clonePtr(lb.HealthCheck), maps.Clone(lb.Tags)
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
