package ccm

// Services that wait for their address because the cloud could not be used.
// After a long outage upstream's own retry may be five minutes away, and nothing
// from outside brings it forward: its controller follows no change of a Service
// but of what the balancer is made from. So the watch calls what that retry would
// call.

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/contract"
)

const (
	// addressPeriod is how often Services that wait for an address are looked at.
	addressPeriod = 5 * time.Second
	// addressPause is the least time between two tries for one of them: a cloud
	// that is down is not to be kept there.
	addressPause = 15 * time.Second
)

// passing are the causes that end without a change of the Service.
var passing = []string{
	contract.ReasonCloudUnavailable, contract.ReasonCloudThrottled, contract.ReasonCloudAccessDenied, contract.ReasonWrongProject,
	contract.ReasonQuotaExceeded, contract.ReasonAddressPoolExhausted,
}

// waitsForAddress tells whether upstream tried, and the cloud was why it failed.
func (w *cloudWatch) waitsForAddress(svc *corev1.Service) bool {
	return awaitsBalancer(svc) && !isBalanced(svc) && slices.ContainsFunc(passing, func(reason string) bool {
		return w.explain.toldThat(svc, topicLoadBalancer, reason)
	})
}

func (w *cloudWatch) checkAddresses(context.Context) {
	w.addressTries.GC()
	for _, obj := range w.services.List() {
		if svc, ok := obj.(*corev1.Service); ok && w.waitsForAddress(svc) {
			w.serviceQueue.Add(string(svc.UID))
		}
	}
}

// getAddress tries once for a Service that waits; the next look tries again.
func (w *cloudWatch) getAddress(ctx context.Context, old *corev1.Service) error {
	uid := string(old.UID)
	if !w.waitsForAddress(old) || w.addressTries.IsInBackOffSinceUpdate(uid, time.Now()) {
		return nil
	}
	w.addressTries.Next(uid, time.Now())
	svc, err := w.asItIs(ctx, old)
	if err != nil || svc == nil || !w.waitsForAddress(svc) {
		return err
	}
	err = w.ensure(ctx, svc, balancerNodes(w.nodes))
	var building *cloudproviderapi.RetryError
	var later *delayedRetryError
	switch {
	case err == nil:
		klog.InfoS("Service got its address: the cloud is well again", "service", klog.KObj(svc))
	case errors.As(err, &building) && !errors.As(err, &later):
		w.addressTries.DeleteEntry(uid) // The cloud is at it.
		return err
	default:
		klog.V(2).InfoS("Service still has no address", "service", klog.KObj(svc), "err", err)
	}
	return nil
}
