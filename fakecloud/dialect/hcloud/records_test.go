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

func TestPricing(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	pricing := must.First(sdk.Pricing.Get(t.Context()))(t)
	assert.Equal(t, zoneOf(t, c), pricing.LoadBalancerTypes[0].Pricings[0].Location.Name)
	assert.Empty(t, must.Do(sdk.ISO.All(t.Context()))(t))
}
