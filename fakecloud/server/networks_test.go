package server_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func (r *rig) createRoute(t *testing.T, spec api.RouteCreate) *api.Route {
	t.Helper()
	return must.Do(r.CreateRoute(t.Context(), spec))(t)
}

// network makes one, whatever there is.
func (r *rig) network(t *testing.T, name, cidr string) *api.Network {
	t.Helper()
	return must.Do(r.CreateNetwork(t.Context(), api.NetworkCreate{Name: name, Cidr: cidr}))(t)
}

func TestNetworks(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	list := func(f client.NetworkFilter) []api.Network { return must.Do(r.ListNetworks(ctx, f))(t) }
	standard := list(client.NetworkFilter{})[0]
	assert.True(t, standard.Default)
	assert.Equal(t, "default 127.51.0.0/29", standard.Name+" "+standard.Cidr)

	records := api.Records{"hcloud": json.RawMessage(`{"a":1}`)}
	n := must.Do(r.CreateNetwork(
		ctx, api.NetworkCreate{Name: "backend", Cidr: "10.1.0.0/29", Tags: &api.Tags{"tier": "2"}, Records: records},
	))(t)
	assert.Equal(t, records, n.Records)
	assert.False(t, n.Default)
	assert.Equal(t, api.Tags{"owner": "lab", "tier": "2"}, n.Tags)
	assert.Equal(t, n, must.Do(r.GetNetwork(ctx, n.ID))(t))
	assert.Equal(t, []api.Network{*n}, list(client.NetworkFilter{Name: "backend"}))
	assert.Equal(t, []api.Network{standard}, list(client.NetworkFilter{Name: "default"}))
	assert.Equal(t, []api.Network{*n}, list(client.NetworkFilter{Tags: []string{"tier=2"}}))

	r.network(t, "once", "10.2.0.0/24")
	changed := must.Do(r.UpdateNetwork(
		client.IfMatch(ctx, 1), n.ID, api.ResourceUpdate{Name: new("front"), Tags: &api.Tags{}},
	))(t)
	assert.Equal(t, "front", changed.Name)
	assert.Empty(t, changed.Tags)
	assert.EqualValues(t, 2, changed.Version)
	assert.Equal(t, records, changed.Records)
	records = api.Records{"oci": json.RawMessage(`{"b":2}`)}
	changed = must.Do(r.UpdateNetwork(ctx, n.ID, api.ResourceUpdate{Records: records}))(t)
	assert.Equal(t, records, changed.Records)
	requireCode(t, api.NameTaken)(r.UpdateNetwork(ctx, n.ID, api.ResourceUpdate{Name: new("once")}))
	require.NoError(t, r.DeleteNetwork(ctx, n.ID))
	requireCode(t, api.NotFound)(r.GetNetwork(ctx, n.ID))
	requireCode(t, api.InUse, "default")(nil, r.DeleteNetwork(ctx, standard.ID))

	var told []string
	require.NoError(t, r.Watch(ctx, client.FromOldest, false, func(e api.Event) error {
		require.Equal(t, api.ResourceNetwork, e.Resource)
		require.NotNil(t, e.Network)
		assert.Equal(t, e.Network.ID, e.ID)
		told = append(told, string(e.Type)+" "+e.Name)
		return nil
	}))
	assert.Equal(t, []string{"created backend", "created once", "updated front", "updated front", "deleted front"}, told)
}

func TestNetworksThatCannotBe(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	r.network(t, "taken", "10.1.0.0/24")
	lb := r.createBalancer(t, api.LoadBalancerCreate{Name: "a", Listeners: oneListener})
	balancers := lb.Address[:strings.LastIndex(lb.Address, ".")] + ".0/28"
	for cidr, code := range map[string]api.ProblemCode{
		"10.1.0.128/25": api.NetworkConflict, "10.1.0.0/16": api.NetworkConflict, "127.51.0.0/24": api.NetworkConflict,
		balancers:     api.NetworkConflict,
		"10.9.0.0/15": api.InvalidRequest, "10.9.0.0/31": api.InvalidRequest, "10.9.0.1/24": api.InvalidRequest,
		"fd00::/64": api.InvalidRequest, "ten": api.InvalidRequest,
	} {
		requireCode(t, code, "cidr")(r.CreateNetwork(ctx, api.NetworkCreate{Name: "other", Cidr: cidr}))
	}
	requireCode(t, api.NameTaken)(r.CreateNetwork(ctx, api.NetworkCreate{Name: "taken", Cidr: "10.3.0.0/24"}))
	theirs := api.NetworkCreate{Name: "taken", Cidr: "10.1.0.0/24"}
	requireOK(t, "of another project")(r.other.CreateNetwork(ctx, theirs))
}

func TestNetworksOfProjectsAreTheirOwn(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	n := r.network(t, "mine", "10.1.0.0/24")
	requireCode(t, api.UnknownNetwork)(r.other.CreateInstance(ctx, api.InstanceCreate{NetworkID: n.ID}))
	all := must.Do(r.other.ListNetworks(ctx, client.NetworkFilter{}))(t)
	require.Len(t, all, 1)
	assert.True(t, all[0].Default)
}

