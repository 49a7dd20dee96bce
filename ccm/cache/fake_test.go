package cache_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	clusterTag = "cluster=lab"
	serviceTag = "service"
)

// fakeCloud answers the calls it was told of; any other panics or fails the test.
type fakeCloud struct {
	core.Cloud // nil
	t          testing.TB
	// stream are the steps of the event stream; one that returns an error ends Follow with it.
	stream chan streamStep

	mu            sync.Mutex
	calls         []string
	getInstance   func(id string) (*api.Instance, error)
	getBalancer   func(id string) (*api.LoadBalancer, error)
	listInstances func() ([]api.Instance, error)
	listBalancers func() ([]api.LoadBalancer, error)
	listRoutes    func() ([]api.Route, error)
	change        error // of every change of a balancer
}

type streamStep func(fn func(api.Event) error, onBreak func(error)) error

func (f *fakeCloud) called(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

// takeCalls are the calls since it was last called.
func (f *fakeCloud) takeCalls() []string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.calls = nil }()
	return f.calls
}

func (f *fakeCloud) GetInstance(_ context.Context, id string) (*api.Instance, error) {
	f.called("get %s", id)
	return f.getInstance(id)
}

func (f *fakeCloud) ListInstances(_ context.Context, filter client.InstanceFilter) ([]api.Instance, error) {
	f.called("list%s", filter.Name)
	f.mu.Lock()
	list := f.listInstances
	f.mu.Unlock()
	return list()
}

func (f *fakeCloud) GetLoadBalancer(_ context.Context, id string) (*api.LoadBalancer, error) {
	f.called("get %s", id)
	return f.getBalancer(id)
}

func (f *fakeCloud) ListLoadBalancers(_ context.Context, filter client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	f.called("list %s", filter.Tags[0])
	return f.listBalancers()
}

func (f *fakeCloud) DeleteLoadBalancer(_ context.Context, id string) (*api.LoadBalancer, error) {
	f.called("delete %s", id)
	gone := balancer(id, "uid-1", 9)
	gone.State = api.LoadBalancerDeleting
	return &gone, f.change
}

func (f *fakeCloud) ListRoutes(_ context.Context, filter client.RouteFilter) ([]api.Route, error) {
	f.called("list %v", filter.Tags)
	return f.listRoutes()
}

func (f *fakeCloud) CreateRoute(_ context.Context, r api.RouteCreate) (*api.Route, error) {
	f.called("create %s", r.Name)
	made := route(r.Name, 1)
	return &made, nil
}

func (f *fakeCloud) Follow(
	ctx context.Context, after int64, fn func(api.Event) error, onBreak func(error), only ...client.EventFilter,
) error {
	assert.Equal(f.t, client.FromNewest, after)
	assert.Empty(f.t, only, "clouds refuse kinds that they do not know")
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case next := <-f.stream:
			if err := next(fn, onBreak); err != nil {
				return err
			}
		}
	}
}

// step has the stream take a step, which is over when step returns.
func (f *fakeCloud) step(next streamStep) {
	f.stream <- next
	synctest.Wait()
}

func (f *fakeCloud) setStreamState(err error) {
	f.step(func(_ func(api.Event) error, onBreak func(error)) error { onBreak(err); return nil })
}

func (f *fakeCloud) openStream()  { f.setStreamState(nil) }
func (f *fakeCloud) breakStream() { f.setStreamState(errors.New("reset")) }

func (f *fakeCloud) refuseStream(code api.ProblemCode) {
	f.step(func(func(api.Event) error, func(error)) error { return problem(http.StatusGone, code) })
}

func (f *fakeCloud) sendEvent(kind api.EventType, resource any) {
	ev := api.Event{Type: kind}
	switch r := resource.(type) {
	case api.Instance:
		ev.Instance = &r
	case api.LoadBalancer:
		ev.LoadBalancer = &r
	case api.Route:
		ev.Route = &r
	case api.ResourceKind:
		ev.Resource = r
	}
	f.step(func(fn func(api.Event) error, _ func(error)) error { return fn(ev) })
}

func problem(status int, code api.ProblemCode) error {
	return &client.Error{Status: status, Problem: api.Problem{Code: code, Project: new("p-ours")}}
}

func notFound() error { return problem(http.StatusNotFound, api.NotFound) }

// setInstances has the cloud list these instances, and have no others.
func (f *fakeCloud) setInstances(instances ...api.Instance) { f.setInstancesAfter(0, instances...) }

// setInstancesAfter is setInstances for a cloud that takes so long for a list.
func (f *fakeCloud) setInstancesAfter(delay time.Duration, instances ...api.Instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listInstances = func() ([]api.Instance, error) { time.Sleep(delay); return slices.Clone(instances), nil }
	f.getInstance = func(string) (*api.Instance, error) { return nil, notFound() }
}

