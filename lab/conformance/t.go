package conformance

// What a test is given. T satisfies testify's interfaces, so that assert and require work on it.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// T is one run of one test.
type T struct {
	*Suite
	test Test
	ctx  context.Context

	mu       sync.Mutex
	failures []string
	notes    []string
	spent    []Spent
	cleanups []func(context.Context) error
	// injections are the ways in which the test has made the cloud misbehave.
	injections []*tracedInjection
	ns         string        // once there is one
	overdue    func(Wait)    // may be nil
	trace      *record.Trace // what goes into its timeline; may be nil
}

// Suite is what all tests of a run share.
type Suite struct {
	// Kube is a client with all rights.
	Kube kubernetes.Interface
	// Cloud and CCM are those under test.
	Cloud *Client
	CCM   CCM
	// Attempts is how often the CCM's client sends a call before it gives up on
	// it.
	Attempts int
	// APIServer is the host and port of the cluster's API server, if the cluster has
	// FeatureLocalAPIServer.
	APIServer string
	// Workload is what runs in pods that balancers lead to.
	Workload Workload

	podCIDR      string
	limits       Limits
	boundsFactor float64 // 1 when 0
	removals     *removals
	unsupported  Unsupported
	eligible     *eligibleNodes // may be nil: then no test gets any
	faults       *faultMark

	runID   string // sets this run's names apart from another's
	serial  *atomic.Int64
	crashes *atomic.Int64
}

// ScaleBound returns a bound as it is in this run, in which all may be so many times as long.
func (s *Suite) ScaleBound(bound time.Duration) time.Duration {
	return time.Duration(float64(bound) * cmp.Or(s.boundsFactor, 1))
}

// newT returns a run of a test. What the test does to the cloud is recorded in trace.
func (s *Suite) newT(ctx context.Context, test Test, trace *record.Trace) *T {
	t := &T{test: test, ctx: ctx, trace: trace}
	mine := *s
	mine.Cloud = s.Cloud.forTest(trace, func(i *tracedInjection) {
		t.injections = append(t.injections, i)
		t.faults.mark()
	})
	t.Suite = &mine
	return t
}

// Crashes is how often the CCM has ended by itself so far, in the whole run, without a fault that
// could excuse it.
func (s *Suite) Crashes() int { return int(s.crashes.Load()) }

// Exits is how often it has ended by itself so far, whatever the reason.
func (s *Suite) Exits() int { return s.Crashes() + s.faults.excusedExits() }

// Workload is an image whose containers answer HTTP.
type Workload struct {
	Image string
	// Port is where a container listens. The answer to GET Path has the pod's
	// name in it, and where the request accepts JSON, the client's address and port. A datagram
	// to the same port is answered with the pod's name, too.
	Port int32
	Path string
}

// Context ends when the test's bound has passed, or the run is interrupted.
func (t *T) Context() context.Context { return t.ctx }

// Errorf fails the test, which goes on.
func (t *T) Errorf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	why := strings.TrimSpace(fmt.Sprintf(format, args...))
	t.failures = append(t.failures, why)
	t.trace.Failure(why)
}

// FailNow ends the test. It is to be called from the test's own goroutine.
func (t *T) FailNow() { runtime.Goexit() }

// Fatalf fails the test and ends it.
func (t *T) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	t.FailNow()
}

// Logf keeps a line that is shown if the test fails.
func (t *T) Logf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	note := fmt.Sprintf(format, args...)
	t.notes = append(t.notes, note)
	t.trace.Step("%s", note)
}

// Cleanup runs undo after the test, last registered first, whatever became of
// it.
func (t *T) Cleanup(undo func(context.Context) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, undo)
}

// Must ends the test if err is one. what says what was being done.
func (t *T) Must(err error, what string, args ...any) {
	if err != nil {
		t.Fatalf("%s: %v", fmt.Sprintf(what, args...), err)
	}
}

// Name is a name that nothing else has, not even in another run: a DNS label of
// at most 40 characters.
func (t *T) Name(hint string) string {
	serial := t.serial.Add(1)
	t.trace.OwnSerial(serial)
	return fmt.Sprintf("%s-%s-%d", strings.TrimRight(hint[:min(len(hint), 24)], "-"), t.runID, serial)
}

const pollEvery = 100 * time.Millisecond

// Await calls try until it returns no error, and ends the test if its bound comes first.
func (t *T) Await(what string, try func(context.Context) error) {
	t.HoldsUntil("", nil, what, try)
}

