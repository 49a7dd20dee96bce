package core

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// A Service with PreferDualStack gets IPv4 alone, and an Event, from a cloud without IPv6.
func TestPreferDualStackFallsBack(t *testing.T) {
	field := []api.ProblemField{{Field: "ipFamilies", Message: "cannot hold ipv6"}}
	f := newFakeBalancers(t)
	f.create = func(lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
		if len(*lb.IPFamilies) > 1 {
			return nil, &client.Error{Status: 400, Problem: api.Problem{Code: api.InvalidRequest, Fields: &field}}
		}
		return built(t, api.LoadBalancerActive), nil
	}
	ctx, noticed := notices(t.Context())
	status, err := f.loadBalancers().
		EnsureLoadBalancer(ctx, clusterName, serviceWithFamilies("PreferDualStack", "IPv6", "IPv4"), nil)
	require.NoError(t, err)
	require.Len(t, status.Ingress, 1)
	assert.Equal(t, "127.30.64.1", status.Ingress[0].IP)
	assert.Equal(t, []string{contract.ReasonIPv4Only}, noticed())

	_, err = f.loadBalancers().
		EnsureLoadBalancer(t.Context(), clusterName, serviceWithFamilies("PreferDualStack", "IPv6"), nil)
	assert.Equal(t, contract.ReasonInvalidService, CauseOf(err).Reason, "there is nothing to fall back to")
}

// A target whose instance has ended is left out; the others are served. What was not sent is ignored.
func TestEndedTargetsAreLeftOut(t *testing.T) {
	f := &fakeAPI{t: t, listBalancers: listReturns(*built(t, api.LoadBalancerActive, "fakecloud://i-1"))}
	fields := []api.ProblemField{
		{Field: "targets.-1.instanceId"}, {Field: "targets.1.instanceId"}, {Field: "targets.9.instanceId"}, {Field: "name"},
	}
	var asked []api.Targets
	f.update = func(_ string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
		asked = append(asked, slices.Clone(*u.Targets))
		if len(*u.Targets) > 2 { // The second of them has ended, each time.
			return nil, &client.Error{Status: 400, Problem: api.Problem{Code: api.UnknownInstance, Fields: &fields}}
		}
		return built(t, api.LoadBalancerUpdating), nil
	}
	require.NoError(t, newLoadBalancers(f).UpdateLoadBalancer(
		t.Context(), clusterName, service(),
		nodes("fakecloud://i-1", "fakecloud://i-2", "fakecloud://i-3", "fakecloud://i-4"),
	))
	require.Len(t, asked, 3)
	assert.Equal(t, api.Targets{{InstanceID: "i-1"}, {InstanceID: "i-4"}}, asked[2])
}
