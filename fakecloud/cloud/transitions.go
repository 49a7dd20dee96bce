package cloud

import (
	"context"
	"maps"
	"sync"

	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// Transition is a change of state. From is empty when a resource is created, To when it is
// deleted. They are equal when something else about the resource changed.
type Transition struct {
	Resource Resource
	From, To string
}

// transitionCounter counts the transitions that were committed since the process started.
type transitionCounter struct {
	mu     sync.Mutex
	counts map[Transition]int64
}

func (t *transitionCounter) addAll(all []Transition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[Transition]int64{}
	}
	for _, one := range all {
		t.counts[one]++
	}
}

// Transitions gives how often each transition was made since the process started.
func (c *Cloud) Transitions() map[Transition]int64 {
	c.transitions.mu.Lock()
	defer c.transitions.mu.Unlock()
	return maps.Clone(c.transitions.counts)
}

// ResourceCount is how many resources of a kind are in a state.
type ResourceCount struct {
	Resource Resource
	State    string
	Count    int64
}

// CountResources counts the resources of all projects.
func (c *Cloud) CountResources(ctx context.Context) ([]ResourceCount, error) {
	return readOne(ctx, c, func(tx *store.Tx) (all []ResourceCount, err error) {
		rows, err := tx.CountResources(ctx)
		for _, r := range rows {
			all = append(all, ResourceCount{Resource: Resource(r.Kind), State: r.State, Count: r.Count})
		}
		return all, err
	})
}
