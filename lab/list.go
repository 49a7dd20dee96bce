package lab

// `lab list`: which labs this user has. Only what runs is looked at, nothing is
// asked: one that hangs keeps nobody waiting.

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

// States of a lab beside cluster.StateRunning and cluster.StateStopped.
const (
	// StateIncomplete is a lab of which something that should run does not.
	StateIncomplete = "incomplete"
	// StateUnknown is one that cannot be looked at; Listed.Problem says why.
	StateUnknown = "unknown"
	// StateLeftover is what is left of a lab whose folder was deleted.
	StateLeftover = "leftover"
)

// Listed is a lab of this user's. Its JSON is a contract: fields are added,
// never renamed.
type Listed struct {
	Name string `json:"name"`
	// Cluster is the kind of cluster.
	Cluster string `json:"cluster,omitempty"`
	// State is running, incomplete, stopped, unknown or leftover.
	State string `json:"state"`
	// Slot X has 127.X.0.0/16; 0 for a lab in containers. Network is what the lab
	// has for itself.
	Slot    int    `json:"slot,omitempty"`
	Network string `json:"network,omitempty"`
	// Processes are those on this machine.
	Processes int        `json:"processes"`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	Folder    string     `json:"folder"`
	Problem   string     `json:"problem,omitempty"`
}

// List looks at all labs of this user, by name.
func List(ctx context.Context) ([]Listed, error) {
	found, err := Find()
	if err != nil {
		return nil, err
	}
	processes, err := process.All()
	if err != nil {
		return nil, err
	}
	running := map[string]int{}
	for _, p := range processes {
		running[p.Lab]++
	}
	ctx, cancel := context.WithTimeout(ctx, statusBound)
	defer cancel()
	all := []Listed{}
	for _, f := range found {
		entry := Listed{Name: f.Name, Folder: f.Dir, Processes: running[f.Dir], State: StateLeftover}
		if !f.Leftover {
			if err := entry.look(ctx); err != nil {
				entry.State, entry.Problem = StateUnknown, err.Error()
			}
		}
		all = append(all, entry)
	}
	return all, nil
}

func (e *Listed) look(ctx context.Context) error {
	st, err := state.OpenDir(e.Folder)
	if err != nil {
		return err
	}
	e.Cluster, e.StartedAt = cmp.Or(st.Cluster, Embedded), &st.StartedAt
	switch {
	case st.Slot != 0:
		e.Slot, e.Network = st.Slot, fmt.Sprintf("127.%d.0.0/16", st.Slot)
	case st.Kind != nil:
		e.Network = st.Kind.Subnet
	}
	l, err := attach(st)
	if err != nil {
		return err
	}
	components, err := l.components(ctx)
	e.State = stateOf(components)
	if e.State == cluster.StateRunning && len(l.paused()) > 0 {
		e.State = StateIncomplete
	}
	return err
}

// stateOf tells what a lab is by what runs of it.
func stateOf(components []cluster.Component) string {
	anything, missing := false, false
	for _, c := range components {
		anything = anything || c.State == cluster.StateRunning
		missing = missing || c.Wanted && c.State != cluster.StateRunning
	}
	switch {
	case !anything:
		return cluster.StateStopped
	case missing:
		return StateIncomplete
	}
	return cluster.StateRunning
}
