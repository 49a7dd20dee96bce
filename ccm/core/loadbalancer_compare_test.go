package core

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Compare names what EnsureLoadBalancer would change, without a call.
func TestCompare(t *testing.T) {
	withStatus := func(svc *corev1.Service, ingress corev1.LoadBalancerIngress) *corev1.Service {
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{ingress}
		return svc
	}
	one := func(lb api.LoadBalancer) []api.LoadBalancer { return []api.LoadBalancer{lb} }
	const address = "127.30.64.1"
	const unnamed = "load balancer lb-1 has address " + address + ", which the Service does not name"
	vip, proxy := corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy
	invalid := serviceWithAnnotations(annotations.Scheme, "x")
	hostname := serviceWithAnnotations(annotations.Hostname, "web.example.com")
	current := *built(t, api.LoadBalancerActive, "fakecloud://i-1")
	otherTargets, otherListeners, twin := current, current, current
	otherTargets.Targets, otherListeners.Listeners = api.Targets{{InstanceID: "i-2"}}, nil
	twin.ID, twin.Targets = "lb-2", otherTargets.Targets
	for name, tc := range map[string]struct {
		svc         *corev1.Service
		live        []api.LoadBalancer
		difference  string // "" for none
		targetsOnly bool
		lacksName   bool // the status does not name the address
	}{
		"no balancer": {
			svc:        serviceWithAddress(),
			difference: "create load balancer web-01234567 with listeners [tcp:8080→30080 tcp:8443→30443] and 1 targets",
		},
		"other listeners": {
			svc: serviceWithAddress(), live: one(otherListeners),
			difference: "update load balancer lb-1: listeners [] to [tcp:8080→30080 tcp:8443→30443]",
		},
		"two balancers": {
			svc: serviceWithAddress(), live: []api.LoadBalancer{otherListeners, twin}, targetsOnly: true,
			difference: "update load balancer lb-2: targets 1 to 1",
		},
		"an invalid Service without a balancer": {svc: invalid, targetsOnly: true},
		"an invalid Service, other targets": {
			svc: invalid, live: one(otherTargets), targetsOnly: true,
			difference: "update load balancer lb-1: targets 1 to 1",
		},
		"a selector that cannot be read": {
			svc: serviceWithAnnotations(annotations.NodeSelector, "!"), live: one(otherTargets), targetsOnly: true,
		},
		"another address in the status, and other targets": {
			svc:  withStatus(service(), corev1.LoadBalancerIngress{IP: "127.30.64.9", IPMode: &proxy}),
			live: one(otherTargets), lacksName: true, difference: "update load balancer lb-1: targets 1 to 1",
		},
		"another mode in the status": {
			svc:  withStatus(service(), corev1.LoadBalancerIngress{IP: address, IPMode: &vip}),
			live: one(current), lacksName: true, difference: unnamed,
		},
		"no mode, which old API servers drop": {
			svc: withStatus(service(), corev1.LoadBalancerIngress{IP: address}), live: one(current),
		},
		"a host name": {
			svc: withStatus(hostname, corev1.LoadBalancerIngress{Hostname: "web.example.com"}), live: one(current),
		},
		"another host name in the status": {
			svc:  withStatus(hostname.DeepCopy(), corev1.LoadBalancerIngress{Hostname: "old.example.com"}),
			live: one(current), lacksName: true, difference: unnamed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := (&fakeAPI{}).loadBalancers().Compare(tc.svc, nodes("fakecloud://i-1"), tc.live)
			want := Comparison{Difference: tc.difference, TargetsOnly: tc.targetsOnly, HasAddress: !tc.lacksName}
			if len(tc.live) == 1 {
				want.Ingress = []corev1.LoadBalancerIngress{{IP: address, IPMode: &proxy}}
				if name := tc.svc.Annotations[annotations.Prefix+annotations.Hostname]; name != "" {
					want.Ingress = []corev1.LoadBalancerIngress{{Hostname: name}}
				}
			}
			assert.Equal(t, want, got)
		})
	}
}
