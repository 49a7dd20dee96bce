// Package watch tells what happens in a lab, in one order. What the cluster and the cloud
// did is in the timeline, which the agent writes; who called the cloud is in the cloud's
// audit, which is asked only while somebody watches. Begin with Watch.
package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

const (
	// pollInterval is how often a watch looks.
	pollInterval = 400 * time.Millisecond
	// settleTime is how late a source may report a change for the change to
	// be shown in its place.
	settleTime = 200 * time.Millisecond
	// awayGrace is how long the cloud or the agent may be away before that
	// is noted: they are, for a moment, when a lab goes down.
	awayGrace = 3 * time.Second
	// componentsBound is how long a container engine may take to say what runs.
	componentsBound = 5 * time.Second
	// auditBound is how long reading the audit may take, and auditRetryBound how long
	// it may take when the last read failed.
	auditBound, auditRetryBound = 10 * time.Second, 500 * time.Millisecond
)

// Options of Watch.
type Options struct {
	Filter timeline.Filter
	// Follow waits for what comes, until the lab goes down.
	Follow bool
}

// Watch calls fn for each entry that passes the filter, those recorded first. It
// ends when the lab goes down or is stopped, when ctx ends, or with fn's error.
// note is told, once each, what keeps the watch from being complete, and why it
// ends.
func Watch(ctx context.Context, l *lab.Lab, o Options, fn func(timeline.Entry) error, note func(string)) error {
	reader, err := l.Timeline().Open()
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf(
			"lab %q has recorded nothing: %s is missing; `lab up --name %s` completes it", l.State.Name,
			l.Timeline().File, l.State.Name,
		)
	}
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	w := watcher{lab: l, options: o, fn: fn, note: note, reader: reader}
	if o.Filter.WantsCalls() {
		cloud, err := l.Cloud()
		if err != nil {
			return err
		}
		w.calls = newCallFollower(cloud, l.Timeline(), o.Filter.Since)
	}
	p, err := findRunning(ctx, l)
	if err != nil {
		return err
	}
	// What is not there while a lab comes up will be.
	settled := time.Since(l.State.StartedAt) > awayGrace
	if !o.Follow || !p.anything && settled {
		return w.showRecorded(ctx, p)
	}
	if w.agent = p.agent; p.agent == nil && settled {
		w.agentAway = outage{away: true, noted: true, began: time.Now()}
		note(w.agentDeadNote())
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if done, err := w.pollOnce(ctx); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(w.showEntries(w.merged.All()), ctx.Err())
		case <-tick.C:
		}
	}
}

type watcher struct {
	lab     *lab.Lab
	options Options
	fn      func(timeline.Entry) error
	note    func(string)
	reader  *timeline.Reader
	merged  timeline.Merge
	calls   *callFollower

	cloudAway, agentAway outage
	agent                *process.Process
}

// showRecorded tells what is recorded, and what is missing of it.
func (w *watcher) showRecorded(ctx context.Context, p runningState) error {
	if p.anything {
		if err := w.fetchCalls(ctx); err != nil {
			w.note(w.cloudSilentNote(err))
		}
	}
	entries, err := w.reader.Next()
	w.merged.Add(time.Now(), entries...)
	if err != nil && !errors.Is(err, timeline.ErrGone) {
		return err
	}
	if err := w.showEntries(w.merged.All()); err != nil {
		return err
	}
	switch {
	case !p.anything:
		w.note(w.stoppedNote())
	case p.agent == nil:
		w.note(w.agentDeadNote())
	}
	return nil
}

// pollOnce looks once. done is the lab's end.
func (w *watcher) pollOnce(ctx context.Context) (done bool, err error) {
	at := time.Now()
	cloudErr := w.fetchCalls(ctx)
	entries, err := w.reader.Next()
	w.merged.Add(time.Now(), entries...)
	if errors.Is(err, timeline.ErrGone) {
		w.note(w.wentDownNote())
		return true, w.showEntries(w.merged.All())
	}
	if err != nil || ctx.Err() != nil {
		return false, err
	}
	if err := w.showEntries(w.merged.Until(at.Add(-settleTime))); err != nil {
		return false, err
	}
	w.noteTransition(
		w.cloudAway.observe(cloudErr != nil, at), func() string { return w.cloudSilentNote(cloudErr) },
		"the cloud answers again; its calls meanwhile are in their places or follow",
	)
	return w.checkAgent(ctx, at)
}

