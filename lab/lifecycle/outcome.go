package lifecycle

// What an `up` changed of a lab that was there before: what each step started, created or
// had to wait for. A step that found everything in place changed nothing.

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
	// Began is when it began.
	Began time.Time `json:"began"`
}

// unchangedDetail is the detail of a step that changed nothing.
const unchangedDetail = "as it was"

// runAndReport runs one step. In a lab that was there before, it returns what the step
// changed instead of the step's own detail.
func (u *upRun) runAndReport(ctx context.Context, title string, step func() (string, error)) (string, error) {
	if u.fresh {
		return step()
	}
	began := len(u.result.Did)
	u.waited = false
	detail, err := step()
	if err != nil {
		return detail, err
	}
	started, err := u.listNewlyStarted(ctx)
	if len(started) > 0 {
		u.addChange("started " + strings.Join(started, ", "))
	}
	switch did := u.result.Did[began:]; {
	case len(did) > 0:
		return strings.Join(did, "; "), err
	case u.waited:
		u.addChange("waited for " + title)
		return detail, err
	case u.demoIdle != "" && detail == u.demoIdle:
		return detail, err
	}
	return unchangedDetail, err
}

// addChange adds to what this run did.
func (u *upRun) addChange(what string) { u.result.Did = append(u.result.Did, what) }

// poll is cluster.Poll; it records in waited that there was something to wait for.
func (u *upRun) poll(ctx context.Context, what string, try func(context.Context) error) error {
	return cluster.Poll(ctx, what, func(ctx context.Context) error {
		err := try(ctx)
		u.waited = u.waited || err != nil
		return err
	})
}

// listNewlyStarted names the components that run now and did not when it was last called.
func (u *upRun) listNewlyStarted(ctx context.Context) ([]string, error) {
	now, err := runningComponents(ctx, u.Lab)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if pid, ran := u.lastPIDs[name]; !ran || pid != now[name] {
			short, _, _ := strings.Cut(name, "@")
			names = append(names, short)
		}
	}
	u.lastPIDs = now
	return names, nil
}

// runningComponents are the components that run, with their process IDs. Where all of them
// are processes of this machine, one look at /proc finds them.
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

// checkComponents is an error that names the components that should run and do not, with
// the end of their logs. A CCM that this `up` was not to start is left out.
func (u *upRun) checkComponents(ctx context.Context) error {
	all, err := u.Components(ctx)
	errs := []error{err}
	for _, c := range all {
		if c.Wanted && c.State != cluster.StateRunning && (c.Name != local.ComponentCCM || u.wantsCCM) {
			errs = append(errs, fmt.Errorf("%s does not run\n%s", c.Name, u.LogHint(c.Name)))
		}
	}
	return errors.Join(errs...)
}

// recordResult fills in the result, and adds to the timeline what was completed.
func (u *upRun) recordResult() error {
	switch {
	case u.fresh:
		u.result.Result, u.result.Did = Created, nil
	case len(u.result.Did) == 0:
		u.result.Result = Unchanged
	default:
		u.result.Result = Completed
		return u.Timeline().Add(timeline.Change{
			Source: timeline.SourceLab, Subject: "lab/" + u.State.Name, What: Completed,
			Detail: strings.Join(u.result.Did, "; "),
		})
	}
	return nil
}
