package server_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

var oneListener = []api.Listener{{Protocol: api.ProtocolTCP, Port: 8080, TargetPort: 1}}

func (r *rig) reserve(t *testing.T, name string) api.ReservedAddress {
	t.Helper()
	return *must.Do(r.ReserveAddress(t.Context(), api.ReservedAddressCreate{Name: &name}))(t)
}

func (r *rig) newInstance(t *testing.T) api.Instance {
	t.Helper()
	return *r.createInstance(t, api.InstanceCreate{})
}

func TestAddresses(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a := must.Do(r.ReserveAddress(ctx, api.ReservedAddressCreate{Tags: &api.Tags{"for": "web"}}))(t)
	assert.Regexp(t, "^a-[0-9a-z]{26}$", a.ID)
	assert.Regexp(t, "^address-[a-z]{6}$", a.Name)
	assert.Equal(t, &api.ReservedAddress{
		Metadata: api.Metadata{
			ID: a.ID, Serial: a.Serial, Project: r.project.ID, Name: a.Name,
			Tags: api.Tags{"owner": "lab", "for": "web"}, Version: 1, CreatedAt: a.CreatedAt, UpdatedAt: a.CreatedAt,
		},
		Region: "nebula-1", IP: a.IP, State: api.AddressAvailable,
	}, a)
	assert.Equal(t, a, must.Do(r.GetAddress(ctx, a.ID))(t))

	in := r.newInstance(t)
	attached := must.Do(r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: in.ID}))(t)
	assert.Equal(t, api.AddressHeld, attached.State)
	assert.Equal(t, &api.AddressHolder{Kind: api.HolderInstance, ID: in.ID}, attached.Holder)
	shown := must.Do(r.GetInstance(ctx, in.ID))(t)
	assert.Equal(t, append(in.Addresses, api.Address{Type: api.AddressExternal, IP: a.IP}), shown.Addresses)
	tagged := must.Do(r.UpdateInstance(ctx, in.ID, api.ResourceUpdate{Tags: &api.Tags{"a": "b"}}))(t)
	requireCode(t, api.InUse, in.ID)(nil, r.ReleaseAddress(ctx, a.ID))
	assert.Equal(t, api.AddressAvailable, must.Do(r.DetachAddress(ctx, a.ID))(t).State)

	change := api.ReservedAddressUpdate{Name: new("web"), Tags: &api.Tags{}}
	renamed := must.Do(r.UpdateAddress(ctx, a.ID, change))(t)
	assert.Equal(t, "web", renamed.Name)
	assert.Empty(t, renamed.Tags)
	assert.Equal(t, renamed, must.Do(r.UpdateAddress(ctx, a.ID, change))(t))

	require.NoError(t, r.ReleaseAddress(ctx, a.ID))
	requireCode(t, api.NotFound)(r.GetAddress(ctx, a.ID))
	next := must.Do(r.ReserveAddress(ctx, api.ReservedAddressCreate{IP: &a.IP, Name: new("web")}))(t)
	assert.Equal(t, a.IP, next.IP, "name and IP are free again")

	var told []string
	require.NoError(t, r.Watch(ctx, client.FromOldest, false, func(e api.Event) error {
		switch {
		case e.ID == in.ID && e.Instance.Version == tagged.Version:
			assert.Equal(t, shown.Addresses, e.Instance.Addresses, "the instance's events show it")
		case e.ID == a.ID:
			require.NotNil(t, e.Address)
			assert.Equal(t, api.ResourceAddress, e.Resource)
			told = append(told, fmt.Sprintf("%s %v", e.Type, e.Address.State))
		}
		return nil
	}))
	assert.Equal(t, []string{
		"created available", "updated in-use", "updated available", "updated available", "deleted available",
	}, told)
}

func TestAddressesThatCannotBeHad(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a, two := r.reserve(t, "one"), r.reserve(t, "two")
	at := "/v1/addresses/" + a.ID
	r.refused(t, "POST", "/v1/addresses", `{"ip":"`+a.IP+`"}`, api.AddressInUse, "ip", a.IP)
	r.refused(t, "POST", "/v1/addresses", `{"name":"one"}`, api.NameTaken, "name", "choose another")
	r.refused(t, "PATCH", at, `{}`, api.InvalidRequest, "body", "")
	r.refused(t, "PATCH", at, `{"ip":"127.0.0.1"}`, api.InvalidRequest, "ip", "")
	r.refused(t, "PATCH", at, `{"name":"two"}`, api.NameTaken, "name", "")
	r.refused(t, "POST", at+"/attach", `{}`, api.InvalidRequest, "body", "")
	r.refused(t, "POST", at+"/attach", `{"instanceId":"i-none"}`, api.UnknownInstance, "instanceId", `"i-none"`)
	_, p := r.call(t, "POST", "/v1/addresses", `{"name":"one","ip":"10.0.0.1"}`)
	assert.Len(t, fields(p), 2, "all that is wrong is told at once: %s", p.Detail)

	in, other := r.newInstance(t), r.newInstance(t)
	requireOK(t)(r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: in.ID}))
	requireCode(t, api.InUse)(r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: other.ID}))
	r.createFault(t, api.FaultCreate{
		Match: api.FaultMatch{Kinds: []api.ResourceKind{api.ResourceInstance}}, Effect: api.FaultEffect{Stuck: true},
	})
	requireOK(t)(r.TerminateInstance(ctx, other.ID))
	requireCode(t, api.WrongState)(r.AttachAddress(ctx, two.ID, api.AddressAttach{InstanceID: other.ID}))
	requireCode(t, api.AddressInUse, "reserved address")(r.CreateInstance(ctx, api.InstanceCreate{Address: two.IP}))
	for n := range 12 { // Of 16, but the first, the last and the two.
		r.reserve(t, fmt.Sprint("a-", n))
	}
	requireCode(t, api.AddressPoolExhausted)(r.ReserveAddress(ctx, api.ReservedAddressCreate{}))
	r.refused(t, "POST", "/v1/load-balancers", `{"name":"a","listeners":[{"protocol":"tcp","port":80,"targetPort":1}]}`,
		api.AddressPoolExhausted, "", "delete unused ones")
}

