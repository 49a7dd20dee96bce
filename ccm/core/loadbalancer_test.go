package core

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// A Service with a load balancer class belongs to another controller.
func TestLoadBalancerClass(t *testing.T) {
	class := "other.example/class"
	svc := service()
	svc.Spec.LoadBalancerClass = &class
	l := (&fakeAPI{}).loadBalancers()
	_, err := l.EnsureLoadBalancer(t.Context(), clusterName, svc, nil)
	assert.True(t, err == cloudprovider.ImplementedElsewhere) //nolint:errorlint // Upstream compares it by ==.
	err = l.UpdateLoadBalancer(t.Context(), clusterName, svc, nil)
	assert.True(t, err == cloudprovider.ImplementedElsewhere) //nolint:errorlint // As above.
}

// A balancer that changed or went since it was read is read once more at once: upstream would write a Warning, and
// delays the next try of a deletion by seconds.
func TestSecondLook(t *testing.T) {
	changed, gone := problem(412, api.PreconditionFailed), problem(404, api.NotFound)
	busy, down := problem(409, api.WrongState), problem(503, api.Unavailable)
	live, deleting := *built(t, api.LoadBalancerActive, "fakecloud://i-1"), *built(t, api.LoadBalancerDeleting)
	once, twice := []api.LoadBalancer{live}, []api.LoadBalancer{live, live}
	const updates, deletes = false, true
	for name, tc := range map[string]struct {
		deletes bool               // the balancer; else its targets are updated
		lists   []api.LoadBalancer // what each list has
		answers []error            // to each change
		text    string             // of the error
	}{
		"update, changed meanwhile":   {updates, twice, []error{changed, nil}, ""},
		"update, gone meanwhile":      {updates, twice, []error{gone, nil}, ""},
		"update, busy for long":       {updates, twice, []error{busy, busy}, "changed meanwhile"},
		"update, the cloud is down":   {updates, once, []error{down}, "unavailable"},
		"update, deleting":            {updates, []api.LoadBalancer{deleting, deleting}, nil, "still being deleted"},
		"deletion, changed meanwhile": {deletes, twice, []error{changed, nil}, ""},
		"deletion, gone meanwhile":    {deletes, []api.LoadBalancer{live, deleting}, []error{gone}, ""},
		"deletion, begun already":     {deletes, []api.LoadBalancer{deleting}, nil, ""},
		"deletion, the cloud is down": {deletes, once, []error{down}, "unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeBalancers()
			lists, answers := tc.lists, tc.answers
			f.listBalancers = func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
				require.NotEmpty(t, lists, "it looks once too often")
				next := lists[0]
				lists = lists[1:]
				return []api.LoadBalancer{next}, nil
			}
			answer := func() (*api.LoadBalancer, error) {
				require.NotEmpty(t, answers, "it tries once too often")
				err := answers[0]
				answers = answers[1:]
				return &live, err
			}
			var err error
			if tc.deletes {
				f.remove = func(string) (*api.LoadBalancer, error) { return answer() }
				err = f.loadBalancers().EnsureLoadBalancerDeleted(t.Context(), clusterName, service())
			} else {
				f.update = func(string, api.LoadBalancerUpdate) (*api.LoadBalancer, error) { return answer() }
				err = f.loadBalancers().UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-2"))
			}
			assertError(t, err, tc.text)
			assert.Empty(t, lists)
			assert.Empty(t, answers)
		})
	}
}

// Without a balancer there is nothing to delete, and nothing is created for a change of Nodes.
func TestServiceWithoutBalancer(t *testing.T) {
	l := newFakeBalancers().loadBalancers()
	require.NoError(t, l.EnsureLoadBalancerDeleted(t.Context(), clusterName, service()))
	err := l.UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1"))
	assert.ErrorContains(t, err, "no load balancer to update")
}

// Two balancers with one Service's tags are both deleted with it. Neither gets what the Service
// asks for, as the choice would be a guess; both follow the Nodes. UpdateLoadBalancer changes targets alone of any
// balancer: upstream may pass a Service that is older than what the cloud has.
func TestTwoBalancersOfOneService(t *testing.T) {
	first := *built(t, api.LoadBalancerActive)
	first.SourceRanges = api.SourceRanges{"192.0.2.0/24"}
	twin, leaving, other, foreign := first, first, first, first
	twin.ID, leaving.ID, leaving.State = "lb-2", "lb-3", api.LoadBalancerDeleting
	other.ID, other.Tags = "lb-4", api.Tags{contract.TagServiceUID: "another", contract.TagCluster: clusterName}
	foreign.ID = "lb-5"
	foreign.Tags = api.Tags{contract.TagServiceUID: string(service().UID), contract.TagCluster: "another"}
	f := newFakeBalancers(other, foreign, first, twin, leaving)
	l := f.loadBalancers()
	exists := func() bool {
		_, exists, err := l.GetLoadBalancer(t.Context(), clusterName, service())
		require.NoError(t, err)
		return exists
	}
	assert.True(t, exists(), "or the Service would lose its finalizer")
	var changed []string
	f.update = func(id string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
		assert.Equal(t, api.LoadBalancerUpdate{Targets: &api.Targets{{InstanceID: "i-1"}}}, u, "targets alone")
		changed = append(changed, id)
		return &first, nil
	}
	_, err := l.EnsureLoadBalancer(t.Context(), clusterName, serviceWithAddress(), nodes("fakecloud://i-1"))
	assert.Equal(t, contract.ReasonLoadBalancerAmbiguous, CauseOf(err).Reason)
	require.NoError(t, l.UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1")))
	assert.Equal(t, []string{"lb-1", "lb-2", "lb-1", "lb-2"}, changed, "either may have clients")

	changed = nil
	refusal := errors.New("refused")
	f.remove = func(id string) (*api.LoadBalancer, error) {
		changed = append(changed, id)
		err := refusal
		refusal = nil
		return &leaving, err
	}
	err = l.EnsureLoadBalancerDeleted(t.Context(), clusterName, service())
	require.ErrorContains(t, err, "deleting load balancer lb-1: refused")
	assert.Equal(t, []string{"lb-1", "lb-2"}, changed, "the one does not wait for the other")
	require.NoError(t, l.EnsureLoadBalancerDeleted(t.Context(), clusterName, service()))
	assert.Equal(t, []string{"lb-1", "lb-2", "lb-1", "lb-2"}, changed)
	f.listBalancers = listReturns(leaving)
	assert.False(t, exists())
}

// A balancer that goes while its protection is lifted is deleted.
func TestProtectedBalancerThatIsGone(t *testing.T) {
	protected := *built(t, api.LoadBalancerActive)
	protected.DeletionProtection = true
	f := newFakeBalancers(protected)
	f.update = func(string, api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
		f.listBalancers = listReturns()
		return nil, problem(404, api.NotFound)
	}
	svc := serviceWithAnnotations(annotations.OnDelete, "delete")
	assert.NoError(t, f.loadBalancers().EnsureLoadBalancerDeleted(t.Context(), clusterName, svc))
}
