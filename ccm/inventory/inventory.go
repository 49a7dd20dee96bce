// Package inventory is the CCM's cache of the cloud, so that N nodes cost a list and a stream of
// events, and not N calls. It can say that a resource exists, and how it looks. It proves no
// absence: before acting on one, ask the cloud. It knows Nodes and Services only by their tags. The answers
// that it is given are all about one project: package doubt lets no others pass.
//
// Each kind of resource is listed when it is first needed, once for all who ask at the time,
// and then kept up to date by the cloud's events. An older version, in a late event or a stale list,
// never replaces a newer one.
//
// Begin with Inventory and its questions, here; stream.go follows the events, refresh.go
// makes lists, outage.go retries those that fail, store.go resolves contradicting reports, and
// changes.go reports changes.
package inventory

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Cloud are the calls that an inventory makes.
type Cloud interface {
	GetInstance(ctx context.Context, id string) (*api.Instance, error)
	ListInstances(ctx context.Context, f client.InstanceFilter) ([]api.Instance, error)
	ListLoadBalancers(ctx context.Context, f client.LoadBalancerFilter) ([]api.LoadBalancer, error)
	ListRoutes(ctx context.Context, f client.RouteFilter) ([]api.Route, error)
	Follow(
		ctx context.Context,
		after int64,
		fn func(api.Event) error,
		onBreak func(error),
		only ...client.EventFilter,
	) error
}

// Defaults of Options.
const (
	DefaultMaxAge = 2 * time.Second
	DefaultResync = 10 * time.Minute
)

// What a question cost, for Options.Observe.
const (
	// Hit is a question that was answered from what is known.
	Hit = "hit"
	// Listed is a question that had to wait for a list, its own or another's.
	Listed = "listed"
	// Asked is a question that the cloud must answer: the inventory does not know, or is
	// off.
	Asked = "asked"
)

// Options say what is remembered, and for how long.
type Options struct {
	// ClusterFilters are tag filters, "key=value", of which each balancer and route of the
	// cluster matches one at least. Without any, all of the project are listed.
	ClusterFilters func() []string
	// InCluster tells by its tags whether a balancer or a route is the cluster's. If it is
	// nil, all are. Call RelistCluster when its answers change.
	InCluster func(api.Tags) bool
	// ServiceTag is the key of the tag that names a balancer's Service by UID.
	ServiceTag string
	// Off sends every question to the cloud.
	Off bool
	// MaxAge is for how long after it began a list is current without an event stream;
	// DefaultMaxAge when zero.
	MaxAge time.Duration
	// Resync is how often everything is listed anew although the event stream is open;
	// DefaultResync when zero.
	Resync time.Duration
	// Token tells tokens apart: what it returns changes when the token in use does. Then a list
	// that failed is made again at once. Nil is for a token that never changes.
	Token func() string
	// Observe, when not nil, is called for each question with the kind of resource, as the
	// cloud's events name it, and Hit, Listed or Asked.
	Observe func(resource, result string)
}

// Inventory remembers the instances, load balancers and routes of one project. It is safe
// for concurrent use.
type Inventory struct {
	cloud Cloud
	opts  Options

	instances *resourceStore[api.Instance]
	balancers *resourceStore[api.LoadBalancer]
	routes    *resourceStore[api.Route]

	mu sync.Mutex
	// tick orders what is learned, lists that begin and streams that open.
	tick uint64
	// generation grows when all is forgotten: a list that began before is then dropped.
	generation int
	// stream is what is followed now; nil when nothing is.
	stream *stream
	// streamLost is true when a stream ended and what is known is from before that: the
	// events of the next stream do not continue it.
	streamLost bool
	// unreachable is true after the stream broke or a list failed, until Recovered is reported.
	unreachable bool
	// streamDecided is closed when it is known whether the stream opens; nil when nothing is
	// followed.
	streamDecided chan struct{}
	// listContext is the context of lists; runningLists are those that end with Run.
	listContext  context.Context
	isRunning    bool
	runningLists sync.WaitGroup

	changes changeFeed
}

