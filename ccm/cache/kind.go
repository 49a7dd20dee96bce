package cache

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	kcache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	// listTimeout bounds a whole list, all pages and tries: the callers that wait for it may have no bound
	// of their own.
	listTimeout = time.Minute
	// streamOpenTimeout is how long the first lists wait for the stream to open: a list that began before must
	// be made again.
	streamOpenTimeout = time.Second
	// minListPause and maxListPause are between two lists of one kind that fail, and up to a fifth longer. A
	// stream that opens ends the pause.
	minListPause = time.Second
	maxListPause = 10 * time.Second
	// versionsKept is for how long it is known which version a resource had that is not remembered. Only a
	// list that is staler than that could show it again as it once was.
	versionsKept = time.Hour
)

// facts are what the cache needs to know of a resource of any kind.
type facts struct {
	id        string
	version   int64
	key       string // what it is found by beside its ID; may be empty
	inCluster bool   // it carries the cluster's tags, or needs none
}

// object is a resource as it is remembered. It is never changed.
type object[T any] struct {
	facts
	item    T
	shownAt time.Time // when the cloud last showed it so
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
	indexer kcache.Indexer

	requested bool            // somebody has asked for this kind
	newest    map[string]seen // of each resource, by ID, also of those that are not remembered any more
	forgets   int             // how often all was forgotten
	good      list            // the newest list that was good; zero if there is none
	ended     chan struct{}   // is closed when the list that is being made ends; nil if none is made
	resync    *time.Timer     // has the next list made although the stream is open; nil before the first list

	failure error     // of the newest list
	retryAt time.Time // no list is made before, as the newest one failed
	backoff wait.Backoff
}

// list is when a list began, and what it can be compared with.
type list struct {
	began   time.Time
	opened  int // the memory's then
	forgets int // the kind's then
}

// seen is the newest version of a resource that the cloud has shown.
type seen struct {
	version int64 // deletedVersion of one that is deleted: the cloud gives no ID twice
	at      time.Time
}

const deletedVersion = math.MaxInt64

func newKind[T any](
	m *memory, name api.ResourceKind, listAll func(context.Context) ([]T, error), factsOf func(*T) facts,
) *kind[T] {
	k := &kind[T]{
		memory: m, name: name, listAll: listAll, factsOf: factsOf,
		newest: map[string]seen{}, backoff: newListBackoff(),
	}
	k.indexer = kcache.NewIndexer(
		func(obj any) (string, error) { return obj.(*object[T]).id, nil },
		kcache.Indexers{byKey: func(obj any) ([]string, error) { return []string{obj.(*object[T]).key}, nil }},
	)
	m.kinds = append(m.kinds, k)
	return k
}

const byKey = "key"

func newListBackoff() wait.Backoff {
	return wait.Backoff{Duration: minListPause, Factor: 2, Jitter: 0.2, Steps: 10, Cap: maxListPause}
}

// awaitCurrent returns when what is remembered is an answer to a question that is asked now and, unless
// maxAge is 0, was listed within maxAge. All callers that wait at a time share one list; one whose ctx ends
// does not end it for the others. A list that failed is shared, too, until it is time for the next.
func (k *kind[T]) awaitCurrent(ctx context.Context, maxAge time.Duration) (result string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	result = hit
	for asked := time.Now(); k.running != nil; result = listed {
		isAnswer := k.isCurrent() && (maxAge == 0 || time.Since(k.good.began) < maxAge)
		if isAnswer || !k.good.began.Before(asked) {
			return result, nil
		}
		if time.Now().Before(k.retryAt) {
			return result, k.failure
		}
		k.relist()
		ended := k.ended
		k.mu.Unlock()
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-ended:
		}
		k.mu.Lock()
		if err != nil {
			return listed, err
		}
	}
	return asked, nil
}

// isCurrent tells whether every event since the newest list was received, or the list is recent. mu is held.
func (k *kind[T]) isCurrent() bool {
	isFollowed := k.isOpen && k.good.opened == k.opened
	return k.running != nil && (isFollowed || time.Since(k.good.began) < maxListAge)
}

// relist begins a list, unless one is being made or has just failed. mu is held.
func (k *kind[T]) relist() {
	k.requested = true
	if k.running == nil || k.ended != nil || time.Now().Before(k.retryAt) {
		return
	}
	ctx := k.running
	k.ended = make(chan struct{})
	k.lists.Go(func() { k.list(ctx) })
}