// HoldsUntil fails the test as soon as holds returns an error, and returns when enough returns none: what must not
// happen is watched until the CCM has had its chance, and no longer. The last call is of holds, so that it sees
// what happened while enough was called.
func (t *T) HoldsUntil(
	what string,
	holds func(context.Context) error,
	until string,
	enough func(context.Context) error,
) {
	waited := t.trace.Begin(waitDescription(what, until))
	defer func() { waited(t.ctx.Err(), "") }()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	began, told := time.Now(), false
	last := errors.New("it was not looked at")
	still := func() error {
		if holds == nil {
			return nil
		}
		err := holds(t.ctx)
		if err != nil && t.ctx.Err() == nil && !isServerUnavailable(err) {
			t.Fatalf("%s: %v", what, err)
		}
		return err
	}
	for {
		err := still()
		if err == nil {
			if err = enough(t.ctx); err == nil {
				err = still()
			}
		}
		if err == nil {
			return
		}
		if t.ctx.Err() == nil { // The end itself stood in no way.
			last = err
		}
		if took := time.Since(began); took >= overdueAfter && !told && t.overdue != nil && t.ctx.Err() == nil {
			told = true
			t.overdue(Wait{Test: t.test, For: until, Took: took, Last: last})
		}
		select {
		case <-tick.C:
		case <-t.ctx.Done():
			t.Fatalf("waited for %s; %v; last: %v", until, context.Cause(t.ctx), last)
		}
	}
}

// Wait is a wait that goes on.
type Wait struct {
	Test Test
	// For is what the test waits for, and Last what is there instead.
	For  string
	Last error
	Took time.Duration
}

// overdueAfter is how long a wait must last to be told while it goes on: most of a correct CCM's waits are shorter.
const overdueAfter = 7 * time.Second

func waitDescription(what, until string) string {
	if what == "" {
		return "waiting for " + until
	}
	return fmt.Sprintf("watching %s, until %s", what, until)
}

// isServerUnavailable tells whether err says no more than that an API server, on a busy
// machine, could not be asked.
func isServerUnavailable(err error) bool {
	var network net.Error
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsInternalError(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || errors.As(err, &network)
}

// AllowUnmet lets the test pass even if no call meets the injection: a correct CCM may need none of the calls that it
// changes.
func (t *T) AllowUnmet(i Injection) {
	if traced, ok := i.(*tracedInjection); ok {
		traced.evidence = ""
	}
}

// NotMade ends the test, which proves nothing: what it was to do to the CCM did not take place. It is no failure.
func (t *T) NotMade(format string, args ...any) {
	t.injections = append(t.injections, &tracedInjection{notMade: notMade(fmt.Errorf(format, args...))})
	t.FailNow()
}

// faultsNotMade says of each injection that has met nothing that it proves nothing. It is to be called after runTest.
func (t *T) faultsNotMade() (reasons []string) {
	for _, i := range t.injections {
		if i.notMade != nil {
			reasons = append(reasons, i.notMade.Error())
		}
	}
	return reasons
}

// runTest runs the test, then undoes what it did.
func (t *T) runTest() (failures, notes []string, spent []Spent) {
	t.runGuarded(t.ctx, "the test", func() {
		if needsEligibleNodes(t.test) {
			if err := t.eligible.ensure(t.ctx); err != nil {
				t.Logf("Nodes that may be targets: %v", err)
			}
		}
		t.test.Run(t)
	})
	t.trace.Step("the test has ended; what it made is undone")
	t.runCleanups()
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.failures), slices.Clone(t.notes), slices.Clone(t.spent)
}

// stuckGrace is how much longer than its time something may take to end.
const stuckGrace = 15 * time.Second

// runGuarded calls run in a goroutine of its own, which may exit or panic. If that does not end soon after ctx
// has, it is left behind.
func (t *T) runGuarded(ctx context.Context, what string, run func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				stack := make([]byte, 4<<10)
				t.Errorf("%s panicked: %v\n%s", what, p, stack[:runtime.Stack(stack, false)])
			}
		}()
		run()
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-time.After(stuckGrace):
		t.Errorf("%s does not end, though its time is over (%v)", what, context.Cause(ctx))
	}
}

// defaultCleanupBound is how long one step of cleaning up may take. A CCM that fails
// its test may never do what a step waits for.
const defaultCleanupBound = 30 * time.Second

// cleanupBound is defaultCleanupBound, as scaled in this run.
func (s *Suite) cleanupBound() time.Duration { return s.ScaleBound(defaultCleanupBound) }

// removals counts the tests' Services that the CCM has taken away in time, and the others. No verdict depends on
// it.
type removals struct{ seen, missed atomic.Int64 }

// impatience divides the time to wait for what has never come in this run.
const impatience = 5

// patience returns how long to wait for the CCM to remove something: whole, or less if every such wait of
// this run has timed out.
func (r *removals) patience(whole time.Duration) time.Duration {
	if r.seen.Load() == 0 && r.missed.Load() > 0 {
		return whole / impatience
	}
	return whole
}

func (r *removals) add(seen bool) {
	if seen {
		r.seen.Add(1)
	} else {
		r.missed.Add(1)
	}
}

func (t *T) runCleanups() {
	for {
		t.mu.Lock()
		n := len(t.cleanups)
		if n == 0 {
			t.mu.Unlock()
			return
		}
		undo := t.cleanups[n-1]
		t.cleanups = t.cleanups[:n-1]
		t.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), t.cleanupBound())
		t.runGuarded(ctx, "cleaning up", func() {
			if err := undo(ctx); err != nil {
				t.Errorf("cleaning up: %v", err)
			}
		})
		cancel()
	}
}
