package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/ccm/inventory"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	ourProject = "p-ours"
	clusterTag = "cluster=lab"
	serviceTag = "service"
)

// clusterFilters and isInCluster are those of cluster lab.
func clusterFilters() []string { return []string{clusterTag} }

func isInCluster(tags api.Tags) bool { return tags["cluster"] == "lab" }

var errUnexpected = errors.New("unexpected call")

// fakeCloud answers the calls it was told of; any other fails the test.
type fakeCloud struct {
	t             testing.TB
	getInstance   func(id string) (*api.Instance, error)
	listInstances func() ([]api.Instance, error)
	named         func(name string) ([]api.Instance, error)
	listBalancers func() ([]api.LoadBalancer, error)
	balancersBy   func(tags []string) ([]api.LoadBalancer, error) // before listBalancers
	listRoutes    func() ([]api.Route, error)
	// stream are the steps of the event stream; one that returns an error ends
	// Follow with it. Without a stream, following is unexpected.
	stream chan step
	lists  atomic.Int32
	mu     sync.Mutex // of listInstances
}

type step func(fn func(api.Event) error, onBreak func(error)) error

func (f *fakeCloud) failUnexpected(format string, args ...any) error {
	f.t.Errorf("unexpected "+format, args...)
	return errUnexpected
}

func (f *fakeCloud) GetInstance(_ context.Context, id string) (*api.Instance, error) {
	if f.getInstance == nil {
		return nil, f.failUnexpected("GetInstance(%s)", id)
	}
	return f.getInstance(id)
}

func (f *fakeCloud) ListInstances(_ context.Context, filter client.InstanceFilter) ([]api.Instance, error) {
	f.mu.Lock()
	list := f.listInstances
	f.mu.Unlock()
	switch {
	case f.named != nil && filter.Name != "":
		return f.named(filter.Name)
	case list == nil || filter.Name != "":
		return nil, f.failUnexpected("ListInstances(%+v)", filter)
	}
	f.lists.Add(1)
	return list()
}

func (f *fakeCloud) ListLoadBalancers(_ context.Context, filter client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	if f.balancersBy != nil {
		return f.balancersBy(filter.Tags)
	}
	if f.listBalancers == nil {
		return nil, f.failUnexpected("ListLoadBalancers(%+v)", filter)
	}
	assert.Equal(f.t, client.LoadBalancerFilter{Tags: []string{clusterTag}}, filter)
	f.lists.Add(1)
	return f.listBalancers()
}

func (f *fakeCloud) ListRoutes(_ context.Context, filter client.RouteFilter) ([]api.Route, error) {
	if f.listRoutes == nil {
		return nil, f.failUnexpected("ListRoutes(%+v)", filter)
	}
	assert.Equal(f.t, client.RouteFilter{Tags: []string{clusterTag}}, filter)
	f.lists.Add(1)
	return f.listRoutes()
}

func (f *fakeCloud) Follow(
	ctx context.Context,
	after int64,
	fn func(api.Event) error,
	onBreak func(error),
	only ...client.EventFilter,
) error {
	if f.stream == nil {
		return f.failUnexpected("Follow")
	}
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

// The stream's steps, each of which is over when it returns.

func (f *fakeCloud) openStream() {
	f.stream <- func(_ func(api.Event) error, onBreak func(error)) error { onBreak(nil); return nil }
	synctest.Wait()
}

func (f *fakeCloud) breakStream() {
	f.stream <- func(_ func(api.Event) error, onBreak func(error)) error {
		onBreak(errors.New("connection reset"))
		return nil
	}
	synctest.Wait()
}

func (f *fakeCloud) refuseStream(code api.ProblemCode) {
	f.stream <- func(func(api.Event) error, func(error)) error { return problem(code) }
	synctest.Wait()
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
	}
	f.stream <- func(fn func(api.Event) error, _ func(error)) error { return fn(ev) }
	synctest.Wait()
}

func problem(code api.ProblemCode) error {
	return &client.Error{
		Status: http.StatusGone, Problem: api.Problem{Status: http.StatusGone, Code: code, Detail: string(code)},
	}
}

// setInstances has the cloud list these instances.
func (f *fakeCloud) setInstances(instances ...api.Instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listInstances = func() ([]api.Instance, error) { return slices.Clone(instances), nil }
}

// setBalancers has the cloud list these balancers.
func (f *fakeCloud) setBalancers(balancers ...api.LoadBalancer) {
	f.listBalancers = func() ([]api.LoadBalancer, error) { return balancers, nil }
}

