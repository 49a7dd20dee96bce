package inventory_test

// What is remembered of a whole cloud behind HTTP, and what that costs.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ccmlab/ccmlab/ccm/doubt"
	"github.com/ccmlab/ccmlab/ccm/inventory"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
)

const patience = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// realCloud is a cloud, and an inventory that sees it through a gate.
type realCloud struct {
	*inventory.Inventory
	operator *cloudtest.Cloud
	gate     *recordingTransport
	token    string // the file of the CCM's

	mu      sync.Mutex
	changes []string
}

// newRealCloud has a cloud with so many running instances, and follows it.
func newRealCloud(t *testing.T, instances int, change func(*inventory.Options)) *realCloud {
	t.Helper()
	s := &realCloud{operator: cloudtest.Start(t, cloudtest.WithoutTraffic())}
	s.token = s.operator.NewToken("ccm", api.RoleEditor)
	s.gate = &recordingTransport{calls: map[string]int{}, url: s.operator.URL}
	t.Cleanup(s.gate.endConnections)
	createInstances(t, s.operator, instances)
	ccm, err := client.New(client.Config{URL: "http://cloud", TokenFile: s.token, Transport: s.gate})
	require.NoError(t, err)
	opts := inventory.Options{
		ClusterFilters: clusterFilters, InCluster: isInCluster, ServiceTag: serviceTag, MaxAge: 100 * time.Millisecond,
	}
	opts.Token = func() string { content, _ := os.ReadFile(s.token); return string(content) }
	if change != nil {
		change(&opts)
	}
	s.Inventory = inventory.New(doubt.Reject(ccm, cloudtest.ProjectName, opts.Token), opts)
	s.Subscribe(func(c inventory.Change) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changes = append(s.changes, describeChange(c))
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	t.Cleanup(func() { stop(); <-done })
	require.Eventually(t, func() bool { return s.gate.callCount(streamCall) > 0 }, patience, time.Millisecond)
	return s
}

// createInstances makes running instances, node-0000 and so on.
func createInstances(t *testing.T, cloud *cloudtest.Cloud, n int) {
	t.Helper()
	var making sync.WaitGroup
	next := make(chan int)
	for range 8 {
		making.Go(func() {
			for i := range next {
				_, err := cloud.CreateInstance(t.Context(), api.InstanceCreate{Name: new(fmt.Sprintf("node-%04d", i))})
				assert.NoError(t, err)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	making.Wait()
	require.Eventually(t, func() bool {
		up, err := cloud.ListInstances(
			t.Context(), client.InstanceFilter{States: []api.InstanceState{api.InstanceRunning}},
		)
		return err == nil && len(up) == n
	}, patience, 5*time.Millisecond)
}

// recordingTransport is the way to the cloud, wherever that is now. It counts the CCM's calls,
// and can break the event stream.
type recordingTransport struct {
	mu      sync.Mutex
	url     string
	calls   map[string]int
	broken  bool
	streams []context.CancelFunc
	direct  http.Transport
}

func (g *recordingTransport) set(fn func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fn()
}

func (g *recordingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	g.mu.Lock()
	what, broken := req.Method+" "+req.URL.Path, g.broken
	g.calls[what]++
	if what == streamCall {
		ctx, end := context.WithCancel(req.Context())
		g.streams = append(g.streams, end)
		req = req.WithContext(ctx)
	}
	g.mu.Unlock()
	if what == streamCall && broken {
		return nil, errors.New("the stream is broken")
	}
	return g.to().RoundTrip(req)
}

const (
	streamCall = "GET /v1/events"
	listCall   = "GET /v1/instances"
)

// to leads to the cloud, and counts nothing.
func (g *recordingTransport) to() roundTripper {
	return func(req *http.Request) (*http.Response, error) {
		req = req.Clone(req.Context())
		g.set(func() { req.URL.Host = strings.TrimPrefix(g.url, "http://") })
		return g.direct.RoundTrip(req)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func (g *recordingTransport) endConnections() {
	g.breakStream(true)
	g.direct.CloseIdleConnections()
}

// countCalls gives the calls made since it was asked last.
func (g *recordingTransport) countCalls() (calls map[string]int) {
	g.set(func() { calls, g.calls = g.calls, map[string]int{} })
	return calls
}

func (g *recordingTransport) breakStream(broken bool) {
	g.set(func() {
		g.broken = broken
		for _, end := range g.streams {
			end()
		}
		g.streams = nil
	})
}

func (s *realCloud) getInstanceNamed(t *testing.T, name string) api.Instance {
	t.Helper()
	named, err := s.InstancesNamed(t.Context(), name)
	require.NoError(t, err)
	require.Len(t, named, 1)
	return named[0]
}

// awaitState awaits that the inventory shows an instance in a state.
func (s *realCloud) awaitState(t *testing.T, id string, want api.InstanceState) {
	t.Helper()
	require.Eventually(t, func() bool {
		i, err := s.Instance(t.Context(), id)
		return err == nil && i != nil && i.State == want
	}, patience, 5*time.Millisecond)
}

// awaitChange awaits what the subscribers are told.
func (s *realCloud) awaitChange(t *testing.T, want string) {
	t.Helper()
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Contains(s.changes, want)
	}, patience, 5*time.Millisecond, want)
}

// A thousand instances, asked for by ID and by name by thirty at a time, cost
// two pages and a stream; what changes, no call at all.
func TestAThousandInstances(t *testing.T) {
	const n = 1000
	s := newRealCloud(t, n, nil)
	var asking sync.WaitGroup
	names := make(chan int)
	for range 30 {
		asking.Go(func() {
			for i := range names {
				name := fmt.Sprintf("node-%04d", i)
				named, err := s.InstancesNamed(t.Context(), name)
				if !assert.NoError(t, err) || !assert.Len(t, named, 1, name) {
					continue
				}
				found, err := s.Instance(t.Context(), named[0].ID)
				assert.NoError(t, err)
				assert.Equal(t, &named[0], found)
			}
		})
	}
	for i := range n {
		names <- i
	}
	close(names)
	asking.Wait()
	assert.Empty(t, s.LoadBalancers())
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.changes) == 2 // Both kinds listed anew.
	}, patience, 5*time.Millisecond)
	assert.Equal(
		t, map[string]int{streamCall: 1, listCall: 2, "GET /v1/load-balancers": 1, "GET /v1/project": 1},
		s.gate.countCalls(),
	)

	one := s.getInstanceNamed(t, "node-0500")
	_, err := s.operator.StopInstance(t.Context(), one.ID)
	require.NoError(t, err)
	s.awaitState(t, one.ID, api.InstanceStopped)
	_, err = s.operator.TerminateInstance(t.Context(), one.ID)
	require.NoError(t, err)
	s.awaitState(t, one.ID, api.InstanceTerminated)
	s.awaitChange(t, fmt.Sprintf("%s v%d terminated gone", one.ID, s.getInstanceNamed(t, one.Name).Version))
	assert.Empty(t, s.gate.countCalls())
}

func TestBalancersAndRoutesFollowTheCloud(t *testing.T) {
	s := newRealCloud(t, 1, nil)
	hop := s.getInstanceNamed(t, "node-0000")
	routes, err := s.Routes(t.Context())
	require.NoError(t, err)
	assert.Empty(t, routes)
	tags := &api.Tags{"cluster": "lab", serviceTag: "uid-1"}
	route, err := s.operator.CreateRoute(
		t.Context(), api.RouteCreate{Name: "r", Destination: "10.244.0.0/24", InstanceID: hop.ID, Tags: tags},
	)
	require.NoError(t, err)
	_, err = s.operator.CreateRoute(
		t.Context(), api.RouteCreate{Name: "theirs", Destination: "10.244.1.0/24", InstanceID: hop.ID},
	)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		routes, err := s.Routes(t.Context())
		return err == nil && len(routes) == 1 && routes[0].ID == route.ID
	}, patience, 5*time.Millisecond)
	require.NoError(t, s.operator.DeleteRoute(t.Context(), route.ID))
	s.awaitChange(t, route.ID+" v2 gone")
	routes, err = s.Routes(t.Context())
	require.NoError(t, err)
	assert.Empty(t, routes)

	lb, err := s.operator.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Name: "lb", Tags: tags, Listeners: []api.Listener{{Port: 8080, Protocol: api.ProtocolTCP, TargetPort: 30080}},
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		known := s.LoadBalancersOf("uid-1")
		return len(known) == 1 && known[0].ID == lb.ID && known[0].State != lb.State
	}, patience, 5*time.Millisecond)
	_, err = s.operator.DeleteLoadBalancer(t.Context(), lb.ID)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(s.LoadBalancersOf("uid-1")) == 0 }, patience, 5*time.Millisecond)
	calls := s.gate.countCalls()
	assert.Equal(t, 1, calls["GET /v1/routes"])
	assert.Equal(t, 1, calls["GET /v1/load-balancers"])
}

