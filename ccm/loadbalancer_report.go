package ccm

// How the outcome of a call is reported: an Event for each cause, the Service's status, and when
// upstream's controller retries.

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// The beginnings of Events about a failed call.
const (
	summaryNotAsAsked = "The load balancer does not match the Service"
	summaryNotDeleted = "The load balancer is not deleted"
)

// topicServing is whether a balancer that matches its Service serves clients.
const topicServing = "serving"

// When upstream's controller is told to call again. A plain error would make it
// wait 5 s, then up to 300 s.
const (
	// provisioningRetry is for a balancer that is still being built. slowDownRetry grows it up to
	// maxProvisioningRetry.
	provisioningRetry    = 300 * time.Millisecond
	maxProvisioningRetry = 5 * time.Second
	// failedStateRetry is for a balancer in error: the cloud keeps trying, and
	// succeeds when, say, the port becomes free.
	failedStateRetry = 5 * time.Second
)

// checkActive is nil for a balancer that is active. For another, the error says
// when to call again.
func checkActive(lb *api.LoadBalancer) error {
	switch lb.State {
	case api.LoadBalancerActive:
		return nil
	case api.LoadBalancerError:
		return &delayedRetryError{failedStateError(lb), failedStateRetry}
	default:
		return pendingError(fmt.Sprintf("load balancer %s (%s) is %s", lb.Name, lb.ID, lb.State))
	}
}

// failedStateError is the error of a balancer in state error.
func failedStateError(lb *api.LoadBalancer) error {
	why, reason := "the cloud gives no reason", contract.ReasonLoadBalancerFailed
	if lb.StateReason != nil && *lb.StateReason != "" {
		why = *lb.StateReason
	}
	if lb.StateReasonCode == api.ReasonCannotListen {
		reason = contract.ReasonPortCannotBeBound
	}
	return newReasonError(reason, "load balancer %s (%s) is in error: %s", lb.Name, lb.ID, why)
}

// reportOutcome ends every call: it writes Events on the Service, once per cause,
// and returns the error for upstream's controller. summary begins the Event of an
// error. lb is the balancer as it is; without an error, nil means that it is gone.
func (l *loadBalancers) reportOutcome(svc *corev1.Service, summary string, lb *api.LoadBalancer, err error) error {
	if isPending(err) {
		l.explain.markPending(svc, topicLoadBalancer)
		return l.slowDownRetry(svc, err)
	}
	if err != nil {
		l.records.update(svc.UID, func(r *balancerRecord) { r.pendingSince = time.Time{} })
		l.explain.explainError(svc, topicLoadBalancer, summary, err)
		return honorRetryAfter(err)
	}
	l.records.update(svc.UID, func(r *balancerRecord) { r.pendingSince = time.Time{} })
	if lb == nil || lb.State == api.LoadBalancerActive {
		l.explain.markResolved(svc, topicLoadBalancer)
		l.reportServing(svc, lb)
	}
	return nil
}

// reportServing explains why an active balancer refuses clients, if it does.
func (l *loadBalancers) reportServing(svc *corev1.Service, lb *api.LoadBalancer) {
	if lb == nil || lb.StateReason == nil || *lb.StateReason == "" {
		l.explain.markResolved(svc, topicServing)
		return
	}
	summary := fmt.Sprintf("Load balancer %s (%s) is active but refuses clients", lb.Name, lb.ID)
	l.explain.explainError(svc, topicServing, summary,
		newReasonError(contract.ReasonLoadBalancerDegraded, "%s", *lb.StateReason))
}

// reportTargets explains that a balancer has no target although there are Nodes, none of which waits to
// be initialized.
func (l *loadBalancers) reportTargets(svc *corev1.Service, nodes []*corev1.Node, lb *api.LoadBalancer) {
	switch {
	case len(lb.Targets) > 0 || len(nodes) == 0:
		l.explain.markResolved(svc, topicTargets)
	case !slices.ContainsFunc(nodes, isUninitialized):
		summary := fmt.Sprintf("Load balancer %s (%s) has no targets", lb.Name, lb.ID)
		l.explain.explainError(svc, topicTargets, summary, newReasonError(contract.ReasonNoTargets,
			"no eligible Node has a provider ID of this cloud and matches the Service's node selector"))
	}
}

