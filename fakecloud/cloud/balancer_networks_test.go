package cloud

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func TestBalancerOfNetwork(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	n := must.First(c.Networks.Create(t.Context(), p, api.NetworkCreate{Name: "pods", Cidr: "10.9.0.0/29"}))(t)
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "web", NetworkID: n.ID, PrivateAddress: "10.9.0.3"})
	public, private := lb.Address, lb.PrivateAddress
	assert.Equal(t, "10.9.0.3", private)
	servesOn := func(want ...string) {
		t.Helper()
		advance(t, c, time.Minute)
		assert.Equal(t, want, textsOf(plane.applied[lb.ID].Addresses))
	}
	servesOn(public, private)

	unknown, elsewhere := api.LoadBalancerUpdate{NetworkID: new("n-none")}, api.LoadBalancerUpdate{PrivateAddress: new("10.8.0.1")}
	requireRefusedAt(t, UnknownNetwork, "networkId")(c.UpdateLoadBalancer(t.Context(), p, lb.ID, unknown))
	requireRefusedAt(t, InvalidRequest, "privateAddress")(c.UpdateLoadBalancer(t.Context(), p, lb.ID, elsewhere))
	taken := api.LoadBalancerCreate{Name: "other", NetworkID: n.ID, PrivateAddress: "10.9.0.3"}
	requireRefusedAt(t, AddressInUse, "privateAddress")(c.CreateLoadBalancer(t.Context(), p, taken))
	noNetwork := api.LoadBalancerCreate{Name: "other", PrivateAddress: "10.9.0.3"}
	requireRefusedAt(t, InvalidRequest, "privateAddress")(c.CreateLoadBalancer(t.Context(), p, noNetwork))
	requireRefused(t, InUse)(c.Networks.Delete(t.Context(), p, n.ID))

	updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{Scheme: new(api.SchemeInternal)})
	servesOn(private)
	same := updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{NetworkID: &n.ID})
	assert.Equal(t, api.LoadBalancerActive, same.State, "a change of nothing")
	updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{PrivateAddress: new("10.9.0.4")})
	servesOn("10.9.0.4")
	in, _, err := c.CreateInstance(t.Context(), p, api.InstanceCreate{Name: "a", NetworkID: n.ID, Address: "10.9.0.3"})
	require.NoError(t, err, "the address of before is free")
	assert.Equal(t, private, in.Address.String())
	moved := updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{NetworkID: new(defaultNetworkID(p.ID))})
	assert.True(t, c.cfg.InstanceCIDR.Contains(addressOrZero(moved.PrivateAddress)))
	left := updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{NetworkID: new("")})
	assert.Empty(t, left.NetworkID)
	servesOn(public)
}

func textsOf(addresses []netip.Addr) (texts []string) {
	for _, a := range addresses {
		texts = append(texts, a.String())
	}
	return texts
}

func TestPrivateAddressIsFreeAgainWithItsBalancer(t *testing.T) {
	c, p := newCloud(t, nil)
	n := defaultNetworkID(p.ID)
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "web", NetworkID: n})
	require.NoError(t, c.store.Write(t.Context(), func(tx *store.Tx) error { return c.loadUsedAddresses(t.Context(), tx) }))
	other := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "other", NetworkID: n})
	assert.NotEqual(t, lb.PrivateAddress, other.PrivateAddress, "it is known after a restart, too")
	requireOK(t)(c.DeleteLoadBalancer(t.Context(), p, lb.ID))
	advance(t, c, time.Minute)
	again := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "again", NetworkID: n})
	assert.Equal(t, lb.PrivateAddress, again.PrivateAddress)
}
