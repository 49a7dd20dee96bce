package lifecycle

// What an `up` changed of a lab that was there: what each step started, made or
// had to wait for. A step that found everything did nothing.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// Results of an `up`.
const (
	Created   = "created"   // There was no lab.
	Completed = "completed" // Something was missing, and now is not.
	Unchanged = "unchanged" // Nothing was missing.
)

// Outcome is what an `up` did.
type Outcome struct {
	// Result is Created, Completed or Unchanged.
	Result string `json:"result"`
	// Did says what a completed lab lacked, in the order of the steps.
	Did []string `json:"did,omitempty"`
	// Began is when.
	Began time.Time `json:"began"`
}

// asItWas is what a step says that changed nothing.
const asItWas = "as it was"

// told runs one step of an `up` that found a lab, and says what was changed.
func (u *up) told(ctx context.Context, title string, step func() (string, error)) (string, error) {
	if u.fresh {
		return step()
	}
	began := len(u.outcome.Did)
	u.waited = false
	detail, err := step()
	if err != nil {
		return detail, err
	}
	started, err := u.started(ctx)
	if len(started) > 0 {
		u.did("started " + strings.Join(started, ", "))
	}
	switch did := u.outcome.Did[began:]; {
	case len(did) > 0:
		return strings.Join(did, "; "), err
	case u.waited:
		u.did("waited for " + title)
		return detail, err
	case u.idle != "" && detail == u.idle:
		return detail, err
	}
	return asItWas, err
}

func (u *up) did(what string) { u.outcome.Did = append(u.outcome.Did, what) }

// hopeless is an error that no further try takes away.
type hopeless struct{ error }

// poll is cluster.Poll, and remembers that there was something to wait for. It
// ends at once with what is hopeless.
func (u *up) poll(ctx context.Context, what string, try func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var lost hopeless
	err := cluster.Poll(ctx, what, func(ctx context.Context) error {
		if lost.error != nil {
			return lost
		}
		err := try(ctx)
		u.waited = u.waited || err != nil
		if errors.As(err, &lost) {
			stop()
		}
		return err
	})
	if lost.error != nil {
		return lost.error
	}
	return err
}

// started names what runs now and did not when this was asked last.
func (u *up) started(ctx context.Context) ([]string, error) {
	now, err := runningComponents(ctx, u.Lab)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if pid, ran := u.seen[name]; !ran || pid != now[name] {
			short, _, _ := strings.Cut(name, "@")
			names = append(names, short)
		}
	}
	u.seen = now
	return names, nil
}

// runningComponents is what runs, with its process ID if it is a process here: then one
// look at /proc tells all.
func runningComponents(ctx context.Context, l *lab.Lab) (map[string]int, error) {
	now := map[string]int{}
	if !l.Cluster.Traits().InContainers {
		processes, err := l.Host.Running()
		for name, p := range processes {
			now[name] = p.PID
		}
		return now, err
	}
	all, err := l.Components(ctx)
	for _, c := range all {
		if c.State == cluster.StateRunning {
			now[c.Name] = c.PID
		}
	}
	return now, err
}

// lacking is an error that names what should run now and does not, with the end
// of its log. A CCM that this `up` was not to start is left out.
func (u *up) lacking(ctx context.Context) error {
	all, err := u.Components(ctx)
	errs := []error{err}
	for _, c := range all {
		if c.Wanted && c.State != cluster.StateRunning && (c.Name != local.ComponentCCM || u.ccm) {
			errs = append(errs, fmt.Errorf("%s does not run\n%s", c.Name, u.LogHint(c.Name)))
		}
	}
	return errors.Join(errs...)
}

// concluded fills in the result, and has the timeline tell what was completed.
func (u *up) concluded() error {
	switch {
	case u.fresh:
		u.outcome.Result, u.outcome.Did = Created, nil
	case len(u.outcome.Did) == 0:
		u.outcome.Result = Unchanged
	default:
		u.outcome.Result = Completed
		return u.Timeline().Add(timeline.Change{Source: timeline.SourceLab, Subject: "lab/" + u.State.Name, What: Completed, Detail: strings.Join(u.outcome.Did, "; ")})
	}
	return nil
}
