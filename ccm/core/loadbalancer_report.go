package core

// How the outcome of a call is reported: when upstream's controller retries, notices, and the Service's status.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// When upstream's controller is told to call again. A plain error would make it wait 5 s, then up to 300 s.
const (
	// provisioningRetry is for a balancer that is still being built.
	provisioningRetry = 300 * time.Millisecond
	// failedStateRetry is for a balancer in error: the cloud keeps trying, and
	// succeeds when, say, the port becomes free.
	failedStateRetry = 5 * time.Second
)

// checkActive is nil for a balancer that is active. For another, the error says when to call again.
func checkActive(lb *api.LoadBalancer) error {
	switch lb.State {
	case api.LoadBalancerActive:
		return nil
	case api.LoadBalancerError:
		reason := contract.ReasonLoadBalancerFailed
		if lb.StateReasonCode == api.ReasonCannotListen {
			reason = contract.ReasonPortCannotBeBound
		}
		return &delayedRetryError{newReasonError(reason, "load balancer %s (%s) is in error: %s",
			lb.Name, lb.ID, stateReason(lb.StateReason)), failedStateRetry}
	default:
		return pendingError("load balancer %s (%s) is %s", lb.Name, lb.ID, lb.State)
	}
}

// stateReason is the cloud's reason for the state of a resource.
func stateReason(given string) string {
	return cmp.Or(given, "the cloud gives no reason")
}

// notifyOfActive tells why an active balancer refuses clients, and that a balancer has no target although there are
// Nodes, none of which waits to be initialized.
func notifyOfActive(ctx context.Context, nodes []*corev1.Node, lb *api.LoadBalancer) {
	if why := lb.StateReason; lb.State == api.LoadBalancerActive && why != "" {
		notify(ctx, contract.ReasonLoadBalancerDegraded, "Load balancer %s (%s) is active but refuses clients: %s",
			lb.Name, lb.ID, why)
	}
	if len(lb.Targets) == 0 && len(nodes) > 0 && !slices.ContainsFunc(nodes, IsUninitialized) {
		notify(ctx, contract.ReasonNoTargets, "Load balancer %s (%s) has no targets: "+
			"no eligible Node has a provider ID of this cloud and matches the Service's node selector", lb.Name, lb.ID)
	}
}

// statusOf names the balancer's addresses of the families that the Service asks for, or the host name that stands for
// them. Traffic from inside the cluster must go through a proxy, too (KEP-1860), unless the Service says otherwise.
// A network balancer leaves its own address as the packets' destination, which kube-proxy must take for the Service's.
func statusOf(want balancerSpec, lb *api.LoadBalancer) *corev1.LoadBalancerStatus {
	if hostname := want.asked.Hostname; hostname != "" {
		return &corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{Hostname: hostname}}}
	}
	addresses := map[corev1.IPFamily]string{
		corev1.IPv4Protocol: lb.Address, corev1.IPv6Protocol: lb.IPv6Address,
	}
	families := want.svc.Spec.IPFamilies
	if len(families) == 0 {
		families = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	mode := cmp.Or(want.asked.IPMode, corev1.LoadBalancerIPModeProxy)
	if lb.Kind == api.KindNetwork {
		mode = corev1.LoadBalancerIPModeVIP
	}
	status := &corev1.LoadBalancerStatus{}
	for _, family := range families {
		if ip := addresses[family]; ip != "" {
			status.Ingress = append(status.Ingress, corev1.LoadBalancerIngress{IP: ip, IPMode: &mode})
		}
	}
	return status
}

// Comparison is how a Service's balancers and status differ from what it asks for.
type Comparison struct {
	// Difference names what EnsureLoadBalancer would change, "" if nothing.
	Difference string
	// TargetsOnly is true if the Service is invalid, or has several balancers. Then only their targets were compared.
	TargetsOnly bool
	// Ingress is what the Service's status is to name. It is set for exactly one balancer.
	Ingress []corev1.LoadBalancerIngress
	// HasAddress is false only if there is one balancer, the Service is valid, and its status does not name Ingress.
	HasAddress bool
}

// Compare tells how the Service differs from its balancers, those that are not being deleted.
func (l *loadBalancers) Compare(svc *corev1.Service, nodes []*corev1.Node, live []api.LoadBalancer) Comparison {
	want, err := l.desiredSpec(svc, nodes)
	if err != nil || len(live) > 1 {
		want.targetsOnly = true // EnsureLoadBalancer reports the error.
	}
	c := Comparison{TargetsOnly: want.targetsOnly, HasAddress: true}
	var parts []string
	if len(live) == 0 && !c.TargetsOnly {
		parts = append(parts, planStep(nil, want).text)
	}
	for _, lb := range live {
		step := planStep(&lb, want)
		if step != nil {
			parts = append(parts, step.text)
		}
		if len(live) == 1 {
			c.Ingress = statusOf(want, &lb).Ingress
			c.HasAddress = c.TargetsOnly || slices.EqualFunc(c.Ingress, svc.Status.LoadBalancer.Ingress, isNamedBy)
		}
		if step == nil && !c.HasAddress {
			parts = append(parts, fmt.Sprintf("load balancer %s has address %s, which the Service does not name",
				lb.ID, lb.Address))
		}
	}
	c.Difference = strings.Join(parts, "; ")
	return c
}

// isNamedBy tells whether the status names what it is to name. Releases of the API server without ipMode drop it.
func isNamedBy(wanted, has corev1.LoadBalancerIngress) bool {
	return has.IP == wanted.IP && has.Hostname == wanted.Hostname &&
		(has.IPMode == nil || wanted.IPMode != nil && *has.IPMode == *wanted.IPMode)
}
