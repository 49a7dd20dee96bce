package core

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// A Service with PreferDualStack gets IPv4 alone, and an Event, from a cloud without IPv6. That a target has ended, too,
// changes nothing.
func TestPreferDualStackFallsBack(t *testing.T) {
	refuses := func(code api.ProblemCode, field string) error {
		fields := []api.ProblemField{{Field: field}}
		return &client.Error{Status: 400, Problem: api.Problem{Code: code, Fields: &fields}}
	}
	f := newFakeBalancers()
	f.create = func(lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
		switch {
		case len(lb.IPFamilies) > 1:
			return nil, refuses(api.InvalidRequest, "ipFamilies")
		case len(lb.Targets) > 1:
			return nil, refuses(api.UnknownInstance, "targets.0.instanceId")
		}
		return built(t, api.LoadBalancerActive), nil
	}
	for _, targets := range [][]*corev1.Node{nil, nodes("fakecloud://i-1", "fakecloud://i-2")} {
		ctx, noticed := notices(t.Context())
		status, err := f.loadBalancers().
			EnsureLoadBalancer(ctx, clusterName, serviceWithFamilies("PreferDualStack", "IPv6", "IPv4"), targets)
		require.NoError(t, err)
		require.Len(t, status.Ingress, 1)
		assert.Equal(t, "127.30.64.1", status.Ingress[0].IP)
		assert.Contains(t, noticed(), contract.ReasonIPv4Only)
	}

	_, err := f.loadBalancers().
		EnsureLoadBalancer(t.Context(), clusterName, serviceWithFamilies("PreferDualStack", "IPv6"), nil)
	assert.Equal(t, contract.ReasonInvalidService, CauseOf(err).Reason, "there is nothing to fall back to")
}

// A target whose instance has ended is left out; the others are served. What was not sent is ignored.
func TestEndedTargetsAreLeftOut(t *testing.T) {
	f := &fakeAPI{listBalancers: listReturns(*built(t, api.LoadBalancerActive, "fakecloud://i-1"))}
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
	require.NoError(t, f.loadBalancers().UpdateLoadBalancer(
		t.Context(), clusterName, service(),
		nodes("fakecloud://i-1", "fakecloud://i-2", "fakecloud://i-3", "fakecloud://i-4"),
	))
	require.Len(t, asked, 3)
	assert.Equal(t, api.Targets{{InstanceID: "i-1"}, {InstanceID: "i-4"}}, asked[2])
}
