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
	tags := api.Tags{"role": "worker"}
	in := newInstance(t, c, p, api.InstanceCreate{Tags: tags})
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "lb", Listeners: oneListener, Tags: tags})
	a := must.First(c.Addresses.Create(ctx, p, api.ReservedAddressCreate{Tags: &tags}))(t)
	r, _, err := c.Routes.Create(ctx, p, api.RouteCreate{Name: "r", Destination: "10.0.0.0/24", InstanceID: in.ID, Tags: &tags})
	require.NoError(t, err)
	n := must.First(c.Networks.Create(ctx, p, api.NetworkCreate{Name: "n", Cidr: "10.1.0.0/24", Tags: &tags}))(t)
	for kind, id := range map[Resource]string{
		api.ResourceInstance: in.ID, api.ResourceLoadBalancer: lb.ID, api.ResourceAddress: a.ID, api.ResourceRoute: r.ID,
		api.ResourceNetwork: n.ID,
	} {
		got := must.Do(c.ResourceTags(ctx, p, kind, id))(t, kind)
		assert.Equal(t, tags, got, kind)
		got = must.Do(c.ResourceTags(ctx, p, kind, "none"))(t, "what is not there has no tags")
		assert.Empty(t, got, kind)
	}
	assert.Empty(t, must.Do(c.ResourceTags(ctx, p, api.ResourceLoadBalancer, in.ID))(t), "it is of another kind")
	assert.Empty(t, must.Do(c.ResourceTags(ctx, Project{ID: "p-other"}, api.ResourceInstance, in.ID))(t), "it is another's")
	require.NoError(t, c.store.Close())
	_, err = c.ResourceTags(ctx, p, api.ResourceInstance, in.ID)
	require.ErrorIs(t, err, store.ErrClosed)
}
