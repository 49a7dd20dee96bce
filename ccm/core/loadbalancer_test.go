package core

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func TestEnsureLoadBalancerCreates(t *testing.T) {
	f := &fakeAPI{t: t}
	f.listBalancers = func(filter client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
		assert.Equal(t, []string{"kubernetes-service-uid=01234567-89ab"}, filter.Tags, "found by owner alone")
		assert.Empty(t, filter.Name)
		return nil, nil
	}
	f.create = func(lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
		assert.Equal(t, "web-01234567", lb.Name)
		assert.Equal(t, api.Listeners{
			{Protocol: "tcp", Port: 8080, TargetPort: 30080}, {Protocol: "tcp", Port: 8443, TargetPort: 30443},
		}, lb.Listeners)
		assert.Equal(
			t, api.Targets{{InstanceID: "i-1"}, {InstanceID: "i-2"}}, *lb.Targets,
			"nodes without a provider ID, or of another cloud, are skipped",
		)
		assert.Equal(t, api.SourceRanges{}, *lb.SourceRanges)
		assert.Zero(t, *lb.ClientAffinitySeconds)
		assert.Equal(t, askKubeProxy, *lb.HealthCheck)
		assert.Equal(t, api.Tags{
			"kubernetes-cluster": "lab", "kubernetes-service-uid": "01234567-89ab", "kubernetes-service": "default/web",
			"kubernetes-health-check": "http",
		}, *lb.Tags)
		return built(t, api.LoadBalancerProvisioning), nil
	}
	_, err := newLoadBalancers(f).EnsureLoadBalancer(
		t.Context(), clusterName, service(), nodes("fakecloud://i-2", "", "fakecloud://i-1", "aws:///x"),
	)
	var retry *cloudproviderapi.RetryError
	require.ErrorAs(t, err, &retry, "still provisioning: come back soon")
	assert.Less(t, retry.RetryAfter(), time.Second)
}

func TestEnsureLoadBalancerByState(t *testing.T) {
	reason := "port 80: permission denied"
	for name, tc := range map[string]struct {
		state     api.LoadBalancerState
		wantIP    string
		wantErr   string
		wantRetry bool
	}{
		"active":       {state: api.LoadBalancerActive, wantIP: "127.30.64.1"},
		"provisioning": {state: api.LoadBalancerProvisioning, wantRetry: true},
		"updating":     {state: api.LoadBalancerUpdating, wantRetry: true},
		"deleting":     {state: api.LoadBalancerDeleting, wantRetry: true},
		"error":        {state: api.LoadBalancerError, wantErr: reason, wantRetry: true},
	} {
		t.Run(name, func(t *testing.T) {
			lb := built(t, tc.state, "fakecloud://i-1")
			lb.StateReason = &reason
			// With nothing to change no call changes anything: the fake fails on any.
			status, err := newLoadBalancers(&fakeAPI{t: t, listBalancers: listReturns(*lb)}).
				EnsureLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1"))
			var retry *cloudproviderapi.RetryError
			assert.Equal(t, tc.wantRetry, errors.As(err, &retry))
			switch {
			case tc.wantErr != "":
				require.ErrorContains(t, err, tc.wantErr)
			case !tc.wantRetry:
				require.NoError(t, err)
				require.Len(t, status.Ingress, 1)
				assert.Equal(t, tc.wantIP, status.Ingress[0].IP)
				assert.Equal(t, corev1.LoadBalancerIPModeProxy, *status.Ingress[0].IPMode)
			}
		})
	}
}

// A Service with a load balancer class belongs to another controller.
func TestLoadBalancerClass(t *testing.T) {
	class := "other.example/class"
	svc := service()
	svc.Spec.LoadBalancerClass = &class
	l := newLoadBalancers(&fakeAPI{t: t})
	_, err := l.EnsureLoadBalancer(t.Context(), clusterName, svc, nil)
	assert.True(t, err == cloudprovider.ImplementedElsewhere, "upstream compares it by ==") //nolint:errorlint // So do we.
	err = l.UpdateLoadBalancer(t.Context(), clusterName, svc, nil)
	assert.True(t, err == cloudprovider.ImplementedElsewhere) //nolint:errorlint // As above.
}

