package cloud

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func TestResourceTags(t *testing.T) {
	c, p := newCloud(t, nil)
	ctx := t.Context()
	tags := map[string]string{"role": "worker"}
	in := newInstance(t, c, p, api.InstanceCreate{Tags: tags})
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "lb", Listeners: oneListener, Tags: tags})
	a := must.First(c.Addresses.Create(ctx, p, api.ReservedAddressCreate{Tags: (*api.Tags)(&tags)}))(t)
	r, _, err := c.Routes.Create(ctx, p, api.RouteCreate{Name: "r", Destination: "10.0.0.0/24", InstanceID: in.ID, Tags: new(api.Tags(tags))})
	require.NoError(t, err)
	n := must.First(c.Networks.Create(ctx, p, api.NetworkCreate{Name: "n", Cidr: "10.1.0.0/24", Tags: (*api.Tags)(&tags)}))(t)
	for kind, id := range map[Resource]string{
		InstanceResource: in.ID, LoadBalancerResource: lb.ID, AddressResource: a.ID, RouteResource: r.ID,
		NetworkResource: n.ID,
	} {
		got := must.Do(c.ResourceTags(ctx, p, kind, id))(t, kind)
		assert.Equal(t, tags, got, kind)
		got = must.Do(c.ResourceTags(ctx, p, kind, "none"))(t, "what is not there has no tags")
		assert.Empty(t, got, kind)
	}
	assert.Empty(t, must.Do(c.ResourceTags(ctx, p, LoadBalancerResource, in.ID))(t), "it is of another kind")
	_, err = c.ResourceTags(ctx, p, "zone", "nebula-1a")
	require.Error(t, err)
	require.NoError(t, c.store.Close())
	_, err = c.ResourceTags(ctx, p, InstanceResource, in.ID)
	require.ErrorIs(t, err, store.ErrClosed)
}
