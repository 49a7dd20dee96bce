package scenarios

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/oklog/ulid/v2"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
)

const (
	// maxRunning bounds how many scenarios of a project run at a time, and maxKept how
	// many ended ones are remembered.
	maxRunning = 10
	maxKept    = 50
)

// State is how far a scenario has come.
type State string

// The states of a scenario.
const (
	Running State = "running"
	Done    State = "done"
	Stopped State = "stopped"
	Failed  State = "failed"
)

// StepStatus is how far a step has come. Times are zero until then.
type StepStatus struct {
	At       time.Duration
	Does     string
	DoneAt   time.Time
	Result   string
	Error    string
	Fault    string // the ID of the one that it made
	LiftedAt time.Time
}

// Status is how far a scenario has come.
type Status struct {
	ID, Name, Description string
	State                 State
	Seed                  int64
	StartedAt, EndedAt    time.Time
	Steps                 []StepStatus
}

// run is one scenario. The runner's mu guards its status.
type run struct {
	Status
	spec    Spec
	project cloud.Project
	cancel  context.CancelFunc
	ended   chan struct{}
	// next is when the next thing is to be done that has not been done yet.
	next time.Time
}

// Runner runs scenarios. Safe for concurrent use.
type Runner struct {
	cloud  *cloud.Cloud
	faults *faults.Rules
	clock  clockwork.Clock
	log    *slog.Logger

	mu     sync.Mutex
	runs   []*run // oldest first
	closed bool
	// moved is closed and replaced when a run's next or state changes.
	moved chan struct{}
}

// New makes a runner without scenarios.
func New(c *cloud.Cloud, rules *faults.Rules, log *slog.Logger) *Runner {
	r := &Runner{cloud: c, faults: rules, clock: c.Clock(), log: log, moved: make(chan struct{})}
	c.AddAgenda(r)
	// Also afterwards: a scenario may have been started in between.
	c.OnReplacing(r.stopAll)
	c.OnReplaced(r.stopAll)
	return r
}

// Next implements cloud.Agenda.
func (r *Runner) Next(now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	var first time.Time
	for _, one := range r.runs {
		if one.State == Running && one.next.After(now) && (first.IsZero() || one.next.Before(first)) {
			first = one.next
		}
	}
	return first
}

