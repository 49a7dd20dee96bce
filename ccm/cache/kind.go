package cache

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	// listTimeout bounds a whole list, all pages and tries: the callers that wait for it may have no bound
	// of their own.
	listTimeout = time.Minute
	// maxListPause is the longest pause between two lists of one kind that fail. A stream that opens ends it.
	maxListPause = 10 * time.Second
	// versionsKept is for how long it is known which version a resource had that is gone. Only a list that is
	// staler than that could show it again as it once was.
	versionsKept = time.Hour
	// deletedVersion is that of a resource that was deleted, which is final: the cloud gives no ID twice.
	deletedVersion = math.MaxInt64
)

// facts are what the cache needs to know of a resource of any kind.
type facts struct {
	id        string
	version   int64
	inCluster bool // it carries the cluster's tags, or needs none; false if it is gone
}

// object is a resource as the cloud last showed it. It is never changed. Of one that is gone only the version
// is known.
type object[T any] struct {
	facts
	item    T
	shownAt time.Time
}

// change is what subscribers are told of the resource.
func (o *object[T]) change(k ChangeKind) Change {
	c := Change{Kind: k}
	switch item := any(&o.item).(type) {
	case *api.Instance:
		c.Instance = item
	case *api.LoadBalancer:
		c.LoadBalancer = item
	}
	return c
}

// kind is what is remembered of one kind of resource. The memory's mu guards the fields that change.
type kind[T any] struct {
	*memory
	name    api.ResourceKind
	listAll func(context.Context) ([]T, error)
	factsOf func(*T) facts

	known     map[string]*object[T] // by ID
	requested bool                  // somebody has asked for this kind
	listedAt  time.Time             // when the newest good list began; zero if there is none
	forgotAt  time.Time             // when all was forgotten: answers to older questions are not taken in
	ended     chan struct{}         // is closed when the list that is being made ends; nil if none is made

	failure error     // of the newest list
	retryAt time.Time // no list is made before, as the newest one failed
	pause   wait.DelayFunc
}

func newKind[T any](
	m *memory, name api.ResourceKind, listAll func(context.Context) ([]T, error), factsOf func(*T) facts,
) *kind[T] {
	k := &kind[T]{
		memory: m, name: name, listAll: listAll, factsOf: factsOf,
		known: map[string]*object[T]{}, pause: newPause(maxListPause),
	}
	m.kinds = append(m.kinds, k)
	return k
}

// awaitCurrent returns when what is remembered is an answer to a question that is asked now and, unless
// maxAge is 0, was listed within maxAge. All callers that wait at a time share one list; one whose ctx ends
// does not end it for the others. A list that failed is shared, too, until it is time for the next.
func (k *kind[T]) awaitCurrent(ctx context.Context, maxAge time.Duration) (result string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	result = hit
	for began := time.Now(); k.running != nil; result = listed {
		isAnswer := k.isCurrent() && (maxAge == 0 || time.Since(k.listedAt) < maxAge)
		if isAnswer || !k.listedAt.Before(began) {
			return result, nil
		}
		if time.Now().Before(k.retryAt) {
			return listed, k.failure
		}
		k.relist()
		ended := k.ended
		k.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-ended:
		}
		k.mu.Lock()
		if ctx.Err() != nil {
			return listed, ctx.Err()
		}
	}
	return asked, nil
}

// isCurrent tells whether every event since the newest list was received, or the list is recent. mu is held.
func (k *kind[T]) isCurrent() bool {
	isFollowed := !k.openedAt.IsZero() && !k.listedAt.Before(k.openedAt)
	return k.running != nil && (isFollowed || time.Since(k.listedAt) < maxListAge)
}

// relist begins a list, unless one is being made or has just failed. mu is held.
func (k *kind[T]) relist() {
	k.requested = true
	if k.running == nil || k.ended != nil || time.Now().Before(k.retryAt) {
		return
	}
	ctx := k.running
	if k.failure != nil {
		ctx = client.OneAttempt(ctx)
	}
	k.ended = make(chan struct{})
	k.lists.Go(func() { k.list(ctx) })
}

// list makes a list and takes it in. One that began before the stream opened must be made again.
func (k *kind[T]) list(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	<-k.decided.Done()
	began := time.Now()
	found, err := k.listAll(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.ended)
	k.ended = nil
	if err != nil {
		klog.InfoS("Cannot list the cloud's resources; retrying at growing intervals", "kind", k.name, "err", err)
		k.failure, k.retryAt = fmt.Errorf("listing every %s: %w", k.name, err), time.Now().Add(k.pause())
		k.unreachable = true
		return
	}
	k.endPause()
	k.reportRecovery()
	if !began.Before(k.forgotAt) {
		k.replace(found, began)
	}
	if began.Before(k.forgotAt) || began.Before(k.openedAt) {
		k.relist()
	}
}

