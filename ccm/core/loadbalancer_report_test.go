package core

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Each failure has its reason, and its time of the next try.
func TestCausesOfFailures(t *testing.T) {
	inError := func(reason string, code api.StateReasonCode) func(*fakeBalancers) {
		return func(f *fakeBalancers) {
			lb := built(t, api.LoadBalancerError)
			lb.StateReason, lb.StateReasonCode = &reason, code
			f.listBalancers = listReturns(*lb)
		}
	}
	refused := func(err error) func(*fakeBalancers) {
		return func(f *fakeBalancers) {
			f.create = func(api.LoadBalancerCreate) (*api.LoadBalancer, error) { return nil, err }
		}
	}
	reserved := func(addresses ...api.ReservedAddress) func(*fakeBalancers) {
		return func(f *fakeBalancers) {
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
			reason: contract.ReasonCloudThrottled, text: "too many", retry: 7 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			svc := cmp.Or(tc.svc, service())
			f := newFakeBalancers(t)
			tc.cloud(f)
			_, err := f.loadBalancers().EnsureLoadBalancer(t.Context(), clusterName, svc, nil)
			require.ErrorContains(t, err, tc.text)
			assert.Equal(t, tc.retry, retryAfter(err))
			assert.Equal(t, tc.reason, CauseOf(err).Reason)
			assert.False(t, IsPending(err), "something is wrong")
		})
	}
}

// What clients meet although the balancer matches its Service is a notice, of either call. A Node that waits to be
// initialized may become a target yet.
func TestNoticesOfAnActiveBalancer(t *testing.T) {
	unhealthy := "no target is healthy"
	bare, waiting, foreign := node(""), node(""), node("onprem://edge1")
	bare.Spec.Taints = nil
	for name, tc := range map[string]struct {
		stateReason *string
		nodes       []*corev1.Node
		reason      string
		text        string
	}{
		"no Nodes":            {},
		"a Node that waits":   {nodes: []*corev1.Node{bare, waiting}},
		"Nodes of others":     {nil, []*corev1.Node{bare, foreign}, contract.ReasonNoTargets, "(lb-1) has no targets"},
		"clients are refused": {&unhealthy, nil, contract.ReasonLoadBalancerDegraded, unhealthy},
	} {
		t.Run(name, func(t *testing.T) {
			lb := built(t, api.LoadBalancerActive)
			lb.StateReason = tc.stateReason
			l := newFakeBalancers(t, *lb).loadBalancers()
			var ensured, updated []Notice
			_, err := l.EnsureLoadBalancer(collectNotices(t.Context(), &ensured), clusterName, service(), tc.nodes)
			require.NoError(t, err)
			ctx := collectNotices(t.Context(), &updated)
			require.NoError(t, l.UpdateLoadBalancer(ctx, clusterName, service(), tc.nodes))
			assert.Equal(t, ensured, updated)
			if tc.reason == "" {
				assert.Empty(t, ensured)
				return
			}
			require.Len(t, ensured, 1)
			assert.Equal(t, Cause{tc.reason, ensured[0].Message}, ensured[0].Cause)
			assert.Contains(t, ensured[0].Message, tc.text)
		})
	}
}

func collectNotices(ctx context.Context, all *[]Notice) context.Context {
	return WithNotices(ctx, func(n Notice) { *all = append(*all, n) })
}

// A ring that asks for notices takes them from nobody.
func TestNoticesReachAllWhoAsked(t *testing.T) {
	notify(t.Context(), "Nobody", "has asked")
	var outer, inner []Notice
	ctx := collectNotices(t.Context(), &outer)
	notify(collectNotices(ctx, &inner), "Reason", "%d words", 2)
	notify(ctx, "Reason", "outside")
	both := Notice{Cause{"Reason", "2 words"}, "2 words"}
	assert.Equal(t, []Notice{both}, inner)
	assert.Equal(t, []Notice{both, {Cause{"Reason", "outside"}, "outside"}}, outer)
}

// The status has the IP families that the Service asks for, in its order, and how pods' traffic to the balancer
// goes; or a host name, which has no mode.
func TestServiceStatus(t *testing.T) {
	v4, v6 := "127.30.64.1", "fd00:30::1"
	ingress := func(mode corev1.LoadBalancerIPMode, ips ...string) []corev1.LoadBalancerIngress {
		var all []corev1.LoadBalancerIngress
		for _, ip := range ips {
			all = append(all, corev1.LoadBalancerIngress{IP: ip, IPMode: &mode})
		}
		return all
	}
	const vip, proxy = corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy
	for name, tc := range map[string]struct {
		svc  *corev1.Service
		want []corev1.LoadBalancerIngress
	}{
		"it says nothing":  {service(), ingress(proxy, v4)},
		"IPv4":             {serviceWithFamilies("SingleStack", "IPv4"), ingress(proxy, v4)},
		"both, IPv6 first": {serviceWithFamilies("RequireDualStack", "IPv6", "IPv4"), ingress(proxy, v6, v4)},
		"VIP":              {serviceWithAnnotations(annotations.IPMode, "VIP"), ingress(vip, v4)},
		"network balancer": {serviceWithAnnotations(annotations.Kind, "network"), ingress(vip, v4)},
		"not to be read":   {serviceWithAnnotations(annotations.IPMode, "vip", annotations.Hostname, "W"), ingress(proxy, v4)},
		"a host name": {
			serviceWithAnnotations(annotations.Hostname, "web.example.com", annotations.IPMode, "VIP"),
			[]corev1.LoadBalancerIngress{{Hostname: "web.example.com"}},
		},
	} {
		asked, _ := annotations.Parse(tc.svc.Annotations)
		lb := &api.LoadBalancer{Address: v4, IPv6Address: &v6, Kind: asked.Kind}
		assert.Equal(t, tc.want, statusOf(tc.svc, asked, lb).Ingress, name)
	}
}
