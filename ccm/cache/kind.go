package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"sync"
	"time"

	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	kcache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	// listTimeout bounds a whole list, all pages and tries: the callers that wait for it may have no bound
	// of their own.
	listTimeout = time.Minute
	// streamOpenTimeout is how long a list waits for the stream to open: a list that began before must be
	// made again.
	streamOpenTimeout = time.Second
	// minListPause and maxListPause are between two lists of one kind that fail, and up to a fifth longer.
	// The longest pause is how late the end of an outage is noticed where there is no event stream; one that
	// opens ends all pauses.
	minListPause = time.Second
	maxListPause = 10 * time.Second
	// versionsKept is for how long it is known which version a resource had that is not remembered. Only a
	// list that is staler than that could show it again as it once was.
	versionsKept = time.Hour
	// eventsAhead is how many events may come while a list is made, before the stream has to wait.
	eventsAhead = 1000
)

// facts are what the cache needs to know of a resource of any kind.
type facts struct {
	id        string
	version   int64
	key       string // what it is found by beside its ID; may be empty
	inCluster bool   // it carries the cluster's tags, or needs none
}

// object is a resource as client-go's reflector wants it. It is never changed.
type object[T any] struct {
	metav1.ObjectMeta // It is empty: the reflector needs no resource versions.
	facts
	item    T
	shownAt time.Time // when the cloud last showed it so
}

