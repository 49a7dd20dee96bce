package ccm

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Before a change, a creation, or in doubt, the cloud itself is asked.
func TestChangesAreNotMadeFromMemory(t *testing.T) {
	truth := built(t, api.LoadBalancerActive, "fakecloud://i-1")
	truth.Tags[contract.TagClusterUID] = "k"
	for name, change := range map[string]func(*fakeBalancers, *loadBalancers){
		"nothing remembered": func(f *fakeBalancers, _ *loadBalancers) { f.balancers = nil },
		"it differs":         func(f *fakeBalancers, _ *loadBalancers) { f.balancers[0].DrainSeconds = 9 },
		"two remembered": func(f *fakeBalancers, _ *loadBalancers) {
			f.balancers = append(f.balancers, f.balancers[0])
		},
		"of another cluster": func(f *fakeBalancers, _ *loadBalancers) {
			f.balancers[0].Tags[contract.TagCluster] = "other"
		},
		"of a namesake cluster": func(f *fakeBalancers, l *loadBalancers) {
			l.identity = testIdentity("k")
			f.balancers[0].Tags[contract.TagClusterUID] = "other"
		},
		"deleting, as last heard": func(f *fakeBalancers, _ *loadBalancers) {
			f.balancers[0].State = api.LoadBalancerDeleting
		},
		"not done, as last heard": func(f *fakeBalancers, _ *loadBalancers) {
			f.balancers[0].State = api.LoadBalancerProvisioning
		},
		"not done for far too long": func(f *fakeBalancers, l *loadBalancers) {
			f.balancers[0].State = api.LoadBalancerUpdating
			l.records.update(service().UID, func(r *balancerRecord) { r.listedAt = time.Now().Add(-memoryTrustPeriod) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			f := &fakeBalancers{
				fakeAPI: &fakeAPI{t: t},
				fakeInventory: fakeInventory{
					balancers: []api.LoadBalancer{*built(t, api.LoadBalancerActive, "fakecloud://i-1")},
				},
			}
			f.listBalancers = func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
				asked++
				return []api.LoadBalancer{*truth}, nil
			}
			l := f.loadBalancers()
			change(f, l)
			_, err := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1"))
			require.NoError(t, err)
			assert.Equal(t, 1, asked)
		})
	}
}

// While a balancer is being built, retries make no call.
func TestRetriesWhilePendingNeedNoCall(t *testing.T) {
	f := newFakeBalancers(t)
	f.create = func(api.LoadBalancerCreate) (*api.LoadBalancer, error) {
		return built(t, api.LoadBalancerProvisioning), nil
	}
	l := f.loadBalancers()
	for range 3 {
		_, err := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
		assert.True(t, isPending(err), "%v", err)
		f.listBalancers, f.create = nil, nil
	}
	assert.Empty(t, f.takeEvents(), "all is well")
	f.balancers[0].State = api.LoadBalancerActive
	_, err := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
	require.NoError(t, err)
	assert.Zero(t, l.records.get(service().UID).listedAt, "nothing is kept of what is done")
}

// An empty list is no proof while a balancer is remembered: upstream does not delete
// what GetLoadBalancer does not report, and takes the finalizer off the Service.
func TestEmptyListIsDoubtful(t *testing.T) {
	for name, tc := range map[string]struct {
		get     func(string) (*api.LoadBalancer, error)
		exists  bool
		wantErr string
	}{
		"it is there": {
			get:    func(string) (*api.LoadBalancer, error) { return built(t, api.LoadBalancerActive), nil },
			exists: true,
		},
		"definitely gone": {get: func(string) (*api.LoadBalancer, error) {
			return nil, problem(404, api.NotFound, ourProject)
		}},
		"404 of a stranger": {
			get:     func(string) (*api.LoadBalancer, error) { return nil, problem(404, api.NotFound, "p-other") },
			wantErr: "not ours",
		},
		"no answer": {
			get:     func(string) (*api.LoadBalancer, error) { return nil, errors.New("refused") },
			wantErr: "refused",
		},
		"it lost our tags": {get: func(string) (*api.LoadBalancer, error) {
			lb := built(t, api.LoadBalancerActive)
			delete(lb.Tags, contract.TagServiceUID)
			return lb, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			lb, twin := built(t, api.LoadBalancerDeleting), built(t, api.LoadBalancerDeleting)
			f := &fakeBalancers{
				fakeAPI: &fakeAPI{t: t, listBalancers: listReturns()}, get: tc.get,
				fakeInventory: fakeInventory{balancers: []api.LoadBalancer{*lb}},
			}
			l := f.loadBalancers()
			_, exists, err := l.GetLoadBalancer(t.Context(), clusterName, service())
			assert.Equal(t, tc.exists, exists)
			removed := 0
			f.remove = func(string) (*api.LoadBalancer, error) { removed++; return twin, nil }
			f.balancers = []api.LoadBalancer{*lb}
			deleteErr := l.EnsureLoadBalancerDeleted(t.Context(), clusterName, service())
			if tc.wantErr != "" {
				require.ErrorContains(t, err, tc.wantErr)
				require.ErrorContains(t, deleteErr, tc.wantErr)
				return
			}
			require.NoError(t, err)
			require.NoError(t, deleteErr)
			assert.Equal(t, tc.exists, removed == 1)
		})
	}
}

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
