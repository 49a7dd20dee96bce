package agent

// This file answers: when did the lab's processes start and end? The agent is
// not the parent of most of them, so it looks: at those that run whether they
// still do, which costs next to nothing, and at all processes only while one is
// missing that somebody wants.

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
// run yet; one that is not wanted is not looked out for until it is.
func (r *Recorder) Components(ctx context.Context, running func() (map[string]*process.Process, error), wanted func(name string) bool, absent ...string) error {
	t := tracker{running: map[string]*process.Process{}, absent: map[string]bool{}, wanted: wanted}
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
	wanted  func(name string) bool
	told    []string // of an earlier run: the file says that they started
}

// look tells whether all processes must be looked at.
func (t *tracker) look() bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(t.absent)), t.wanted) ||
		slices.ContainsFunc(slices.Collect(maps.Values(t.running)), func(p *process.Process) bool { return !p.Alive() })
}

// compare tells what is new. Whatever has another process in its place ended
// before that one started, though both are seen at once.
func (r *Recorder) compare(t *tracker, now map[string]*process.Process) {
	ended := map[string]string{}  // their processes, by name
	for _, name := range t.told { // They are found again, or ended meanwhile.
		was := r.components[componentPrefix+name].Detail
		if p := now[name]; p != nil && was == processID(p) {
			t.running[name] = p
			delete(t.absent, name)
		} else {
			ended[name] = was
		}
	}
	t.told = nil
	for name, was := range t.running {
		if p := now[name]; p == nil || p.PID != was.PID {
			ended[name] = processID(was)
			delete(t.running, name)
			t.absent[name] = true
		}
	}
	for name, was := range ended {
		if now[name] == nil {
			r.tellComponent(time.Now(), component(name, componentEnded, was))
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
		// The kernel tells starts to a hundredth of a second only.
		if last := r.components[componentPrefix+name].Time; !began.After(last) {
			began = last.Add(2 * time.Millisecond)
		}
		if was, ok := ended[name]; ok {
			r.tellComponent(began.Add(-time.Millisecond), component(name, componentEnded, was))
		}
		r.tellComponent(began, component(name, componentStarted, processID(p)))
	}
}

func (r *Recorder) tellComponent(at time.Time, c timeline.Change) {
	r.check(r.log.AddAt(at, c))
	r.components[c.Subject] = timeline.Entry{Time: at, Change: c}
}

func processID(p *process.Process) string { return fmt.Sprintf("process %d", p.PID) }

func component(name, what, detail string) timeline.Change {
	return timeline.Change{Source: timeline.SourceLab, Subject: componentPrefix + name, What: what, Detail: detail}
}
