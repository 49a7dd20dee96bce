package lab

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
)

// Components of a lab that are not its cluster's.
const (
	// ComponentAgent is the lab's background process.
	ComponentAgent = "lab-agent"
	// ComponentManualCCM is a CCM that somebody runs by hand: `status` shows it while it
	// is there, `down` ends it, and nothing takes it for the lab's own.
	ComponentManualCCM = "ccm-by-hand"
)

// States of a lab beside cluster.StateRunning and cluster.StateStopped.
const (
	// StateIncomplete is a lab of which something that should run does not.
	StateIncomplete = "incomplete"
	// StateUnknown is one that cannot be looked at; status.Listed.Problem says why.
	StateUnknown = "unknown"
	// StateLeftover is what is left of a lab whose folder was deleted.
	StateLeftover = "leftover"
)

// Components are the cluster's, the agent, and a CCM that somebody runs beside the
// lab's.
func (l *Lab) Components(ctx context.Context) ([]cluster.Component, error) {
	running, err := l.Host.Running()
	if err != nil {
		return nil, err
	}
	agent := cluster.Component{Name: ComponentAgent, State: cluster.StateStopped, Wanted: true}
	if p := running[ComponentAgent]; p != nil {
		agent.PID, agent.State = p.PID, cluster.StateRunning
	}
	all, err := l.Cluster.Components(ctx)
	if p := running[ComponentManualCCM]; p != nil {
		all = append(all, cluster.Component{Name: ComponentManualCCM, PID: p.PID, State: cluster.StateRunning})
	}
	return append([]cluster.Component{agent}, all...), err
}

// StateOf is the state of a lab with these components.
func StateOf(components []cluster.Component) string {
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

// CheckNotStopped is an error for a lab of which nothing runs: there is nobody to ask.
func (l *Lab) CheckNotStopped(components []cluster.Component) error {
	if StateOf(components) != cluster.StateStopped {
		return nil
	}
	return fmt.Errorf("lab %q is stopped; `lab up --name %s` starts it", l.State.Name, l.State.Name)
}

// CheckNotPaused is an error when a process of the lab is stopped by a signal. Nothing starts
// it anew, and whoever calls it would wait for long.
func (l *Lab) CheckNotPaused() error {
	if paused := l.PausedProcesses(); len(paused) > 0 {
		return fmt.Errorf("lab %q: %s", l.State.Name, strings.Join(paused, "; "))
	}
	return nil
}

// PausedProcesses has a sentence for each process that is stopped by a signal, which says
// what to do.
func (l *Lab) PausedProcesses() []string {
	running, err := l.Host.Running()
	if err != nil {
		return nil
	}
	var sentences []string
	for _, name := range slices.Sorted(maps.Keys(running)) {
		if p := running[name]; p.Paused() {
			short, _, _ := strings.Cut(name, "@")
			sentences = append(sentences, fmt.Sprintf(
				"%s (pid %d) is stopped by a signal and answers nobody; `kill -CONT %d` has it go on", short, p.PID,
				p.PID,
			))
		}
	}
	return sentences
}

// LogHint says how a component's log ends, and where it is.
func (l *Lab) LogHint(component string) string {
	file := local.Site{Lab: l.State}.LogFile(component)
	if _, err := os.Stat(file); err != nil { // It is a container's log.
		return "`lab logs " + component + "` prints its log"
	}
	return process.LogHint(file)
}