// New makes an inventory that knows nothing yet.
func New(cloud Cloud, opts Options) *Inventory {
	opts.MaxAge, opts.Resync = cmp.Or(opts.MaxAge, DefaultMaxAge), cmp.Or(opts.Resync, DefaultResync)
	i := &Inventory{cloud: cloud, opts: opts, listContext: idleListContext()}
	i.instances = newResourceStore(api.ResourceInstance, func(ctx context.Context) ([]api.Instance, error) {
		return cloud.ListInstances(ctx, client.InstanceFilter{})
	}, factsOfInstance, cloneInstance)
	i.balancers = newResourceStore(api.ResourceLoadBalancer, func(ctx context.Context) ([]api.LoadBalancer, error) {
		return listOfCluster(i, func(tags []string) ([]api.LoadBalancer, error) {
			return cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{Tags: tags})
		}, i.factsOfBalancer)
	}, i.factsOfBalancer, cloneBalancer)
	i.routes = newResourceStore(api.ResourceRoute, i.listRoutes, i.factsOfRoute, cloneRoute)
	return i
}

// idleListContext is the context of lists while Run does not run.
func idleListContext() context.Context { return calls.For(context.Background(), calls.Inventory) }

// Instance is the instance with that ID; nil if the inventory has none.
func (i *Inventory) Instance(ctx context.Context, id string) (*api.Instance, error) {
	if i.opts.Off {
		i.observeQuestion(api.ResourceInstance, Asked)
		return i.cloud.GetInstance(ctx, id)
	}
	waited, err := ensureCurrent(ctx, i, i.instances, i.currentTick(), 0)
	if err != nil {
		i.observeQuestion(api.ResourceInstance, Listed)
		return nil, err
	}
	i.mu.Lock()
	e := i.instances.entries[id]
	if e == nil || e.missing {
		i.mu.Unlock()
		i.observeQuestion(api.ResourceInstance, Asked)
		return nil, nil
	}
	found := cloneInstance(e.item)
	i.mu.Unlock()
	i.observeQuestion(api.ResourceInstance, cacheResult(waited))
	return &found, nil
}

// namedListMaxAge is how old a list may be in which a name is not found. The events report a
// new instance, but an instance that the list lacked by mistake is in no event.
const namedListMaxAge = time.Second

// InstancesNamed are all instances of that name, in whatever case, that the cloud still shows,
// ended ones included, in the order of their IDs.
func (i *Inventory) InstancesNamed(ctx context.Context, name string) ([]api.Instance, error) {
	if i.opts.Off {
		i.observeQuestion(api.ResourceInstance, Asked)
		return i.cloud.ListInstances(ctx, client.InstanceFilter{Name: name})
	}
	asked := i.currentTick()
	waited, err := ensureCurrent(ctx, i, i.instances, asked, 0)
	found := i.knownInstancesNamed(name)
	if err == nil && len(found) == 0 {
		var again bool
		again, err = ensureCurrent(ctx, i, i.instances, asked, namedListMaxAge)
		waited = waited || again
		found = i.knownInstancesNamed(name)
	}
	i.observeQuestion(api.ResourceInstance, cacheResult(waited))
	if err != nil {
		return nil, err
	}
	return found, nil
}

func (i *Inventory) knownInstancesNamed(name string) []api.Instance {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.instances.listByKey(strings.ToLower(name), func(*entry[api.Instance]) bool { return true })
}

// LoadBalancersOf are the cluster's balancers whose tag names that Service. It makes no call
// of the cloud: balancers that are not known, or whose state may be out of date, are left
// out. In that case they are listed in the background, if Run runs.
func (i *Inventory) LoadBalancersOf(serviceUID string) []api.LoadBalancer {
	return i.findKnownBalancers(func() []api.LoadBalancer {
		return i.balancers.listByKey(serviceUID, i.isEntryCurrent)
	})
}

// KnowsLoadBalancers tells whether a balancer of the cluster that LoadBalancersOf leaves out is not
// there, by all that the cloud has said.
func (i *Inventory) KnowsLoadBalancers() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.opts.Off && i.isCurrent(i.balancers.listed)
}

// LoadBalancers are all balancers of the cluster that are known, as for
// LoadBalancersOf.
func (i *Inventory) LoadBalancers() []api.LoadBalancer {
	return i.findKnownBalancers(func() []api.LoadBalancer { return i.balancers.listAll(i.isEntryCurrent) })
}

func (i *Inventory) findKnownBalancers(find func() []api.LoadBalancer) []api.LoadBalancer {
	if i.opts.Off {
		i.observeQuestion(api.ResourceLoadBalancer, Asked)
		return nil
	}
	i.mu.Lock()
	i.balancers.requested = true
	if !i.isCurrent(i.balancers.listed) {
		i.balancers.wakeKeeper()
	}
	found := find()
	i.mu.Unlock()
	if len(found) == 0 {
		i.observeQuestion(api.ResourceLoadBalancer, Asked)
	} else {
		i.observeQuestion(api.ResourceLoadBalancer, Hit)
	}
	return found
}

