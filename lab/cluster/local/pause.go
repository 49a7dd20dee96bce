package local

// Labs that are stopped, and can start again.

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

// storeGrace is how long what keeps the state has to end by itself, once nobody
// asks it for anything any more.
const storeGrace = 5 * time.Second

// stores keep what a lab knows.
var stores = []string{ComponentCloud, PortEtcd}

// Pause ends every process of the lab, those that hold its state last.
func (s Site) Pause(ctx context.Context) (ended int, err error) {
	running, err := s.Host.Running()
	if err != nil {
		return 0, err
	}
	var others, keepers []*process.Process
	for name, p := range running {
		if slices.Contains(stores, name) {
			keepers = append(keepers, p)
		} else {
			others = append(others, p)
		}
	}
	if err = errors.Join(process.Stop(ctx, pauseGrace, others...), ctx.Err()); err != nil {
		return len(others), err
	}
	if err = errors.Join(process.Stop(ctx, storeGrace, keepers...), ctx.Err()); err != nil {
		return len(others), err
	}
	rest, err := s.Down(ctx) // What was started in between.
	return len(running) + rest, err
}

// keptSlots are those of this user's labs, running or not: a lab that is stopped
// comes back to its own.
func keptSlots() ([]int, error) {
	names, err := state.List()
	if err != nil {
		return nil, err
	}
	var kept []int
	for _, name := range names {
		if lab, err := state.Open(name); err == nil { // A damaged one does not come back.
			kept = append(kept, lab.Slot)
		}
	}
	return kept, nil
}
