package server_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

var oneListener = []api.Listener{{Protocol: api.ProtocolTCP, Port: 8080, TargetPort: 1}}

func (r *rig) reserve(t *testing.T, name string) api.ReservedAddress {
	t.Helper()
	return *must(r.ReserveAddress(t.Context(), api.ReservedAddressCreate{Name: &name}))(t)
}

func (r *rig) newInstance(t *testing.T) api.Instance {
	t.Helper()
	in := r.createInstance(t, api.InstanceCreate{})
	return *in
}

func TestAddressLife(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a := must(r.ReserveAddress(ctx, api.ReservedAddressCreate{Tags: &api.Tags{"for": "web"}}))(t)
	assert.Regexp(t, "^a-[0-9a-z]{26}$", a.ID)
	assert.Regexp(t, "^address-[a-z]{6}$", a.Name)
	assert.Equal(t, api.AddressAvailable, a.State)
	assert.Equal(t, api.Tags{"owner": "lab", "for": "web"}, a.Tags)
	assert.Nil(t, a.Holder)
	assert.Equal(t, a, must(r.GetAddress(ctx, a.ID))(t))

	in := r.newInstance(t)
	attached := must(r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: in.ID}))(t)
	assert.Equal(t, api.AddressHeld, attached.State)
	assert.Equal(t, &api.AddressHolder{Kind: api.HolderInstance, ID: in.ID}, attached.Holder)
	again := must(r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: in.ID}))(t)
	assert.Equal(t, attached, again, "attached where it is attached: nothing changes")
	shown := must(r.GetInstance(ctx, in.ID))(t)
	assert.Equal(t, append(in.Addresses, api.Address{Type: api.AddressExternal, IP: a.IP}), shown.Addresses)
	err := r.ReleaseAddress(ctx, a.ID)
	require.True(t, client.HasCode(err, api.InUse), err)
	require.ErrorContains(t, err, in.ID)

	free := must(r.DetachAddress(ctx, a.ID))(t)
	assert.Equal(t, api.AddressAvailable, free.State)
	shown = must(r.GetInstance(ctx, in.ID))(t)
	assert.Equal(t, in.Addresses, shown.Addresses)
	still := must(r.DetachAddress(ctx, a.ID))(t)
	assert.Equal(t, free, still)

	renamed := must(r.UpdateAddress(ctx, a.ID, api.ReservedAddressUpdate{Name: new("web"), Tags: &api.Tags{}}))(t)
	assert.Equal(t, "web", renamed.Name)
	assert.Empty(t, renamed.Tags)
	same := must(r.UpdateAddress(ctx, a.ID, api.ReservedAddressUpdate{Name: new("web"), Tags: &api.Tags{}}))(t)
	assert.Equal(t, renamed, same)

	require.NoError(t, r.ReleaseAddress(ctx, a.ID))
	requireCode(t, api.NotFound)(r.GetAddress(ctx, a.ID))
	next, err := r.ReserveAddress(ctx, api.ReservedAddressCreate{IP: &a.IP, Name: new("web")})
	require.NoError(t, err, "name and IP are free again")
	assert.Equal(t, a.IP, next.IP)
}

func TestAddressesThatCannotBeHad(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a := r.reserve(t, "one")
	at := "/v1/addresses/" + a.ID
	r.refused(t, "POST", "/v1/addresses", `{"ip":"`+a.IP+`"}`, api.AddressInUse, "ip", a.IP)
	r.refused(t, "POST", "/v1/addresses", `{"name":"one"}`, api.NameTaken, "name", "choose another")
	r.refused(t, "PATCH", at, `{}`, api.InvalidRequest, "body", "")
	r.refused(t, "PATCH", at, `{"ip":"127.0.0.1"}`, api.InvalidRequest, "ip", "")
	r.refused(t, "POST", at+"/attach", `{}`, api.InvalidRequest, "body", "")
	r.refused(t, "POST", at+"/attach", `{"instanceId":"i-none"}`, api.UnknownInstance, "instanceId", `"i-none"`)
	_, p := r.call(t, "POST", "/v1/addresses", `{"name":"one","ip":"10.0.0.1"}`)
	assert.Len(t, fields(p), 2, "all that is wrong is told at once: %s", p.Detail)

	two := r.reserve(t, "two")
	requireCode(t, api.NameTaken)(r.UpdateAddress(ctx, two.ID, api.ReservedAddressUpdate{Name: new("one")}))
	in, other := r.newInstance(t), r.newInstance(t)
	requireOK(t)(r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: in.ID}))
	requireCode(t, api.InUse)(r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: other.ID}))
	requireOK(t)(r.CreateFault(ctx, api.FaultCreate{
		Match: api.FaultMatch{Kinds: []api.FaultMatchKinds{api.FaultInstance}}, Effect: api.FaultEffect{Stuck: true},
	}))
	requireOK(t)(r.TerminateInstance(ctx, other.ID))
	requireCode(t, api.WrongState)(r.AttachAddress(ctx, two.ID, api.AddressAttach{InstanceID: other.ID}))
	_, err := r.CreateInstance(ctx, api.InstanceCreate{Address: &two.IP})
	require.True(t, client.HasCode(err, api.AddressInUse), err)
	require.ErrorContains(t, err, "reserved address")

	for n := 0; err == nil || n == 0; n++ { // The pool is small.
		_, err = r.ReserveAddress(ctx, api.ReservedAddressCreate{})
		require.Less(t, n, 20)
	}
	require.True(t, client.HasCode(err, api.AddressPoolExhausted), err)
}