// Settle implements cloud.Agenda.
func (r *Runner) Settle(ctx context.Context, now time.Time) {
	for {
		r.mu.Lock()
		moved := r.moved
		busy := slices.ContainsFunc(r.runs, func(one *run) bool { return one.State == Running && !one.next.After(now) })
		r.mu.Unlock()
		if !busy {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// signalMoved wakes callers of Settle. The lock is held.
func (r *Runner) signalMoved() {
	close(r.moved)
	r.moved = make(chan struct{})
}

func (r *Runner) setNext(one *run, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one.next = next
	r.signalMoved()
}

func (r *Runner) now() time.Time { return r.clock.Now().UTC().Truncate(time.Millisecond) }

// Run starts a scenario. One that makes no sense is refused as a whole, with the names of
// the fields.
func (r *Runner) Run(ctx context.Context, p cloud.Project, s Spec) (Status, error) {
	if err := r.checkSpec(ctx, s); err != nil {
		return Status{}, err
	}
	s.Seed = cmp.Or(s.Seed, faults.DrawSeed())
	ctx, cancel := context.WithCancel(context.Background())
	started := &run{spec: s, project: p, cancel: cancel, ended: make(chan struct{}), Status: Status{
		ID: "s-" + strings.ToLower(ulid.Make().String()), Name: s.Name, Description: s.Description,
		State: Running, Seed: s.Seed, StartedAt: r.now(),
	}}
	started.next = started.StartedAt // Until runSteps sets the time of the first step.
	for _, step := range s.Steps {
		started.Steps = append(started.Steps, StepStatus{At: step.At, Does: step.describeStep()})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.makeRoom(p); err != nil {
		cancel()
		return Status{}, err
	}
	r.runs = append(r.runs, started)
	go r.runSteps(ctx, started)
	return started.copyStatus(), nil
}

// makeRoom forgets the oldest scenarios that have ended, and refuses one too many. mu is
// held.
func (r *Runner) makeRoom(p cloud.Project) error {
	running, ended := 0, 0
	for _, one := range r.runs {
		switch {
		case one.project.ID != p.ID:
		case one.State == Running:
			running++
		default:
			ended++
		}
	}
	switch {
	case r.closed:
		return errors.New("the cloud is shutting down")
	case running >= maxRunning:
		return &cloud.Error{Code: cloud.TooManyFaults, Message: fmt.Sprintf(
			"the project runs %d scenarios already, which is the limit: stop one first", maxRunning,
		)}
	}
	r.runs = slices.DeleteFunc(r.runs, func(one *run) bool {
		old := ended > maxKept && one.project.ID == p.ID && one.State != Running && !one.holdsFault()
		if old {
			ended--
		}
		return old
	})
	return nil
}

// holdsFault tells whether a fault of the scenario may still be in force.
func (one *run) holdsFault() bool {
	return slices.ContainsFunc(one.Steps, func(s StepStatus) bool { return s.Fault != "" && s.LiftedAt.IsZero() })
}

func (one *run) copyStatus() Status {
	s := one.Status
	s.Steps = slices.Clone(s.Steps)
	return s
}

// List gives a project's scenarios, oldest first.
func (r *Runner) List(project string) []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []Status{}
	for _, one := range r.runs {
		if one.project.ID == project {
			all = append(all, one.copyStatus())
		}
	}
	return all
}

// findRun finds a scenario. mu is held.
func (r *Runner) findRun(project, id string) (*run, error) {
	for _, one := range r.runs {
		if one.project.ID == project && one.ID == id {
			return one, nil
		}
	}
	return nil, &cloud.Error{Code: cloud.NotFound, Message: fmt.Sprintf("the project has no scenario %q", id)}
}

// Get gives one of a project's scenarios.
func (r *Runner) Get(project, id string) (Status, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one, err := r.findRun(project, id)
	if err != nil {
		return Status{}, err
	}
	return one.copyStatus(), nil
}

// Stop ends a scenario if it runs, and lifts its faults.
func (r *Runner) Stop(ctx context.Context, project, id string) (Status, error) {
	r.mu.Lock()
	one, err := r.findRun(project, id)
	r.mu.Unlock()
	if err != nil {
		return Status{}, err
	}
	if err := r.stopRun(ctx, one); err != nil {
		return Status{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return one.copyStatus(), nil
}

// stopAll ends all scenarios, as the state that they act on is replaced.
func (r *Runner) stopAll(ctx context.Context) error {
	r.mu.Lock()
	all := slices.Clone(r.runs)
	r.mu.Unlock()
	var errs []error
	for _, one := range all {
		errs = append(errs, r.stopRun(ctx, one))
	}
	return errors.Join(errs...)
}

func (r *Runner) stopRun(ctx context.Context, one *run) error {
	one.cancel()
	<-one.ended
	return r.liftStepFaults(ctx, one)
}

// Delete stops a scenario and forgets it.
func (r *Runner) Delete(ctx context.Context, project, id string) error {
	if _, err := r.Stop(ctx, project, id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs = slices.DeleteFunc(r.runs, func(one *run) bool { return one.project.ID == project && one.ID == id })
	return nil
}

// Close ends all scenarios. Their faults are lifted at the next start.
func (r *Runner) Close() {
	r.mu.Lock()
	r.closed = true
	all := slices.Clone(r.runs)
	r.mu.Unlock()
	for _, one := range all {
		one.cancel()
		<-one.ended
	}
}

// moment is the begin of a step or the end of its fault.
type moment struct {
	at   time.Duration
	step int
	lift bool
}

// sortedMoments gives the moments in the order of time. At one time, ends come first.
func (s Spec) sortedMoments() []moment {
	var all []moment
	for i, step := range s.Steps {
		all = append(all, moment{step.At, i, false})
		if step.For > 0 {
			all = append(all, moment{step.At + step.For, i, true})
		}
	}
	slices.SortStableFunc(all, func(a, b moment) int {
		first := func(m moment) int {
			if m.lift {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(first(a), first(b)))
	})
	return all
}

// runSteps carries out a scenario.
func (r *Runner) runSteps(ctx context.Context, one *run) {
	defer close(one.ended)
	defer one.cancel()
	for _, m := range one.spec.sortedMoments() {
		r.setNext(one, one.StartedAt.Add(m.at))
		if !r.waitUntil(ctx, one.StartedAt.Add(m.at)) {
			r.endRun(one, Stopped)
			return
		}
		if err := r.carryOut(one, m); err != nil {
			r.log.Warn("a scenario failed", "id", one.ID, "name", one.Name, "step", m.step, "err", err)
			err = r.liftStepFaults(context.WithoutCancel(ctx), one)
			if err != nil {
				r.log.Error("faults of a scenario are still in force", "id", one.ID, "err", err)
			}
			r.endRun(one, Failed)
			return
		}
	}
	r.endRun(one, Done)
}

func (r *Runner) waitUntil(ctx context.Context, until time.Time) bool {
	for {
		d := until.Sub(r.clock.Now())
		if d <= 0 {
			return ctx.Err() == nil
		}
		timer := r.clock.NewTimer(d)
		if r.clock.Now().Add(d).Sub(until) >= time.Millisecond {
			timer.Stop()
			continue // The clock was moved meanwhile: this timer would be late.
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.Chan():
			return ctx.Err() == nil
		}
	}
}

func (r *Runner) endRun(one *run, state State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one.State, one.EndedAt = state, r.now()
	r.signalMoved()
}

// carryOut does what is to be done at a moment, and records it in the step's status.
func (r *Runner) carryOut(one *run, m moment) error {
	ctx := context.Background() // A step that has begun is completed.
	if m.lift {
		return r.liftStepFault(ctx, one, m.step)
	}
	step := one.spec.Steps[m.step]
	var did string
	var id string
	var err error
	if step.Fault != nil {
		id, err = r.createStepFault(ctx, one, m.step)
		did = "made fault " + id
	} else {
		did, err = r.runAction(ctx, one, step)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &one.Steps[m.step]
	s.DoneAt, s.Result, s.Fault = r.now(), did, id
	if err != nil {
		s.Result, s.Error = "", err.Error()
	}
	return err
}

// createStepFault makes a step's fault. If the fault draws and has no seed, it gets one
// that follows from the scenario's.
func (r *Runner) createStepFault(ctx context.Context, one *run, step int) (string, error) {
	spec := *one.spec.Steps[step].Fault
	spec.Scenario = one.ID
	if spec.Seed == 0 && (spec.Probability > 0 || spec.Effect.Jitter > 0) {
		spec.Seed = 1 + one.newRand(uint64(step)+1).Int64N(1<<53-1)
	}
	f, err := r.faults.Create(ctx, one.project.ID, spec)
	return f.ID, err
}

// liftStepFault lifts a step's fault, unless someone has deleted it already.
func (r *Runner) liftStepFault(ctx context.Context, one *run, step int) error {
	r.mu.Lock()
	id := one.Steps[step].Fault
	done := id == "" || !one.Steps[step].LiftedAt.IsZero()
	r.mu.Unlock()
	if done {
		return nil
	}
	f, err := r.faults.Get(one.project.ID, id)
	if err == nil {
		err = r.faults.Delete(ctx, one.project.ID, id)
	}
	var refused *cloud.Error
	if err != nil && (!errors.As(err, &refused) || refused.Code != cloud.NotFound) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &one.Steps[step]
	s.LiftedAt = r.now()
	s.Result += fmt.Sprintf(", lifted after %d hits", f.Hits)
	return nil
}

func (r *Runner) liftStepFaults(ctx context.Context, one *run) error {
	var errs []error
	for i := range one.spec.Steps {
		errs = append(errs, r.liftStepFault(ctx, one, i))
	}
	return errors.Join(errs...)
}
