package driver

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// fullCloud has every role. It records what it is asked, and has one of everything, with IDs that a
// path must encode.
type fullCloud struct {
	conformance.Cloud // what no test calls

	mu    sync.Mutex
	asked []any
}

// record returns nil, for methods whose answer is only that.
func (c *fullCloud) record(question ...any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, question...)
	return nil
}

// takeQuestions is what was asked since the last time.
func (c *fullCloud) takeQuestions() []any {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := c.asked
	c.asked = nil
	return asked
}

const oddID = "a/b?c%20d"

var (
	someInstance = conformance.Instance{
		ID: oddID, Name: "worker-1", NodeName: "host-1", ProviderID: "nebula:///" + oddID,
		InternalIPs: []string{"10.0.0.1", "fd00::1"}, ExternalIPs: []string{"192.0.2.1"}, Type: "small", Zone: "a", Region: "north",
	}
	someSpec      = conformance.InstanceSpec{Name: "worker-1", Machine: true, Zone: "a", External: true, Unlike: "i-2"}
	someListeners = []conformance.Listener{
		{Protocol: "TCP", Port: 80, TargetPort: 30080}, {Protocol: "UDP", Port: 53, TargetPort: 30053},
	}
	someBalancer = conformance.Balancer{
		ID: oddID, Name: "web", Service: types.UID("uid"), Address: "192.0.2.2", Active: true, Listeners: someListeners,
		Targets: []string{oddID}, SourceRanges: []string{"10.0.0.0/8"}, Affinity: true,
		AffinitySeconds: 30, HealthChecked: true, HealthCheckPort: 10256,
		HostNames: []string{"web.example.com"}, Tags: []string{"team"},
	}
	someRoute = conformance.Route{ID: oddID, Destination: "10.1.0.0/24", InstanceID: oddID}
	someCalls = conformance.Calls{
		Count: conformance.Count{Reads: 3, Writes: 1},
		Of:    map[conformance.Thing]conformance.Count{conformance.Instances: {Reads: 2}, conformance.Routes: {Writes: 1}},
	}
	someTime = time.Date(2030, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	someCall = conformance.Call{
		ID: "1", Began: someTime, Answered: someTime.Add(time.Second), Operation: "getServer", Resource: oddID,
		Answer: "200", Failed: true,
	}
)

func (c *fullCloud) Features() []conformance.Feature {
	return conformance.AllFeatures() // Of those that follow from a role, the role decides.
}

func (c *fullCloud) CreateInstance(_ context.Context, s conformance.InstanceSpec) (conformance.Instance, error) {
	return someInstance, c.record("create", s)
}

func (c *fullCloud) StopInstance(_ context.Context, id string) error { return c.record("stop", id) }

func (c *fullCloud) StartInstance(_ context.Context, id string) error { return c.record("start", id) }

func (c *fullCloud) TerminateInstance(_ context.Context, id string) error {
	_ = c.record("terminate", id)
	return errors.New("the cloud keeps it for an hour")
}

func (c *fullCloud) ListBalancers(context.Context) ([]conformance.Balancer, error) {
	return []conformance.Balancer{someBalancer, {ID: "lb-2"}}, nil
}

func (c *fullCloud) GetBalancer(_ context.Context, id string) (conformance.Balancer, bool, error) {
	_ = c.record("get", id)
	if id == someBalancer.ID {
		return someBalancer, true, nil
	}
	return conformance.Balancer{}, false, nil
}

func (c *fullCloud) DeleteBalancer(_ context.Context, id string) error { return c.record("delete", id) }

func (c *fullCloud) CreateInstances(
	_ context.Context, specs []conformance.InstanceSpec,
) ([]conformance.Instance, error) {
	_ = c.record("create all", specs)
	return []conformance.Instance{someInstance}, errors.New("there is no room for more")
}

func (c *fullCloud) TerminateInstances(_ context.Context, ids []string) error {
	return c.record("terminate all", ids)
}

func (c *fullCloud) ChangeAddresses(_ context.Context, id string) (conformance.Instance, error) {
	return someInstance, c.record("change addresses", id)
}

func (c *fullCloud) RenameInstance(_ context.Context, id, name string) error {
	return c.record("rename instance", id, name)
}

func (c *fullCloud) RebootInstance(_ context.Context, id string) error { return c.record("reboot", id) }

func (c *fullCloud) RenameBalancer(_ context.Context, id, name string) error {
	return c.record("rename", id, name)
}

func (c *fullCloud) ChangeBalancer(
	_ context.Context, id string, listeners []conformance.Listener, targets []string,
) error {
	return c.record("change", id, listeners, targets)
}

func (c *fullCloud) ResetBalancer(_ context.Context, id string) (conformance.Balancer, error) {
	return someBalancer, c.record("reset", id)
}

func (c *fullCloud) TagBalancer(_ context.Context, id, name string) error {
	return c.record("tag", id, name)
}

func (c *fullCloud) CreateForeignBalancer(_ context.Context, name string) (conformance.Balancer, error) {
	return someBalancer, c.record("foreign balancer", name)
}

func (c *fullCloud) CreateNamesakeBalancer(_ context.Context, name string) (conformance.Balancer, error) {
	return someBalancer, c.record("namesake's balancer", name)
}

func (c *fullCloud) CreateTwinBalancer(_ context.Context, id string) (conformance.Balancer, error) {
	return someBalancer, c.record("twin", id)
}

func (c *fullCloud) CreateNamesakeInstance(_ context.Context, name string) (conformance.Instance, error) {
	return someInstance, c.record("namesake's instance", name)
}

func (c *fullCloud) LimitBalancers(context.Context) (func(context.Context) error, error) {
	return func(context.Context) error { return c.record("limit balancers no more") }, nil
}

func (c *fullCloud) CreateNamesakeRoute(
	_ context.Context, destination, instanceID string,
) (conformance.Route, error) {
	return someRoute, c.record("namesake's route", destination, instanceID)
}

func (c *fullCloud) ReserveAddress(context.Context) (string, func(context.Context) error, error) {
	return "192.0.2.3", func(context.Context) error { return c.record("release") }, nil
}

func (c *fullCloud) CountConnections(_ context.Context, id string) (map[int32]int64, error) {
	return map[int32]int64{80: 1 << 40, 53: 2}, c.record("connections", id)
}

func (c *fullCloud) ListRoutes(context.Context) ([]conformance.Route, error) { return nil, nil }

func (c *fullCloud) GetRoute(_ context.Context, id string) (conformance.Route, bool, error) {
	return someRoute, id == someRoute.ID, nil
}

func (c *fullCloud) DeleteRoute(_ context.Context, id string) error {
	return c.record("delete route", id)
}

func (c *fullCloud) DivertRoute(_ context.Context, id, instanceID string) error {
	return c.record("divert", id, instanceID)
}

func (c *fullCloud) CreateForeignRoute(
	_ context.Context, destination, instanceID string,
) (conformance.Route, error) {
	return someRoute, c.record("foreign route", destination, instanceID)
}

func (c *fullCloud) LimitRoutes(context.Context) (func(context.Context) error, error) {
	return func(context.Context) error { return c.record("limit no more") }, nil
}

func (c *fullCloud) FaultKinds() []conformance.FaultKind {
	return []conformance.FaultKind{conformance.FaultReset, conformance.FaultSlow}
}

func (c *fullCloud) InjectFault(_ context.Context, f conformance.Fault) (conformance.Injection, error) {
	return fakeExpiry{c}, c.record("fault", f)
}

func (c *fullCloud) CountCalls(context.Context) (conformance.Calls, error) { return someCalls, nil }

func (c *fullCloud) CallsSince(_ context.Context, since time.Time) ([]conformance.Call, error) {
	return []conformance.Call{someCall}, c.record("since", since.UTC())
}

func (c *fullCloud) ListZones(context.Context) ([]string, error) { return []string{"a", "b"}, nil }

func (c *fullCloud) InjectZoneOutage(_ context.Context, zone string) (conformance.Injection, error) {
	return fakeExpiry{c}, c.record("outage", zone)
}

func (c *fullCloud) ExpireCredentials(context.Context) (conformance.Expiry, error) {
	return fakeExpiry{c}, nil
}

func (c *fullCloud) SwapCredentials(context.Context) (conformance.Injection, error) {
	return fakeExpiry{c}, nil
}

func (c *fullCloud) RenewCA(context.Context) (conformance.Injection, error) {
	return fakeExpiry{c}, nil
}

// fakeExpiry has met seven calls.
type fakeExpiry struct{ *fullCloud }

func (e fakeExpiry) Hits(context.Context) (int, error) { return 7, nil }

func (e fakeExpiry) Lift(context.Context) error { return e.record("lift") }

func (e fakeExpiry) Renew(context.Context) error { return e.record("renew") }

// serve has a handler answer on a Unix socket, as a driver does.
func serve(t *testing.T, h http.Handler) Address {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		assert.NoError(t, server.Close())
		<-served
	})
	return Address{network: "unix", target: socket}
}