// A cloud that comes back with other data has other events: nothing of what was
// known counts.
func TestACloudThatComesBackWithOtherData(t *testing.T) {
	s := newRealCloud(t, 3, nil)
	before := s.getInstanceNamed(t, "node-0000")
	s.gate.set(func() { s.gate.url = "http://127.0.0.1:1" }) // Nobody listens there.
	s.gate.breakStream(false)
	_, err := s.Instance(t.Context(), "i-any")
	for err == nil { // Current for a little while.
		_, err = s.Instance(t.Context(), "i-any")
	}
	s.operator = cloudtest.Start(t, cloudtest.WithoutTraffic())
	createInstances(t, s.operator, 2)
	secret, err := os.ReadFile(s.operator.TokenFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(s.token, secret, 0o600))
	s.gate.set(func() { s.gate.url = s.operator.URL })
	require.Eventually(t, func() bool {
		zero, err := s.InstancesNamed(t.Context(), "node-0000")
		return err == nil && len(zero) == 1 && zero[0].ID != before.ID
	}, patience, 5*time.Millisecond)
	gone, err := s.Instance(t.Context(), before.ID)
	require.NoError(t, err)
	assert.Nil(t, gone)
	one := s.getInstanceNamed(t, "node-0001")
	_, err = s.operator.StopInstance(t.Context(), one.ID)
	require.NoError(t, err)
	s.awaitState(t, one.ID, api.InstanceStopped)
	require.Eventually(t, func() bool { // With nobody's asking.
		s.mu.Lock()
		defer s.mu.Unlock()
		anew := slices.DeleteFunc(slices.Clone(s.changes), func(c string) bool { return c != "listed anew" })
		return len(anew) >= 2
	}, patience, 5*time.Millisecond)
}