func TestInstancesAndRoutesInNetworks(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	n := r.network(t, "small", "10.1.0.0/30")
	mine := r.createInstance(t, api.InstanceCreate{NetworkID: n.ID})
	assert.Equal(t, n.ID+" 10.1.0.1", mine.NetworkID+" "+mine.Addresses[0].IP)
	theirs := must.Do(r.other.CreateNetwork(ctx, api.NetworkCreate{Name: "small", Cidr: "10.1.0.0/30"}))(t)
	in := must.Do(r.other.CreateInstance(ctx, api.InstanceCreate{NetworkID: theirs.ID}))(t)
	assert.Equal(t, "10.1.0.2", in.Addresses[0].IP, "the lowest that nothing in the cloud has")
	requireCode(t, api.AddressPoolExhausted)(r.CreateInstance(ctx, api.InstanceCreate{NetworkID: n.ID}))
	requireCode(t, api.UnknownNetwork)(r.CreateInstance(ctx, api.InstanceCreate{NetworkID: "n-none"}))
	standard := r.createInstance(t, api.InstanceCreate{})

	route := r.createRoute(t, api.RouteCreate{Name: "a", Destination: "10.244.0.0/24", InstanceID: mine.ID})
	assert.Equal(t, n.ID, route.NetworkID)
	within := api.RouteCreate{Name: "b", Destination: "10.1.0.0/16", InstanceID: mine.ID}
	requireCode(t, api.RouteConflict, `the network "small"`)(r.CreateRoute(ctx, within))
	other := r.createRoute(t, api.RouteCreate{Name: "b", Destination: "10.244.0.0/24", InstanceID: standard.ID})
	assert.Equal(t, standard.NetworkID, other.NetworkID)

	requireCode(t, api.InUse, mine.ID)(nil, r.DeleteNetwork(ctx, n.ID))
	r.terminateInstance(t, mine.ID)
	require.NoError(t, r.DeleteNetwork(ctx, n.ID))
	left := must.Do(r.GetRoute(ctx, route.ID))(t, "a route outlives its network")
	assert.Equal(t, n.ID, left.NetworkID)
}

func TestInstancesAndRoutesAreRenamedAndTagged(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := r.createInstance(t, api.InstanceCreate{Name: "a", Tags: api.Tags{"k": "v"}})
	requireOK(t)(r.CreateInstance(ctx, api.InstanceCreate{Name: "b"}))
	running := r.awaitInstance(t, in.ID, api.InstanceRunning)
	renamed := must.Do(r.UpdateInstance(
		client.IfMatch(ctx, running.Version), in.ID, api.ResourceUpdate{Name: new("c")},
	))(t)
	assert.Equal(t, "c", renamed.Name)
	assert.Equal(t, running.Tags, renamed.Tags)
	assert.Equal(t, running.Version+1, renamed.Version)
	tagged := must.Do(r.UpdateInstance(ctx, in.ID, api.ResourceUpdate{Tags: &api.Tags{"x": "y"}}))(t)
	assert.Equal(t, api.Tags{"x": "y"}, tagged.Tags, "replaced, without the project's default ones")
	assert.Equal(t, tagged, must.Do(r.GetInstance(ctx, in.ID))(t))
	same := must.Do(r.UpdateInstance(ctx, in.ID, api.ResourceUpdate{Name: new("c"), Tags: &api.Tags{"x": "y"}}))(t)
	assert.Equal(t, tagged, same, "nothing changed")
	requireCode(t, api.NameTaken)(r.UpdateInstance(ctx, in.ID, api.ResourceUpdate{Name: new("b")}))
	requireCode(t, api.InvalidRequest)(r.UpdateInstance(ctx, in.ID, api.ResourceUpdate{Name: new("a..b")}))
	for _, body := range []string{`{}`, `{"state":"running"}`, `{"name":""}`} {
		answer, _ := r.call(t, "PATCH", "/v1/instances/"+in.ID, body)
		assert.Equal(t, 400, answer.StatusCode, body)
	}
	r.toldOfUpdates(t, in.ID, "running -> running c", 2)

	route := r.createRoute(t, api.RouteCreate{Name: "a", Destination: "10.0.0.0/24", InstanceID: in.ID})
	r.createRoute(t, api.RouteCreate{Name: "b", Destination: "10.0.1.0/24", InstanceID: in.ID})
	requireCode(t, api.NameTaken)(r.UpdateRoute(ctx, route.ID, api.ResourceUpdate{Name: new("b")}))
	changed := must.Do(r.UpdateRoute(
		client.IfMatch(ctx, 1), route.ID, api.ResourceUpdate{Name: new("c"), Tags: &api.Tags{"x": "y"}},
	))(t)
	assert.True(t, changed.Name == "c" && changed.Tags["x"] == "y" && changed.Version == 2)
	r.toldOfUpdates(t, route.ID, "active -> active c", 1)

	r.terminateInstance(t, in.ID)
	requireCode(t, api.WrongState)(r.UpdateInstance(ctx, in.ID, api.ResourceUpdate{Name: new("d")}))
}

