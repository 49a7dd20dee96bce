package core

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

func TestPlanSteps(t *testing.T) {
	target := "fakecloud://i-1"
	for name, tc := range map[string]struct {
		change func(lb *api.LoadBalancer)
		want   []string
	}{
		"nothing to do":       {change: func(*api.LoadBalancer) {}},
		"somebody else's tag": {change: func(lb *api.LoadBalancer) { lb.Tags["team"] = "blue" }},
		"a target went missing": {
			change: func(lb *api.LoadBalancer) { lb.Targets = nil },
			want:   []string{"update load balancer lb-1: targets 0 to 1"},
		},
		"a listener changed": {
			change: func(lb *api.LoadBalancer) { lb.Listeners[0].TargetPort = 1 },
			want: []string{
				"update load balancer lb-1: listeners [tcp:8080→1 tcp:8443→30443] to [tcp:8080→30080 tcp:8443→30443]",
			},
		},
		"ranges set by hand": {change: func(lb *api.LoadBalancer) { lb.SourceRanges = api.SourceRanges{"10.0.0.0/8"} },
			want: []string{"update load balancer lb-1: source ranges [10.0.0.0/8] to []"}},
		"affinity set by hand": {change: func(lb *api.LoadBalancer) { lb.ClientAffinitySeconds = 5 },
			want: []string{"update load balancer lb-1: client affinity 5 s to 0 s"}},
		"a check set by hand": {
			change: func(lb *api.LoadBalancer) {
				lb.HealthCheck = &api.HealthCheck{Protocol: api.HealthCheckTCP, Port: 22, IntervalSeconds: 5}
			},
			want: []string{
				"update load balancer lb-1: health check tcp:22 every 5 s within 0 s, up after 0, down after 0 to " +
					"http:10256/healthz every 5 s within 2 s, up after 1, down after 2",
			},
		},
		"our tag removed": {
			change: func(lb *api.LoadBalancer) { delete(lb.Tags, contract.TagService) },
			want:   []string{"update load balancer lb-1: tags"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			have := built(t, api.LoadBalancerActive, target)
			tc.change(have)
			want, err := newBalancerSpec(clusterID{name: clusterName}, service(), nodes(target))
			require.NoError(t, err)
			var steps []string
			for _, s := range planSteps(have, want) {
				steps = append(steps, s.String())
			}
			assert.Equal(t, tc.want, steps)
		})
	}
}

// A balancer is replaced only where the Service asks for something that it lacks.
func TestPlanReplacesImmutableDifferences(t *testing.T) {
	id, v6 := "a-1", "fd00:30::1"
	reservedAs := func(name string) func(*api.LoadBalancer) {
		return func(lb *api.LoadBalancer) { lb.AddressID, lb.Tags[contract.TagServiceAddress] = &id, name }
	}
	hasIPv6 := func(lb *api.LoadBalancer) { lb.IPv6Address = &v6 }
	for name, tc := range map[string]struct {
		svc  *corev1.Service
		have func(*api.LoadBalancer)
		why  string
	}{
		"the same address": {svc: serviceWithLoadBalancerIP("127.30.64.1")},
		"the same, by ID":  {svc: serviceWithAnnotations(annotations.Address, "a-1"), have: reservedAs("a-1")},
		"the same, by the name that it had": {
			svc: serviceWithAnnotations(annotations.Address, "web"), have: reservedAs("web"),
		},
		"an address no longer chosen": {svc: service(), have: func(lb *api.LoadBalancer) { lb.AddressID = &id }},
		"IPv6 no longer chosen":       {svc: serviceWithFamilies("SingleStack", "IPv4"), have: hasIPv6},
		"IPv6 preferred":              {svc: serviceWithFamilies("PreferDualStack", "IPv4", "IPv6")},
		"IPv6 there":                  {svc: serviceWithFamilies("RequireDualStack", "IPv4", "IPv6"), have: hasIPv6},
		"another address":             {svc: serviceWithLoadBalancerIP("127.30.64.9"), why: "address 127.30.64.1 to 127.30.64.9"},
		"another, by name": {
			svc: serviceWithAnnotations(annotations.Address, "web"), why: "address 127.30.64.1 to web",
		},
		"another, by another name": {
			svc: serviceWithAnnotations(annotations.Address, "web"), have: reservedAs("api"),
			why: "address 127.30.64.1 to web",
		},
		"its own is not reserved": {
			svc:  serviceWithAnnotations(annotations.Address, "web"),
			have: func(lb *api.LoadBalancer) { lb.Tags[contract.TagServiceAddress] = "web" },
			why:  "address 127.30.64.1 to web",
		},
		"internal, and it is reserved": {
			svc:  serviceWithAnnotations(annotations.Scheme, "internal"),
			have: func(lb *api.LoadBalancer) { lb.AddressID = &id },
			why:  "address 127.30.64.1 is reserved, which an internal load balancer cannot use",
		},
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

// A balancer is replaced for another address only if that is free, and not by
// UpdateLoadBalancer, which could not create the other.
func TestReplaceForReservedAddress(t *testing.T) {
	free := api.ReservedAddress{ID: "a-9", Name: "web", IP: "127.30.64.9", State: api.AddressAvailable}
	f := newFakeBalancers(t, *built(t, api.LoadBalancerActive))
	f.addresses = func() ([]api.ReservedAddress, error) { return []api.ReservedAddress{free}, nil }
	l := f.loadBalancers()
	require.NoError(
		t, l.UpdateLoadBalancer(t.Context(), clusterName, serviceWithLoadBalancerIP(free.IP), nil),
		"it is not this path's business",
	)
	removed := ""
	f.remove = func(id string) (*api.LoadBalancer, error) {
		removed = id
		return built(t, api.LoadBalancerDeleting), nil
	}
	ctx, noticed := notices(t.Context())
	_, err := l.EnsureLoadBalancer(ctx, clusterName, serviceWithLoadBalancerIP(free.IP), nil)
	assert.True(t, IsPending(err), "%v", err)
	assert.Equal(t, "lb-1", removed)
	assert.Equal(t, []string{contract.ReasonLoadBalancerReplaced}, noticed())

	f.listBalancers = listReturns(*built(t, api.LoadBalancerDeleting))
	_, err = l.EnsureLoadBalancer(t.Context(), clusterName, serviceWithLoadBalancerIP(free.IP), nil)
	assert.True(t, IsPending(err), "%v", err)

	f.listBalancers = listReturns()
	f.create = func(lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
		assert.Equal(t, free.ID, *lb.AddressID)
		return built(t, api.LoadBalancerProvisioning), nil
	}
	_, err = l.EnsureLoadBalancer(t.Context(), clusterName, serviceWithAnnotations(annotations.Address, "web"), nil)
	assert.True(t, IsPending(err), "%v", err)
}
