package hcloud_test

import (
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
		assert.Equal(t, "a.example.com", ip.DNSPtr[ip.IP.String()])
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
