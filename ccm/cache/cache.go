// Package cache is a cloud with a memory, so that N nodes cost a list and a stream of events, and not N
// calls. "Yes, and so it looks" comes from memory; "no" is asked of the cloud. Its answers are all about one
// project: package doubt lets no others pass.
//
// Each kind of resource is listed when somebody first asks, and then the cloud's events are applied to it. An
// older version, in a late event or a stale list, never replaces a newer one. It is no informer of client-go:
// that would list whether anybody asks or not and, without a stream, at a pace of its own.
//
// Begin with Cloud. stream.go follows the events, and kind.go has the lists and the memory.
package cache

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	// maxListAge is for how long after it began a list is current without an event stream.
	maxListAge = 2 * time.Second
	// maxNameListAge is how old a list may be in which a name is not found. The events report a new
	// instance, but an instance that the list lacked by mistake is in no event.
	maxNameListAge = time.Second
	// resyncPeriod is how often everything is listed anew although the event stream is open.
	resyncPeriod = 10 * time.Minute
	// maxBuildingAge is for how long a load balancer that is not active yet is answered from memory: the
	// stream, which reports that it is done, may be broken.
	maxBuildingAge = 5 * time.Second
)

// What a question cost, for Options.Observe.
const (
	hit    = "hit"    // It was answered from memory.
	listed = "listed" // It waited for a list, its own or another's.
	asked  = "asked"  // The cloud was asked.
)

// Source is the cloud that the cache asks.
type Source interface {
	core.Cloud
	Follow(
		ctx context.Context,
		after int64,
		fn func(api.Event) error,
		onBreak func(error),
		only ...client.EventFilter,
	) error
}

// Options say what is remembered.
type Options struct {
	// ClusterFilters are tag filters, "key=value", of which each balancer and route of the cluster matches
	// one at least.
	ClusterFilters func() []string
	// InCluster tells by its tags whether a balancer or a route is the cluster's. Call RelistCluster when
	// its answers change.
	InCluster func(api.Tags) bool
	// ServiceTag is the key of the tag that names a balancer's Service by UID.
	ServiceTag string
	// Observe is called for each question with the kind of resource, as the cloud's events name it, and
	// "hit", "listed" or "asked".
	Observe func(resource, result string)
}

// Cloud is the cloud with a memory, which it has while Run runs. Nobody may change what it returns. It is
// safe for concurrent use.
type Cloud struct {
	Source
	*memory
	opts      Options
	instances *kind[api.Instance]
	balancers *kind[api.LoadBalancer]
	routes    *kind[api.Route]

	everyRoute singleflight.Group
}

var _ core.Cloud = (*Cloud)(nil)

// New makes a cloud that remembers nothing yet.
func New(source Source, opts Options) *Cloud {
	c := &Cloud{Source: source, memory: &memory{}, opts: opts}
	c.instances = newKind(c.memory, api.ResourceInstance, func(ctx context.Context) ([]api.Instance, error) {
		return source.ListInstances(ctx, client.InstanceFilter{})
	}, func(i *api.Instance) facts {
		return facts{id: i.ID, version: i.Version, inCluster: true}
	})
	c.balancers = newKind(c.memory, api.ResourceLoadBalancer, func(ctx context.Context) ([]api.LoadBalancer, error) {
		return listCluster(c, func(tags []string) ([]api.LoadBalancer, error) {
			return source.ListLoadBalancers(ctx, client.LoadBalancerFilter{Tags: tags})
		})
	}, func(lb *api.LoadBalancer) facts {
		return facts{id: lb.ID, version: lb.Version, inCluster: opts.InCluster(lb.Tags)}
	})
	c.routes = newKind(c.memory, api.ResourceRoute, func(ctx context.Context) ([]api.Route, error) {
		return listCluster(c, func(tags []string) ([]api.Route, error) {
			return source.ListRoutes(ctx, client.RouteFilter{Tags: tags})
		})
	}, func(r *api.Route) facts {
		return facts{id: r.ID, version: r.Version, inCluster: opts.InCluster(r.Tags)}
	})
	return c
}

