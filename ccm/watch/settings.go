package watch

import (
	"context"
	"reflect"
	"time"

	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// recordSettings remembers the balancer's settings as this process wrote them, or as its Service wants them.
func (w *Watch) recordSettings(lb *api.LoadBalancer) { w.settings.Store(lb.ID, *lb) }

// isChangedOutOfBand tells whether the balancer's settings differ from those that were recorded last. It is false if
// none were.
func (w *Watch) isChangedOutOfBand(lb *api.LoadBalancer) bool {
	last, _ := w.settings.Load(lb.ID)
	known, ok := last.(api.LoadBalancer)
	return ok && known.Version < lb.Version && !reflect.DeepEqual(settingsOf(known), settingsOf(*lb))
}

// settingsOf returns the balancer without what the cloud sets.
func settingsOf(lb api.LoadBalancer) api.LoadBalancer {
	lb.State, lb.StateReason, lb.StateReasonCode = "", "", ""
	lb.Version, lb.UpdatedAt = 0, time.Time{}
	return lb
}

// ownWrites is a cloud that records which settings of balancers are our own work.
type ownWrites struct {
	core.Cloud
	watch *Watch
}

func (w ownWrites) CreateLoadBalancer(ctx context.Context, lb api.LoadBalancerCreate) (*api.LoadBalancer, error) {
	return w.record(w.Cloud.CreateLoadBalancer(ctx, lb))
}

func (w ownWrites) UpdateLoadBalancer(
	ctx context.Context, id string, u api.LoadBalancerUpdate,
) (*api.LoadBalancer, error) {
	return w.record(w.Cloud.UpdateLoadBalancer(ctx, id, u))
}

func (w ownWrites) record(lb *api.LoadBalancer, err error) (*api.LoadBalancer, error) {
	if err == nil {
		w.watch.recordSettings(lb)
	}
	return lb, err
}
