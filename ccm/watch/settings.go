package watch

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// balancerSettings are the balancers, by ID, as this process wrote or found them right last. It is safe for concurrent
// use.
type balancerSettings struct{ byID sync.Map }

// record remembers the balancer's settings as those that its Service wants.
func (s *balancerSettings) record(lb *api.LoadBalancer) { s.byID.Store(lb.ID, *lb) }

func (s *balancerSettings) forget(id string) { s.byID.Delete(id) }

// isChangedOutOfBand tells whether the balancer's settings differ from those that were recorded last. It is false if
// none were.
func (s *balancerSettings) isChangedOutOfBand(lb *api.LoadBalancer) bool {
	last, _ := s.byID.Load(lb.ID)
	known, ok := last.(api.LoadBalancer)
	return ok && known.Version < lb.Version && !reflect.DeepEqual(settingsOf(known), settingsOf(*lb))
}

// settingsOf returns the balancer without what the cloud sets.
func settingsOf(lb api.LoadBalancer) api.LoadBalancer {
	lb.State, lb.StateReason, lb.StateReasonCode = "", nil, ""
	lb.Version, lb.UpdatedAt = 0, time.Time{}
	return lb
}

// ownWrites is a cloud that records which settings of balancers are our own work.
type ownWrites struct {
	core.Cloud
	settings *balancerSettings
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
		w.settings.record(lb)
	}
	return lb, err
}
