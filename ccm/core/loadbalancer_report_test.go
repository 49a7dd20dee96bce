package core

import (
	"cmp"
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

// Each failure has its reason, and the time of the next try. Where nothing is wrong, but the work is not done yet,
// there is no reason.
func TestFailures(t *testing.T) {
	lists := func(all ...api.LoadBalancer) func(*fakeAPI) {
		return func(f *fakeAPI) { f.listBalancers = listReturns(all...) }
	}
	inState := func(state api.LoadBalancerState, reason string, code api.StateReasonCode) func(*fakeAPI) {
		lb := built(t, state)
		lb.StateReason, lb.StateReasonCode = reason, code
		return lists(*lb)
	}
	refusesCreate := func(err error, named ...api.LoadBalancer) func(*fakeAPI) {
		return func(f *fakeAPI) {
			f.listBalancers = func(by client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
				if by.Name == "" {
					return nil, nil
				}
				return named, nil
			}
			f.create = func(api.LoadBalancerCreate) (*api.LoadBalancer, error) { return nil, err }
		}
	}
	refusesUpdate := func(status int, code api.ProblemCode) func(*fakeAPI) {
		return func(f *fakeAPI) {
			f.listBalancers = listReturns(*built(t, api.LoadBalancerActive))
			f.update = func(string, api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
				return nil, problem(status, code)
			}
		}
	}
	reserves := func(holder *api.AddressHolder) func(*fakeAPI) {
		return func(f *fakeAPI) {
			f.addresses = func() ([]api.ReservedAddress, error) {
				web := api.Metadata{ID: "a-1", Name: "web"}
				return []api.ReservedAddress{{Metadata: web, IP: "127.30.64.9", Holder: holder}}, nil
			}
		}
	}
	nameTaken := problem(409, api.NameTaken)
	own := *built(t, api.LoadBalancerActive)
	stranger, twin := own, own
	stranger.ID, stranger.Tags, twin.ID = "lb-2", api.Tags{}, "lb-2"
	drains, withIP := serviceWithAnnotations(annotations.Drain, "9s"), serviceWithLoadBalancerIP("127.30.64.9")
	nameless := service()
	nameless.UID = ""
	for name, tc := range map[string]struct {
		svc          *corev1.Service
		cloud        func(*fakeAPI)
		reason, text string
		retry        time.Duration
	}{
		"provisioning": {nil, inState("provisioning", "", ""), "", "is provisioning", provisioningRetry},
		"in error for a port": {
			nil, inState("error", "cannot listen on 127.30.64.1:80", api.ReasonCannotListen),
			contract.ReasonPortCannotBeBound, "cannot listen on", failedStateRetry,
		},
		"in error": {
			nil, inState("error", "the plane is down", ""),
			contract.ReasonLoadBalancerFailed, "the plane is down", failedStateRetry,
		},
		"changed meanwhile": {drains, refusesUpdate(412, api.PreconditionFailed), "", "changed", provisioningRetry},
		"deleted meanwhile": {drains, refusesUpdate(404, api.NotFound), "", "deleted meanwhile", provisioningRetry},
		"name taken by its own, as the answer was lost": {
			nil, refusesCreate(nameTaken, own), "", "exists after all", failedStateRetry,
		},
		"name taken by one that is gone": {nil, refusesCreate(nameTaken), "", "no longer exists", provisioningRetry},
		"name taken by a stranger": {
			nil, refusesCreate(nameTaken, stranger), contract.ReasonLoadBalancerNameTaken,
			"load balancer lb-2 has the name web-01234567 and is not this Service's (it has no tags of a Service)", 0,
		},
		"no such address": {
			serviceWithLoadBalancerIP("127.30.64.8"), reserves(nil),
			contract.ReasonAddressNotAvailable, "no reserved address 127.30.64.8", 0,
		},
		"address in use": {
			withIP, reserves(&api.AddressHolder{Kind: "instance", ID: "i-9"}),
			contract.ReasonAddressNotAvailable, "in use by instance i-9", 0,
		},
		"address taken meanwhile": {
			nil, refusesCreate(problem(409, api.AddressInUse)),
			contract.ReasonAddressNotAvailable, "address-in-use", 0,
		},
		"two of ours": {nil, lists(own, twin), contract.ReasonLoadBalancerAmbiguous, "does not guess which is right", 0},
		"IPv6 beside IPv4, later": {
			serviceWithFamilies("RequireDualStack", "IPv4", "IPv6"), lists(own),
			contract.ReasonInvalidService, "without an IPv6 address", 0,
		},
		"throttled": {
			nil, func(f *fakeAPI) {
				f.listBalancers = func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
					refused := api.Problem{Code: api.RateLimited, Detail: "too many"}
					return nil, &client.Error{Status: 429, RetryAfter: 7 * time.Second, Problem: refused}
				}
			},
			contract.ReasonCloudThrottled, "too many", 7 * time.Second,
		},
		"a Service without a UID": {nameless, lists(own), contract.ReasonCloudUnavailable, "owns nothing", 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeBalancers() // Any call that changes a balancer fails the test.
			tc.cloud(f)
			_, err := f.loadBalancers().EnsureLoadBalancer(t.Context(), clusterName, cmp.Or(tc.svc, service()), nil)
			require.ErrorContains(t, err, tc.text)
			assert.Equal(t, tc.retry, retryAfter(err))
			assert.Equal(t, tc.reason == "", IsPending(err))
			if tc.reason != "" {
				assert.Equal(t, tc.reason, CauseOf(err).Reason)
			}
		})
	}
}

