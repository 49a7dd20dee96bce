package status

// `lab list`: which labs this user has. It reads records and /proc and calls no API, so that a
// lab that hangs keeps nobody waiting.

import (
	"context"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
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
	found, err := lab.Find()
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
		entry := Listed{Name: f.Name, Folder: f.Dir, Processes: running[f.Dir], State: lab.StateLeftover}
		if !f.Leftover {
			if err := entry.inspect(ctx); err != nil {
				entry.State, entry.Problem = lab.StateUnknown, err.Error()
			}
		}
		all = append(all, entry)
	}
	return all, nil
}

func (e *Listed) inspect(ctx context.Context) error {
	st, err := state.OpenDir(e.Folder)
	if err != nil {
		return err
	}
	e.Cluster, e.StartedAt = cluster.KindName(st.Cluster), &st.StartedAt
	e.Slot, e.Network = st.Slot, cluster.RecordedNetwork(st)
	l, err := lab.Attach(st)
	if err != nil {
		return err
	}
	components, err := l.Components(ctx)
	e.State = lab.StateOf(components)
	if e.State == cluster.StateRunning && len(l.PausedProcesses()) > 0 {
		e.State = lab.StateIncomplete
	}
	return err
}