// list makes a list and takes it in.
func (k *kind[T]) list(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	select {
	case <-ctx.Done():
	case <-k.decided:
	case <-time.After(streamOpenTimeout):
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	l := list{began: time.Now(), opened: k.opened, forgets: k.forgets}
	if k.failure != nil {
		ctx = client.OneAttempt(ctx)
	}
	k.mu.Unlock()
	found, err := k.listAll(ctx)
	k.mu.Lock()
	close(k.ended)
	k.ended = nil
	if err != nil {
		klog.InfoS("Cannot list the cloud's resources; retrying at growing intervals", "kind", k.name, "err", err)
		k.failure, k.retryAt = fmt.Errorf("listing every %s: %w", k.name, err), time.Now().Add(k.backoff.Step())
		k.unreachable = true
		return
	}
	k.endPause()
	k.reportRecovery()
	if l.forgets == k.forgets {
		k.replace(found, l)
	}
	if l.forgets != k.forgets || k.isOpen && l.opened != k.opened {
		k.relist()
	}
}

// endPause lets the next list be made at once. mu is held.
func (k *kind[T]) endPause() {
	k.failure, k.retryAt, k.backoff = nil, time.Time{}, newListBackoff()
}

// replace takes in a list. What was shown after it began need not be in it. There is nothing to compare the
// first one with, so all that is reported is that it was made. mu is held.
func (k *kind[T]) replace(found []T, l list) {
	isFirst, listed := k.good.began.IsZero(), sets.New[string]()
	k.good = l
	for _, item := range found {
		o := k.newObject(item, l.began)
		if !o.inCluster {
			continue
		}
		listed.Insert(o.id)
		if k.keepNewer(o) && !isFirst {
			k.report(o.change(Changed))
		}
	}
	for _, o := range k.all() {
		if !listed.Has(o.id) && o.shownAt.Before(l.began) {
			_ = k.indexer.Delete(o)
			k.report(o.change(Changed))
		}
	}
	maps.DeleteFunc(k.newest, func(id string, s seen) bool {
		return k.get(id) == nil && l.began.Sub(s.at) > versionsKept
	})
	if isFirst {
		k.report(Change{Kind: Relisted})
	}
	if k.resync != nil {
		k.resync.Stop()
	}
	k.resync = time.AfterFunc(resyncPeriod, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.relist()
	})
}

// continueStream is called when the stream has opened. It has a list made if anybody needs one, also when
// the last one failed. mu is held.
func (k *kind[T]) continueStream() {
	k.endPause()
	if k.requested {
		k.relist()
	}
}

// forget drops what is remembered when it cannot be compared with what exists. mu is held.
func (k *kind[T]) forget() {
	k.forgets++
	k.good, k.newest = list{}, map[string]seen{}
	_ = k.indexer.Replace(nil, "") // An indexer never fails.
	if k.requested {
		k.relist()
	}
}

// applyEvent takes in an event, if anybody needs this kind. A deletion is final: the cloud gives no ID twice.
func (k *kind[T]) applyEvent(item T, deleted bool) {
	o := k.newObject(item, time.Now())
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case !k.requested:
	case deleted:
		isOurs := o.inCluster || k.get(o.id) != nil
		k.newest[o.id] = seen{deletedVersion, o.shownAt}
		_ = k.indexer.Delete(o)
		if isOurs {
			k.report(o.change(Deleted))
		}
	case k.keepNewer(o):
		k.report(o.change(Changed))
	}
}

func (k *kind[T]) newObject(item T, shownAt time.Time) *object[T] {
	return &object[T]{facts: k.factsOf(&item), item: item, shownAt: shownAt}
}

// keepNewer takes in what the cloud showed, unless it has shown a newer version, and tells whether that is
// news. Two answers of one version may differ, as one of them lacked an optional field by mistake: the later
// one is kept. mu is held.
func (k *kind[T]) keepNewer(o *object[T]) (isNews bool) {
	if o.version < k.newest[o.id].version {
		return false
	}
	k.newest[o.id] = seen{o.version, o.shownAt}
	have := k.get(o.id)
	if !o.inCluster {
		_ = k.indexer.Delete(o)
		return have != nil
	}
	_ = k.indexer.Update(o)
	return have == nil || !reflect.DeepEqual(have.item, o.item)
}

// countForgets is for note.
func (k *kind[T]) countForgets() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.forgets
}

// note takes in an answer, so that the next question does not wait for an event, unless all was forgotten
// since so many times.
func (k *kind[T]) note(item T, forgets int) {
	o := k.newObject(item, time.Now())
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.running != nil && k.forgets == forgets && k.keepNewer(o) {
		k.report(o.change(Changed))
	}
}

// drop forgets what the cloud has just contradicted.
func (k *kind[T]) drop(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if have := k.get(id); have != nil {
		_ = k.indexer.Delete(have)
	}
}

// lookUp is what is remembered of that resource, nil if nothing is, and the count for note.
func (k *kind[T]) lookUp(id string) (known *object[T], forgets int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.get(id), k.forgets
}

// get is what is remembered of that resource, nil if nothing is. mu is held.
func (k *kind[T]) get(id string) *object[T] {
	obj, exists, _ := k.indexer.GetByKey(id) // An indexer never fails.
	if !exists {
		return nil
	}
	return obj.(*object[T])
}

// peek is what find finds if it is current. Otherwise it is nothing, and a list is made in the background.
func (k *kind[T]) peek(find func() []*object[T]) []T {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.isCurrent() {
		k.relist()
		return nil
	}
	return itemsOf(find())
}

// all are all resources that are remembered, and withKey those with that key. mu is held.
func (k *kind[T]) all() []*object[T] { return toObjects[T](k.indexer.List()) }

func (k *kind[T]) withKey(key string) []*object[T] {
	found, _ := k.indexer.ByIndex(byKey, key) // The index exists.
	return toObjects[T](found)
}

// toObjects are the indexer's objects in the order of their IDs, which is that of their age.
func toObjects[T any](found []any) []*object[T] {
	var objects []*object[T]
	for _, obj := range found {
		objects = append(objects, obj.(*object[T]))
	}
	slices.SortFunc(objects, func(a, b *object[T]) int { return cmp.Compare(a.id, b.id) })
	return objects
}

func itemsOf[T any](objects []*object[T]) []T {
	var items []T
	for _, o := range objects {
		items = append(items, o.item)
	}
	return items
}