// toldOfUpdates wants so many events of a resource that say that.
func (r *rig) toldOfUpdates(t *testing.T, id, want string, times int) {
	t.Helper()
	require.NoError(t, r.Watch(t.Context(), client.FromOldest, false, func(e api.Event) error {
		if e.ID == id && e.Type == api.EventUpdated && e.From+" -> "+e.To+" "+e.Name == want {
			times--
		}
		return nil
	}))
	assert.Zero(t, times)
}

func TestQuotas(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	project := r.project.ID
	assert.Equal(t, &api.Quotas{
		Instances: api.Quota{Limit: 12_000}, LoadBalancers: api.Quota{Limit: 1_200}, Routes: api.Quota{Limit: 12_000},
		Networks: api.Quota{Limit: 50, Used: 1}, Addresses: api.Quota{Limit: 500},
	}, must.Do(r.ccm.Quotas(ctx))(t, "anyone may read the own project's"))
	in := r.runInstance(t, api.InstanceCreate{})
	quotas := api.QuotasUpdate{Instances: new(int64(1)), Routes: new(int64(0))}
	q := must.Do(r.UpdateProjectQuotas(ctx, project, quotas))(t)
	assert.Equal(t, api.Quota{Limit: 1, Used: 1}, q.Instances)
	assert.Equal(t, api.Quota{Limit: 1_200}, q.LoadBalancers, "left alone")
	exceeded := func(flag string) func(any, error) {
		return requireCode(t, api.QuotaExceeded, "fakecloud quotas set --project default "+flag)
	}
	exceeded("--instances")(r.CreateInstance(ctx, api.InstanceCreate{}))
	exceeded("--routes")(r.CreateRoute(
		ctx, api.RouteCreate{Name: "a", Destination: "10.0.0.0/24", InstanceID: in.ID},
	))
	requireOK(t, "below what is used")(r.UpdateProjectQuotas(ctx, project, api.QuotasUpdate{
		Instances: new(int64(0)), LoadBalancers: new(int64(0)), Networks: new(int64(1)), Addresses: new(int64(0)),
	}))
	exceeded("--load-balancers")(r.CreateLoadBalancer(ctx, api.LoadBalancerCreate{Name: "a", Listeners: oneListener}))
	exceeded("--networks")(r.CreateNetwork(ctx, api.NetworkCreate{Name: "a", Cidr: "10.0.0.0/24"}))
	exceeded("--addresses")(r.ReserveAddress(ctx, api.ReservedAddressCreate{}))
	requireOK(t, "only creates are stopped")(r.StopInstance(ctx, in.ID))
	requireOK(t, "of another project")(r.other.CreateInstance(ctx, api.InstanceCreate{}))

	r.terminateInstance(t, in.ID)
	assert.Equal(t, api.Quota{}, must.Do(r.ProjectQuotas(ctx, project))(t).Instances)
	requireOK(t)(r.UpdateProjectQuotas(ctx, project, api.QuotasUpdate{Instances: new(int64(1))}))
	requireOK(t, "a terminated one does not count")(r.CreateInstance(ctx, api.InstanceCreate{}))

	for _, body := range []string{`{}`, `{"instances":-1}`, `{"instances":1000001}`, `{"volumes":1}`} {
		answer, _ := r.call(t, "PATCH", "/v1/projects/"+project+"/quotas", body)
		assert.Equal(t, 400, answer.StatusCode, body)
	}
}

// A caller that was let in before its project was deleted is refused, not failed.
func TestCreatesInADeletedProject(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	p, _, err := r.cloud.CreateProject(ctx, r.project, api.ProjectCreate{Name: "short"})
	require.NoError(t, err)
	require.NoError(t, r.cloud.DeleteProject(ctx, r.project, p.ID))
	listeners := []cloud.Listener{{Protocol: api.ProtocolTCP, Port: 1, TargetPort: 1}}
	_, _, instance := r.cloud.CreateInstance(ctx, p, api.InstanceCreate{})
	_, _, balancer := r.cloud.CreateLoadBalancer(ctx, p, api.LoadBalancerCreate{Name: "a", Listeners: listeners})
	_, _, route := r.cloud.Routes.Create(ctx, p, api.RouteCreate{Name: "a", Destination: "10.0.0.0/24", InstanceID: "i-1"})
	_, _, network := r.cloud.Networks.Create(ctx, p, api.NetworkCreate{Name: "a", Cidr: "10.0.0.0/24"})
	for _, err := range []error{instance, balancer, route, network} {
		var refused *cloud.Error
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, cloud.NotFound, refused.Code)
	}
}