// endPause lets the next list be made at once. mu is held.
func (k *kind[T]) endPause() {
	k.failure, k.retryAt, k.pause = nil, time.Time{}, newPause(maxListPause)
}

// replace takes in a list. What was shown after it began need not be in it. mu is held.
func (k *kind[T]) replace(found []T, began time.Time) {
	listed := sets.New[string]()
	for _, item := range found {
		o := k.newObject(item, began)
		listed.Insert(o.id)
		k.keepNewer(o)
	}
	for id, o := range k.known {
		switch {
		case !o.inCluster && began.Sub(o.shownAt) > versionsKept:
			delete(k.known, id)
		case o.inCluster && !listed.Has(id) && o.shownAt.Before(began):
			k.remove(o, o.version)
			k.report(o.change(Changed))
		}
	}
	if k.listedAt.IsZero() {
		k.report(Change{Kind: Relisted})
	}
	k.listedAt = began
}

// refresh has a list made at once if anybody needs one. With forget, what is remembered is dropped before, as
// it cannot be compared with what exists. mu is held.
func (k *kind[T]) refresh(forget bool) {
	if forget {
		k.known, k.listedAt, k.forgotAt = map[string]*object[T]{}, time.Time{}, time.Now()
	}
	k.endPause()
	if k.requested {
		k.relist()
	}
}

// applyEvent takes in an event, if anybody needs this kind.
func (k *kind[T]) applyEvent(item T, deleted bool) {
	o := k.newObject(item, time.Now())
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case !k.requested:
	case deleted:
		isOurs := o.inCluster || k.get(o.id) != nil
		k.remove(o, deletedVersion)
		if isOurs {
			k.report(o.change(Deleted))
		}
	default:
		k.keepNewer(o)
	}
}

func (k *kind[T]) newObject(item T, shownAt time.Time) *object[T] {
	return &object[T]{facts: k.factsOf(&item), item: item, shownAt: shownAt}
}

// keepNewer takes in what the cloud showed, unless it has shown a newer version, and reports news. Two answers
// of one version may differ, as one of them lacked an optional field by mistake: the later one is kept. Before
// the first list there is nothing to compare with; all that is reported is that it was made. mu is held.
func (k *kind[T]) keepNewer(o *object[T]) {
	if last := k.known[o.id]; last != nil && o.version < last.version {
		return
	}
	have := k.get(o.id)
	k.known[o.id] = o
	isNews := have == nil && o.inCluster || have != nil && !reflect.DeepEqual(have.item, o.item)
	if isNews && !k.listedAt.IsZero() {
		k.report(o.change(Changed))
	}
}

// remove keeps only a version of what is gone. mu is held.
func (k *kind[T]) remove(o *object[T], version int64) {
	k.known[o.id] = &object[T]{facts: facts{id: o.id, version: version}, shownAt: o.shownAt}
}

// note takes in the answer to a question of that time, so that the next one does not wait for an event.
func (k *kind[T]) note(item T, askedAt time.Time) {
	o := k.newObject(item, time.Now())
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.running != nil && !askedAt.Before(k.forgotAt) {
		k.keepNewer(o)
	}
}

// drop forgets what the cloud has just contradicted.
func (k *kind[T]) drop(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if have := k.get(id); have != nil {
		k.remove(have, have.version)
	}
}

// lookUp is get for callers that do not hold mu.
func (k *kind[T]) lookUp(id string) *object[T] {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.get(id)
}

// get is the resource with that ID, nil if it is gone or unknown. mu is held.
func (k *kind[T]) get(id string) *object[T] {
	if o := k.known[id]; o != nil && o.inCluster {
		return o
	}
	return nil
}

// peek returns what find does if that is current. Otherwise it is nothing, and a list is made in the background.
func (k *kind[T]) peek(matches func(*T) bool) []T {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.isCurrent() {
		k.relist()
		return nil
	}
	return k.find(matches)
}

// find returns the matching resources in the order of their IDs, which is that of their age. mu is held.
func (k *kind[T]) find(matches func(*T) bool) (found []T) {
	var ids []string
	for id, o := range k.known {
		if o.inCluster && matches(&o.item) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		found = append(found, k.known[id].item)
	}
	return found
}