// Upstream may pass a Service that is older than what the cloud has.
func TestUpdateLoadBalancerChangesTargetsOnly(t *testing.T) {
	have := built(t, api.LoadBalancerActive, "fakecloud://i-1")
	have.SourceRanges = api.SourceRanges{"192.0.2.0/24"}
	have.Listeners[0].TargetPort++
	f := &fakeAPI{t: t, listBalancers: listReturns(*have)}
	sent := 0
	f.update = func(id string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
		sent++
		assert.Equal(t, api.LoadBalancerUpdate{Targets: &api.Targets{{InstanceID: "i-1"}, {InstanceID: "i-2"}}}, u)
		return have, nil
	}
	require.NoError(t, newLoadBalancers(f).
		UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1", "fakecloud://i-2")))
	require.NoError(t, newLoadBalancers(f).
		UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1")))
	assert.Equal(t, 1, sent)
}

// A change of Nodes costs a balancer that is remembered one call; where the cloud has another
// version by now it is asked what it has.
func TestTargetsOfARememberedBalancer(t *testing.T) {
	for name, tc := range map[string]struct {
		refusal error
		calls   string
	}{
		"in that version":    {nil, "list update"},
		"changed meanwhile":  {problem(412, api.PreconditionFailed, ourProject), "list update list update"},
		"gone meanwhile":     {problem(404, api.NotFound, ourProject), "list update list update"},
		"the cloud is down":  {problem(503, api.Unavailable, ourProject), "list update"},
		"it is being worked": {problem(409, api.WrongState, ourProject), "list update list update"},
	} {
		t.Run(name, func(t *testing.T) {
			have := built(t, api.LoadBalancerActive, "fakecloud://i-1")
			f := newFakeBalancers(t)
			var calls []string
			f.listBalancers = func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
				calls = append(calls, "list")
				return []api.LoadBalancer{*have}, nil
			}
			refusal := tc.refusal
			f.update = func(_ string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
				calls = append(calls, "update")
				if err := refusal; err != nil {
					refusal = nil
					return nil, err
				}
				have.Targets = *u.Targets
				return have, nil
			}
			err := f.loadBalancers().UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-2"))
			assert.Equal(t, tc.calls, strings.Join(calls, " "))
			assert.Equal(t, tc.calls == "list update" && tc.refusal != nil, err != nil, "%v", err)
		})
	}
}

func TestUpdateLoadBalancerNeverCreates(t *testing.T) {
	err := newLoadBalancers(&fakeAPI{t: t, listBalancers: listReturns()}).
		UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1"))
	assert.ErrorContains(t, err, "no load balancer to update")
}

func TestEnsureLoadBalancerDeleted(t *testing.T) {
	for name, tc := range map[string]struct {
		have    []api.LoadBalancer
		remove  func(string) (*api.LoadBalancer, error)
		wantErr string
	}{
		"there": {
			have:   []api.LoadBalancer{{ID: "lb-1", State: api.LoadBalancerActive}},
			remove: func(string) (*api.LoadBalancer, error) { return &api.LoadBalancer{}, nil },
		},
		"not there":        {},
		"already deleting": {have: []api.LoadBalancer{{ID: "lb-1", State: api.LoadBalancerDeleting}}},
		"gone meanwhile": {
			have:   []api.LoadBalancer{{ID: "lb-1"}},
			remove: func(string) (*api.LoadBalancer, error) { return nil, problem(404, api.NotFound, ourProject) },
		},
		"the cloud is down": {
			have:    []api.LoadBalancer{{ID: "lb-1"}},
			remove:  func(string) (*api.LoadBalancer, error) { return nil, errors.New("refused") },
			wantErr: "refused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range tc.have {
				tc.have[i].Tags = built(t, "").Tags
			}
			l := newLoadBalancers(
				&fakeAPI{t: t, listBalancers: listReturns(tc.have...), remove: tc.remove},
			)
			err := l.EnsureLoadBalancerDeleted(t.Context(), clusterName, service())
			assertError(t, err, tc.wantErr)
		})
	}
}