func TestAddressesOfOthersAreNotFound(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a := r.reserve(t, "one")
	in := must(r.other.CreateInstance(ctx, api.InstanceCreate{}))(t)
	assert.Empty(t, must(r.other.ListAddresses(ctx, client.AddressFilter{}))(t))
	for _, lb := range []api.LoadBalancerCreate{{AddressID: &a.ID}, {Address: &a.IP}} {
		lb.Name, lb.Listeners = "web", oneListener
		requireCode(t, api.UnknownAddress)(r.other.CreateLoadBalancer(ctx, lb))
	}
	_, err := r.other.ReserveAddress(ctx, api.ReservedAddressCreate{IP: &a.IP})
	require.True(t, client.HasCode(err, api.AddressInUse), err)
	assert.NotContains(t, err.Error(), a.Name)
	_, err = r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: in.ID})
	require.True(t, client.HasCode(err, api.UnknownInstance), "another project's instance: %v", err)
	requireOK(t, "names are a project's")(r.other.ReserveAddress(ctx, api.ReservedAddressCreate{Name: &a.Name}))
}

func TestListsOfAddresses(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	one, two := r.reserve(t, "one"), r.reserve(t, "two")
	tagged := must(r.ReserveAddress(ctx, api.ReservedAddressCreate{Name: new("three"), Tags: &api.Tags{"k": "v"}}))(t)
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
		list := must(r.ListAddresses(ctx, tc.filter))(t)
		var ids []string
		for _, a := range list {
			ids = append(ids, a.ID)
		}
		assert.Equal(t, tc.want, ids)
	}
	resp, _ := r.call(t, "GET", "/v1/addresses?limit=2", "")
	assert.Contains(t, resp.Body, "nextPageToken")
	assert.NotContains(t, resp.Body, tagged.ID)
}

func TestInstancesGiveTheirAddressesBack(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a, in := r.reserve(t, "one"), r.newInstance(t)
	requireOK(t)(r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: in.ID}))
	requireOK(t)(r.TerminateInstance(ctx, in.ID))
	assert.Empty(t, r.awaitInstance(t, in.ID, api.InstanceTerminated).Addresses)
	free := must(r.GetAddress(ctx, a.ID))(t)
	assert.Equal(t, api.AddressAvailable, free.State)
	assert.Nil(t, free.Holder)
	requireCode(t, api.UnknownInstance)(r.AttachAddress(ctx, a.ID, api.AddressAttach{InstanceID: in.ID}))

	var addresses, externals []string
	require.NoError(t, r.Watch(ctx, client.FromOldest, false, func(e api.Event) error {
		switch e.Resource {
		case api.ResourceAddress:
			require.NotNil(t, e.Address)
			addresses = append(addresses, fmt.Sprintf("%s %v", e.Type, e.Address.State))
		case api.ResourceInstance:
			if n := len(e.Instance.Addresses); n > 0 && e.Instance.Addresses[n-1].Type == api.AddressExternal {
				externals = append(externals, e.Instance.Addresses[n-1].IP)
			}
		}
		return nil
	}))
	assert.Equal(t, []string{"created available", "updated in-use", "updated available"}, addresses)
	assert.Contains(t, externals, a.IP, "the instance's events show it")
}

func TestBalancersHoldReservedAddresses(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a, b := r.reserve(t, "one"), r.reserve(t, "two")
	lb := r.createBalancer(t, api.LoadBalancerCreate{Name: "web", Listeners: oneListener, Address: &a.IP})
	assert.Equal(t, a.IP, lb.Address)
	assert.Equal(t, &a.ID, lb.AddressID)
	held := must(r.GetAddress(ctx, a.ID))(t)
	assert.Equal(t, &api.AddressHolder{Kind: api.HolderLoadBalancer, ID: lb.ID}, held.Holder)
	other := r.createBalancer(t, api.LoadBalancerCreate{Name: "dns", Listeners: oneListener, AddressID: &b.ID})
	assert.Equal(t, b.IP, other.Address)
	own := r.createBalancer(t, api.LoadBalancerCreate{Name: "own", Listeners: oneListener})
	assert.Nil(t, own.AddressID)

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
		_, p := r.call(
			t, "POST", "/v1/load-balancers",
			`{"name":"x","listeners":[{"protocol":"tcp","port":1,"targetPort":1}],`+body+`}`,
		)
		assert.Equal(t, want.code, p.Code, body)
		assert.Contains(t, fields(p), want.field, p.Detail)
	}
	for _, u := range []api.LoadBalancerUpdate{{AddressID: &b.ID}, {Address: &b.IP}} {
		requireCode(t, api.InvalidRequest, "is final")(r.UpdateLoadBalancer(ctx, lb.ID, u))
	}
	_, err := r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{AddressID: &a.ID, Address: &a.IP})
	require.NoError(t, err, "the present one is no change")
	requireCode(t, api.InUse)(r.DetachAddress(ctx, a.ID))
	require.True(t, client.HasCode(r.ReleaseAddress(ctx, a.ID), api.InUse))

	requireOK(t)(r.DeleteLoadBalancer(ctx, lb.ID))
	require.Eventually(t, func() bool {
		free, err := r.GetAddress(ctx, a.ID)
		return err == nil && free.State == api.AddressAvailable
	}, patience, 2*time.Millisecond)
	requireCode(t, api.NotFound)(r.GetLoadBalancer(ctx, lb.ID))
	third := r.createBalancer(t, api.LoadBalancerCreate{Name: "web", Listeners: oneListener, AddressID: &a.ID})
	assert.Equal(t, a.IP, third.Address)
}
