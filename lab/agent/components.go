package agent

// When the lab's processes started and ended. The agent is not the parent of most of them, so it
// polls. Whether those that it knows still run is checked each time, which costs next to nothing.
// All processes are scanned only when one of them has ended, or one is missing that is wanted.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// componentPollInterval is how long a process's end or start may go unseen.
const componentPollInterval = time.Second

// What the timeline says of a component.
const (
	componentStarted = "started"
	componentEnded   = "ended"
)

// Components records the starts and ends of the components that running finds, until ctx ends.
// Machines are left out: the Agent reports those. absent are components that have not run yet
// and are expected. A component for which wanted is false is not searched for meanwhile.
func (r *Recorder) Components(
	ctx context.Context,
	running func() (map[string]*process.Process, error),
	wanted func(name string) bool,
	absent ...string,
) error {
	t := componentTracker{running: map[string]*process.Process{}, absent: map[string]bool{}, wanted: wanted}
	for _, name := range absent {
		t.absent[name] = true
	}
	for subject, last := range r.components {
		name, ok := strings.CutPrefix(subject, componentPrefix)
		if !ok {
			continue
		}
		t.absent[name] = true // A component that had ended may come back.
		if last.What == componentStarted {
			t.startedBefore = append(t.startedBefore, name)
		}
	}
	first := true
	wait.UntilWithContext(ctx, func(context.Context) {
		if !first && !t.needsScan() {
			return
		}
		first = false
		now, err := running()
		if err != nil {
			r.slog.Error("looking for the lab's processes; trying again", "error", err)
			return
		}
		r.recordComponents(&t, now)
	}, componentPollInterval)
	return nil
}

const componentPrefix = "component/"

// componentTracker is what is known of the components.
type componentTracker struct {
	running       map[string]*process.Process
	absent        map[string]bool
	wanted        func(name string) bool
	startedBefore []string // components that ran when an earlier agent last wrote the timeline
}

// needsScan tells whether all processes must be scanned.
func (t *componentTracker) needsScan() bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(t.absent)), t.wanted) ||
		slices.ContainsFunc(slices.Collect(maps.Values(t.running)), func(p *process.Process) bool { return !p.Alive() })
}

// recordComponents records what has changed since the last scan. A component that has another
// process now ended before that one started, though both are seen at once.
func (r *Recorder) recordComponents(t *componentTracker, now map[string]*process.Process) {
	ended := map[string]string{}           // the process, by the component's name
	for _, name := range t.startedBefore { // Each is found again, or has ended meanwhile.
		was := r.components[componentPrefix+name].Detail
		if p := now[name]; p != nil && was == processID(p) {
			t.running[name] = p
			delete(t.absent, name)
		} else {
			ended[name] = was
		}
	}
	t.startedBefore = nil
	for name, was := range t.running {
		if p := now[name]; p == nil || p.PID != was.PID {
			ended[name] = processID(was)
			delete(t.running, name)
			t.absent[name] = true
		}
	}
	for name, was := range ended {
		if now[name] == nil {
			r.recordComponent(time.Now(), componentChange(name, componentEnded, was))
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
		// The kernel gives start times to a hundredth of a second only.
		if last := r.components[componentPrefix+name].Time; !began.After(last) {
			began = last.Add(2 * time.Millisecond)
		}
		if was, ok := ended[name]; ok {
			r.recordComponent(began.Add(-time.Millisecond), componentChange(name, componentEnded, was))
		}
		r.recordComponent(began, componentChange(name, componentStarted, processID(p)))
	}
}

// recordComponent writes a change of a component to the timeline.
func (r *Recorder) recordComponent(at time.Time, c timeline.Change) {
	r.logWriteError(r.log.AddAt(at, c))
	r.OnComponent(c)
	r.components[c.Subject] = timeline.Entry{Time: at, Change: c}
}

func processID(p *process.Process) string { return fmt.Sprintf("process %d", p.PID) }

func componentChange(name, what, detail string) timeline.Change {
	return timeline.Change{Source: timeline.SourceLab, Subject: componentPrefix + name, What: what, Detail: detail}
}
