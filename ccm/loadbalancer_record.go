package ccm

// What is remembered of a Service's balancer from one call to the next, beside
// the balancer itself, which the inventory has.

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// balancerRecord belongs to one Service. The zero record is that of a Service of
// which nothing is known.
type balancerRecord struct {
	// listedAt is when the cloud was last asked for the balancer. It is zero once
	// nothing is pending.
	listedAt time.Time
	// pendingSince is since when every call has said that the balancer is not ready
	// yet, and nothing worse.
	pendingSince time.Time
	// ensured is what EnsureLoadBalancer last reported as done, nil if nothing.
	ensured *ensuredBalancer
}

// ensuredBalancer is a spec that was fulfilled, and the ID of the balancer that
// fulfilled it.
type ensuredBalancer struct {
	spec balancerSpec
	id   string
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

// recordEnsured remembers that lb is all that the Service asks for, if it is: a
// fallback may have left something out.
func (l *loadBalancers) recordEnsured(svc *corev1.Service, nodes []*corev1.Node, lb *api.LoadBalancer) {
	want, err := l.desiredSpec(svc, nodes)
	if err == nil && len(planSteps(lb, want)) == 0 {
		l.records.update(svc.UID, func(r *balancerRecord) { r.ensured = &ensuredBalancer{want, lb.ID} })
	}
}

// lastEnsured is what EnsureLoadBalancer last reported as done for a Service, and
// the balancer's ID; nil if nothing, or if the balancer was deleted since.
func (l *loadBalancers) lastEnsured(uid string) (spec *balancerSpec, id string) {
	record := l.records.get(types.UID(uid))
	if record.ensured == nil {
		return nil, ""
	}
	ensured := *record.ensured
	return &ensured.spec, ensured.id
}
