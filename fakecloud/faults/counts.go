package faults

import (
	"context"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// flushEvery is how old counts in the store may be.
const flushEvery = time.Second

// scheduleFlush has a rule's counts written soon. mu is held.
func (r *Rules) scheduleFlush(one *rule) {
	one.dirty = true
	if r.flushTimer == nil && !r.closed {
		r.flushTimer = time.AfterFunc(flushEvery, r.writeCounts)
	}
}

// writeCounts writes the counts that changed into the store.
func (r *Rules) writeCounts() {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	r.flushTimer = nil
	var dirty []*rule
	var counts []cloud.StoredFault
	for _, one := range r.rules {
		if one.dirty {
			one.dirty = false
			dirty = append(dirty, one)
			counts = append(counts, cloud.StoredFault{ID: one.ID, Matched: int64(one.Matched), Hits: int64(one.Hits)})
		}
	}
	r.mu.Unlock()
	if err := r.cloud.CountFaults(context.Background(), counts); err != nil {
		r.log.Error("what faults counted is not stored, and will be tried again", "err", err)
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, one := range dirty {
			r.scheduleFlush(one)
		}
	}
}

// Close writes the counts that are not written yet. Counts after it are lost, and the
// store is left alone.
func (r *Rules) Close() {
	r.mu.Lock()
	r.closed = true
	if r.flushTimer != nil {
		r.flushTimer.Stop() // One that runs already finds nothing left to write.
	}
	r.mu.Unlock()
	r.writeCounts()
}
