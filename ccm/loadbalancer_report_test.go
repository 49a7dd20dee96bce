package ccm

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Each failure is one Event with its reason, however often it occurs.
func TestEachFailureIsReportedOnce(t *testing.T) {
	inError := func(reason string, code api.StateReasonCode) func(*fakeBalancers) {
		return func(f *fakeBalancers) {
			lb := built(t, api.LoadBalancerError)
			lb.StateReason, lb.StateReasonCode = &reason, code
			lb.Tags[contract.TagClusterUID] = "mine"
			f.listBalancers = listReturns(*lb)
		}
	}
	refused := func(err error) func(*fakeBalancers) {
		return func(f *fakeBalancers) {
			f.listBalancers = listReturns()
			f.create = func(api.LoadBalancerCreate) (*api.LoadBalancer, error) { return nil, err }
		}
	}
	reserved := func(addresses ...api.ReservedAddress) func(*fakeBalancers) {
		return func(f *fakeBalancers) {
			f.listBalancers = listReturns()
			f.addresses = func() ([]api.ReservedAddress, error) { return addresses, nil }
		}
	}
	other := *built(t, api.LoadBalancerActive)
	other.ID, other.Tags = "lb-2", api.Tags{}
	twin := *built(t, api.LoadBalancerActive)
	twin.ID = "lb-2"
	held := api.ReservedAddress{
		ID: "a-1", Name: "web", IP: "127.30.64.9", Holder: &api.AddressHolder{Kind: "instance", ID: "i-9"},
	}
	for name, tc := range map[string]struct {
		svc          *corev1.Service
		cloud        func(*fakeBalancers)
		reason, text string
		retry        time.Duration
	}{
		"in error": {
			cloud:  inError("the plane is down", ""),
			reason: contract.ReasonLoadBalancerFailed, text: "the plane is down", retry: failedStateRetry,
		},
		"a port": {
			cloud: inError(
				"cannot listen on 127.30.64.1:80: permission denied, low ports are privileged", api.ReasonCannotListen,
			),
			reason: contract.ReasonPortCannotBeBound, text: "permission denied", retry: failedStateRetry,
		},
		"a stranger's name": {
			cloud: func(f *fakeBalancers) {
				refused(problem(409, api.NameTaken, ourProject))(f)
				f.listBalancers = func(by client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
					if by.Name == "" {
						return nil, nil
					}
					return []api.LoadBalancer{other}, nil
				}
			},
			reason: contract.ReasonLoadBalancerNameTaken,
			text:   "load balancer lb-2 has the name web-01234567 and is not this Service's (it has no tags of a Service)",
		},
		"no such address": {
			svc: serviceWithLoadBalancerIP("127.30.64.8"), cloud: reserved(held),
			reason: contract.ReasonAddressNotAvailable, text: "no reserved address 127.30.64.8",
		},
		"address in use": {
			svc: serviceWithLoadBalancerIP("127.30.64.9"), cloud: reserved(held),
			reason: contract.ReasonAddressNotAvailable, text: "in use by instance i-9",
		},
		"taken meanwhile": {
			cloud:  refused(problem(409, api.AddressInUse, ourProject)),
			reason: contract.ReasonAddressNotAvailable, text: "address-in-use",
		},
		"two of ours": {
			cloud:  func(f *fakeBalancers) { f.listBalancers = listReturns(*built(t, api.LoadBalancerActive), twin) },
			reason: contract.ReasonLoadBalancerAmbiguous, text: "the CCM does not guess which is right",
		},
		"throttled": {
			cloud: func(f *fakeBalancers) {
				f.listBalancers = func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
					return nil, &client.Error{
						Status: 429, RetryAfter: 7 * time.Second,
						Problem: api.Problem{Code: api.RateLimited, Detail: "too many"},
					}
				}
			},
			text:  "too many",
			retry: 7 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			svc := tc.svc
			if svc == nil {
				svc = service()
			}
			f := &fakeBalancers{fakeAPI: &fakeAPI{t: t}}
			tc.cloud(f)
			l := f.loadBalancers()
			l.identity = testIdentity("mine")
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
			events := f.takeEvents()
			require.Len(t, events, 1)
			assert.Contains(t, events[0], "Warning "+tc.reason)
			assert.Contains(t, events[0], tc.text)
		})
	}
}

// listing is a cloud that has that balancer, as it is when it is listed.
func listing(t *testing.T, lb *api.LoadBalancer) *fakeBalancers {
	f := newFakeBalancers(t)
	f.listBalancers = func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
		return []api.LoadBalancer{*lb}, nil
	}
	return f
}