// checkAgent notices that nothing is recorded any more, or that all has ended.
func (w *watcher) checkAgent(ctx context.Context, at time.Time) (stopped bool, err error) {
	if w.agent == nil || !w.agent.Alive() {
		p, err := findRunning(ctx, w.lab)
		if err != nil {
			return false, ignoreContextEnd(ctx, err)
		}
		if w.agent = p.agent; !p.anything && w.agentAway.duration(at) > awayGrace && isStoppedNotDeleted(w.lab) {
			w.note(w.stoppedNote())
			return true, w.showEntries(w.merged.All())
		}
	}
	w.noteTransition(w.agentAway.observe(w.agent == nil, at), w.agentDeadNote, "the lab's agent records again")
	return false, nil
}

// isStoppedNotDeleted tells a stopped lab, of which nothing runs, from one that `down` has
// deleted or is deleting.
func isStoppedNotDeleted(l *lab.Lab) bool {
	if l.State.Locked() {
		return false
	}
	_, err := os.Stat(l.Timeline().File)
	return err == nil
}

// ignoreContextEnd returns err, or nil if ctx has ended and so is the reason.
func ignoreContextEnd(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

func (w *watcher) showEntries(entries []timeline.Entry) error {
	for _, e := range entries {
		if !w.options.Filter.Match(e) {
			continue
		}
		if err := w.fn(e); err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) fetchCalls(ctx context.Context) error {
	if w.calls == nil {
		return nil
	}
	bound := auditBound
	if w.cloudAway.away {
		bound = auditRetryBound
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	calls, err := w.calls.fetchNew(ctx)
	w.merged.Add(time.Now(), calls...)
	return err
}

func (w *watcher) cloudSilentNote(err error) string {
	return fmt.Sprintf(
		"the cloud does not say who calls it (%v); `lab status --name %s` shows what runs", err, w.lab.State.Name,
	)
}

func (w *watcher) agentDeadNote() string {
	return fmt.Sprintf(
		"the lab's agent does not run, so nobody records what happens; `lab up --name %s` starts it", w.lab.State.Name,
	)
}

func (w *watcher) wentDownNote() string { return fmt.Sprintf("lab %q went down", w.lab.State.Name) }

func (w *watcher) stoppedNote() string {
	return fmt.Sprintf(
		"lab %q is stopped; this is what was recorded. `lab up --name %s` starts it", w.lab.State.Name,
		w.lab.State.Name,
	)
}

func (w *watcher) noteTransition(turned transition, away func() string, back string) {
	switch turned {
	case goneAway:
		w.note(away())
	case cameBack:
		w.note(back)
	}
}

// outage is the absence of the cloud or the agent. It is reported when it lasts, and
// again when it is over.
type outage struct {
	away, noted bool
	began       time.Time
}

type transition int

const (
	noTransition transition = iota
	goneAway
	cameBack
)

func (o *outage) observe(away bool, at time.Time) transition {
	switch {
	case away && !o.away:
		o.away, o.began = true, at
	case away && !o.noted && o.duration(at) > awayGrace:
		o.noted = true
		return goneAway
	case !away && o.away:
		told := o.noted
		*o = outage{}
		if told {
			return cameBack
		}
	}
	return noTransition
}

func (o *outage) duration(at time.Time) time.Duration {
	if !o.away {
		return 0
	}
	return at.Sub(o.began)
}

// WaitForEnd waits until the lab goes down or is stopped, and returns which in a sentence. When ctx
// ends, it returns "".
func WaitForEnd(ctx context.Context, l *lab.Lab) string {
	w := watcher{lab: l, note: func(string) {}}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if _, err := os.Stat(l.State.Path()); errors.Is(err, fs.ErrNotExist) {
			return w.wentDownNote()
		}
		if stopped, err := w.checkAgent(ctx, time.Now()); stopped && err == nil {
			return fmt.Sprintf("lab %q is stopped", l.State.Name)
		}
		select {
		case <-ctx.Done():
			return ""
		case <-tick.C:
		}
	}
}

// runningState is what runs of a lab: its agent, and whether anything does.
type runningState struct {
	agent    *process.Process
	anything bool
}

func findRunning(ctx context.Context, l *lab.Lab) (runningState, error) {
	running, err := l.Host.Running()
	if err != nil || len(running) > 0 {
		return runningState{running[lab.ComponentAgent], len(running) > 0}, err
	}
	// Not everything is a process of this machine.
	ctx, cancel := context.WithTimeout(ctx, componentsBound)
	defer cancel()
	all, err := l.Cluster.Components(ctx)
	for _, c := range all {
		if c.State == cluster.StateRunning {
			return runningState{anything: true}, nil
		}
	}
	return runningState{}, err
}