// listCluster lists by each of the cluster's filters. What matches several is listed several times.
func listCluster[T any](c *Cloud, list func(tags []string) ([]T, error)) ([]T, error) {
	var all []T
	for _, filter := range c.opts.ClusterFilters() {
		found, err := list([]string{filter})
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// RelistCluster lists the balancers and routes anew, because the answers of Options.InCluster changed.
func (c *Cloud) RelistCluster() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.balancers.refresh(true)
	c.routes.refresh(true)
}

// GetInstance answers from memory if the instance exists and has not ended.
func (c *Cloud) GetInstance(ctx context.Context, id string) (*api.Instance, error) {
	result, err := c.instances.awaitCurrent(ctx, 0)
	known, askedAt := c.instances.lookUp(id), time.Now()
	if err == nil && (known == nil || !isAlive(known.item)) {
		result = asked
	}
	c.opts.Observe(string(api.ResourceInstance), result)
	switch {
	case err != nil:
		return nil, err
	case result != asked:
		return &known.item, nil
	}
	found, err := c.Source.GetInstance(ctx, id)
	if err == nil {
		c.instances.note(*found, askedAt)
	}
	return found, err
}

// ListInstances answers a question for a name. If no instance of that name lives by a list of this
// second, the answer shows those that have ended.
func (c *Cloud) ListInstances(ctx context.Context, f client.InstanceFilter) ([]api.Instance, error) {
	if f.Name == "" || !reflect.DeepEqual(f, client.InstanceFilter{Name: f.Name}) {
		return c.Source.ListInstances(ctx, f)
	}
	result, err := c.instances.awaitCurrent(ctx, 0)
	found := c.instancesNamed(f.Name)
	if err == nil && result != asked && !slices.ContainsFunc(found, isAlive) {
		result, err = c.instances.awaitCurrent(ctx, maxNameListAge)
		found = c.instancesNamed(f.Name)
	}
	c.opts.Observe(string(api.ResourceInstance), result)
	switch {
	case err != nil:
		return nil, err
	case result == asked:
		return c.Source.ListInstances(ctx, f)
	}
	return found, nil
}

func (c *Cloud) instancesNamed(name string) []api.Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.instances.find(func(i *api.Instance) bool { return strings.EqualFold(i.Name, name) })
}

func isAlive(i api.Instance) bool { return !core.IsEnded(i.State) }

// ListLoadBalancers answers a question for the balancers of a Service from memory if there is one that
// needs nothing. If the cloud lists none, each one that is remembered is asked for by its ID: the list may
// be wrong.
func (c *Cloud) ListLoadBalancers(ctx context.Context, f client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	var known []api.LoadBalancer
	if uid, isOfService := c.serviceOf(f); isOfService {
		known = c.LoadBalancersOf(uid)
	}
	if len(known) == 1 && c.isSettled(&known[0]) {
		return known, nil
	}
	askedAt := time.Now()
	found, err := c.Source.ListLoadBalancers(ctx, f)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		if found, err = c.getEach(ctx, known); err != nil {
			return nil, err
		}
	}
	for _, lb := range found {
		c.balancers.note(lb, askedAt)
	}
	return found, nil
}

// serviceOf is the Service whose balancers are asked for, and for nothing else.
func (c *Cloud) serviceOf(f client.LoadBalancerFilter) (uid string, ok bool) {
	if len(f.Tags) != 1 || f.Name != "" || len(f.States) > 0 {
		return "", false
	}
	uid, ok = strings.CutPrefix(f.Tags[0], c.opts.ServiceTag+"=")
	return uid, ok && uid != ""
}

// isSettled tells whether a remembered balancer's state may be used.
func (c *Cloud) isSettled(lb *api.LoadBalancer) bool {
	if lb.State == api.LoadBalancerActive {
		return true
	}
	known := c.balancers.lookUp(lb.ID)
	return lb.State != api.LoadBalancerDeleting && known != nil && time.Since(known.shownAt) < maxBuildingAge
}

// getEach returns those of the balancers that the cloud still has.
func (c *Cloud) getEach(ctx context.Context, known []api.LoadBalancer) (there []api.LoadBalancer, err error) {
	for _, lb := range known {
		found, err := c.GetLoadBalancer(ctx, lb.ID)
		switch {
		case client.IsNotFound(err):
		case err != nil:
			return nil, err
		default:
			there = append(there, *found)
		}
	}
	return there, nil
}