// A balancer that changed or went meanwhile is looked for once more.
func TestDeletionLooksOnceMore(t *testing.T) {
	for name, tc := range map[string]struct {
		first error
		calls int
	}{
		"as it was":         {calls: 1},
		"changed meanwhile": {first: problem(412, api.PreconditionFailed, ourProject), calls: 2},
		"another by now":    {first: problem(404, api.NotFound, ourProject), calls: 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeBalancers(t, *built(t, api.LoadBalancerActive))
			answers := []error{tc.first, nil}
			calls := 0
			f.remove = func(string) (*api.LoadBalancer, error) {
				calls++
				return built(t, api.LoadBalancerDeleting), answers[calls-1]
			}
			require.NoError(t, f.loadBalancers().EnsureLoadBalancerDeleted(t.Context(), clusterName, service()))
			assert.Equal(t, tc.calls, calls)
		})
	}
}

// Two balancers with one Service's tags are both deleted with it. Neither gets what the Service
// asks for, as the choice would be a guess; both follow the Nodes.
func TestTwoBalancersOfOneService(t *testing.T) {
	first, twin, leaving, other, foreign := built(t, api.LoadBalancerActive), built(t, api.LoadBalancerError), built(
		t, api.LoadBalancerDeleting,
	), built(t, api.LoadBalancerActive), built(t, api.LoadBalancerActive)
	twin.ID, leaving.ID, other.ID, foreign.ID = "lb-2", "lb-3", "lb-4", "lb-5"
	other.Tags[contract.TagServiceUID], foreign.Tags[contract.TagCluster] = "another", "another"
	f := newFakeBalancers(t, *other, *foreign, *first, *twin, *leaving)
	l := f.loadBalancers()
	_, exists, err := l.GetLoadBalancer(t.Context(), clusterName, service())
	require.NoError(t, err)
	assert.True(t, exists, "or the Service would lose its finalizer")
	followed := map[string]int{}
	f.update = func(id string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
		assert.Equal(t, api.LoadBalancerUpdate{Targets: u.Targets}, u, "nothing but the targets")
		followed[id] += len(*u.Targets)
		return built(t, api.LoadBalancerActive), nil
	}
	_, err = l.EnsureLoadBalancer(t.Context(), clusterName, serviceWithAddress(), nodes("fakecloud://i-1"))
	assert.Equal(t, contract.ReasonLoadBalancerAmbiguous, CauseOf(err).Reason)
	assert.Equal(t, map[string]int{"lb-1": 1, "lb-2": 1}, followed, "either may have clients")
	require.NoError(t, l.UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1")))
	assert.Equal(t, map[string]int{"lb-1": 2, "lb-2": 2}, followed)

	var removed []string
	refused := "lb-1"
	f.remove = func(id string) (*api.LoadBalancer, error) {
		removed = append(removed, id)
		if id == refused {
			return nil, errors.New("refused")
		}
		return &api.LoadBalancer{ID: id, State: api.LoadBalancerDeleting, Tags: first.Tags}, nil
	}
	require.ErrorContains(
		t, l.EnsureLoadBalancerDeleted(t.Context(), clusterName, service()), "deleting load balancer lb-1: refused",
	)
	assert.Equal(t, []string{"lb-1", "lb-2"}, removed, "the one does not wait for the other")
	removed, refused = nil, ""
	require.NoError(t, l.EnsureLoadBalancerDeleted(t.Context(), clusterName, service()))
	assert.Equal(t, []string{"lb-1", "lb-2"}, removed)
	f.listBalancers = listReturns(*leaving)
	_, exists, err = l.GetLoadBalancer(t.Context(), clusterName, service())
	require.NoError(t, err)
	assert.False(t, exists)
}
