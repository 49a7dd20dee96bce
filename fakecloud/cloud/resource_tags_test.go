package cloud

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func TestResourceTags(t *testing.T) {
	c, p := newCloud(t, nil)
	ctx := t.Context()
	tags := map[string]string{"role": "worker"}
	in := newInstance(t, c, p, InstanceSpec{Tags: tags})
	lb := createBalancer(t, c, p, LoadBalancerSpec{Name: "lb", Listeners: oneListener, Tags: tags})
	a, _, err := c.ReserveAddress(ctx, p, AddressSpec{Tags: tags})
	require.NoError(t, err)
	r, _, err := c.CreateRoute(ctx, p, RouteSpec{Name: "r", Destination: "10.0.0.0/24", Instance: in.ID, Tags: tags})
	require.NoError(t, err)
	n, _, err := c.CreateNetwork(ctx, p, NetworkSpec{Name: "n", CIDR: "10.1.0.0/24", Tags: tags})
	require.NoError(t, err)
	for kind, id := range map[Resource]string{
		InstanceResource: in.ID, LoadBalancerResource: lb.ID, AddressResource: a.ID, RouteResource: r.ID,
		NetworkResource: n.ID,
	} {
		got, err := c.ResourceTags(ctx, p, kind, id)
		require.NoError(t, err, kind)
		assert.Equal(t, tags, got, kind)
		got, err = c.ResourceTags(ctx, p, kind, "none")
		require.NoError(t, err, "what is not there has no tags")
		assert.Empty(t, got, kind)
	}
	got, err := c.ResourceTags(ctx, p, LoadBalancerResource, in.ID)
	require.NoError(t, err)
	assert.Empty(t, got, "it is of another kind")
	_, err = c.ResourceTags(ctx, p, "zone", "nebula-1a")
	require.Error(t, err)
	require.NoError(t, c.store.Close())
	_, err = c.ResourceTags(ctx, p, InstanceResource, in.ID)
	require.ErrorIs(t, err, store.ErrClosed)
}