// LoadBalancersOf are the cluster's balancers whose tag names that Service. It makes no call: while what
// is remembered may be out of date there are none, and it is listed in the background.
func (c *Cloud) LoadBalancersOf(serviceUID string) []api.LoadBalancer {
	return c.peekBalancers(func(lb *api.LoadBalancer) bool { return lb.Tags[c.opts.ServiceTag] == serviceUID })
}

// LoadBalancers are all balancers of the cluster, as for LoadBalancersOf.
func (c *Cloud) LoadBalancers() []api.LoadBalancer {
	return c.peekBalancers(func(*api.LoadBalancer) bool { return true })
}

func (c *Cloud) peekBalancers(matches func(*api.LoadBalancer) bool) []api.LoadBalancer {
	found, result := c.balancers.peek(matches), hit
	if len(found) == 0 {
		result = asked
	}
	c.opts.Observe(string(api.ResourceLoadBalancer), result)
	return found
}

// KnowsLoadBalancers tells whether a balancer of the cluster that LoadBalancersOf leaves out is not there,
// by all that the cloud has said.
func (c *Cloud) KnowsLoadBalancers() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.balancers.isCurrent()
}

// CreateLoadBalancer remembers the balancer.
func (c *Cloud) CreateLoadBalancer(ctx context.Context, lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
	return noteAnswer(c.balancers, "", func() (*api.LoadBalancer, error) { return c.Source.CreateLoadBalancer(ctx, lb) })
}

// UpdateLoadBalancer remembers the balancer as the cloud answers, and forgets one that the cloud does not
// have, or not in that version or state.
func (c *Cloud) UpdateLoadBalancer(
	ctx context.Context, id string, u api.LoadBalancerUpdate,
) (*api.LoadBalancer, error) {
	return noteAnswer(c.balancers, id, func() (*api.LoadBalancer, error) { return c.Source.UpdateLoadBalancer(ctx, id, u) })
}

// DeleteLoadBalancer is like UpdateLoadBalancer.
func (c *Cloud) DeleteLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error) {
	return noteAnswer(c.balancers, id, func() (*api.LoadBalancer, error) { return c.Source.DeleteLoadBalancer(ctx, id) })
}

// ListRoutes answers a question for the cluster's routes. Those who ask for every route at a time share an answer:
// after one wrong list upstream creates all of them again, and each refusal asks for the route in the way.
func (c *Cloud) ListRoutes(ctx context.Context, f client.RouteFilter) ([]api.Route, error) {
	if reflect.DeepEqual(f, client.RouteFilter{}) {
		all, err, _ := c.everyRoute.Do("", func() (any, error) { return c.Source.ListRoutes(ctx, f) })
		return all.([]api.Route), err
	}
	if f.Name != "" || len(f.Tags) != 1 || !slices.Contains(c.opts.ClusterFilters(), f.Tags[0]) {
		return c.Source.ListRoutes(ctx, f)
	}
	result, err := c.routes.awaitCurrent(ctx, 0)
	c.opts.Observe(string(api.ResourceRoute), result)
	switch {
	case err != nil:
		return nil, err
	case result == asked:
		return c.Source.ListRoutes(ctx, f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key, value, _ := strings.Cut(f.Tags[0], "=")
	return c.routes.find(func(r *api.Route) bool { return r.Tags[key] == value }), nil
}

// CreateRoute remembers the route.
func (c *Cloud) CreateRoute(ctx context.Context, r api.RouteCreate) (*api.Route, error) {
	return noteAnswer(c.routes, "", func() (*api.Route, error) { return c.Source.CreateRoute(ctx, r) })
}

// UpdateRoute is like UpdateLoadBalancer.
func (c *Cloud) UpdateRoute(ctx context.Context, id string, u api.ResourceUpdate) (*api.Route, error) {
	return noteAnswer(c.routes, id, func() (*api.Route, error) { return c.Source.UpdateRoute(ctx, id, u) })
}

// noteAnswer makes a change, and remembers what the cloud answers.
func noteAnswer[T any](k *kind[T], id string, change func() (*T, error)) (*T, error) {
	askedAt := time.Now()
	changed, err := change()
	switch {
	case err == nil:
		k.note(*changed, askedAt)
	case client.IsNotFound(err), client.HasCode(err, api.PreconditionFailed), client.HasCode(err, api.WrongState):
		k.drop(id)
	}
	return changed, err
}
