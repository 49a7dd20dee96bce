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
	status := func(svc *corev1.Service, ingress ...corev1.LoadBalancerIngress) *corev1.Service {
		svc.Status.LoadBalancer.Ingress = ingress
		return svc
	}
	const address = "127.30.64.1"
	invalid := func() *corev1.Service { return serviceWithAnnotations(annotations.Scheme, "x") }
	balancer := func(target string) api.LoadBalancer { return *built(t, api.LoadBalancerActive, target) }
	current, otherTargets := balancer("fakecloud://i-1"), balancer("fakecloud://i-2")
	otherListeners, twin := balancer("fakecloud://i-1"), balancer("fakecloud://i-2")
	otherListeners.Listeners, twin.ID = nil, "lb-2"
	vip, proxy := corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy
	for name, tc := range map[string]struct {
		svc         *corev1.Service
		live        []api.LoadBalancer
		difference  string // "" for none
		targetsOnly bool
		lacksName   bool // the status does not name the address
	}{
		"as it should be": {svc: serviceWithAddress(), live: []api.LoadBalancer{current}},
		"no balancer": {
			svc:        serviceWithAddress(),
			difference: "create load balancer web-01234567 with listeners [tcp:8080→30080 tcp:8443→30443] and 1 targets",
		},
		"other targets": {
			svc: serviceWithAddress(), live: []api.LoadBalancer{otherTargets},
			difference: "update load balancer lb-1: targets 1 to 1",
		},
		"other listeners": {
			svc: serviceWithAddress(), live: []api.LoadBalancer{otherListeners},
			difference: "update load balancer lb-1: listeners [] to [tcp:8080→30080 tcp:8443→30443]",
		},
		"two balancers": {
			svc: serviceWithAddress(), live: []api.LoadBalancer{otherListeners, twin}, targetsOnly: true,
			difference: "update load balancer lb-2: targets 1 to 1",
		},
		"an invalid Service":                    {svc: invalid(), live: []api.LoadBalancer{otherListeners}, targetsOnly: true},
		"an invalid Service without a balancer": {svc: invalid(), targetsOnly: true},
		"an invalid Service, other targets": {
			svc: invalid(), live: []api.LoadBalancer{otherTargets}, targetsOnly: true,
			difference: "update load balancer lb-1: targets 1 to 1",
		},
		"a selector that cannot be read": {
			svc:  serviceWithAnnotations(annotations.NodeSelector, "!"),
			live: []api.LoadBalancer{otherTargets}, targetsOnly: true,
		},
		"no address in the status": {
			svc: service(), live: []api.LoadBalancer{current}, lacksName: true,
			difference: "load balancer lb-1 has address " + address + ", which the Service does not name",
		},
		"another address in the status, and other targets": {
			svc:  status(service(), corev1.LoadBalancerIngress{IP: "127.30.64.9", IPMode: &proxy}),
			live: []api.LoadBalancer{otherTargets}, lacksName: true,
			difference: "update load balancer lb-1: targets 1 to 1",
		},
		"another mode in the status": {
			svc:  status(service(), corev1.LoadBalancerIngress{IP: address, IPMode: &vip}),
			live: []api.LoadBalancer{current}, lacksName: true,
			difference: "load balancer lb-1 has address " + address + ", which the Service does not name",
		},
		"no mode, which old API servers drop": {
			svc: status(service(), corev1.LoadBalancerIngress{IP: address}), live: []api.LoadBalancer{current},
		},
		"a host name in the status": {
			svc: status(serviceWithAnnotations(annotations.Hostname, "web.example.com"),
				corev1.LoadBalancerIngress{Hostname: "web.example.com"}),
			live: []api.LoadBalancer{current},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := newLoadBalancers(&fakeAPI{t: t}).Compare(tc.svc, nodes("fakecloud://i-1"), tc.live)
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

func TestSelectsNodes(t *testing.T) {
	l := newFakeBalancers(t).loadBalancers()
	assert.False(t, l.SelectsNodes(service()))
	assert.True(t, l.SelectsNodes(serviceWithAnnotations(annotations.NodeSelector, "pool=web")))
	l.defaults = map[string]string{annotations.NodeSelector: "pool=web"}
	assert.True(t, l.SelectsNodes(service()), "by the configuration")
}
