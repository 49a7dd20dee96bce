package core

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Comparison is how a Service's balancers and status differ from what it asks for.
type Comparison struct {
	// Difference names what EnsureLoadBalancer would change, "" if nothing.
	Difference string
	// TargetsOnly is true if the Service is invalid, or has several balancers. Then only their targets were compared.
	TargetsOnly bool
	// Ingress is what the Service's status is to name, and HasAddress whether it does; for one balancer only.
	Ingress    []corev1.LoadBalancerIngress
	HasAddress bool
}

// Compare tells how the Service differs from its balancers, those that are not being deleted.
func (l *loadBalancers) Compare(svc *corev1.Service, nodes []*corev1.Node, live []api.LoadBalancer) Comparison {
	want, err := l.desiredSpec(svc, nodes)
	if err != nil || len(live) > 1 {
		want.scope = targetsOnly // EnsureLoadBalancer reports the error.
	}
	c := Comparison{TargetsOnly: want.scope == targetsOnly, HasAddress: true}
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
			c.Ingress = statusOf(svc, want.asked, &lb).Ingress
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

// SelectsNodes tells whether the Service chooses its targets by the labels of Nodes.
func (l *loadBalancers) SelectsNodes(svc *corev1.Service) bool {
	want, _ := l.desiredSpec(svc, nil) // EnsureLoadBalancer reports its error.
	return want.asked.NodeSelector != nil
}
