package hcloud_test

import (
	"net"
	"testing"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// An action that was answered is found by its ID and with its resources, whether the change took time or not.
func TestActionsAreFound(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	in := createInstance(t, c, "node-1")
	lb := createBalancer(t, c, sdk)
	network := lb.PrivateNet[0].Network
	ptr := must.First(sdk.LoadBalancer.ChangeDNSPtr(t.Context(), lb, lb.PublicNet.IPv4.IP.String(), hcloud.Ptr("a.example")))(t)
	target := must.First(sdk.LoadBalancer.AddServerTarget(t.Context(), lb, hcloud.LoadBalancerAddServerTargetOpts{
		Server: &hcloud.Server{ID: in.Serial}, UsePrivateIP: hcloud.Ptr(true),
	}))(t)
	_, destination, _ := net.ParseCIDR("10.244.1.0/24")
	route := must.First(sdk.Network.AddRoute(t.Context(), network, hcloud.NetworkAddRouteOpts{
		Route: hcloud.NetworkRoute{Destination: destination, Gateway: net.ParseIP(in.Addresses[0].IP)},
	}))(t)
	require.NoError(t, sdk.Action.WaitFor(t.Context(), ptr, target, route))

	for _, a := range []*hcloud.Action{ptr, target, route} {
		found := must.First(sdk.Action.GetByID(t.Context(), a.ID))(t)
		require.NotNil(t, found, a.Command)
		assert.Equal(t, a.Command, found.Command)
		assert.Equal(t, a.Resources, found.Resources)
		assert.Equal(t, hcloud.ActionStatusSuccess, found.Status)
	}
	assert.Equal(t, []*hcloud.ActionResource{
		{ID: lb.ID, Type: hcloud.ActionResourceTypeLoadBalancer}, {ID: in.Serial, Type: hcloud.ActionResourceTypeServer},
	}, target.Resources)

	byCommand := hcloud.ActionListOpts{Sort: []string{"command:desc"}}
	commandsOf := func(actions []*hcloud.Action, _ *hcloud.Response, err error) (commands []string) {
		require.NoError(t, err)
		for _, a := range actions {
			commands = append(commands, a.Command)
		}
		return commands
	}
	ofBalancer := []string{"create_load_balancer", "change_dns_ptr", "attach_to_network", "add_target"}
	assert.Equal(t, ofBalancer, commandsOf(sdk.LoadBalancer.Action.List(t.Context(), byCommand)))
	assert.Equal(t, ofBalancer, commandsOf(sdk.LoadBalancer.Action.ListFor(t.Context(), lb, byCommand)))
	assert.Equal(t, []string{"add_target"}, commandsOf(sdk.Server.Action.List(t.Context(), byCommand)))
	assert.Equal(t, []string{"attach_to_network", "add_route"}, commandsOf(sdk.Network.Action.List(t.Context(), byCommand)))
	assert.Empty(t, commandsOf(sdk.Network.Action.List(t.Context(), hcloud.ActionListOpts{
		Status: []hcloud.ActionStatus{hcloud.ActionStatusError},
	})))
	assert.Nil(t, must.First(sdk.LoadBalancer.Action.GetByID(t.Context(), route.ID))(t), "is none of a load balancer")
	_, _, err := sdk.LoadBalancer.Action.ListFor(t.Context(), &hcloud.LoadBalancer{ID: 999}, byCommand)
	requireError(t, hcloud.ErrorCodeNotFound)(err)
	_, _, err = sdk.Network.Action.List(t.Context(), hcloud.ActionListOpts{Sort: []string{"name"}})
	requireError(t, hcloud.ErrorCodeInvalidInput)(err)
}
