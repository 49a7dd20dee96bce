package dataplane

import (
	"sync"
	"sync/atomic"
	"time"
)

// refusalMemory is how long a target that refused a connection is tried last. Within
// that time it would very likely refuse the next client too.
const refusalMemory = 10 * time.Second

// refusals remembers which targets refused a connection lately. Each listener has its
// own, as a target that fails on one port may serve another well. Safe for concurrent
// use; the zero value is ready.
type refusals struct {
	notEmpty    atomic.Bool // while false, isRecent does not take mu
	mu          sync.Mutex
	lastRefusal map[*endpoint]time.Time
}

func (r *refusals) recordRefusal(e *endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lastRefusal == nil {
		r.lastRefusal = map[*endpoint]time.Time{}
	}
	r.lastRefusal[e] = time.Now()
	r.notEmpty.Store(true)
}

// isRecent tells whether a target has refused a connection within refusalMemory. It
// forgets an older refusal.
func (r *refusals) isRecent(e *endpoint) bool {
	if !r.notEmpty.Load() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.lastRefusal[e]
	if ok && time.Since(at) >= refusalMemory {
		delete(r.lastRefusal, e)
		r.notEmpty.Store(len(r.lastRefusal) > 0)
		return false
	}
	return ok
}
