package cache

import (
	"context"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// memory is what all kinds of resources have in common.
type memory struct {
	mu sync.Mutex // also of each kind's fields
	// running is Run's context while Run runs, else nil.
	running context.Context //nolint:containedctx // Lists outlive the questions that they are made for.
	lists   sync.WaitGroup
	kinds   []interface{ refresh(forget bool) }
	// openedAt is when the event stream opened; zero while it is not open.
	openedAt time.Time
	// decided ends when it is known whether the first stream opens, for which lists wait: one that began before
	// would have to be made again.
	decided context.Context //nolint:containedctx // It is a signal with a timeout.
	decide  func()
	// unreachable is true after the stream broke or a list failed, until Recovered is reported.
	unreachable bool
	subscribers []func(Change)
}

// ChangeKind says what became of the resource of a Change.
type ChangeKind int

const (
	// Changed is a resource that is new, or differs from what was remembered, or that a list does not show
	// any more, or that has lost the cluster's tags. That proves nothing: ask the cloud.
	Changed ChangeKind = iota
	// Deleted is a resource that the cloud says it has deleted.
	Deleted
	// Relisted is a change without a resource: one kind of resource was listed with nothing to compare the
	// list with. Anything of that kind may have changed, or be gone.
	Relisted
	// Recovered is a change without a resource: the cloud answers again, after the event stream broke or a
	// list failed.
	Recovered
	// Freed is a change without a resource: somebody changed a load balancer that is not the cluster's, an
	// address or a quota of the project. What was scarce may be had now.
	Freed
)

// Change is something that was learned of one resource, as it is now or was last. At most one of the
// pointers is set.
type Change struct {
	Kind         ChangeKind
	Instance     *api.Instance
	LoadBalancer *api.LoadBalancer
}

// Subscribe has fn called with every change from now on, one at a time and in the order in which they were
// learned. fn must not block, and must not ask this cloud.
func (m *memory) Subscribe(fn func(Change)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subscribers = append(m.subscribers, fn)
}

// report tells the subscribers of a change. mu is held.
func (m *memory) report(c Change) {
	for _, notify := range m.subscribers {
		notify(c)
	}
}

// reportRecovery reports that the cloud answers again, if it did not. mu is held.
func (m *memory) reportRecovery() {
	if m.unreachable {
		m.unreachable = false
		m.report(Change{Kind: Recovered})
	}
}

// refresh refreshes every kind. mu is held.
func (m *memory) refresh(forget bool) {
	for _, k := range m.kinds {
		k.refresh(forget)
	}
}