// What clients meet although the balancer matches its Service is a notice, of either call. A Node that waits to be
// initialized may become a target yet.
func TestNoticesOfAnActiveBalancer(t *testing.T) {
	bare, waiting, foreign := node(""), node(""), node("onprem://edge1")
	bare.Spec.Taints = nil
	for name, tc := range map[string]struct {
		stateReason string
		nodes       []*corev1.Node
		reason      string
		text        string
	}{
		"no Nodes":            {},
		"a Node that waits":   {nodes: []*corev1.Node{bare, waiting}},
		"Nodes of others":     {"", []*corev1.Node{bare, foreign}, contract.ReasonNoTargets, "(lb-1) has no targets"},
		"clients are refused": {"no target is healthy", nil, contract.ReasonLoadBalancerDegraded, "no target is healthy"},
	} {
		t.Run(name, func(t *testing.T) {
			lb := built(t, api.LoadBalancerActive)
			if tc.stateReason != "" {
				lb.StateReason = tc.stateReason
			}
			var told []Notice
			ctx, l := collectNotices(t.Context(), &told), newFakeBalancers(*lb).loadBalancers()
			_, err := l.EnsureLoadBalancer(ctx, clusterName, service(), tc.nodes)
			require.NoError(t, err)
			require.NoError(t, l.UpdateLoadBalancer(ctx, clusterName, service(), tc.nodes))
			if tc.reason == "" {
				assert.Empty(t, told)
				return
			}
			require.Len(t, told, 2)
			assert.Equal(t, told[0], told[1])
			assert.Equal(t, Cause{tc.reason, told[0].Message}, told[0].Cause)
			assert.Contains(t, told[0].Message, tc.text)
		})
	}
}

// A ring that asks for notices takes them from nobody.
func TestNotices(t *testing.T) {
	notify(t.Context(), "Nobody", "has asked")
	var outer, inner []Notice
	notify(collectNotices(collectNotices(t.Context(), &outer), &inner), "Reason", "%d words", 2)
	assert.Equal(t, []Notice{{Cause{"Reason", "2 words"}, "2 words"}}, inner)
	assert.Equal(t, inner, outer)
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
		"not to be read": {
			serviceWithAnnotations(annotations.IPMode, "vip", annotations.Hostname, "W"), ingress(proxy, v4),
		},
		"a host name": {
			serviceWithAnnotations(annotations.Hostname, "web.example.com", annotations.IPMode, "VIP"),
			[]corev1.LoadBalancerIngress{{Hostname: "web.example.com"}},
		},
	} {
		asked, _ := annotations.Parse(tc.svc.Annotations)
		lb := &api.LoadBalancer{Address: v4, IPv6Address: v6, Kind: asked.Kind}
		assert.Equal(t, tc.want, statusOf(balancerSpec{svc: tc.svc, asked: asked}, lb).Ingress, name)
	}
}
