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
	a, err := r.ReserveAddress(t.Context(), api.ReservedAddressCreate{Name: &name})
	require.NoError(t, err)
	return *a
}

func (r *rig) newInstance(t *testing.T) api.Instance {
	t.Helper()
	in, err := r.CreateInstance(t.Context(), api.InstanceCreate{})
	require.NoError(t, err)
	return *in
}

func TestAddressLife(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a, err := r.ReserveAddress(ctx, api.ReservedAddressCreate{Tags: &api.Tags{"for": "web"}})
	require.NoError(t, err)
	assert.Regexp(t, "^a-[0-9a-z]{26}$", a.ID)
	assert.Regexp(t, "^address-[a-z]{6}$", a.Name)
	assert.Equal(t, api.AddressAvailable, a.State)
	assert.Equal(t, api.Tags{"owner": "lab", "for": "web"}, a.Tags)
	assert.Nil(t, a.Holder)
	got, err := r.GetAddress(ctx, a.ID)
	require.NoError(t, err)
	assert.Equal(t, a, got)

	in := r.newInstance(t)
	attached, err := r.AttachAddress(ctx, a.ID, in.ID)
	require.NoError(t, err)
	assert.Equal(t, api.AddressHeld, attached.State)
	assert.Equal(t, &api.AddressHolder{Kind: api.HolderInstance, ID: in.ID}, attached.Holder)
	again, err := r.AttachAddress(ctx, a.ID, in.ID)
	require.NoError(t, err)
	assert.Equal(t, attached, again, "attached where it is attached: nothing changes")
	shown, err := r.GetInstance(ctx, in.ID)
	require.NoError(t, err)
	assert.Equal(t, append(in.Addresses, api.Address{Type: api.AddressExternal, IP: a.IP}), shown.Addresses)
	err = r.ReleaseAddress(ctx, a.ID)
	require.True(t, client.HasCode(err, api.InUse), err)
	require.ErrorContains(t, err, in.ID)

	free, err := r.DetachAddress(ctx, a.ID)
	require.NoError(t, err)
	assert.Equal(t, api.AddressAvailable, free.State)
	shown, err = r.GetInstance(ctx, in.ID)
	require.NoError(t, err)
	assert.Equal(t, in.Addresses, shown.Addresses)
	still, err := r.DetachAddress(ctx, a.ID)
	require.NoError(t, err)
	assert.Equal(t, free, still)

	renamed, err := r.UpdateAddress(ctx, a.ID, api.ReservedAddressUpdate{Name: new("web"), Tags: &api.Tags{}})
	require.NoError(t, err)
	assert.Equal(t, "web", renamed.Name)
	assert.Empty(t, renamed.Tags)
	same, err := r.UpdateAddress(ctx, a.ID, api.ReservedAddressUpdate{Name: new("web"), Tags: &api.Tags{}})
	require.NoError(t, err)
	assert.Equal(t, renamed, same)

	require.NoError(t, r.ReleaseAddress(ctx, a.ID))
	_, err = r.GetAddress(ctx, a.ID)
	require.True(t, client.IsNotFound(err), err)
	next, err := r.ReserveAddress(ctx, api.ReservedAddressCreate{IP: &a.IP, Name: new("web")})
	require.NoError(t, err, "name and IP are free again")
	assert.Equal(t, a.IP, next.IP)
}