// An active balancer that refuses clients has an Event of its own, and another when it
// refuses them again.
func TestActiveBalancerThatRefusesClientsIsReported(t *testing.T) {
	lb := built(t, api.LoadBalancerActive)
	f := listing(t, lb)
	l := f.loadBalancers()
	ensure := func() []string {
		_, err := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
		require.NoError(t, err)
		return f.takeEvents()
	}
	assert.Empty(t, ensure())
	for range 2 {
		reason := "no target is healthy"
		lb.StateReason = &reason
		assert.Equal(t, []string{
			"Warning LoadBalancerDegraded Load balancer web-01234567 (lb-1) is active but refuses clients: no target is healthy",
		}, ensure())
		assert.Empty(t, ensure(), "once")
		lb.StateReason = nil
		assert.Empty(t, ensure())
	}
}

// A balancer whose Nodes are all none of ours has an Event, once; while one of them waits to be
// initialized, or where there are none at all, there is nothing to explain.
func TestBalancerWithoutTargetsIsReported(t *testing.T) {
	lb := built(t, api.LoadBalancerActive)
	lb.Targets = nil
	f := listing(t, lb)
	l := f.loadBalancers()
	ensure := func(nodes ...*corev1.Node) []string {
		_, err := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nodes)
		require.NoError(t, err)
		require.NoError(t, l.UpdateLoadBalancer(t.Context(), clusterName, service(), nodes))
		return f.takeEvents()
	}
	bare, waiting := node(""), node("")
	bare.Spec.Taints = nil
	assert.Empty(t, ensure())
	assert.Empty(t, ensure(bare, waiting))
	events := ensure(bare, node("onprem://edge1"))
	require.Len(t, events, 1)
	assert.Contains(t, events[0], "Warning NoTargets Load balancer web-01234567 (lb-1) has no targets: ")
	assert.Empty(t, ensure(bare))
}

// A balancer that takes long to build is checked less and less often.
func TestRetriesOfPendingBalancerGrowRarer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lb := built(t, api.LoadBalancerProvisioning)
		f := newFakeBalancers(t, *lb)
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
		f.listBalancers = listReturns(*active)
		_, err := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
		require.NoError(t, err)
		f.listBalancers = listReturns(*lb)
		assert.Equal(t, provisioningRetry, look(), "what is done waits for nothing")
	})
}

// The status has the IP families that the Service asks for, in its order.
func TestBalancerStatusFamilies(t *testing.T) {
	v6 := "fd00:30::1"
	lb := &api.LoadBalancer{Address: "127.30.64.1", IPv6Address: &v6}
	for _, tc := range []struct{ asks, want []string }{
		{nil, []string{"127.30.64.1"}},
		{[]string{"IPv4"}, []string{"127.30.64.1"}},
		{[]string{"IPv6", "IPv4"}, []string{v6, "127.30.64.1"}},
	} {
		svc, got := service(), []string(nil)
		for _, family := range tc.asks {
			svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, corev1.IPFamily(family))
		}
		for _, in := range balancerStatus(svc, lb).Ingress {
			got = append(got, in.IP)
		}
		assert.Equal(t, tc.want, got)
	}
}

// The status says how pods' traffic to the balancer goes, or a host name in place of its addresses.
func TestBalancerStatusByAnnotation(t *testing.T) {
	lb := &api.LoadBalancer{Address: "127.30.64.1"}
	vip, proxy := corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy
	for name, tc := range map[string]struct {
		svc  *corev1.Service
		want corev1.LoadBalancerIngress
	}{
		"neither": {service(), corev1.LoadBalancerIngress{IP: "127.30.64.1", IPMode: &proxy}},
		"VIP": {
			serviceWithAnnotations(annotations.IPMode, "VIP"),
			corev1.LoadBalancerIngress{IP: "127.30.64.1", IPMode: &vip},
		},
		"a network balancer": {
			serviceWithAnnotations(annotations.Kind, "network"),
			corev1.LoadBalancerIngress{IP: "127.30.64.1", IPMode: &vip},
		},
		"a host name, which has no mode": {
			serviceWithAnnotations(annotations.Hostname, "web.example.com", annotations.IPMode, "VIP"),
			corev1.LoadBalancerIngress{Hostname: "web.example.com"},
		},
		"what cannot be read": {
			serviceWithAnnotations(annotations.IPMode, "vip", annotations.Hostname, "Web"),
			corev1.LoadBalancerIngress{IP: "127.30.64.1", IPMode: &proxy},
		},
	} {
		lb.Kind = api.LoadBalancerKind(tc.svc.Annotations[annotations.Prefix+annotations.Kind])
		assert.Equal(t, []corev1.LoadBalancerIngress{tc.want}, balancerStatus(tc.svc, lb).Ingress, name)
	}
}
