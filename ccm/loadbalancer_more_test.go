package ccm

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func annotated(pairs ...string) *corev1.Service {
	svc := service()
	svc.Annotations = map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		svc.Annotations[annotations.Prefix+pairs[i]] = pairs[i+1]
	}
	return svc
}

// families has the Service ask for these, by this policy.
func families(policy corev1.IPFamilyPolicy, of ...corev1.IPFamily) *corev1.Service {
	svc := service()
	svc.Spec.IPFamilies, svc.Spec.IPFamilyPolicy = of, &policy
	return svc
}

func atAddress(ip string) *corev1.Service {
	svc := service()
	svc.Spec.LoadBalancerIP = ip //nolint:staticcheck // Deprecated, and used.
	return svc
}

// What is remembered is believed when there is nothing to do: no call is made.
func TestEnsureFromMemory(t *testing.T) {
	f := &fakeBalancers{fakeAPI: &fakeAPI{t: t}, memory: []api.LoadBalancer{*built(t, api.LoadBalancerActive, "fakecloud://i-1")}}
	l := f.loadBalancers()
	status, err := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1"))
	require.NoError(t, err)
	assert.Equal(t, "127.30.64.1", status.Ingress[0].IP)
	require.NoError(t, l.UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1")))
	_, exists, err := l.GetLoadBalancer(t.Context(), clusterName, service())
	require.NoError(t, err)
	assert.True(t, exists)
}

// Whatever would be changed, created or doubted is asked of the cloud itself.
func TestMemoryIsNoReasonToAct(t *testing.T) {
	truth := built(t, api.LoadBalancerActive, "fakecloud://i-1")
	for name, change := range map[string]func(*fakeBalancers, *loadBalancers){
		"nothing remembered": func(f *fakeBalancers, _ *loadBalancers) { f.memory = nil },
		"it differs":         func(f *fakeBalancers, _ *loadBalancers) { f.memory[0].DrainSeconds = 9 },
		"two remembered":     func(f *fakeBalancers, _ *loadBalancers) { f.memory = append(f.memory, f.memory[0]) },
		"of another cluster": func(f *fakeBalancers, _ *loadBalancers) { f.memory[0].Tags[contract.TagCluster] = "other" },
		"of a namesake cluster": func(f *fakeBalancers, l *loadBalancers) {
			l.clusterUID = "k"
			f.memory[0].Tags[contract.TagClusterUID] = "other"
		},
		"deleting, as last heard": func(f *fakeBalancers, _ *loadBalancers) { f.memory[0].State = api.LoadBalancerDeleting },
		"not done, as last heard": func(f *fakeBalancers, _ *loadBalancers) { f.memory[0].State = api.LoadBalancerProvisioning },
		"not done for far too long": func(f *fakeBalancers, l *loadBalancers) {
			f.memory[0].State = api.LoadBalancerUpdating
			l.records.update(service().UID, func(r *balancerRecord) { r.listedAt = time.Now().Add(-memoryTrustPeriod) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			f := &fakeBalancers{fakeAPI: &fakeAPI{t: t}, memory: []api.LoadBalancer{*built(t, api.LoadBalancerActive, "fakecloud://i-1")}}
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

// While it is built, the retries cost nothing.
func TestPendingFromMemory(t *testing.T) {
	f := &fakeBalancers{fakeAPI: &fakeAPI{t: t, project: ours, listBalancers: has()}}
	f.create = func(api.LoadBalancerCreate) (*api.LoadBalancer, error) {
		return built(t, api.LoadBalancerProvisioning), nil
	}
	l := f.loadBalancers()
	for range 3 {
		_, err := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
		assert.True(t, isPending(err), "%v", err)
		f.listBalancers, f.create = nil, nil
	}
	assert.Empty(t, f.said(), "all is well")
	f.memory[0].State = api.LoadBalancerActive
	_, err := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
	require.NoError(t, err)
	assert.Zero(t, l.records.get(service().UID).listedAt, "nothing is kept of what is done")
}

// An empty list is no proof while a balancer is remembered: upstream deletes
// nothing that GetLoadBalancer does not know, and lets the Service go.
func TestEmptyListIsDoubtful(t *testing.T) {
	for name, tc := range map[string]struct {
		get     func(string) (*api.LoadBalancer, error)
		exists  bool
		wantErr string
	}{
		"it is there":       {get: func(string) (*api.LoadBalancer, error) { return built(t, api.LoadBalancerActive), nil }, exists: true},
		"definitely gone":   {get: func(string) (*api.LoadBalancer, error) { return nil, problem(404, api.NotFound, ourProject) }},
		"404 of a stranger": {get: func(string) (*api.LoadBalancer, error) { return nil, problem(404, api.NotFound, "p-other") }, wantErr: "not ours"},
		"no answer":         {get: func(string) (*api.LoadBalancer, error) { return nil, errors.New("refused") }, wantErr: "refused"},
		"it lost our tags": {get: func(string) (*api.LoadBalancer, error) {
			lb := built(t, api.LoadBalancerActive)
			delete(lb.Tags, contract.TagServiceUID)
			return lb, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			lb, twin := built(t, api.LoadBalancerDeleting), built(t, api.LoadBalancerDeleting)
			f := &fakeBalancers{fakeAPI: &fakeAPI{t: t, project: ours, listBalancers: has()}, get: tc.get, memory: []api.LoadBalancer{*lb}}
			l := f.loadBalancers()
			_, exists, err := l.GetLoadBalancer(t.Context(), clusterName, service())
			assert.Equal(t, tc.exists, exists)
			removed := 0
			f.remove = func(string) (*api.LoadBalancer, error) { removed++; return twin, nil }
			f.memory = []api.LoadBalancer{*lb}
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

// What is remembered is deleted by its ID and version, and where that is no
// longer so, the cloud is asked once more.
func TestDeleteFromMemory(t *testing.T) {
	lb := built(t, api.LoadBalancerActive)
	for name, tc := range map[string]struct {
		first error
		list  bool
		calls int
	}{
		"as remembered":     {calls: 1},
		"changed meanwhile": {first: problem(412, api.PreconditionFailed, ourProject), list: true, calls: 2},
		"another by now":    {first: problem(404, api.NotFound, ourProject), list: true, calls: 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeBalancers{fakeAPI: &fakeAPI{t: t, project: ours}, memory: []api.LoadBalancer{*lb}}
			if tc.list {
				f.listBalancers = has(*lb)
			}
			answers := []error{tc.first, nil}
			calls := 0
			f.remove = func(string) (*api.LoadBalancer, error) {
				calls++
				return built(t, api.LoadBalancerDeleting), answers[calls-1]
			}
			require.NoError(t, f.loadBalancers().EnsureLoadBalancerDeleted(t.Context(), clusterName, service()))
			assert.Equal(t, tc.calls, calls)
			assert.Equal(t, api.LoadBalancerDeleting, f.memory[0].State, "the answer is remembered")
		})
	}
}

// Each trouble is an Event by its reason, once, however often it is met.
func TestTroublesAreExplained(t *testing.T) {
	inError := func(reason string, code api.StateReasonCode) func(*fakeBalancers) {
		return func(f *fakeBalancers) {
			lb := built(t, api.LoadBalancerError)
			lb.StateReason, lb.StateReasonCode = &reason, code
			f.listBalancers = has(*lb)
		}
	}
	refused := func(err error) func(*fakeBalancers) {
		return func(f *fakeBalancers) {
			f.listBalancers = has()
			f.create = func(api.LoadBalancerCreate) (*api.LoadBalancer, error) { return nil, err }
		}
	}
	reserved := func(addresses ...api.ReservedAddress) func(*fakeBalancers) {
		return func(f *fakeBalancers) {
			f.listBalancers = has()
			f.addresses = func() ([]api.ReservedAddress, error) { return addresses, nil }
		}
	}
	other := *built(t, api.LoadBalancerActive)
	other.ID, other.Tags = "lb-2", api.Tags{}
	twin := *built(t, api.LoadBalancerActive)
	twin.ID = "lb-2"
	foreign := *built(t, api.LoadBalancerActive)
	foreign.Tags[contract.TagClusterUID] = "other"
	held := api.ReservedAddress{ID: "a-1", Name: "web", IP: "127.30.64.9", Holder: &api.AddressHolder{Kind: "instance", ID: "i-9"}}
	for name, tc := range map[string]struct {
		svc          *corev1.Service
		cloud        func(*fakeBalancers)
		reason, text string
		retry        time.Duration
	}{
		"an annotation":    {svc: annotated(annotations.Scheme, "x"), cloud: func(*fakeBalancers) {}, reason: contract.ReasonInvalidService, text: `is "x"; want public or internal`},
		"in error":         {cloud: inError("the plane is down", ""), reason: contract.ReasonLoadBalancerFailed, text: "the plane is down", retry: failedStateRetry},
		"without a reason": {cloud: inError("", ""), reason: contract.ReasonLoadBalancerFailed, text: "gives no reason", retry: failedStateRetry},
		"a port": {cloud: inError("cannot listen on 127.30.64.1:80: permission denied, low ports are privileged", api.ReasonCannotListen), reason: contract.ReasonPortCannotBeBound,
			text: "permission denied", retry: failedStateRetry},
		"a stranger's name": {cloud: func(f *fakeBalancers) {
			refused(problem(409, api.NameTaken, ourProject))(f)
			f.listBalancers = func(by client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
				if by.Name == "" {
					return nil, nil
				}
				return []api.LoadBalancer{other}, nil
			}
		}, reason: contract.ReasonLoadBalancerNameTaken, text: "load balancer lb-2 has the name web-01234567 and is not this Service's (it carries no tags of a Service)"},
		"no such address":    {svc: atAddress("127.30.64.8"), cloud: reserved(held), reason: contract.ReasonAddressNotAvailable, text: "no reserved address 127.30.64.8"},
		"address in use":     {svc: atAddress("127.30.64.9"), cloud: reserved(held), reason: contract.ReasonAddressNotAvailable, text: "in use by instance i-9"},
		"no such name":       {svc: annotated(annotations.Address, "a-2"), cloud: reserved(held), reason: contract.ReasonAddressNotAvailable, text: "no reserved address a-2"},
		"taken meanwhile":    {cloud: refused(problem(409, api.AddressInUse, ourProject)), reason: contract.ReasonAddressNotAvailable, text: "address-in-use"},
		"two of ours":        {cloud: func(f *fakeBalancers) { f.listBalancers = has(*built(t, api.LoadBalancerActive), twin) }, reason: contract.ReasonLoadBalancerAmbiguous, text: "none is chosen by guess"},
		"a namesake cluster": {cloud: func(f *fakeBalancers) { f.listBalancers = has(foreign) }, reason: contract.ReasonLoadBalancerAmbiguous, text: "in another cluster of the name"},
		"throttled": {cloud: func(f *fakeBalancers) {
			f.listBalancers = func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
				return nil, &client.Error{Status: 429, RetryAfter: 7 * time.Second, Problem: api.Problem{Code: api.RateLimited, Detail: "too many"}}
			}
		}, text: "too many", retry: 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			svc := tc.svc
			if svc == nil {
				svc = service()
			}
			f := &fakeBalancers{fakeAPI: &fakeAPI{t: t, project: ours}}
			tc.cloud(f)
			l := f.loadBalancers()
			l.clusterUID = "mine"
			for range 3 {
				_, err := l.EnsureLoadBalancer(t.Context(), clusterName, svc, nil)
				require.ErrorContains(t, err, tc.text)
				var retry *cloudproviderapi.RetryError
				if assert.Equal(t, tc.retry > 0, errors.As(err, &retry)) && tc.retry > 0 {
					assert.Equal(t, tc.retry, retry.RetryAfter())
				}
				if tc.reason != "" {
					assert.Equal(t, tc.reason, causeOf(err).reason)
				}
			}
			events := f.said()
			require.Len(t, events, 1)
			assert.Contains(t, events[0], "Warning "+tc.reason)
			assert.Contains(t, events[0], tc.text)
		})
	}
}

// A trouble that is over may be told again; a balancer that serves nobody is a
// trouble of its own.
func TestServing(t *testing.T) {
	lb := built(t, api.LoadBalancerActive)
	f := &fakeBalancers{fakeAPI: &fakeAPI{t: t, listBalancers: func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) { return []api.LoadBalancer{*lb}, nil }}}
	l := f.loadBalancers()
	l.inventory = nil
	ensure := func() []string {
		_, err := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
		require.NoError(t, err)
		return f.said()
	}
	assert.Empty(t, ensure())
	for range 2 {
		reason := "no target is healthy"
		lb.StateReason = &reason
		assert.Equal(t, []string{"Warning LoadBalancerDegraded Load balancer web-01234567 (lb-1) is active and refuses clients: no target is healthy"}, ensure())
		assert.Empty(t, ensure(), "once")
		lb.StateReason = nil
		assert.Empty(t, ensure())
	}
}

// A create whose answer was lost, and a list that does not show it yet.
func TestNameTakenByOurs(t *testing.T) {
	f := &fakeBalancers{fakeAPI: &fakeAPI{t: t, project: ours}}
	f.listBalancers = func(by client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
		if by.Name == "" {
			return nil, nil
		}
		return []api.LoadBalancer{*built(t, api.LoadBalancerActive)}, nil
	}
	f.create = func(api.LoadBalancerCreate) (*api.LoadBalancer, error) {
		return nil, problem(409, api.NameTaken, ourProject)
	}
	l := f.loadBalancers()
	_, err := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
	assert.True(t, isPending(err), "%v", err)
	f.create, f.listBalancers = nil, nil
	_, err = l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
	assert.NoError(t, err, "it is remembered")
	assert.Empty(t, f.said())
}

// What changed between the look and the change is looked at again, soon.
func TestChangedMeanwhile(t *testing.T) {
	for _, err := range []error{problem(412, api.PreconditionFailed, ourProject), problem(409, api.WrongState, ourProject), problem(404, api.NotFound, ourProject)} {
		f := &fakeAPI{t: t, project: ours, listBalancers: has(*built(t, api.LoadBalancerActive))}
		f.update = func(string, api.LoadBalancerUpdate) (*api.LoadBalancer, error) { return nil, err }
		_, got := newLoadBalancers(f).EnsureLoadBalancer(t.Context(), clusterName, annotated(annotations.Drain, "9s"), nil)
		assert.True(t, isPending(got), "%v", got)
	}
}

// What is final in the cloud is replaced only when the Service asks for it.
func TestReplacement(t *testing.T) {
	id, v6 := "a-1", "fd00:30::1"
	for name, tc := range map[string]struct {
		svc  *corev1.Service
		have func(*api.LoadBalancer)
		why  string
	}{
		"the same address":            {svc: atAddress("127.30.64.1")},
		"the same, by ID":             {svc: annotated(annotations.Address, "a-1"), have: func(lb *api.LoadBalancer) { lb.AddressID = &id }},
		"an address no longer chosen": {svc: service(), have: func(lb *api.LoadBalancer) { lb.AddressID = &id }},
		"IPv6 no longer chosen":       {svc: families("SingleStack", "IPv4"), have: func(lb *api.LoadBalancer) { lb.IPv6Address = &v6 }},
		"IPv6 preferred":              {svc: families("PreferDualStack", "IPv4", "IPv6")},
		"IPv6 there":                  {svc: families("RequireDualStack", "IPv4", "IPv6"), have: func(lb *api.LoadBalancer) { lb.IPv6Address = &v6 }},
		"another address":             {svc: atAddress("127.30.64.9"), why: "address 127.30.64.1 to 127.30.64.9"},
		"another, by name":            {svc: annotated(annotations.Address, "web"), why: "address 127.30.64.1 to web"},
		"IPv6 required":               {svc: families("RequireDualStack", "IPv4", "IPv6"), why: "it has no IPv6 address"},
		"IPv6 alone":                  {svc: families("SingleStack", "IPv6"), why: "it has no IPv6 address"},
		"internal, and it is reserved": {svc: annotated(annotations.Scheme, "internal"), have: func(lb *api.LoadBalancer) { lb.AddressID = &id },
			why: "address 127.30.64.1 is reserved, which an internal one's is not"},
	} {
		t.Run(name, func(t *testing.T) {
			have := built(t, api.LoadBalancerActive)
			if tc.have != nil {
				tc.have(have)
			}
			want, err := newBalancerSpec(clusterID{name: clusterName}, tc.svc, nil)
			require.NoError(t, err)
			steps := planSteps(have, want)
			if tc.why == "" {
				assert.Empty(t, steps)
				return
			}
			require.Len(t, steps, 1)
			assert.Equal(t, "delete load balancer lb-1, to create web-01234567 anew: "+tc.why, steps[0].String())
		})
	}
}

// A balancer is given up for an address only when that is seen to be free, and
// not by the path that could not create the other.
func TestReplaceForAnAddress(t *testing.T) {
	free := api.ReservedAddress{ID: "a-9", Name: "web", IP: "127.30.64.9", State: api.AddressAvailable}
	f := &fakeBalancers{fakeAPI: &fakeAPI{t: t, project: ours, listBalancers: has(*built(t, api.LoadBalancerActive))}}
	f.addresses = func() ([]api.ReservedAddress, error) { return []api.ReservedAddress{free}, nil }
	l := f.loadBalancers()
	require.NoError(t, l.UpdateLoadBalancer(t.Context(), clusterName, atAddress(free.IP), nil), "it is not this path's business")
	removed := ""
	f.remove = func(id string) (*api.LoadBalancer, error) {
		removed = id
		return built(t, api.LoadBalancerDeleting), nil
	}
	_, err := l.EnsureLoadBalancer(t.Context(), clusterName, atAddress(free.IP), nil)
	assert.True(t, isPending(err), "%v", err)
	assert.Equal(t, "lb-1", removed)
	assert.Equal(t, []string{"Normal ReplacingLoadBalancer Some of what the Service asks for is final in the cloud: " +
		"delete load balancer lb-1, to create web-01234567 anew: address 127.30.64.1 to 127.30.64.9"}, f.said())

	f.listBalancers = has(*built(t, api.LoadBalancerDeleting))
	_, err = l.EnsureLoadBalancer(t.Context(), clusterName, atAddress(free.IP), nil)
	assert.True(t, isPending(err), "%v", err)

	f.listBalancers, f.memory = has(), nil
	f.create = func(lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
		assert.Equal(t, free.ID, *lb.AddressID)
		return built(t, api.LoadBalancerProvisioning), nil
	}
	_, err = l.EnsureLoadBalancer(t.Context(), clusterName, annotated(annotations.Address, "web"), nil)
	assert.True(t, isPending(err), "%v", err)
}

// Before a balancer is given up for one with IPv6, the cloud is made to say
// whether it has any.
func TestReplaceForIPv6(t *testing.T) {
	field := []api.ProblemField{{Field: "ipFamilies", Message: "cannot hold ipv6"}}
	noIPv6 := &client.Error{Status: 400, Problem: api.Problem{Code: api.InvalidRequest, Detail: "no IPv6 addresses to give", Fields: &field}}
	for name, tc := range map[string]struct {
		rehearsal error
		replaced  bool
	}{
		"it has":                {problem(400, api.UnknownInstance, ourProject), true},
		"it has, and not twice": {problem(409, api.NameTaken, ourProject), true},
		"it has no":             {noIPv6, false},
		"who knows":             {problem(503, api.Unavailable, ourProject), false},
	} {
		t.Run(name, func(t *testing.T) {
			have := built(t, api.LoadBalancerActive)
			f := &fakeBalancers{fakeAPI: &fakeAPI{t: t, project: ours, listBalancers: has(*have)}}
			f.create = func(lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
				assert.Equal(t, api.Targets{{InstanceID: noSuchInstance}}, *lb.Targets, "whatever is renamed meanwhile, nothing comes of it")
				return nil, tc.rehearsal
			}
			if tc.replaced {
				f.remove = func(string) (*api.LoadBalancer, error) { return built(t, api.LoadBalancerDeleting), nil }
			}
			_, err := f.loadBalancers().EnsureLoadBalancer(t.Context(), clusterName, families("RequireDualStack", "IPv4", "IPv6"), nil)
			assert.Equal(t, tc.replaced, isPending(err), "%v", err)
			if errors.Is(tc.rehearsal, noIPv6) {
				assert.Equal(t, contract.ReasonInvalidService, causeOf(err).reason)
			}
		})
	}
}

// A rehearsal leaves nothing, not even in a cloud that is content with anything.
func TestRehearsalLeavesNothing(t *testing.T) {
	f := &fakeBalancers{fakeAPI: &fakeAPI{t: t, project: ours, listBalancers: has(*built(t, api.LoadBalancerActive))}}
	f.create = func(api.LoadBalancerCreate) (*api.LoadBalancer, error) {
		return &api.LoadBalancer{ID: "lb-rehearsed"}, nil
	}
	var removed []string
	refusal := errors.New("refused")
	f.remove = func(id string) (*api.LoadBalancer, error) {
		removed = append(removed, id)
		return built(t, api.LoadBalancerDeleting), refusal
	}
	l := f.loadBalancers()
	_, err := l.EnsureLoadBalancer(t.Context(), clusterName, families("RequireDualStack", "IPv4", "IPv6"), nil)
	require.ErrorIs(t, err, refusal)
	assert.Equal(t, []string{"lb-rehearsed"}, removed, "nothing is given up before")
	removed, refusal = nil, nil
	_, err = l.EnsureLoadBalancer(t.Context(), clusterName, families("RequireDualStack", "IPv4", "IPv6"), nil)
	assert.True(t, isPending(err), "%v", err)
	assert.Equal(t, []string{"lb-rehearsed", "lb-1"}, removed)
}

// A balancer that is slow to come is looked at less and less often.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lb := built(t, api.LoadBalancerProvisioning)
		f := &fakeBalancers{fakeAPI: &fakeAPI{t: t, project: ours, listBalancers: has(*lb)}, memory: []api.LoadBalancer{*lb}}
		l := f.loadBalancers()
		look := func() time.Duration {
			_, err := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
			var retry *cloudproviderapi.RetryError
			require.ErrorAs(t, err, &retry)
			return retry.RetryAfter()
		}
		looks, began := 0, time.Now()
		for time.Since(began) < time.Minute {
			age := time.Since(began)
			wait := look()
			assert.Equal(t, min(max(age/4, provisioningRetry), maxProvisioningRetry), wait, "at the age of %v", age)
			looks++
			time.Sleep(wait)
		}
		assert.Less(t, looks, 30)

		active := built(t, api.LoadBalancerActive)
		active.Version = 1
		f.listBalancers, f.memory = has(*active), []api.LoadBalancer{*active}
		_, err := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
		require.NoError(t, err)
		f.listBalancers, f.memory = has(*lb), []api.LoadBalancer{*lb}
		assert.Equal(t, provisioningRetry, look(), "what is done waits for nothing")
	})
}

// Both of two that say that they are the Service's go with it; only which of
// them should serve it would be a guess.
func TestTwinsGoTogether(t *testing.T) {
	first, twin, leaving, other, foreign := built(t, api.LoadBalancerActive), built(t, api.LoadBalancerError), built(t, api.LoadBalancerDeleting), built(t, api.LoadBalancerActive), built(t, api.LoadBalancerActive)
	twin.ID, leaving.ID, other.ID, foreign.ID = "lb-2", "lb-3", "lb-4", "lb-5"
	other.Tags[contract.TagServiceUID], foreign.Tags[contract.TagCluster] = "another", "another"
	f := &fakeBalancers{fakeAPI: &fakeAPI{t: t, project: ours, listBalancers: has(*other, *foreign, *first, *twin, *leaving)}}
	l := f.loadBalancers()
	_, exists, err := l.GetLoadBalancer(t.Context(), clusterName, service())
	require.NoError(t, err)
	assert.True(t, exists, "or the Service would lose its finalizer")
	_, err = l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
	assert.Equal(t, contract.ReasonLoadBalancerAmbiguous, causeOf(err).reason)
	require.ErrorContains(t, l.UpdateLoadBalancer(t.Context(), clusterName, service(), nil), "none is chosen by guess")
	f.said()

	var removed []string
	refused := "lb-1"
	f.remove = func(id string) (*api.LoadBalancer, error) {
		removed = append(removed, id)
		if id == refused {
			return nil, errors.New("refused")
		}
		return &api.LoadBalancer{ID: id, State: api.LoadBalancerDeleting, Tags: first.Tags}, nil
	}
	require.ErrorContains(t, l.EnsureLoadBalancerDeleted(t.Context(), clusterName, service()), "deleting load balancer lb-1: refused")
	assert.Equal(t, []string{"lb-1", "lb-2"}, removed, "the one does not wait for the other")
	events := f.said()
	require.Len(t, events, 1)
	assert.Contains(t, events[0], "The load balancer is not deleted: deleting load balancer lb-1: refused; "+nextStep(contract.ReasonCloudUnavailable))
	removed, refused = nil, ""
	require.NoError(t, l.EnsureLoadBalancerDeleted(t.Context(), clusterName, service()))
	assert.Equal(t, []string{"lb-1", "lb-2"}, removed)
	f.listBalancers, f.memory = has(*leaving), nil
	_, exists, err = l.GetLoadBalancer(t.Context(), clusterName, service())
	require.NoError(t, err)
	assert.False(t, exists)
}

// PreferDualStack takes what there is, and says so.
func TestPreferDualStackFallsBack(t *testing.T) {
	field := []api.ProblemField{{Field: "ipFamilies", Message: "cannot hold ipv6"}}
	f := &fakeBalancers{fakeAPI: &fakeAPI{t: t, project: ours, listBalancers: has()}}
	f.create = func(lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
		if len(*lb.IPFamilies) > 1 {
			return nil, &client.Error{Status: 400, Problem: api.Problem{Code: api.InvalidRequest, Fields: &field}}
		}
		return built(t, api.LoadBalancerActive), nil
	}
	status, err := f.loadBalancers().EnsureLoadBalancer(t.Context(), clusterName, families("PreferDualStack", "IPv6", "IPv4"), nil)
	require.NoError(t, err)
	require.Len(t, status.Ingress, 1)
	assert.Equal(t, "127.30.64.1", status.Ingress[0].IP)
	events := f.said()
	require.Len(t, events, 1)
	assert.Contains(t, events[0], "Normal IPv4Only")

	f.memory = nil
	_, err = f.loadBalancers().EnsureLoadBalancer(t.Context(), clusterName, families("PreferDualStack", "IPv6"), nil)
	assert.Equal(t, contract.ReasonInvalidService, causeOf(err).reason, "there is nothing to fall back to")
}

// The status has the families that the Service asks for, in its order.
func TestStatusFamilies(t *testing.T) {
	v6 := "fd00:30::1"
	lb := &api.LoadBalancer{Address: "127.30.64.1", IPv6Address: &v6}
	for _, tc := range []struct {
		asks []corev1.IPFamily
		want []string
	}{
		{nil, []string{"127.30.64.1"}},
		{[]corev1.IPFamily{"IPv4"}, []string{"127.30.64.1"}},
		{[]corev1.IPFamily{"IPv6"}, []string{v6}},
		{[]corev1.IPFamily{"IPv6", "IPv4"}, []string{v6, "127.30.64.1"}},
	} {
		var got []string
		for _, in := range balancerStatus(families("", tc.asks...), lb).Ingress {
			got = append(got, in.IP)
			assert.Equal(t, corev1.LoadBalancerIPModeProxy, *in.IPMode)
		}
		assert.Equal(t, tc.want, got)
	}
}

// A Service with a class is another controller's.
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

// Tags: ours, the Service's own, and the cluster's UID once it is known.
func TestTags(t *testing.T) {
	svc := annotated(annotations.Tags, "team=blue")
	want, err := newBalancerSpec(clusterID{name: clusterName, uid: "k-1"}, svc, nil)
	require.NoError(t, err)
	assert.Equal(t, api.Tags{"team": "blue", contract.TagCluster: "lab", contract.TagClusterUID: "k-1", contract.TagService: "default/web", contract.TagServiceUID: "01234567-89ab"}, want.tags)
	have := built(t, api.LoadBalancerActive)
	have.Tags["team"] = "blue"
	assert.Empty(t, planSteps(have, want), "one of before the UID was known")
	have.Tags["team"] = "red"
	steps := planSteps(have, want)
	require.Len(t, steps, 1)
	assert.Equal(t, want.tags, *steps[0].(updateStep).update.Tags)
}

func TestRangesOfBothFamilies(t *testing.T) {
	for _, tc := range []struct {
		ranges []string
		dual   bool
		want   api.SourceRanges
	}{
		{nil, true, api.SourceRanges{}},
		{[]string{"2001:db8::1/32", "10.0.0.0/8"}, true, api.SourceRanges{"10.0.0.0/8", "2001:db8::/32"}},
		{[]string{"2001:db8::/32"}, false, api.SourceRanges{"2001:db8::/32"}},
		{[]string{"0.0.0.0/0"}, false, api.SourceRanges{}},
		{[]string{"0.0.0.0/0"}, true, api.SourceRanges{"0.0.0.0/0"}},
		{[]string{"0.0.0.0/0", "::/0"}, true, api.SourceRanges{}},
	} {
		svc := service()
		if tc.dual {
			svc = families("RequireDualStack", "IPv4", "IPv6")
		}
		svc.Spec.LoadBalancerSourceRanges = tc.ranges
		want, err := newBalancerSpec(clusterID{}, svc, nil)
		require.NoError(t, err)
		assert.Equal(t, tc.want, want.sourceRanges, "%v", tc.ranges)
	}
}

func TestHealthCheckByAnnotation(t *testing.T) {
	local := func(svc *corev1.Service) *corev1.Service {
		svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 31000
		return svc
	}
	udp := func(svc *corev1.Service) *corev1.Service {
		svc.Spec.Ports = []corev1.ServicePort{{Port: 53, NodePort: 30053, Protocol: corev1.ProtocolUDP}}
		return svc
	}
	for name, tc := range map[string]struct {
		svc  *corev1.Service
		want api.HealthCheck
		errs []string
	}{
		"tcp": {svc: annotated(annotations.HealthCheck, "tcp"), want: api.HealthCheck{Protocol: "tcp", Port: 30443, IntervalSeconds: 5, TimeoutSeconds: 2, HealthyThreshold: 2, UnhealthyThreshold: 2}},
		"http, often": {svc: annotated(annotations.HealthCheck, "http", annotations.HealthCheckPort, "10256", annotations.HealthCheckInterval, "1s"),
			want: api.HealthCheck{Protocol: "http", Port: 10256, Path: "/", IntervalSeconds: 1, TimeoutSeconds: 1, HealthyThreshold: 2, UnhealthyThreshold: 2}},
		"local, patiently": {svc: local(annotated(annotations.HealthCheckUnhealthyThreshold, "5", annotations.HealthCheckInterval, "3s")),
			want: api.HealthCheck{Protocol: "http", Port: 31000, Path: "/healthz", IntervalSeconds: 3, TimeoutSeconds: 1, HealthyThreshold: 1, UnhealthyThreshold: 5}},
		"local and another": {svc: local(annotated(annotations.HealthCheck, "tcp", annotations.HealthCheckPort, "22")),
			errs: []string{`health-check is "tcp"; externalTrafficPolicy Local`, `health-check-port is "22"; externalTrafficPolicy Local`}},
		"none, with a port": {svc: annotated(annotations.HealthCheckPort, "22", annotations.HealthCheckTimeout, "1s"),
			errs: []string{"health-check-port is \"22\"; nothing is checked", "health-check-timeout is"}},
		"too patient":   {svc: annotated(annotations.HealthCheck, "tcp", annotations.HealthCheckTimeout, "6s"), errs: []string{`timeout is "6s"; the interval is 5 s`}},
		"nobody to ask": {svc: udp(annotated(annotations.HealthCheck, "tcp")), errs: []string{"no TCP port to ask on"}},
		"ports that are not there": {svc: udp(annotated(annotations.ProxyProtocol, "53=v1", annotations.ConnectionLimit, "54=3", annotations.Drain, "9s")),
			errs: []string{"no TCP port 53", "no port 54", "drain is \"9s\"; it is for TCP"}},
		"two addresses": {svc: func() *corev1.Service {
			svc := annotated(annotations.Address, "web")
			svc.Spec.LoadBalancerIP = "127.30.64.9" //nolint:staticcheck // Deprecated, and used.
			return svc
		}(), errs: []string{"loadBalancerIP 127.30.64.9 too"}},
		"internal and chosen": {svc: func() *corev1.Service {
			svc := annotated(annotations.Scheme, "internal")
			svc.Spec.LoadBalancerIP = "127.30.64.9" //nolint:staticcheck // Deprecated, and used.
			return svc
		}(), errs: []string{"takes no reserved address"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := newBalancerSpec(clusterID{}, tc.svc, nil)
			for _, want := range tc.errs {
				assert.ErrorContains(t, err, want)
			}
			if len(tc.errs) == 0 {
				require.NoError(t, err)
				assert.Equal(t, tc.want, got.healthCheck)
			}
		})
	}
}

// Which nodes may be targets is upstream's to say (the exclusion label among
// others): one that is not among those given is taken out, and stays out.
func TestTargetsAreTheNodesGiven(t *testing.T) {
	excluded := node("fakecloud://i-1")
	excluded.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""}
	have := built(t, api.LoadBalancerActive, "fakecloud://i-1", "fakecloud://i-2")
	f := &fakeAPI{t: t, listBalancers: has(*have)}
	f.update = func(_ string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
		assert.Equal(t, api.Targets{{InstanceID: "i-2"}}, *u.Targets)
		have.Targets, f.listBalancers, f.update = *u.Targets, has(*have), nil
		return have, nil
	}
	l := newLoadBalancers(f)
	for range 2 {
		require.NoError(t, l.UpdateLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-2", "")))
	}
	// One that upstream does give is a target, whatever its labels.
	want, err := newBalancerSpec(clusterID{}, service(), []*corev1.Node{excluded})
	require.NoError(t, err)
	assert.Equal(t, api.Targets{{InstanceID: "i-1"}}, want.targets)
}