func TestAddressesThatCannotBeHad(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a := r.reserve(t, "one")
	for _, tc := range []struct {
		method, path, body string
		status             int
		code               api.ProblemCode
		field              string
	}{
		{"POST", "/v1/addresses", `{"name":"Not_DNS"}`, 400, api.InvalidRequest, "name"},
		{"POST", "/v1/addresses", `{"name":"a..b"}`, 400, api.InvalidRequest, "name"},
		{"POST", "/v1/addresses", `{"nom":"one"}`, 400, api.InvalidRequest, "nom"},
		{"POST", "/v1/addresses", `{"ip":"10.0.0.1"}`, 400, api.InvalidRequest, "ip"},
		{"POST", "/v1/addresses", `{"ip":"nonsense"}`, 400, api.InvalidRequest, "ip"},
		{"POST", "/v1/addresses", `{"tags":{"k=v":"x"}}`, 400, api.InvalidRequest, "tags.k=v"},
		{"POST", "/v1/addresses", `{"ip":"` + a.IP + `"}`, 409, api.AddressInUse, "ip"},
		{"POST", "/v1/addresses", `{"name":"one"}`, 409, api.NameTaken, "name"},
		{"GET", "/v1/addresses?state=lost", ``, 400, api.InvalidRequest, "state.0"},
		{"GET", "/v1/addresses?pageToken=aS0x", ``, 400, api.InvalidRequest, "pageToken"},
		{"GET", "/v1/addresses/a-none", ``, 404, api.NotFound, ""},
		{"PATCH", "/v1/addresses/a-none", `{"name":"x"}`, 404, api.NotFound, ""},
		{"PATCH", "/v1/addresses/" + a.ID, `{}`, 400, api.InvalidRequest, "body"},
		{"PATCH", "/v1/addresses/" + a.ID, `{"ip":"127.0.0.1"}`, 400, api.InvalidRequest, "ip"},
		{"DELETE", "/v1/addresses/a-none", ``, 404, api.NotFound, ""},
		{"POST", "/v1/addresses/a-none/detach", ``, 404, api.NotFound, ""},
		{"POST", "/v1/addresses/a-none/attach", `{"instanceId":"i-none"}`, 404, api.NotFound, ""},
		{"POST", "/v1/addresses/" + a.ID + "/attach", `{}`, 400, api.InvalidRequest, "instanceId"},
		{
			"POST", "/v1/addresses/" + a.ID + "/attach", `{"instanceId":"i-none"}`, 400, api.UnknownInstance,
			"instanceId",
		},
	} {
		resp, p := r.call(t, tc.method, tc.path, tc.body)
		assert.Equal(t, tc.status, resp.StatusCode, tc)
		assert.Equal(t, tc.code, p.Code, tc)
		if tc.field != "" {
			assert.Contains(t, fields(p), tc.field, "%v: %s", tc, p.Detail)
		}
	}
	_, p := r.call(t, "POST", "/v1/addresses", `{"name":"one","ip":"10.0.0.1"}`)
	assert.Len(t, fields(p), 2, "all that is wrong is told at once: %s", p.Detail)

	two := r.reserve(t, "two")
	_, err := r.UpdateAddress(ctx, two.ID, api.ReservedAddressUpdate{Name: new("one")})
	require.True(t, client.HasCode(err, api.NameTaken), err)
	in, other := r.newInstance(t), r.newInstance(t)
	_, err = r.AttachAddress(ctx, a.ID, in.ID)
	require.NoError(t, err)
	_, err = r.AttachAddress(ctx, a.ID, other.ID)
	require.True(t, client.HasCode(err, api.InUse), err)
	for n := range 4 {
		_, err := r.AttachAddress(ctx, r.reserve(t, fmt.Sprint("more-", n)).ID, in.ID)
		require.NoError(t, err)
	}
	_, err = r.AttachAddress(ctx, two.ID, in.ID)
	require.True(t, client.HasCode(err, api.WrongState), err)
	_, err = r.CreateInstance(ctx, api.InstanceCreate{Address: &two.IP})
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
	in, err := r.other.CreateInstance(ctx, api.InstanceCreate{})
	require.NoError(t, err)
	list, err := r.other.ListAddresses(ctx, client.AddressFilter{})
	require.NoError(t, err)
	assert.Empty(t, list)
	_, err = r.other.GetAddress(ctx, a.ID)
	require.True(t, client.IsNotFound(err), err)
	_, err = r.other.UpdateAddress(ctx, a.ID, api.ReservedAddressUpdate{Name: new("mine")})
	require.True(t, client.IsNotFound(err), err)
	_, err = r.other.AttachAddress(ctx, a.ID, in.ID)
	require.True(t, client.IsNotFound(err), err)
	_, err = r.other.DetachAddress(ctx, a.ID)
	require.True(t, client.IsNotFound(err), err)
	require.True(t, client.IsNotFound(r.other.ReleaseAddress(ctx, a.ID)))
	for _, lb := range []api.LoadBalancerCreate{{AddressID: &a.ID}, {Address: &a.IP}} {
		lb.Name, lb.Listeners = "web", oneListener
		_, err = r.other.CreateLoadBalancer(ctx, lb)
		require.True(t, client.HasCode(err, api.UnknownAddress), err)
	}
	_, err = r.other.ReserveAddress(ctx, api.ReservedAddressCreate{IP: &a.IP})
	require.True(t, client.HasCode(err, api.AddressInUse), err)
	assert.NotContains(t, err.Error(), a.Name)
	_, err = r.AttachAddress(ctx, a.ID, in.ID)
	require.True(t, client.HasCode(err, api.UnknownInstance), "another project's instance: %v", err)
	_, err = r.other.ReserveAddress(ctx, api.ReservedAddressCreate{Name: &a.Name})
	require.NoError(t, err, "names are a project's")
}

