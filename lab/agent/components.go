package agent

// This file answers: when did the lab's processes start and end? The agent is
// not the parent of most of them, so it looks: at those that run whether they
// still do, which costs next to nothing, and at all processes only while one is
// missing.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// lookInterval is how long a process's end or start goes unseen.
const lookInterval = time.Second

// What is told of a component.
const (
	componentStarted = "started"
	componentEnded   = "ended"
)

// Components tells of the processes that running finds until ctx ends. Machines
// are left to the Agent. absent are those to look out for though they have never
// run yet.
func (r *Recorder) Components(ctx context.Context, running func() (map[string]*process.Process, error), absent ...string) error {
	t := tracker{running: map[string]*process.Process{}, absent: map[string]bool{}}
	for _, name := range absent {
		t.absent[name] = true
	}
	for subject, last := range r.components {
		name, ok := strings.CutPrefix(subject, componentPrefix)
		if !ok {
			continue
		}
		t.absent[name] = true // One that had ended may come back.
		if last.What == componentStarted {
			t.told = append(t.told, name)
		}
	}
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for first := true; ; first = false {
		if first || t.look() {
			now, err := running()
			if err != nil {
				r.slog.Error("looking for the lab's processes; trying again", "error", err)
			} else {
				r.compare(&t, now)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

const componentPrefix = "component/"

// tracker is what is known of the components.
type tracker struct {
	running map[string]*process.Process
	absent  map[string]bool
	told    []string // of an earlier run: the file says that they started
}

// look tells whether all processes must be looked at.
func (t *tracker) look() bool {
	return len(t.absent) > 0 || slices.ContainsFunc(slices.Collect(maps.Values(t.running)), func(p *process.Process) bool { return !p.Alive() })
}

// compare tells what is new.
func (r *Recorder) compare(t *tracker, now map[string]*process.Process) {
	for _, name := range t.told { // They are found again, or ended meanwhile.
		if p := now[name]; p != nil && r.components[componentPrefix+name].Detail == processID(p) {
			t.running[name] = p
			delete(t.absent, name)
		} else {
			r.Tell(component(name, componentEnded, ""))
		}
	}
	t.told = nil
	for name, was := range t.running {
		if p := now[name]; p == nil || p.PID != was.PID {
			r.Tell(component(name, componentEnded, processID(was)))
			delete(t.running, name)
			t.absent[name] = true
		}
	}
	for name, p := range now {
		if t.running[name] != nil || strings.Contains(name, "/") {
			continue
		}
		t.running[name] = p
		delete(t.absent, name)
		began := p.Started()
		if age := time.Since(began); age < 0 || began.Before(r.log.Start) { // The clock was set.
			began = time.Now()
		}
		r.check(r.log.AddAt(began, component(name, componentStarted, processID(p))))
	}
}

func processID(p *process.Process) string { return fmt.Sprintf("process %d", p.PID) }

func component(name, what, detail string) timeline.Change {
	return timeline.Change{Source: timeline.SourceLab, Subject: componentPrefix + name, What: what, Detail: detail}
}
