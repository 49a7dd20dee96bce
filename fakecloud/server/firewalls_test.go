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

func TestFirewalls(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := r.newInstance(t)
	rules := &api.FirewallRules{{Protocol: api.FirewallTCP, FirstPort: 30080, LastPort: 30090}}
	f := must.Do(r.CreateFirewall(ctx, api.FirewallCreate{
		Name: new("web"), InstanceIDs: &[]string{in.ID}, Rules: rules, Tags: &api.Tags{"for": "web"},
	}))(t)
	assert.Regexp(t, "^f-[0-9a-z]{26}$", f.ID)
	assert.Equal(t, *rules, f.Rules)
	assert.Equal(t, f, must.Do(r.GetFirewall(ctx, f.ID))(t))
	tagged := must.Do(r.ListFirewalls(ctx, client.FirewallFilter{Tags: []string{"for=web"}}))(t)
	assert.Equal(t, []api.Firewall{*f}, tagged)
	assert.Regexp(t, "^firewall-[a-z]{6}$", must.Do(r.CreateFirewall(ctx, api.FirewallCreate{}))(t).Name)

	changed := must.Do(r.UpdateFirewall(
		client.IfMatch(ctx, f.Version), f.ID, api.FirewallUpdate{Name: new("shop"), Rules: &api.FirewallRules{}},
	))(t)
	assert.Equal(t, "shop", changed.Name)
	assert.Empty(t, changed.Rules)
	assert.Equal(t, f.InstanceIDs, changed.InstanceIDs)
	requireCode(t, api.PreconditionFailed)(
		r.UpdateFirewall(client.IfMatch(ctx, f.Version), f.ID, api.FirewallUpdate{Name: new("web")}),
	)
	err := r.DeleteFirewall(client.IfMatch(ctx, f.Version), f.ID)
	require.True(t, client.HasCode(err, api.PreconditionFailed), err)
	require.NoError(t, r.DeleteFirewall(ctx, f.ID))
	requireCode(t, api.NotFound)(r.GetFirewall(ctx, f.ID))
}

func TestFirewallsThatCannotBeHad(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	f := must.Do(r.CreateFirewall(ctx, api.FirewallCreate{Name: new("web")}))(t)
	other := must.Do(r.CreateFirewall(ctx, api.FirewallCreate{}))(t)
	at, stranger := "/v1/firewalls/"+other.ID, must.Do(r.other.CreateInstance(ctx, api.InstanceCreate{}))(t)
	for _, call := range [][2]string{{"POST", "/v1/firewalls"}, {"PATCH", at}} {
		method, path := call[0], call[1]
		r.refused(t, method, path, `{"name":"web"}`, api.NameTaken, "name", f.ID)
		r.refused(
			t, method, path, fmt.Sprintf(`{"instanceIds":[%q]}`, stranger.ID), api.UnknownInstance, "instanceIds.0",
			stranger.ID,
		)
		r.refused(
			t, method, path, `{"rules":[{"protocol":"tcp","firstPort":9,"lastPort":8}]}`, api.InvalidRequest, "rules.0", "",
		)
	}
	in := r.newInstance(t)
	r.refused(
		t, "PATCH", at, fmt.Sprintf(`{"instanceIds":[%q,%q]}`, in.ID, in.ID), api.InvalidRequest, "instanceIds.1", "twice",
	)
	requireCode(t, api.NotFound)(r.other.GetFirewall(ctx, f.ID))
	var err error
	for n := 0; err == nil; n++ {
		_, err = r.CreateFirewall(ctx, api.FirewallCreate{})
		require.Less(t, n, 1000)
	}
	require.True(t, client.HasCode(err, api.QuotaExceeded), err)
}

func TestAddressesOfBalancers(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	lb := must.Do(r.CreateLoadBalancer(ctx, api.LoadBalancerCreate{Name: "web", Listeners: oneListener}))(t)
	a := r.reserve(t, "one")
	attached := must.Do(r.AttachAddress(ctx, a.ID, api.AddressAttach{LoadBalancerID: lb.ID}))(t)
	assert.Equal(t, &api.AddressHolder{Kind: api.HolderLoadBalancer, ID: lb.ID}, attached.Holder)
	assert.Equal(t, []string{a.IP}, must.Do(r.GetLoadBalancer(ctx, lb.ID))(t).AttachedAddresses)
	r.refused(t, "PATCH", "/v1/load-balancers/"+lb.ID, `{"scheme":"internal"}`, api.InvalidRequest, "scheme", a.IP)
	must.Do(r.DetachAddress(ctx, a.ID))(t)
	assert.Empty(t, must.Do(r.GetLoadBalancer(ctx, lb.ID))(t).AttachedAddresses)
	must.Do(r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{Scheme: new(api.SchemeInternal)}))(t)
	attach := "/v1/addresses/" + a.ID + "/attach"
	r.refused(
		t, "POST", attach, fmt.Sprintf(`{"loadBalancerId":%q}`, lb.ID), api.InvalidRequest, "loadBalancerId", "internal",
	)
	r.refused(t, "POST", attach, `{"loadBalancerId":"lb-none"}`, api.InvalidRequest, "loadBalancerId", `"lb-none"`)
}