// slowDownRetry grows the delay of a retry to a quarter of the time waited so far, because upstream
// writes two Events at each. The time is measured by our own clock, not the cloud's.
func (l *loadBalancers) slowDownRetry(svc *corev1.Service, err error) error {
	var retry *cloudproviderapi.RetryError
	if !errors.As(err, &retry) {
		return err
	}
	var waited time.Duration
	l.records.update(svc.UID, func(r *balancerRecord) {
		if r.pendingSince.IsZero() {
			r.pendingSince = time.Now()
		}
		waited = time.Since(r.pendingSince)
	})
	return cloudproviderapi.NewRetryError(err.Error(), max(min(waited/4, maxProvisioningRetry), retry.RetryAfter()))
}

// honorRetryAfter retries the call after the cloud's Retry-After, if it sent one.
func honorRetryAfter(err error) error {
	var refused *client.Error
	if errors.As(err, &refused) && refused.RetryAfter > 0 {
		return &delayedRetryError{err, refused.RetryAfter}
	}
	return err
}

// statusOf names the balancer's addresses of the families that the Service
// asks for, or the host name that stands for them. Traffic from inside the cluster must
// go through a proxy, too (KEP-1860), unless the Service says otherwise. What a network
// balancer passes on is for its own address, which kube-proxy must take for the Service's.
func statusOf(svc *corev1.Service, asked annotations.Values, lb *api.LoadBalancer) *corev1.LoadBalancerStatus {
	status := &corev1.LoadBalancerStatus{}
	if asked.Hostname != "" {
		status.Ingress = []corev1.LoadBalancerIngress{{Hostname: asked.Hostname}}
		return status
	}
	addresses := map[corev1.IPFamily]string{corev1.IPv4Protocol: lb.Address}
	if lb.IPv6Address != nil {
		addresses[corev1.IPv6Protocol] = *lb.IPv6Address
	}
	families := svc.Spec.IPFamilies
	if len(families) == 0 {
		families = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	mode := cmp.Or(asked.IPMode, corev1.LoadBalancerIPModeProxy)
	if lb.Kind == api.KindNetwork {
		mode = corev1.LoadBalancerIPModeVIP
	}
	for _, family := range families {
		if ip := addresses[family]; ip != "" {
			status.Ingress = append(status.Ingress, corev1.LoadBalancerIngress{IP: ip, IPMode: &mode})
		}
	}
	return status
}

// balancerStatus is statusOf for whoever has not parsed the annotations.
func balancerStatus(svc *corev1.Service, lb *api.LoadBalancer) *corev1.LoadBalancerStatus {
	asked, _ := annotations.Parse(svc.Annotations) // desiredSpec reports its error.
	return statusOf(svc, asked, lb)
}

// reasonError is an error whose reason is known where it is made.
type reasonError struct {
	reason string
	err    error
}

func newReasonError(reason, format string, args ...any) error {
	return &reasonError{reason, fmt.Errorf(format, args...)}
}

func (e *reasonError) Error() string { return e.err.Error() }
func (e *reasonError) Unwrap() error { return e.err }

// cause leaves out what differs at each retry: the ID of the request.
func (e *reasonError) cause() cause {
	var refused *client.Error
	if errors.As(e.err, &refused) {
		return cause{reason: e.reason, detail: refused.Problem.Detail}
	}
	return cause{reason: e.reason, detail: e.err.Error()}
}

// delayedRetryError is an error after which upstream's controller calls again at a
// set time.
type delayedRetryError struct {
	err   error
	after time.Duration
}

func (e *delayedRetryError) Error() string { return e.err.Error() }
func (e *delayedRetryError) Unwrap() []error {
	return []error{e.err, cloudproviderapi.NewRetryError(e.err.Error(), e.after)}
}

// pendingError means that nothing is wrong, but the work is not done yet.
func pendingError(msg string) error { return cloudproviderapi.NewRetryError(msg, provisioningRetry) }

// isPending tells a pendingError from a delayedRetryError, which holds an
// api.RetryError too.
func isPending(err error) bool {
	_, bare := err.(*cloudproviderapi.RetryError) //nolint:errorlint // See above.
	return bare
}
