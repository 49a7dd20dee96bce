package hcloud_test

import (
	"net"
	"testing"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/hetznercloud/hcloud-go/v2/hcloud/exp/kit/sshutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func createPlainServer(t *testing.T, sdk *hcloud.Client, change func(o *hcloud.ServerCreateOpts)) *hcloud.Server {
	t.Helper()
	o := hcloud.ServerCreateOpts{
		Name: "node-1", ServerType: &hcloud.ServerType{Name: "cx23"}, Image: &hcloud.Image{Name: "debian-12"},
	}
	change(&o)
	made := must.First(sdk.Server.Create(t.Context(), o))(t)
	require.NoError(t, sdk.Action.WaitFor(t.Context(), made.Action))
	return must.First(sdk.Server.GetByID(t.Context(), made.Server.ID))(t)
}

func TestSSHKeys(t *testing.T) {
	_, sdk := startCloud(t, cloudtest.WithoutTraffic())
	_, public, err := sshutil.GenerateKeyPair()
	require.NoError(t, err)
	labels := map[string]string{"a": "b"}
	key := must.First(sdk.SSHKey.Create(t.Context(), hcloud.SSHKeyCreateOpts{
		Name: "my key", PublicKey: string(public), Labels: labels,
	}))(t)
	assert.Equal(t, must.Do(sshutil.GetPublicKeyFingerprint(public))(t), key.Fingerprint)
	assert.Equal(t, key.ID, must.First(sdk.SSHKey.GetByFingerprint(t.Context(), key.Fingerprint))(t).ID)
	assert.Equal(t, key.ID, must.First(sdk.SSHKey.GetByName(t.Context(), "my key"))(t).ID)
	assert.Nil(t, must.First(sdk.SSHKey.GetByName(t.Context(), "other"))(t))
	requireError(t, hcloud.ErrorCodeUniquenessError)(sdk.SSHKey.Create(t.Context(), hcloud.SSHKeyCreateOpts{
		Name: "other", PublicKey: string(public),
	}))
	_, another, err := sshutil.GenerateKeyPair()
	require.NoError(t, err)
	requireError(t, hcloud.ErrorCodeUniquenessError)(sdk.SSHKey.Create(t.Context(), hcloud.SSHKeyCreateOpts{
		Name: "my key", PublicKey: string(another),
	}))
	requireError(t, hcloud.ErrorCodeInvalidInput)(sdk.SSHKey.Create(t.Context(), hcloud.SSHKeyCreateOpts{
		Name: "none", PublicKey: "ssh-rsa x",
	}))
	renamed := must.First(sdk.SSHKey.Update(t.Context(), key, hcloud.SSHKeyUpdateOpts{Name: "renamed"}))(t)
	assert.Equal(t, "renamed", renamed.Name)
	assert.Equal(t, labels, renamed.Labels)
	s := createPlainServer(t, sdk, func(o *hcloud.ServerCreateOpts) { o.SSHKeys = []*hcloud.SSHKey{key} })
	assert.NotZero(t, s.ID)
	must.Do(sdk.SSHKey.Delete(t.Context(), key))(t)
	assert.Nil(t, must.First(sdk.SSHKey.GetByID(t.Context(), key.ID))(t))
}

func TestPlacementGroups(t *testing.T) {
	_, sdk := startCloud(t, cloudtest.WithoutTraffic())
	group := must.First(sdk.PlacementGroup.Create(t.Context(), hcloud.PlacementGroupCreateOpts{
		Name: "apart", Type: hcloud.PlacementGroupTypeSpread,
	}))(t).PlacementGroup
	requireError(t, hcloud.ErrorCodeInvalidInput)(sdk.PlacementGroup.Create(t.Context(), hcloud.PlacementGroupCreateOpts{
		Name: "together", Type: "pack",
	}))
	s := createPlainServer(t, sdk, func(o *hcloud.ServerCreateOpts) { o.PlacementGroup = group })
	assert.Equal(t, group.ID, s.PlacementGroup.ID)
	assert.Equal(t, []int64{s.ID}, must.First(sdk.PlacementGroup.Get(t.Context(), "apart"))(t).Servers)
	await(t, sdk)(sdk.Server.RemoveFromPlacementGroup(t.Context(), s))
	requireError(t, "server_not_stopped")(sdk.Server.AddToPlacementGroup(t.Context(), s, group))
	await(t, sdk)(sdk.Server.Poweroff(t.Context(), s))
	await(t, sdk)(sdk.Server.AddToPlacementGroup(t.Context(), s, group))
	must.Do(sdk.PlacementGroup.Delete(t.Context(), group))(t)
	assert.Nil(t, must.First(sdk.Server.GetByID(t.Context(), s.ID))(t).PlacementGroup)
}

func TestFirewalls(t *testing.T) {
	_, sdk := startCloud(t, cloudtest.WithoutTraffic())
	rule := hcloud.FirewallRule{
		Direction: hcloud.FirewallRuleDirectionIn, Protocol: hcloud.FirewallRuleProtocolTCP, Port: hcloud.Ptr("80-85"),
		SourceIPs: []net.IPNet{*cidr(t, "0.0.0.0/0")},
	}
	selector := hcloud.FirewallResource{
		Type:          hcloud.FirewallResourceTypeLabelSelector,
		LabelSelector: &hcloud.FirewallResourceLabelSelector{Selector: "role=web"},
	}
	made := must.First(sdk.Firewall.Create(t.Context(), hcloud.FirewallCreateOpts{
		Name: "web", Rules: []hcloud.FirewallRule{rule}, ApplyTo: []hcloud.FirewallResource{selector},
	}))(t)
	require.NoError(t, sdk.Action.WaitFor(t.Context(), made.Actions...))
	other := must.First(sdk.Firewall.Create(t.Context(), hcloud.FirewallCreateOpts{Name: "other"}))(t).Firewall
	s := createPlainServer(t, sdk, func(o *hcloud.ServerCreateOpts) {
		o.Labels = map[string]string{"role": "web"}
		o.Firewalls = []*hcloud.ServerCreateFirewall{{Firewall: *other}}
	})
	assert.Len(t, s.PublicNet.Firewalls, 2)
	web := must.First(sdk.Firewall.GetByID(t.Context(), made.Firewall.ID))(t)
	assert.Equal(t, []hcloud.FirewallRule{rule}, []hcloud.FirewallRule{{
		Direction: web.Rules[0].Direction, Protocol: web.Rules[0].Protocol, Port: web.Rules[0].Port,
		SourceIPs: web.Rules[0].SourceIPs,
	}})
	assert.Equal(t, s.ID, web.AppliedTo[0].AppliedToResources[0].Server.ID)
	requireError(t, "firewall_already_applied")(
		sdk.Firewall.ApplyResources(t.Context(), web, []hcloud.FirewallResource{selector}),
	)
	requireError(t, "resource_in_use")(sdk.Firewall.Delete(t.Context(), web))
	wrong := rule
	wrong.Port = hcloud.Ptr("0")
	requireError(t, hcloud.ErrorCodeInvalidInput)(sdk.Firewall.SetRules(t.Context(), web, hcloud.FirewallSetRulesOpts{
		Rules: []hcloud.FirewallRule{wrong},
	}))
	outbound := hcloud.FirewallRule{
		Direction: hcloud.FirewallRuleDirectionOut, Protocol: hcloud.FirewallRuleProtocolICMP,
		DestinationIPs: []net.IPNet{*cidr(t, "::/0")},
	}
	must.First(sdk.Firewall.SetRules(t.Context(), web, hcloud.FirewallSetRulesOpts{
		Rules: []hcloud.FirewallRule{outbound, rule},
	}))(t)
	sorted := must.First(sdk.Firewall.GetByID(t.Context(), web.ID))(t).Rules
	assert.Equal(t, outbound.Direction, sorted[1].Direction, "inbound rules are first")
	actions := must.First(sdk.Firewall.SetRules(t.Context(), web, hcloud.FirewallSetRulesOpts{}))(t)
	require.NoError(t, sdk.Action.WaitFor(t.Context(), actions...))
	actions = must.First(sdk.Firewall.RemoveResources(t.Context(), web, []hcloud.FirewallResource{selector}))(t)
	require.NoError(t, sdk.Action.WaitFor(t.Context(), actions...))
	requireError(t, "firewall_resource_not_found")(
		sdk.Firewall.RemoveResources(t.Context(), web, []hcloud.FirewallResource{selector}),
	)
	web = must.First(sdk.Firewall.GetByID(t.Context(), web.ID))(t)
	assert.Empty(t, web.Rules)
	must.Do(sdk.Firewall.Delete(t.Context(), web))(t)
	must.First(sdk.Server.DeleteWithResult(t.Context(), s))(t)
	must.Do(sdk.Firewall.Delete(t.Context(), other))(t)
}

func TestFloatingIPs(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	s := createPlainServer(t, sdk, func(*hcloud.ServerCreateOpts) {})
	for _, family := range []hcloud.FloatingIPType{hcloud.FloatingIPTypeIPv4, hcloud.FloatingIPTypeIPv6} {
		made := must.First(sdk.FloatingIP.Create(t.Context(), hcloud.FloatingIPCreateOpts{
			Type: family, Name: hcloud.Ptr("front"), Description: hcloud.Ptr("first"),
			HomeLocation: &hcloud.Location{Name: zoneOf(t, c)},
		}))(t)
		ip := made.FloatingIP
		assert.Equal(t, family, ip.Type)
		assert.Nil(t, ip.Server)
		await(t, sdk)(sdk.FloatingIP.Assign(t.Context(), ip, s))
		assert.Equal(t, s.ID, must.First(sdk.FloatingIP.GetByName(t.Context(), "front"))(t).Server.ID)
		has := must.First(sdk.Server.GetByID(t.Context(), s.ID))(t).PublicNet
		assert.Equal(t, s.PublicNet.IPv4.ID, has.IPv4.ID, "its primary IP stays the same")
		assert.Equal(t, s.PublicNet.IPv6.ID, has.IPv6.ID)
		assert.Equal(t, ip.ID, has.FloatingIPs[0].ID)
		requireError(t, "floating_ip_assigned")(sdk.FloatingIP.Assign(t.Context(), ip, s))
		await(t, sdk)(sdk.FloatingIP.Unassign(t.Context(), ip))
		await(t, sdk)(sdk.FloatingIP.ChangeDNSPtr(t.Context(), ip, ip.IP.String(), hcloud.Ptr("a.example.com")))
		ip = must.First(sdk.FloatingIP.Update(t.Context(), ip, hcloud.FloatingIPUpdateOpts{Description: "second"}))(t)
		assert.Equal(t, "second", ip.Description)
		assert.Equal(t, "a.example.com", ip.DNSPtrForIP(ip.IP))
		protect := hcloud.FloatingIPChangeProtectionOpts{Delete: hcloud.Ptr(true)}
		await(t, sdk)(sdk.FloatingIP.ChangeProtection(t.Context(), ip, protect))
		requireError(t, hcloud.ErrorCodeProtected)(sdk.FloatingIP.Delete(t.Context(), ip))
		protect.Delete = hcloud.Ptr(false)
		await(t, sdk)(sdk.FloatingIP.ChangeProtection(t.Context(), ip, protect))
		assert.Len(t, must.Do(sdk.PrimaryIP.All(t.Context()))(t), 2)
		must.Do(sdk.FloatingIP.Delete(t.Context(), ip))(t)
		assert.Empty(t, must.Do(sdk.FloatingIP.All(t.Context()))(t))
	}
}

func TestPricing(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	pricing := must.First(sdk.Pricing.Get(t.Context()))(t)
	assert.Equal(t, zoneOf(t, c), pricing.LoadBalancerTypes[0].Pricings[0].Location.Name)
	assert.Len(t, pricing.FloatingIPs, 2)
	assert.NotEmpty(t, must.Do(sdk.ISO.All(t.Context()))(t))
}