// connectTo is a cloud behind a driver written in Go.
func connectTo(t *testing.T, cloud conformance.Cloud) *Cloud {
	open := func(_ context.Context, hello protocol.Hello) (conformance.Cloud, error) {
		assert.Equal(t, "kitchen", hello.ClusterName)
		return cloud, nil
	}
	remote, err := Connect(
		t.Context(), serve(t, NewHandler(protocol.Driver{Name: "nebula"}, open)),
		protocol.Hello{ClusterName: "kitchen"}, nil)
	require.NoError(t, err)
	return remote
}

// requireAnswer returns a function that requires a call to have answered want.
func requireAnswer[A any](t *testing.T, want A) func(A, error) {
	return func(got A, err error) {
		t.Helper()
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
}

// requireFound does so for what may not be there.
func requireFound[A any](t *testing.T, want A) func(A, bool, error) {
	return func(got A, found bool, err error) {
		t.Helper()
		assert.True(t, found)
		requireAnswer(t, want)(got, err)
	}
}

// What a cloud says and is told is the same through the protocol as without it.
func TestEveryDriver(t *testing.T) {
	near := &fullCloud{}
	far, ctx := connectTo(t, near), t.Context()
	requireAnswer(t, someInstance)(far.CreateInstance(ctx, someSpec))
	require.NoError(t, far.StopInstance(ctx, oddID))
	require.NoError(t, far.StartInstance(ctx, oddID))
	assert.ErrorContains(t, far.TerminateInstance(ctx, oddID), "the cloud keeps it for an hour")
	requireAnswer(t, []conformance.Balancer{someBalancer, {ID: "lb-2"}})(far.ListBalancers(ctx))
	requireFound(t, someBalancer)(far.GetBalancer(ctx, oddID))
	_, found, err := far.GetBalancer(ctx, "gone")
	require.NoError(t, err)
	assert.False(t, found)
	require.NoError(t, far.DeleteBalancer(ctx, oddID))
	assert.Equal(t, []any{
		"create", someSpec, "stop", oddID, "start", oddID, "terminate", oddID, "get", oddID, "get", "gone",
		"delete", oddID,
	}, near.takeQuestions())
}

func TestRolesOfBalancersAndInstances(t *testing.T) {
	near := &fullCloud{}
	far, ctx := connectTo(t, near), t.Context()
	made, err := far.CreateInstances(ctx, []conformance.InstanceSpec{someSpec, {}})
	assert.ErrorContains(t, err, "there is no room for more")
	assert.Equal(t, []conformance.Instance{someInstance}, made, "what was made comes with the error")
	require.NoError(t, far.TerminateInstances(ctx, []string{oddID}))
	requireAnswer(t, someInstance)(far.ChangeAddresses(ctx, oddID))
	require.NoError(t, far.RenameInstance(ctx, oddID, "new"))
	require.NoError(t, far.RebootInstance(ctx, oddID))
	require.NoError(t, far.RenameBalancer(ctx, oddID, "other"))
	require.NoError(t, far.ChangeBalancer(ctx, oddID, someListeners, []string{"i"}))
	requireAnswer(t, someBalancer)(far.ResetBalancer(ctx, oddID))
	require.NoError(t, far.TagBalancer(ctx, oddID, "team"))
	requireAnswer(t, someBalancer)(far.CreateForeignBalancer(ctx, "stranger"))
	requireAnswer(t, someBalancer)(far.CreateTwinBalancer(ctx, oddID))
	requireAnswer(t, someInstance)(far.CreateNamesakeInstance(ctx, "same"))
	liftLimit, err := far.LimitBalancers(ctx)
	require.NoError(t, err)
	require.NoError(t, liftLimit(ctx))
	address, release, err := far.ReserveAddress(ctx)
	require.NoError(t, err)
	assert.Equal(t, "192.0.2.3", address)
	require.NoError(t, release(ctx))
	require.NoError(t, release(ctx), "given back once, it is given back")
	requireAnswer(t, map[int32]int64{80: 1 << 40, 53: 2})(far.CountConnections(ctx, oddID))
	assert.Equal(t, []any{
		"create all", []conformance.InstanceSpec{someSpec, {}}, "terminate all", []string{oddID},
		"change addresses", oddID, "rename instance", oddID, "new", "reboot", oddID,
		"rename", oddID, "other", "change", oddID, someListeners, []string{"i"},
		"reset", oddID, "tag", oddID, "team", "foreign balancer", "stranger",
		"twin", oddID, "namesake's instance", "same", "limit balancers no more",
		"release", "connections", oddID,
	}, near.takeQuestions())
}

func TestRolesOfRoutes(t *testing.T) {
	near := &fullCloud{}
	far, ctx := connectTo(t, near), t.Context()
	none, err := far.ListRoutes(ctx)
	require.NoError(t, err)
	assert.Empty(t, none)
	requireFound(t, someRoute)(far.GetRoute(ctx, oddID))
	_, found, err := far.GetRoute(ctx, "gone")
	require.NoError(t, err)
	assert.False(t, found)
	require.NoError(t, far.DeleteRoute(ctx, oddID))
	require.NoError(t, far.DivertRoute(ctx, oddID, "i-2"))
	requireAnswer(t, someRoute)(far.CreateForeignRoute(ctx, "10.2.0.0/24", oddID))
	requireAnswer(t, someRoute)(far.CreateNamesakeRoute(ctx, "10.3.0.0/24", oddID))
	requireAnswer(t, someBalancer)(far.CreateNamesakeBalancer(ctx, "same"))
	lift, err := far.LimitRoutes(ctx)
	require.NoError(t, err)
	require.NoError(t, lift(ctx))
	assert.Equal(t, []any{
		"delete route", oddID, "divert", oddID, "i-2", "foreign route", "10.2.0.0/24", oddID,
		"namesake's route", "10.3.0.0/24", oddID, "namesake's balancer", "same", "limit no more",
	}, near.takeQuestions())
}

func TestRolesOfFaults(t *testing.T) {
	near := &fullCloud{}
	far, ctx := connectTo(t, near), t.Context()
	assert.ElementsMatch(t, near.FaultKinds(), far.FaultKinds())
	fault := conformance.Fault{
		Kind: conformance.FaultReset, On: []conformance.Thing{conformance.Balancers}, Writes: true,
	}
	injected, err := far.InjectFault(ctx, fault)
	require.NoError(t, err)
	hits, err := injected.Hits(ctx)
	require.NoError(t, err)
	assert.Equal(t, 7, hits)
	require.NoError(t, injected.Lift(ctx))
	require.NoError(t, injected.Lift(ctx), "a second time does nothing")

	requireAnswer(t, []string{"a", "b"})(far.ListZones(ctx))
	outage, err := far.InjectZoneOutage(ctx, "a")
	require.NoError(t, err)
	require.NoError(t, outage.Lift(ctx))
	expiry, err := far.ExpireCredentials(ctx)
	require.NoError(t, err)
	require.NoError(t, expiry.Renew(ctx))
	require.NoError(t, expiry.Lift(ctx))
	swapped, err := far.SwapCredentials(ctx)
	require.NoError(t, err)
	require.NoError(t, swapped.Lift(ctx))
	renewed, err := far.RenewCA(ctx)
	require.NoError(t, err)
	require.NoError(t, renewed.Lift(ctx))
	assert.Equal(t, []any{"fault", fault, "lift", "outage", "a", "lift", "renew", "lift", "lift", "lift"}, near.takeQuestions())
}

func TestRolesOfCalls(t *testing.T) {
	near := &fullCloud{}
	far, ctx := connectTo(t, near), t.Context()
	requireAnswer(t, someCalls)(far.CountCalls(ctx))
	requireAnswer(t, []conformance.Call{someCall})(far.CallsSince(ctx, someTime))
	assert.Equal(t, []any{"since", someTime}, near.takeQuestions())
}

// bareCloud has no role.
type bareCloud struct{ conformance.Cloud }

func (bareCloud) Features() []conformance.Feature {
	return []conformance.Feature{conformance.FeatureUDP}
}

// The protocol has every role: one that is added must be added there, too.
func TestEveryRoleIsInTheProtocol(t *testing.T) {
	far := conformance.FeaturesOf(connectTo(t, &fullCloud{}))
	for _, f := range conformance.AllFeatures() {
		if !strings.HasPrefix(string(f), "fault-") {
			assert.Contains(t, far, f)
		}
	}
}

// The tests above compare what went through the protocol: a field that is empty there could be left out.
func TestExamplesHaveEveryField(t *testing.T) {
	for _, example := range []any{someInstance, someSpec, someListeners[0], someBalancer, someRoute, someCall} {
		fields := reflect.ValueOf(example)
		for i := range fields.NumField() {
			assert.False(t, fields.Field(i).IsZero(), "%T.%s", example, fields.Type().Field(i).Name)
		}
	}
}

// A cloud behind a driver can do what it can do without one, and nothing else.
func TestFeaturesAreTheSameThroughTheProtocol(t *testing.T) {
	for _, near := range []conformance.Cloud{&fullCloud{}, bareCloud{}} {
		far := connectTo(t, near)
		want, got := conformance.FeaturesOf(near), conformance.FeaturesOf(far)
		slices.Sort(want)
		slices.Sort(got)
		assert.Equal(t, want, got)
		names := far.driver.Features()
		_, batches := near.(conformance.InstanceBatcher)
		assert.Equal(t, batches, slices.Contains(names, conformance.RoleInstanceBatches))
		_, journal := near.(conformance.CallJournal)
		assert.Equal(t, journal, slices.Contains(names, conformance.RoleCallJournal))
	}
}

// What the protocol has, a driver in Go answers.
func TestEveryOperationIsAnswered(t *testing.T) {
	server := conformance.NewServer(&fullCloud{})
	_, err := server.Answer(t.Context(), "listCalls", "noon", nil)
	assert.ErrorIs(t, err, conformance.ErrMalformed)
	assert.ErrorContains(t, err, "since")
	for id := range operations() {
		if _, err := server.Answer(t.Context(), id, "", nil); id != helloOperation {
			assert.NotErrorIs(t, err, errors.ErrUnsupported, id)
		}
	}
}