// failLists has the cloud fail all lists of instances and balancers.
func (f *fakeCloud) failLists(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listInstances = func() ([]api.Instance, error) { return nil, err }
	f.listBalancers = func() ([]api.LoadBalancer, error) { return nil, err }
}

// setBalancers has the cloud list these balancers.
func (f *fakeCloud) setBalancers(balancers ...api.LoadBalancer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listBalancers = func() ([]api.LoadBalancer, error) { return balancers, nil }
}

func instance(id string, version int64, state api.InstanceState) api.Instance {
	return api.Instance{ID: id, Name: "node-" + id, Version: version, State: state}
}

func balancer(id, service string, version int64) api.LoadBalancer {
	tags := api.Tags{"cluster": "lab", serviceTag: service}
	return api.LoadBalancer{Metadata: api.Metadata{ID: id, Version: version, Tags: tags}, State: api.LoadBalancerActive}
}

func route(id string, version int64) api.Route {
	return api.Route{Metadata: api.Metadata{ID: id, Version: version, Tags: api.Tags{"cluster": "lab"}}}
}

// harness is a cache of a fake cloud, in a synctest bubble.
type harness struct {
	*cache.Cloud
	t     *testing.T
	cloud *fakeCloud

	mu      sync.Mutex
	changes []string
	asked   map[string]int
}

// inBubble has test run with a cache that follows the cloud. Every goroutine has to end with it.
func inBubble(t *testing.T, test func(r *harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newHarness(t)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.Run(ctx); close(done) }()
		defer func() { stop(); <-done }()
		synctest.Wait()
		test(r)
	})
}

func newHarness(t *testing.T) *harness {
	r := &harness{t: t, asked: map[string]int{}, cloud: &fakeCloud{t: t, stream: make(chan streamStep)}}
	r.cloud.setInstances()
	r.Cloud = cache.New(r.cloud, cache.Options{
		ClusterFilters: func() []string { return []string{clusterTag} },
		InCluster:      func(tags api.Tags) bool { return tags["cluster"] == "lab" },
		ServiceTag:     serviceTag,
		Observe: func(resource, result string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.asked[resource+" "+result]++
		},
	})
	r.Subscribe(func(c cache.Change) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.changes = append(r.changes, describeChange(c))
	})
	return r
}

func describeChange(c cache.Change) string {
	s := map[cache.ChangeKind]string{
		cache.Relisted: "listed anew", cache.Recovered: "recovered", cache.Freed: "freed", cache.Changed: "a route",
	}[c.Kind]
	switch {
	case c.Instance != nil:
		s = fmt.Sprintf("%s v%d %s", c.Instance.ID, c.Instance.Version, c.Instance.State)
	case c.LoadBalancer != nil:
		s = fmt.Sprintf("%s v%d", c.LoadBalancer.ID, c.LoadBalancer.Version)
	}
	if c.Kind == cache.Deleted {
		s += " gone"
	}
	return s
}

// takeChanges are the changes since it was asked last.
func (r *harness) takeChanges() []string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.changes = nil }()
	return r.changes
}

// haveInstances opens the stream of a cloud of these instances, and has them listed.
func (r *harness) haveInstances(instances ...api.Instance) {
	r.t.Helper()
	r.cloud.setInstances(instances...)
	r.cloud.openStream()
	assert.Equal(r.t, instances[0].Version, r.version(instances[0].ID))
	assert.Equal(r.t, []string{"list"}, r.cloud.takeCalls())
	assert.Equal(r.t, []string{"listed anew"}, r.takeChanges())
}

func (r *harness) named(name string) []api.Instance {
	return listed(r, r.ListInstances, client.InstanceFilter{Name: name})
}

func (r *harness) balancersOf(uid string) []api.LoadBalancer {
	return listed(r, r.ListLoadBalancers, client.LoadBalancerFilter{Tags: []string{serviceTag + "=" + uid}})
}

func (r *harness) routes() []api.Route {
	return listed(r, r.ListRoutes, client.RouteFilter{Tags: []string{clusterTag}})
}

func listed[T, Filter any](r *harness, list func(context.Context, Filter) ([]T, error), filter Filter) []T {
	found, err := list(r.t.Context(), filter)
	assert.NoError(r.t, err)
	return found
}

// version is that of the instance, 0 of one that the cloud does not have.
func (r *harness) version(id string) int64 {
	r.t.Helper()
	i, err := r.GetInstance(r.t.Context(), id)
	if client.IsNotFound(err) {
		return 0
	}
	assert.NoError(r.t, err)
	return i.Version
}
