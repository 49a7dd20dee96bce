package inventory

import (
	"sync"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// ChangeKind says what became of the resource of a Change.
type ChangeKind int

const (
	// Updated is a resource that is new, differs from what was known of it, or is seen
	// again after it was Missing.
	Updated ChangeKind = iota
	// Deleted is the cloud's own word that the resource is deleted, or the instance
	// terminated. It may be reported twice of an instance: when it has terminated, and
	// when the cloud forgets it.
	Deleted
	// Missing is a resource that the newest list did not have, or that does not carry
	// the cluster's tag any more. That proves nothing: ask the cloud. A change that is
	// Updated follows if the resource is seen again.
	Missing
	// Relisted is a change without a resource: one kind of resource was listed with
	// nothing to compare the list with, for the first time or after events were lost.
	// Anything of that kind may have changed, or be gone.
	Relisted
	// Recovered is a change without a resource: the cloud answers again, after the event stream
	// broke or a list failed.
	Recovered
	// Freed is a change without a resource: somebody changed a load balancer that is not the
	// cluster's, an address or a quota of the project. What was scarce may be had now.
	Freed
)

// Change is something that the inventory learned of one resource. The resource is shown
// as it is now, or as it was last if it is Deleted or Missing; of the three pointers at
// most one is set.
type Change struct {
	Kind         ChangeKind
	Instance     *api.Instance
	LoadBalancer *api.LoadBalancer
	Route        *api.Route
}

// changeFeed delivers changes to subscribers, in order and one at a time.
type changeFeed struct {
	mu          sync.Mutex
	subscribers []func(Change)
	pending     []Change
	delivering  bool
}

// Subscribe has fn called with every change from now on, one at a time and in the order
// in which they were learned. fn must not block.
func (i *Inventory) Subscribe(fn func(Change)) { i.changes.subscribe(fn) }

func (f *changeFeed) subscribe(fn func(Change)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subscribers = append(f.subscribers, fn)
}

// add queues changes for deliver. Who holds the inventory's mu meanwhile keeps them in
// the order in which they were learned.
func (f *changeFeed) add(changes ...Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = append(f.pending, changes...)
}

// deliver calls the subscribers with what is pending. The goroutine that is delivering
// also delivers what others add meanwhile, so a subscriber may itself ask the inventory
// something, or note something in it. The inventory's mu must not be held.
func (f *changeFeed) deliver() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.delivering {
		return
	}
	f.delivering = true
	for len(f.pending) > 0 {
		change, subscribers := f.pending[0], f.subscribers
		f.pending = f.pending[1:]
		f.mu.Unlock()
		for _, notify := range subscribers {
			notify(change)
		}
		f.mu.Lock()
	}
	f.delivering = false
}
