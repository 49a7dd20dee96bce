package core

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// A balancer is updated where it differs, and replaced only if it cannot be updated and the Service asks for
// something that it lacks.
//
// Its tag says which health check it was given, so that one that somebody took away comes back. A balancer of an
// older release has no tag. If it has no health check either, it keeps none until its Service asks for one, as
// nobody knows whether kube-proxy can be reached there.
func TestPlanStep(t *testing.T) {
	const kubeProxy = "http:10256/healthz every 5 s within 2 s, up after 1, down after 2"
	noCheck := api.HealthCheck{Protocol: api.HealthCheckNone}
	hasCheck := func(check *api.HealthCheck, tag string) func(*api.LoadBalancer) {
		return func(lb *api.LoadBalancer) {
			lb.HealthCheck, lb.Tags[contract.TagHealthCheck] = check, tag
			if tag == "" {
				delete(lb.Tags, contract.TagHealthCheck)
			}
		}
	}
	isReserved := func(lb *api.LoadBalancer) { lb.AddressID = "a-1" }
	hasIPv6 := func(lb *api.LoadBalancer) { lb.IPv6Address = "fd00:30::1" }
	annotated := serviceWithAnnotations
	for name, tc := range map[string]struct {
		svc     *corev1.Service
		change  func(*api.LoadBalancer)
		update  string
		replace string
	}{
		"nothing to do": {},
		"another order": {
			svc: withSourceRanges(service(), "192.0.2.0/24", "10.0.0.0/8"),
			change: func(lb *api.LoadBalancer) {
				lb.SourceRanges = api.SourceRanges{"192.0.2.0/24", "10.0.0.0/8"}
				slices.Reverse(lb.Listeners)
				slices.Reverse(lb.Targets)
			},
		},
		"a target went missing": {
			change: func(lb *api.LoadBalancer) { lb.Targets = lb.Targets[1:] }, update: "targets 1 to 2",
		},
		"a listener changed": {
			change: func(lb *api.LoadBalancer) { lb.Listeners[0].TargetPort = 1 },
			update: "listeners [tcp:8080→1 tcp:8443→30443] to [tcp:8080→30080 tcp:8443→30443]",
		},
		"affinity set by hand": {
			change: func(lb *api.LoadBalancer) { lb.ClientAffinitySeconds = 5 },
			update: "client affinity 5 s to 0 s",
		},
		"a check set by hand": {
			change: hasCheck(new(healthCheck("tcp", 22, "", 5, 0, 0, 0)), "http"),
			update: "health check tcp:22 every 5 s within 0 s, up after 0, down after 0 to " + kubeProxy,
		},
		"a check taken away": {change: hasCheck(nil, "http"), update: "health check none to " + kubeProxy},
		"a check that was not asked for": {
			change: hasCheck(nil, "none"), update: "health check none to " + kubeProxy + "; tags",
		},
		"older, with a check":         {change: hasCheck(&askKubeProxy, ""), update: "tags"},
		"older, with a check of none": {change: hasCheck(&noCheck, "")},
		"older, none is asked for now": {
			svc: annotated(annotations.HealthCheck, "none"), change: hasCheck(nil, ""), update: "tags",
		},
		"older, one is asked for now": {
			svc: annotated(annotations.HealthCheckPort, "10256"), change: hasCheck(nil, ""),
			update: "health check none to " + kubeProxy + "; tags",
		},
		"older, of local policy": {
			svc: withLocalPolicy(service()), change: hasCheck(nil, ""),
			update: "health check none to http:31000/healthz every 1 s within 1 s, up after 1, down after 2; tags",
		},

		"the same, by ID":             {svc: annotated(annotations.Address, "a-1"), change: isReserved, update: "tags"},
		"an address no longer chosen": {change: isReserved},
		"IPv6 no longer chosen":       {svc: serviceWithFamilies("SingleStack", "IPv4"), change: hasIPv6},
		"IPv6 there":                  {svc: serviceWithFamilies("RequireDualStack", "IPv4", "IPv6"), change: hasIPv6},
		"internal, and it is reserved": {
			svc: annotated(annotations.Scheme, "internal"), change: isReserved,
			replace: "address 127.30.64.1 is reserved, which an internal load balancer cannot use",
		},
	} {
		t.Run(name, func(t *testing.T) {
			targets := []string{"fakecloud://i-1", "fakecloud://i-2"}
			have := built(t, api.LoadBalancerActive, targets...)
			if tc.change != nil {
				tc.change(have)
			}
			want, err := newBalancerSpec(testCluster(""), cmp.Or(tc.svc, service()), nodes(targets...))
			require.NoError(t, err)
			require.NoError(t, checkFamilies(have, want))
			planned, wanted := "", ""
			if step := planStep(have, want); step != nil {
				planned = step.text
			}
			if tc.update != "" {
				wanted = "update load balancer lb-1: " + tc.update
			}
			if tc.replace != "" {
				wanted = "delete load balancer lb-1, to create web-01234567 anew: " + tc.replace
			}
			assert.Equal(t, wanted, planned)
		})
	}
}

// A balancer is replaced for another address only if that is free (TestFailures), and not by UpdateLoadBalancer,
// which could not create the other.
func TestReplaceForReservedAddress(t *testing.T) {
	free := api.ReservedAddress{
		Metadata: api.Metadata{ID: "a-9", Name: "web"}, IP: "127.30.64.9", State: api.AddressAvailable,
	}
	f := newFakeBalancers(*built(t, api.LoadBalancerActive))
	f.addresses = func() ([]api.ReservedAddress, error) { return []api.ReservedAddress{free}, nil }
	l, svc := f.loadBalancers(), serviceWithLoadBalancerIP(free.IP)
	require.NoError(t, l.UpdateLoadBalancer(t.Context(), clusterName, svc, nil), "it is not this path's business")
	f.remove = func(string) (*api.LoadBalancer, error) {
		f.listBalancers = listReturns()
		return built(t, api.LoadBalancerDeleting), nil
	}
	ctx, noticed := notices(t.Context())
	_, err := l.EnsureLoadBalancer(ctx, clusterName, svc, nil)
	assert.True(t, IsPending(err), "%v", err)
	assert.Equal(t, []string{contract.ReasonLoadBalancerReplaced}, noticed())

	f.create = func(lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
		assert.Equal(t, free.ID, lb.AddressID)
		return built(t, api.LoadBalancerProvisioning), nil
	}
	_, err = l.EnsureLoadBalancer(t.Context(), clusterName, serviceWithAnnotations(annotations.Address, "web"), nil)
	assert.True(t, IsPending(err), "%v", err)
}
