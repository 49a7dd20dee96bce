package dataplane

import (
	"sync"
	"sync/atomic"
	"time"
)

// refusalMemory is how long a target that refused a client comes last: until
// then the next client would in all likelihood be refused, too.
const refusalMemory = 10 * time.Second

// refusals are by target, of one listener: a target that serves one port badly
// may serve another well. Safe for concurrent use; the zero value is ready.
type refusals struct {
	some atomic.Bool // as a rule there are none
	mu   sync.Mutex
	at   map[*endpoint]time.Time
}

func (r *refusals) note(e *endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil {
		r.at = map[*endpoint]time.Time{}
	}
	r.at[e] = time.Now()
	r.some.Store(true)
}

// lately tells whether a target has refused somebody, and forgets what is long
// ago.
func (r *refusals) lately(e *endpoint) bool {
	if !r.some.Load() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.at[e]
	if ok && time.Since(at) >= refusalMemory {
		delete(r.at, e)
		r.some.Store(len(r.at) > 0)
		return false
	}
	return ok
}