func instance(id string, version int64, state api.InstanceState) api.Instance {
	return api.Instance{
		ID: id, Name: "node-" + id, Project: ourProject, Version: version, State: state,
		Tags: api.Tags{"role": "worker"}, Addresses: []api.Address{{Type: api.AddressInternal, IP: "127.30.16.1"}},
	}
}

func balancer(id, service string, version int64) api.LoadBalancer {
	return api.LoadBalancer{
		ID: id, Project: ourProject, Version: version, State: api.LoadBalancerActive,
		Tags: api.Tags{"cluster": "lab", serviceTag: service},
	}
}

func route(id string, version int64) api.Route {
	return api.Route{
		ID: id, Project: ourProject, Version: version, State: api.RouteActive, Tags: api.Tags{"cluster": "lab"},
	}
}

// harness is an inventory of a fake cloud, in a synctest bubble.
type harness struct {
	*inventory.Inventory
	t     *testing.T
	cloud *fakeCloud

	mu      sync.Mutex
	changes []string
	// recoveries are those that takeChanges left out.
	recoveries int
	asked      map[string]int
}

// inBubble has test run with an inventory. Every goroutine has to end with it.
func inBubble(t *testing.T, change func(*inventory.Options), test func(r *harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &harness{t: t, cloud: &fakeCloud{t: t}, asked: map[string]int{}}
		opts := inventory.Options{
			ClusterFilters: clusterFilters, InCluster: isInCluster, ServiceTag: serviceTag,
			Observe: func(resource, result string) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.asked[resource+" "+result]++
			},
		}
		if change != nil {
			change(&opts)
		}
		r.Inventory = inventory.New(r.cloud, opts)
		r.Subscribe(func(c inventory.Change) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.changes = append(r.changes, describeChange(c))
		})
		test(r)
	})
}

func describeChange(c inventory.Change) string {
	s := "listed anew"
	switch {
	case c.Instance != nil:
		s = fmt.Sprintf("%s v%d %s", c.Instance.ID, c.Instance.Version, c.Instance.State)
	case c.LoadBalancer != nil:
		s = fmt.Sprintf("%s v%d", c.LoadBalancer.ID, c.LoadBalancer.Version)
	case c.Route != nil:
		s = fmt.Sprintf("%s v%d", c.Route.ID, c.Route.Version)
	}
	switch c.Kind {
	case inventory.Deleted:
		s += " gone"
	case inventory.Missing:
		s += " missing"
	case inventory.Recovered:
		s = "recovered"
	case inventory.Freed:
		s = "freed"
	}
	return s
}

// takeChanges are the changes since it was asked last, but for those that say that the cloud
// answers again.
func (r *harness) takeChanges() []string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.changes = nil }()
	r.recoveries += len(r.changes)
	r.changes = slices.DeleteFunc(r.changes, func(s string) bool { return s == "recovered" })
	r.recoveries -= len(r.changes)
	return r.changes
}

// takeRecoveries is how often the cloud was said to answer again since it was asked last.
func (r *harness) takeRecoveries() (n int) {
	r.takeChanges()
	n, r.recoveries = r.recoveries, 0
	return n
}

// run has the inventory follow the cloud until the test ends.
func (r *harness) run() {
	r.cloud.stream = make(chan step)
	ctx, stop := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	r.t.Cleanup(func() { stop(); <-done })
	synctest.Wait()
}

// runWithOpenStream is run with a stream that is open.
func (r *harness) runWithOpenStream() {
	r.run()
	r.cloud.openStream()
}

// runWithInstances is runWithOpenStream in a cloud of these instances, which are listed.
func (r *harness) runWithInstances(instances ...api.Instance) {
	r.t.Helper()
	r.cloud.setInstances(instances...)
	r.runWithOpenStream()
	assert.Equal(r.t, instances[0].Version, r.instanceVersion(instances[0].ID))
}

// named and routes are the inventory's answers.
func (r *harness) named(name string) []api.Instance {
	r.t.Helper()
	named, err := r.InstancesNamed(r.t.Context(), name)
	assert.NoError(r.t, err)
	return named
}

func (r *harness) routes() []api.Route {
	r.t.Helper()
	routes, err := r.Routes(r.t.Context())
	assert.NoError(r.t, err)
	return routes
}

// instanceVersion is that of the instance, 0 of none.
func (r *harness) instanceVersion(id string) int64 {
	r.t.Helper()
	i, err := r.Instance(r.t.Context(), id)
	assert.NoError(r.t, err)
	if i == nil {
		return 0
	}
	return i.Version
}