func TestListsOfAddresses(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	one, two := r.reserve(t, "one"), r.reserve(t, "two")
	tagged, err := r.ReserveAddress(ctx, api.ReservedAddressCreate{Name: new("three"), Tags: &api.Tags{"k": "v"}})
	require.NoError(t, err)
	_, err = r.AttachAddress(ctx, two.ID, r.newInstance(t).ID)
	require.NoError(t, err)
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
		list, err := r.ListAddresses(ctx, tc.filter)
		require.NoError(t, err)
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

func TestAddressesKeepToTheConventions(t *testing.T) {
	r := newRig(t)
	body := `{"name":"one"}`
	first, _ := r.call(t, "POST", "/v1/addresses", body, "Idempotency-Key", "k1")
	second, _ := r.call(t, "POST", "/v1/addresses", body, "Idempotency-Key", "k1")
	assert.Equal(t, 201, second.StatusCode)
	assert.Equal(t, first.Body, second.Body)
	assert.Equal(t, "true", second.Header.Get("Idempotent-Replayed"))
	_, p := r.call(t, "POST", "/v1/addresses", `{"name":"two"}`, "Idempotency-Key", "k1")
	assert.Equal(t, api.IdempotencyKeyReused, p.Code)

	at := first.Header.Get("Location")
	got, _ := r.call(t, "GET", at, "")
	assert.Equal(t, `"1"`, got.Header.Get("ETag"))
	unchanged, _ := r.call(t, "GET", at, "", "If-None-Match", `"1"`)
	assert.Equal(t, 304, unchanged.StatusCode)
	changed, _ := r.call(t, "PATCH", at, `{"name":"two"}`, "If-Match", `"1"`)
	assert.Equal(t, `"2"`, changed.Header.Get("ETag"))
	in := r.newInstance(t)
	for _, change := range [][3]string{
		{"PATCH", at, `{"name":"three"}`}, {"DELETE", at, ""}, {"POST", at + "/detach", ""},
		{"POST", at + "/attach", `{"instanceId":"` + in.ID + `"}`},
	} {
		resp, p := r.call(t, change[0], change[1], change[2], "If-Match", `"1"`)
		assert.Equal(t, 412, resp.StatusCode, change)
		assert.Equal(t, api.PreconditionFailed, p.Code)
	}
	gone, _ := r.call(t, "DELETE", at, "", "If-Match", `"2"`)
	assert.Equal(t, 204, gone.StatusCode)
}

func TestInstancesGiveTheirAddressesBack(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	a, in := r.reserve(t, "one"), r.newInstance(t)
	_, err := r.AttachAddress(ctx, a.ID, in.ID)
	require.NoError(t, err)
	_, err = r.TerminateInstance(ctx, in.ID)
	require.NoError(t, err)
	assert.Empty(t, r.awaitInstance(t, in.ID, api.InstanceTerminated).Addresses)
	free, err := r.GetAddress(ctx, a.ID)
	require.NoError(t, err)
	assert.Equal(t, api.AddressAvailable, free.State)
	assert.Nil(t, free.Holder)
	_, err = r.AttachAddress(ctx, a.ID, in.ID)
	require.True(t, client.HasCode(err, api.UnknownInstance), err)

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
	lb, err := r.CreateLoadBalancer(ctx, api.LoadBalancerCreate{Name: "web", Listeners: oneListener, Address: &a.IP})
	require.NoError(t, err)
	assert.Equal(t, a.IP, lb.Address)
	assert.Equal(t, &a.ID, lb.AddressID)
	held, err := r.GetAddress(ctx, a.ID)
	require.NoError(t, err)
	assert.Equal(t, &api.AddressHolder{Kind: api.HolderLoadBalancer, ID: lb.ID}, held.Holder)
	other, err := r.CreateLoadBalancer(
		ctx, api.LoadBalancerCreate{Name: "dns", Listeners: oneListener, AddressID: &b.ID},
	)
	require.NoError(t, err)
	assert.Equal(t, b.IP, other.Address)
	own, err := r.CreateLoadBalancer(ctx, api.LoadBalancerCreate{Name: "own", Listeners: oneListener})
	require.NoError(t, err)
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
		_, err = r.UpdateLoadBalancer(ctx, lb.ID, u)
		require.True(t, client.HasCode(err, api.InvalidRequest), err)
		require.ErrorContains(t, err, "is final")
	}
	_, err = r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{AddressID: &a.ID, Address: &a.IP})
	require.NoError(t, err, "the present one is no change")
	_, err = r.DetachAddress(ctx, a.ID)
	require.True(t, client.HasCode(err, api.InUse), err)
	require.True(t, client.HasCode(r.ReleaseAddress(ctx, a.ID), api.InUse))

	_, err = r.DeleteLoadBalancer(ctx, lb.ID)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		free, err := r.GetAddress(ctx, a.ID)
		return err == nil && free.State == api.AddressAvailable
	}, patience, 2*time.Millisecond)
	_, err = r.GetLoadBalancer(ctx, lb.ID)
	require.True(t, client.IsNotFound(err), err)
	third, err := r.CreateLoadBalancer(
		ctx, api.LoadBalancerCreate{Name: "web", Listeners: oneListener, AddressID: &a.ID},
	)
	require.NoError(t, err)
	assert.Equal(t, a.IP, third.Address)
}