// GetObjectKind implements runtime.Object.
func (o *object[T]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (o *object[T]) DeepCopyObject() runtime.Object { return o }

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

// kind is what is remembered of one kind of resource. Its reflector calls listAnew and watchSinceList, and then Add,
// Update, Delete and Replace with what they return. The memory's mu guards the fields that change.
type kind[T any] struct {
	*memory
	name      api.ResourceKind
	listAll   func(context.Context) ([]T, error)
	factsOf   func(*T) facts
	indexer   kcache.Indexer
	reflector *kcache.Reflector
	wake      chan struct{} // ends the pause of run
	inList    sync.Mutex    // is held while the cloud is asked for a list

	requested bool               // somebody has asked for this kind
	isListing bool               // a list has begun
	ended     chan struct{}      // is closed when the list that has begun ends
	last      list               // the newest one that has begun
	good      list               // the newest one that was good; zero if there is none
	newest    map[string]seen    // of each resource, by ID, also of those that are not remembered any more
	forgets   int                // how often all was forgotten
	watcher   *watcher           // of the newest list; nil before the first
	endWatch  context.CancelFunc // has the next list made; nil before the first

	failure error // of the newest list, until the next one begins
	backoff wait.Backoff
}

// list is one list of a kind.
type list struct {
	number  int // counted from 1
	began   time.Time
	opened  int // the memory's, if the stream was open when the list began; else 0
	forgets int // the kind's when the list began
}

// seen is the newest version of a resource that the cloud has shown.
type seen struct {
	version int64 // deletedVersion of one that is deleted: the cloud gives no ID twice
	at      time.Time
}

const deletedVersion = math.MaxInt64

// watcher receives the events since its list began.
type watcher struct {
	*watch.ProxyWatcher
	events chan watch.Event
}

func newKind[T any](
	m *memory, name api.ResourceKind, listAll func(context.Context) ([]T, error), factsOf func(*T) facts,
) *kind[T] {
	k := &kind[T]{
		memory: m, name: name, listAll: listAll, factsOf: factsOf,
		wake: make(chan struct{}, 1), ended: make(chan struct{}), newest: map[string]seen{}, backoff: newListBackoff(),
	}
	k.indexer = kcache.NewIndexer(
		func(obj any) (string, error) { return obj.(*object[T]).id, nil },
		kcache.Indexers{byKey: func(obj any) ([]string, error) { return []string{obj.(*object[T]).key}, nil }},
	)
	k.reflector = kcache.NewReflectorWithOptions(&listWatch{kcache.ListWatch{
		ListWithContextFunc: k.listAnew, WatchFuncWithContext: k.watchSinceList,
	}}, nil, k, kcache.ReflectorOptions{Name: "fakecloud", TypeDescription: string(name)})
	return k
}

const byKey = "key"

// listWatch tells the reflector to begin with a list: the cloud's stream has no first part that is one.
type listWatch struct{ kcache.ListWatch }

func (*listWatch) IsWatchListSemanticsUnSupported() bool { return true }

func newListBackoff() wait.Backoff {
	return wait.Backoff{Duration: minListPause, Factor: 2, Jitter: 0.2, Steps: 10, Cap: maxListPause}
}

// run has the reflector work until ctx ends, from when somebody first asks for this kind.
func (k *kind[T]) run(ctx context.Context) {
	defer func() { k.inList.Lock(); defer k.inList.Unlock() }() //nolint:staticcheck // It waits for the last list.
	select {
	case <-ctx.Done():
	case <-k.wake:
	}
	for ctx.Err() == nil {
		round, end := context.WithTimeout(ctx, resyncPeriod)
		k.mu.Lock()
		// Only a watch may be ended: the reflector would leave a list behind that goes on.
		k.endWatch, k.isListing = end, true
		k.mu.Unlock()
		_ = k.reflector.ListAndWatchWithContext(round) // A list that failed has recorded why.
		end()
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-time.After(k.pause()):
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.endList()
}

// pause is how long to wait before the next list: not at all, unless the last one failed.
func (k *kind[T]) pause() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failure == nil {
		return 0
	}
	return k.backoff.Step()
}

// awaitCurrent returns when what is remembered is an answer to a question that is asked now and, unless
// maxAge is 0, was listed within maxAge. All callers that wait at a time share one list; one whose ctx ends
// does not end it for the others. A list that failed is shared, too, until it is time for the next.
func (k *kind[T]) awaitCurrent(ctx context.Context, maxAge time.Duration) (result string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	result = hit
	for before := k.last.number; k.running; result = listed {
		if k.good.number > before || k.isCurrent() && (maxAge == 0 || time.Since(k.good.began) < maxAge) {
			return result, nil
		}
		if k.failure != nil {
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
	return k.running && k.good.number > 0 && (isFollowed || time.Since(k.good.began) < maxListAge)
}

// relist has a list made now. While one is made, or has just failed, that will do. mu is held.
func (k *kind[T]) relist() {
	k.requested = true
	if k.isListing || k.failure != nil {
		return
	}
	if k.endWatch != nil {
		k.endWatch()
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// continueStream is called when the stream has opened. It has a list made if anybody needs one, also when
// the last one failed. mu is held.
func (k *kind[T]) continueStream() {
	k.failure, k.backoff = nil, newListBackoff()
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

// listAnew is the reflector's list: all of it, or an error.
func (k *kind[T]) listAnew(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	k.inList.Lock()
	defer k.inList.Unlock()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if k.beginList(ctx) != nil {
		ctx = client.OneAttempt(ctx)
	}
	began := time.Now()
	found, err := k.listAll(ctx)
	if err != nil {
		err = fmt.Errorf("listing every %s: %w", k.name, err)
		k.recordFailure(err)
		return nil, err
	}
	all := &metainternal.List{}
	for _, item := range found {
		if o := k.newObject(item, began); o.inCluster {
			all.Items = append(all.Items, o)
		}
	}
	return all, nil
}

// beginList waits until it is decided whether the stream opens, and begins to collect events. It returns why
// the list before failed. Who asks from now on waits for this one.
func (k *kind[T]) beginList(ctx context.Context) (before error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	decided := k.decided
	k.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-decided:
	case <-time.After(streamOpenTimeout):
	}
	k.mu.Lock()
	select {
	case <-k.wake: // Who woke this list.
	default:
	}
	k.last = list{number: k.last.number + 1, began: time.Now(), forgets: k.forgets}
	if k.isOpen {
		k.last.opened = k.opened
	}
	k.watcher = k.watcher.replace()
	before, k.failure = k.failure, nil
	return before
}

// replace stops the watcher, which may be nil, and returns another that has what is left of its events.
func (w *watcher) replace() *watcher {
	events := make(chan watch.Event, eventsAhead)
	if w != nil {
		w.Stop()
		for len(w.events) > 0 {
			select {
			case ev := <-w.events:
				events <- ev
			default:
			}
		}
	}
	return &watcher{watch.NewProxyWatcher(events), events}
}

// endList lets those go on who wait for the list. mu is held.
func (k *kind[T]) endList() {
	k.isListing = false
	close(k.ended)
	k.ended = make(chan struct{})
}

// recordFailure ends a list that failed.
func (k *kind[T]) recordFailure(err error) {
	klog.InfoS("Cannot list the cloud's resources; retrying at growing intervals", "kind", k.name, "err", err)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watcher.Stop()
	k.failure, k.unreachable = err, true
	k.endList()
}

// errStreamOpened has the list made anew: it began before the stream opened.
var errStreamOpened = errors.New("the event stream has opened since the list began")

// watchSinceList is the reflector's watch: of the events since its list began.
func (k *kind[T]) watchSinceList(context.Context, metav1.ListOptions) (watch.Interface, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isOpen && k.last.opened != k.opened {
		k.watcher.Stop()
		return nil, errStreamOpened
	}
	return k.watcher, nil
}

// send passes an event on to the reflector, if that watches or is about to.
func (k *kind[T]) send(ctx context.Context, item T, deleted bool) {
	ev := watch.Event{Type: watch.Modified, Object: k.newObject(item, time.Now())}
	if deleted {
		ev.Type = watch.Deleted
	}
	k.mu.Lock()
	w := k.watcher
	k.mu.Unlock()
	if w == nil {
		return
	}
	select {
	case w.events <- ev:
	case <-w.StopChan():
	case <-ctx.Done():
	}
}

func (k *kind[T]) newObject(item T, shownAt time.Time) *object[T] {
	return &object[T]{facts: k.factsOf(&item), item: item, shownAt: shownAt}
}

// Add is Update.
func (k *kind[T]) Add(obj any) error { return k.Update(obj) }

// Update applies an event.
func (k *kind[T]) Update(obj any) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keepNewer(obj.(*object[T])) {
		k.report(obj.(*object[T]).change(Changed))
	}
	return nil
}

// Delete applies an event of a deletion, which is final: the cloud gives no ID twice.
func (k *kind[T]) Delete(obj any) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	o := obj.(*object[T])
	isOurs := o.inCluster || k.get(o.id) != nil
	k.newest[o.id] = seen{deletedVersion, o.shownAt}
	_ = k.indexer.Delete(o)
	if isOurs {
		k.report(o.change(Deleted))
	}
	return nil
}

// errForgotten has the list made anew.
var errForgotten = errors.New("the list is from before everything was forgotten")

// Replace takes in a whole list. There is nothing to compare the first one with, so all that is reported is
// that it was made.
func (k *kind[T]) Replace(objects []any, _ string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.endList()
	k.backoff = newListBackoff()
	k.reportRecovery()
	if k.last.forgets != k.forgets {
		return errForgotten
	}
	isFirst, shown := k.good.number == 0, sets.New[string]()
	k.good = k.last
	for _, obj := range objects {
		o := obj.(*object[T])
		shown.Insert(o.id)
		if k.keepNewer(o) && !isFirst {
			k.report(o.change(Changed))
		}
	}
	for _, o := range k.all() {
		if !shown.Has(o.id) {
			_ = k.indexer.Delete(o)
			k.report(o.change(Changed))
		}
	}
	maps.DeleteFunc(k.newest, func(id string, s seen) bool {
		return k.get(id) == nil && k.good.began.Sub(s.at) > versionsKept
	})
	if isFirst {
		k.report(Change{Kind: Relisted})
	}
	return nil
}

// Resync does nothing: subscribers look at everything now and then by themselves.
func (k *kind[T]) Resync() error { return nil }

// get is what is remembered of that resource, nil if nothing is. mu is held.
func (k *kind[T]) get(id string) *object[T] {
	obj, exists, _ := k.indexer.GetByKey(id) // An indexer never fails.
	if !exists {
		return nil
	}
	return obj.(*object[T])
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
	if k.running && k.forgets == forgets && k.keepNewer(o) {
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

// peek is what find finds if it is current. Otherwise it is nothing, and a list is made in the background.
func (k *kind[T]) peek(find func() []*object[T]) []T {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.requested = true
	if !k.isCurrent() {
		k.relist()
		return nil
	}
	return itemsOf(find())
}

// all are all resources that are remembered, and withKey those with that key. mu is held.
func (k *kind[T]) all() []*object[T] { return k.toObjects(k.indexer.List()) }

func (k *kind[T]) withKey(key string) []*object[T] {
	found, _ := k.indexer.ByIndex(byKey, key) // The index exists.
	return k.toObjects(found)
}

// toObjects are the indexer's objects in the order of their IDs, which is that of their age.
func (k *kind[T]) toObjects(found []any) []*object[T] {
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
