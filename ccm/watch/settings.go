package watch

import (
	"context"
	"encoding/json"
	"hash/fnv"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// fingerprint stands for the settings of a balancer, which may have thousands of targets.
type fingerprint struct {
	version int64 // in which it was taken
	hash    uint64
}

func fingerprintOf(lb *api.LoadBalancer) fingerprint {
	settings := *lb
	settings.State, settings.StateReason, settings.StateReasonCode = "", nil, ""
	settings.Version, settings.UpdatedAt = 0, time.Time{}
	text, err := json.Marshal(settings)
	if err != nil {
		klog.ErrorS(err, "Cannot write the settings of a load balancer as JSON", "id", lb.ID) // Its type says that they can.
	}
	hash := fnv.New64a()
	_, _ = hash.Write(text) // It never fails.
	return fingerprint{version: lb.Version, hash: hash.Sum64()}
}

// balancerSettings are the settings of balancers, by ID, that this process wrote or found right last. It is safe for
// concurrent use.
type balancerSettings struct {
	mu   sync.Mutex
	byID map[string]fingerprint
}

// record remembers the balancer's settings as those that its Service wants.
func (s *balancerSettings) record(lb *api.LoadBalancer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.byID[lb.ID]; !ok || known.version != lb.Version {
		s.byID[lb.ID] = fingerprintOf(lb)
	}
}

func (s *balancerSettings) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, id)
}

// isChangedOutOfBand tells whether the balancer's settings differ from those that were recorded last. It is false if
// none were.
func (s *balancerSettings) isChangedOutOfBand(lb *api.LoadBalancer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.byID[lb.ID]
	return ok && known.version < lb.Version && known.hash != fingerprintOf(lb).hash
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
