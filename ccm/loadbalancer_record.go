package ccm

// What is remembered of a Service's balancer between calls.

import (
	"encoding/json"
	"hash/fnv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// balancerRecord belongs to one Service. The zero record is that of a Service of
// which nothing is known.
type balancerRecord struct {
	// pendingSince is when the first of the uninterrupted calls found the balancer not ready yet.
	pendingSince time.Time
	// settings are those that were last written to the balancer, or found right; the zero value
	// if none are known.
	settings balancerFingerprint
}

// balancerFingerprint stands for the settings of a balancer, which may have thousands of targets.
type balancerFingerprint struct {
	id      string
	version int64 // in which it was taken
	hash    uint64
	// checksTargets is whether the balancer had a health check.
	checksTargets bool
}

func fingerprintOf(lb *api.LoadBalancer) balancerFingerprint {
	settings := *lb
	settings.State, settings.StateReason, settings.StateReasonCode = "", nil, ""
	settings.Version, settings.UpdatedAt = 0, time.Time{}
	text, err := json.Marshal(settings)
	if err != nil {
		klog.ErrorS(err, "Cannot write the settings of a load balancer as JSON", "id", lb.ID) // Its type says that they can.
	}
	hash := fnv.New64a()
	_, _ = hash.Write(text) // It never fails.
	return balancerFingerprint{
		id: lb.ID, version: lb.Version, hash: hash.Sum64(),
		checksTargets: lb.HealthCheck != nil && lb.HealthCheck.Protocol != api.HealthCheckNone,
	}
}

// balancerRecords has a record for each Service, by UID. It is safe for concurrent
// use, and its zero value is ready.
type balancerRecords struct {
	mu    sync.Mutex
	byUID map[types.UID]balancerRecord
}

func (r *balancerRecords) get(uid types.UID) balancerRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byUID[uid]
}

// update changes a Service's record. A record that becomes zero takes no memory.
func (r *balancerRecords) update(uid types.UID, change func(*balancerRecord)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	record := r.byUID[uid]
	change(&record)
	if record == (balancerRecord{}) {
		delete(r.byUID, uid)
		return
	}
	if r.byUID == nil {
		r.byUID = map[types.UID]balancerRecord{}
	}
	r.byUID[uid] = record
}

func (r *balancerRecords) drop(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byUID, uid)
}

// recordSettings remembers the balancer's settings as those that its Service wants.
func (l *loadBalancers) recordSettings(serviceUID string, lb *api.LoadBalancer) {
	known := l.records.get(types.UID(serviceUID)).settings
	if known.id == lb.ID && known.version == lb.Version {
		return
	}
	taken := fingerprintOf(lb)
	l.records.update(types.UID(serviceUID), func(r *balancerRecord) { r.settings = taken })
}

// isChangedOutOfBand tells whether the balancer's settings differ from those that were written or
// recorded last. It is false if none were.
func (l *loadBalancers) isChangedOutOfBand(serviceUID string, lb *api.LoadBalancer) bool {
	known := l.records.get(types.UID(serviceUID)).settings
	return known.id == lb.ID && known.version < lb.Version && known.hash != fingerprintOf(lb).hash
}