func TestAddressesOfOthersAreNotFound(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a := r.reserve(t, "one")
	in := must.Do(r.other.CreateInstance(ctx, api.InstanceCreate{}))(t)
	assert.Empty(t, must.Do(r.other.ListAddresses(ctx, client.AddressFilter{}))(t))
	for _, lb := range []api.LoadBalancerCreate{{AddressID: a.ID}, {Address: a.IP}} {
		lb.Name, lb.Listeners = "web", oneListener
		requireCode(t, api.UnknownAddress)(r.other.CreateLoadBalancer(ctx, lb))
	}
	_, err := r.other.ReserveAddress(ctx, api.ReservedAddressCreate{IP: &a.IP})
	require.True(t, client.HasCode(err, api.AddressInUse), err)
	assert.NotContains(t, err.Error(), a.Name)
	requireCode(t, api.UnknownInstance)(r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: in.ID}))
	requireOK(t, "names are a project's")(r.other.ReserveAddress(ctx, api.ReservedAddressCreate{Name: &a.Name}))
}

func TestListsOfAddresses(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	one, two := r.reserve(t, "one"), r.reserve(t, "two")
	spec := api.ReservedAddressCreate{Name: new("three"), Tags: &api.Tags{"k": "v"}}
	tagged := must.Do(r.ReserveAddress(ctx, spec))(t)
	requireOK(t)(r.AttachAddress(ctx, two.ID, api.AddressAttach{InstanceID: r.newInstance(t).ID}))
	for _, tc := range []struct {
		filter client.AddressFilter
		want   []string
	}{
		{client.AddressFilter{}, []string{one.ID, two.ID, tagged.ID}},
		{client.AddressFilter{Name: "one"}, []string{one.ID}},
		{client.AddressFilter{Tags: []string{"k=v"}}, []string{tagged.ID}},
		{client.AddressFilter{States: []api.AddressState{api.AddressAvailable}}, []string{one.ID, tagged.ID}},
		{client.AddressFilter{States: []api.AddressState{api.AddressHeld}}, []string{two.ID}},
	} {
		var ids []string
		for _, a := range must.Do(r.ListAddresses(ctx, tc.filter))(t) {
			ids = append(ids, a.ID)
		}
		assert.Equal(t, tc.want, ids)
	}
}

func TestBalancersHoldReservedAddresses(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a, b := r.reserve(t, "one"), r.reserve(t, "two")
	lb := r.createBalancer(t, api.LoadBalancerCreate{Name: "web", Listeners: oneListener, Address: a.IP})
	assert.Equal(t, a.IP, lb.Address)
	assert.Equal(t, a.ID, lb.AddressID)
	held := must.Do(r.GetAddress(ctx, a.ID))(t)
	assert.Equal(t, &api.AddressHolder{Kind: api.HolderLoadBalancer, ID: lb.ID}, held.Holder)
	other := r.createBalancer(t, api.LoadBalancerCreate{Name: "dns", Listeners: oneListener, AddressID: b.ID})
	assert.Equal(t, b.IP, other.Address)
	own := r.createBalancer(t, api.LoadBalancerCreate{Name: "own", Listeners: oneListener})
	assert.Empty(t, own.AddressID)

	for body, want := range map[string]struct {
		code  api.ProblemCode
		field string
	}{
		`"addressId":"` + a.ID + `"`:                             {api.AddressInUse, "addressId"},
		`"address":"` + a.IP + `"`:                               {api.AddressInUse, "address"},
		`"addressId":"a-none"`:                                   {api.UnknownAddress, "addressId"},
		`"address":"` + own.Address + `"`:                        {api.UnknownAddress, "address"},
		`"addressId":"` + a.ID + `","address":"` + a.IP + `"`:    {api.InvalidRequest, "address"},
		`"addressId":"a-none","targets":[{"instanceId":"i-no"}]`: {api.UnknownAddress, "targets.0.instanceId"},
	} {
		body = `{"name":"x","listeners":[{"protocol":"tcp","port":1,"targetPort":1}],` + body + `}`
		r.refused(t, "POST", "/v1/load-balancers", body, want.code, want.field, "")
	}
	for _, u := range []api.LoadBalancerUpdate{{AddressID: &b.ID}, {Address: &b.IP}} {
		requireCode(t, api.InvalidRequest, "is final")(r.UpdateLoadBalancer(ctx, lb.ID, u))
	}
	same := api.LoadBalancerUpdate{AddressID: &a.ID, Address: &a.IP}
	requireOK(t, "the present one is no change")(r.UpdateLoadBalancer(ctx, lb.ID, same))
	requireCode(t, api.InUse)(r.DetachAddress(ctx, a.ID))
}