func (i *Inventory) isEntryCurrent(e *entry[api.LoadBalancer]) bool {
	return i.isCurrent(e.confirmedAt)
}

// Routes are all routes of the cluster, in the order of their IDs.
func (i *Inventory) Routes(ctx context.Context) ([]api.Route, error) {
	if i.opts.Off {
		i.observeQuestion(api.ResourceRoute, Asked)
		return i.listRoutes(ctx)
	}
	waited, err := ensureCurrent(ctx, i, i.routes, i.currentTick(), 0)
	i.observeQuestion(api.ResourceRoute, cacheResult(waited))
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.routes.listAll(func(*entry[api.Route]) bool { return true }), nil
}

func (i *Inventory) listRoutes(ctx context.Context) ([]api.Route, error) {
	return listOfCluster(i, func(tags []string) ([]api.Route, error) {
		return i.cloud.ListRoutes(ctx, client.RouteFilter{Tags: tags})
	}, i.factsOfRoute)
}

// NoteLoadBalancer records a balancer that the cloud answered with, so that the next
// question does not wait for the event. A version older than the known one changes nothing.
func (i *Inventory) NoteLoadBalancer(lb api.LoadBalancer) { noteResource(i, i.balancers, lb) }

// NoteRoute is NoteLoadBalancer for a route.
func (i *Inventory) NoteRoute(r api.Route) { noteResource(i, i.routes, r) }

// NoteInstance is NoteLoadBalancer for an instance, which the caller has found to be our
// project's. An instance that a list lacked by mistake is not missing any more.
func (i *Inventory) NoteInstance(instance api.Instance) { noteResource(i, i.instances, instance) }

func noteResource[T any](i *Inventory, s *resourceStore[T], item T) {
	if i.opts.Off {
		return
	}
	f := s.facts(&item)
	if !f.ofCluster {
		return
	}
	i.mu.Lock()
	if c, news := s.confirmItem(s.clone(item), f, i.nextMoment()); news {
		i.changes.add(c)
	}
	i.mu.Unlock()
	i.changes.deliver()
}

// listOfCluster lists by each of the cluster's filters, and returns what matches several
// once.
func listOfCluster[T any](i *Inventory, list func(tags []string) ([]T, error), factsOf func(*T) facts) ([]T, error) {
	if i.opts.ClusterFilters == nil {
		return list(nil)
	}
	var all []T
	listed := map[string]bool{}
	for _, filter := range i.opts.ClusterFilters() {
		found, err := list([]string{filter})
		if err != nil {
			return nil, err
		}
		for _, item := range found {
			if id := factsOf(&item).id; !listed[id] {
				listed[id] = true
				all = append(all, item)
			}
		}
	}
	return all, nil
}

// RelistCluster lists the balancers and routes anew, because the answers of Options.InCluster changed.
func (i *Inventory) RelistCluster() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.generation++ // Lists that began before are dropped.
	i.balancers.listed, i.routes.listed = moment{}, moment{}
	i.balancers.wakeKeeper()
	i.routes.wakeKeeper()
}

func (i *Inventory) isInCluster(tags api.Tags) bool {
	return i.opts.InCluster == nil || i.opts.InCluster(tags)
}

func (i *Inventory) observeQuestion(kind api.ResourceKind, result string) {
	if i.opts.Observe != nil {
		i.opts.Observe(string(kind), result)
	}
}

func cacheResult(waited bool) string {
	if waited {
		return Listed
	}
	return Hit
}

func factsOfInstance(i *api.Instance) facts {
	return facts{
		id: i.ID, version: i.Version, key: strings.ToLower(i.Name), ofCluster: true,
		ended: i.State == api.InstanceTerminated,
	}
}

func (i *Inventory) factsOfBalancer(lb *api.LoadBalancer) facts {
	return facts{
		id: lb.ID, version: lb.Version, key: lb.Tags[i.opts.ServiceTag],
		ofCluster: i.isInCluster(lb.Tags),
	}
}

func (i *Inventory) factsOfRoute(r *api.Route) facts {
	return facts{
		id: r.ID, version: r.Version, ofCluster: i.isInCluster(r.Tags),
	}
}

// sortByID sorts entries by age, oldest first.
func sortByID[T any](entries []*entry[T]) {
	slices.SortFunc(entries, func(a, b *entry[T]) int { return cmp.Compare(a.facts.id, b.facts.id) })
}