// Without the stream what is asked for is right all the same; once it is there
// again, what happened meanwhile is told.
func TestABrokenStreamOfACloud(t *testing.T) {
	s := newRealCloud(t, 2, nil)
	one, two := s.getInstanceNamed(t, "node-0000"), s.getInstanceNamed(t, "node-0001")
	s.gate.breakStream(true)
	_, err := s.operator.StopInstance(t.Context(), one.ID)
	require.NoError(t, err)
	s.awaitState(t, one.ID, api.InstanceStopped)
	_, err = s.operator.TerminateInstance(t.Context(), two.ID)
	require.NoError(t, err)
	s.gate.breakStream(false)
	s.awaitChange(t, fmt.Sprintf("%s v%d terminated gone", two.ID, two.Version+2))
}

// Whoever waits for what is scarce in the project is told when some of it may be had, whoever had it before.
func TestWhatIsFreedInTheProjectIsReported(t *testing.T) {
	s := newRealCloud(t, 1, nil)
	s.getInstanceNamed(t, "node-0000") // The stream is open: whatever follows is in it.
	awaitFreed := func(n int, what string) {
		t.Helper()
		require.Eventually(t, func() bool { return s.countChanges("freed") >= n }, patience, time.Millisecond, what)
	}
	address, err := s.operator.ReserveAddress(t.Context(), api.ReservedAddressCreate{Name: new("web")})
	require.NoError(t, err)
	awaitFreed(1, "an address is reserved")
	require.NoError(t, s.operator.ReleaseAddress(t.Context(), address.ID))
	awaitFreed(2, "an address is released")
	_, err = s.operator.UpdateProjectQuotas(t.Context(), s.operator.Project, api.QuotasUpdate{LoadBalancers: new(int64(7))})
	require.NoError(t, err)
	awaitFreed(3, "a quota is raised")
	lb, err := s.operator.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Name: "stranger", Listeners: api.Listeners{{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 30080}},
	})
	require.NoError(t, err)
	s.operator.AwaitLoadBalancer(lb.ID, api.LoadBalancerActive)
	awaitFreed(5, "a balancer that is not the cluster's was made and became active")
	_, err = s.operator.DeleteLoadBalancer(t.Context(), lb.ID)
	require.NoError(t, err)
	awaitFreed(7, "it is being deleted, and gone")
}

func (s *realCloud) countChanges(what string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.changes {
		if c == what {
			n++
		}
	}
	return n
}

// callCount is how many such calls were made since the last count.
func (g *recordingTransport) callCount(what string) (n int) {
	g.set(func() { n = g.calls[what] })
	return n
}
