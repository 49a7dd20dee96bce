package ccm

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/contract"
)

const (
	// addressPeriod is how often Services that wait for an address are looked at.
	addressPeriod = 5 * time.Second
	// addressPause is the least time between two tries for one Service: tries must not
	// keep a cloud down that is down.
	addressPause = 15 * time.Second
)

// addressRetrier gets addresses for Services that wait for theirs because the cloud could
// not be used. After a long outage upstream's own retry may be five minutes away, and
// nothing from outside brings it forward: its controller follows no change of a Service
// but of what the balancer is made from. So the retrier calls what that retry would call.
type addressRetrier struct {
	explain    *explainer
	reconciler *serviceReconciler
	backoff    *flowcontrol.Backoff // by Service UID
}

func newAddressRetrier(explain *explainer, reconciler *serviceReconciler) *addressRetrier {
	return &addressRetrier{
		explain: explain, reconciler: reconciler, backoff: flowcontrol.NewBackOff(addressPause, addressPause),
	}
}

// passingReasons are those of causes that end without a change of the Service.
var passingReasons = []string{
	contract.ReasonCloudUnavailable, contract.ReasonCloudThrottled,
	contract.ReasonCloudAccessDenied, contract.ReasonWrongProject,
	contract.ReasonQuotaExceeded, contract.ReasonAddressPoolExhausted,
}

// awaitsAddress tells whether upstream tried to build the Service's balancer, and failed
// because of the cloud.
func (r *addressRetrier) awaitsAddress(svc *corev1.Service) bool {
	return isBalancerRequested(svc) && !hasBalancerAddress(svc) &&
		slices.ContainsFunc(passingReasons, func(reason string) bool {
			return r.explain.isLastReason(svc, topicLoadBalancer, reason)
		})
}

// retry tries once to get the address of a Service that awaits it, unless the last try was
// a moment ago. Nodes are the targets of its balancer.
func (r *addressRetrier) retry(ctx context.Context, cached *corev1.Service, nodes []*corev1.Node) error {
	uid := string(cached.UID)
	if r.backoff.IsInBackOffSinceUpdate(uid, time.Now()) {
		return nil
	}
	r.backoff.Next(uid, time.Now())
	svc, err := r.reconciler.getService(ctx, cached)
	if err != nil || svc == nil || !r.awaitsAddress(svc) {
		return err
	}
	err = r.reconciler.reconcile(ctx, svc, nodes)
	var building *cloudproviderapi.RetryError
	var delayed *delayedRetryError
	switch {
	case err == nil:
		klog.InfoS("Service got its address: the cloud is well again", "service", klog.KObj(svc))
	case errors.As(err, &building) && !errors.As(err, &delayed):
		r.backoff.DeleteEntry(uid) // The cloud is building it.
		return err
	default:
		klog.V(2).InfoS("Service still has no address", "service", klog.KObj(svc), "err", err)
	}
	return nil
}
