package ccm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// With the token of another project the list is empty too. A Service must neither lose
// its finalizer over that, nor get a second balancer.
func TestEmptyListOfAnotherProject(t *testing.T) {
	l := newLoadBalancers(&fakeAPI{t: t, listBalancers: listReturns(), project: func() (*api.Project, error) {
		return &api.Project{ID: "p-other", Name: "other"}, nil
	}})
	_, _, err := l.GetLoadBalancer(t.Context(), clusterName, service())
	require.ErrorContains(t, err, "configured for")
	_, err = l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
	require.ErrorContains(t, err, "configured for")
}
