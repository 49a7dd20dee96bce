// Package conformance says whether a cloud controller manager behaves. It is the engine of the suite:
// it schedules tests, supervises the CCM and draws the verdict. A test is a value that names what is
// required and where that comes from. It sees the cloud only through a driver, which Client
// calls by the operations of package protocol, and the CCM only through what that does to the cluster and to the cloud.
//
// The package knows no kind of cluster, no cloud and no test; those are in profiles. Begin with Run
// and Test, or, to write a driver, with Operations of package protocol. README.md says how to run the suite, and
// how to point it at another CCM and another cloud.
package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ccmlab/ccmlab/fakecloud/release"
	"github.com/ccmlab/ccmlab/lab/conformance/internal/plaintext"
	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// Options of a run.
type Options struct {
	// Cluster is how the cluster is reached, with all rights. Its nodes'
	// kubelets run with --cloud-provider=external; no CCM runs in it.
	Cluster *rest.Config
	// ClusterName says in the report which kind of cluster it is.
	ClusterName string
	// Implementation is what is under test.
	Implementation Implementation
	// Workload is for tests that move traffic.
	Workload Workload

	// Tests are those to choose from.
	Tests []Test
	// Profiles are those to run; all when empty.
	Profiles []Profile
	// Focus runs only tests whose ID it matches.
	Focus *regexp.Regexp
	// RequiredOnly skips tests of capabilities that are not claimed.
	RequiredOnly bool
	// Parallel is how many of the tests that need not run alone run at once; 8 when 0.
	Parallel int
	// Queue, unless nil, is shared with other runs, each with a cluster, a cloud
	// and a CCM of its own. Its tests are run, not those of Tests.
	Queue *Queue
	// Healthy, unless nil, is an error when cluster or cloud do not work: then a
	// test that fails says nothing about the CCM, and the run ends.
	Healthy func(context.Context) error
	// Bound, unless 0, is the longest that any test may take, whatever its own
	// says.
	Bound time.Duration
	// BoundsFactor is how many times as long as it says each test may take, and cleaning up after it;
	// 1 when 0. It is for clouds that are slower than the bounds allow for.
	BoundsFactor float64
	// RunBlocked runs tests also where what they build on has failed.
	RunBlocked bool

	// PodCIDR is the range that Nodes get their pods' addresses from; "" where the
	// suite is not to give any out.
	PodCIDR string
	// Limits are those of Budget; DefaultLimits when nil.
	Limits Limits

	// Step, unless nil, is told what tests do and wait for, and what is done to the
	// CCM, as it begins; and how it ended, if that was an error.
	Step func(what string, failed bool)
	// Observer is told of every test as it begins (Result "") and ends. It is
	// called from one goroutine at a time, of all runs that share a queue. A test
	// that is handed on to another run begins again.
	Observer func(TestReport)
	// Overdue, unless nil, is told once of each wait that lasts for long. The wait goes on, and no verdict depends on
	// it. It is called from several goroutines.
	Overdue func(Wait)
}

// Implementation is a CCM with its cloud.
type Implementation struct {
	Name, Version string
	Cloud         *Client
	CCM           CCM
	// Attempts is how often the CCM's client sends a call before it gives up on
	// it; 3 when 0.
	Attempts int
	// Claims are capabilities that the CCM has: their tests are required.
	Claims []Capability
	// Unsupported are capabilities, features and whole profiles that it does not have.
	Unsupported Unsupported
}

const (
	defaultParallel = 8
	defaultAttempts = 3
)

// Run runs the tests and reports. An error means that the suite itself could
// not be run; a CCM that fails is no error. When ctx ends, the report has what
// came out until then.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := validateTests(o.Tests); err != nil {
		return nil, err
	}
	sole := o.Queue == nil
	if sole {
		o.Queue = NewQueue(Select(o.Tests, o.Profiles, o.Focus))
	}
	if o.BoundsFactor == 1 {
		o.BoundsFactor = 0 // The report is silent about it.
	}
	if o.RunBlocked {
		o.Queue.RunBlocked()
	}
	if err := validateTests(o.Queue.listed); err != nil {
		return nil, err
	}
	if o.Workload.Port == 0 {
		o.Workload.Port = 8080 // Services need one, pods or not.
	}
	cfg := rest.CopyConfig(o.Cluster)
	cfg.QPS = -1 // Many tests ask at once; the API server has its own fairness.
	kube, err := kubernetes.NewForConfig(asProtobuf(cfg))
	if err != nil {
		return nil, err
	}
	info, err := versionOf(cfg)
	if err != nil {
		return nil, fmt.Errorf("asking the cluster for its version: %w", err)
	}
	ccm := &supervisedCCM{CCM: o.Implementation.CCM, leases: &leaseReleaser{kube: kube}}
	if o.Limits == nil {
		o.Limits = DefaultLimits()
	}
	r := &run{
		Options: o, ccm: ccm, sole: sole,
		suite: &Suite{
			Kube: kube, Cloud: o.Implementation.Cloud, CCM: ccm,
			Attempts: cmp.Or(o.Implementation.Attempts, defaultAttempts),
			Workload: o.Workload, podCIDR: o.PodCIDR, limits: o.Limits, unsupported: o.Implementation.Unsupported,
			boundsFactor: o.BoundsFactor, removals: new(removals),
			APIServer: loopbackAddress(cfg.Host),
			runID:     rand.String(4), serial: new(atomic.Int64), crashes: new(atomic.Int64), faults: new(faultMark),
		},
		report: &Report{
			APIVersion: "conformance.ccmlab.io/v1alpha1", Kind: "ConformanceReport",
			Date:           time.Now().UTC().Truncate(time.Second),
			Implementation: Identity{o.Implementation.Name, o.Implementation.Version},
			Cluster:        Identity{o.ClusterName, info.GitVersion},
			Suite:          Identity{"ccmlab/conformance", release.Version()},
			Claims:         slices.Clone(o.Implementation.Claims),
			Unsupported:    maps.Clone(o.Implementation.Unsupported),
			BoundsFactor:   o.BoundsFactor,
			began:          time.Now(),
		},
	}
	slices.Sort(r.report.Claims)
	if o.Focus != nil {
		r.report.Focus = o.Focus.String()
	}
	logs, _ := o.Implementation.CCM.(Logs)
	r.recorder = record.Start(kube, r.suite.Cloud.callJournal(), logs, r.suite.runID)
	r.recorder.OnStep = o.Step
	ccm.beginStep = r.recorder.BeginStep
	watching, stopWatching := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { r.standstill.watch(watching, kube, "conformance-"+r.suite.runID) })
	err = r.runQueue(ctx)
	stopWatching()
	watch.Wait()
	r.report.Timelines = r.recorder.Close()
	if err != nil {
		r.report.Unfinished = err.Error()
	}
	return r.report, errors.Join(err, r.finishReport())
}

// loopbackAddress is the host and port of a URL, if that is on the loopback interface, else "".
func loopbackAddress(server string) string {
	u, err := url.Parse(server)
	if err != nil || !net.ParseIP(u.Hostname()).IsLoopback() {
		return ""
	}
	return u.Host
}

// asProtobuf has the API server spend half of what JSON takes: the suite shares
// the machine with what it looks at.
func asProtobuf(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.AcceptContentTypes = strings.Join([]string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON}, ",")
	cfg.ContentType = runtime.ContentTypeProtobuf
	return cfg
}

// versionBound is how long the cluster may take to say its version.
const versionBound = 10 * time.Second

func versionOf(cfg *rest.Config) (*version.Info, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = versionBound
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return client.ServerVersion()
}

// run is one run of the suite.
type run struct {
	Options
	sole          bool // nobody else runs tests of the queue
	standstill    standstill
	ccm           *supervisedCCM
	suite         *Suite
	mu            sync.Mutex
	report        *Report
	crashesInARow int // crashes of the CCM since a test last passed
	// recorder may be nil: then there are no timelines.
	recorder *record.Recorder

	abortRun  context.CancelCauseFunc // ends the run, with a reason
	leaveOnce sync.Once               // the run leaves the queue once
}

// runQueue runs the tests that the queue hands to this run. The first run of a queue begins with
// the tests that may run beside others, and runs the rest one by one.
func (r *run) runQueue(ctx context.Context) error {
	ctx, r.abortRun = context.WithCancelCause(ctx)
	defer r.abortRun(nil)
	order := r.Queue.joinRun()
	defer r.leaveQueue()
	for _, t := range r.Queue.takeAll(func(t Test) bool { return r.skipReason(t) != "" }) {
		r.reportTest(r.reportOf(t, Skipped, 0, []string{r.skipReason(t)}, nil))
	}
	if !r.Queue.awaitTests(ctx) {
		return endedEarly(ctx)
	}
	if err := r.suite.CCM.Start(ctx); err != nil {
		return fmt.Errorf("starting the CCM: %w", err)
	}
	alive, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	r.suite.eligible = newEligibleNodes(ctx, r.suite)
	stop := r.keepCCM(ctx, giveUp)
	for next, some := r.Queue.awaitWork(ctx, order); some; next, some = r.Queue.awaitWork(ctx, order) {
		r.runClass(ctx, alive, next)
	}
	err := endedEarly(ctx) // The last tests may have been cut short.
	r.suite.eligible.remove()
	stop()
	return errors.Join(err, r.suite.CCM.Stop(context.WithoutCancel(ctx)))
}

// endedEarly returns an error when ctx has ended the run.
func endedEarly(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("the run was ended early: %w", context.Cause(ctx))
}

// skipReason says why a test cannot be run; "" when it can.
func (r *run) skipReason(t Test) string {
	for _, name := range slices.Concat([]string{string(t.Profile)}, namesOf(capabilitiesOf(t)), namesOf(t.Needs)) {
		if why, declared := r.Implementation.Unsupported[name]; declared && name != "" {
			return fmt.Sprintf("%s is not supported: %s", name, why)
		}
	}
	if r.RequiredOnly && !r.isRequired(t) {
		return fmt.Sprintf("%s is not claimed, and only what is required was asked for", t.Capability)
	}
	have := r.suite.features()
	for _, f := range t.Needs {
		if r.Implementation.Unsupported.Lacks(f, have) {
			return fmt.Sprintf("it needs %s, which this cloud or cluster does not have", f)
		}
	}
	return ""
}

func (r *run) isRequired(t Test) bool {
	return t.Level == Core || !slices.ContainsFunc(capabilitiesOf(t), func(c Capability) bool {
		return !slices.Contains(r.Implementation.Claims, c)
	})
}

// capabilitiesOf lists the capabilities that a test is about. A CCM without routes explains nothing
// about them either: tests of the profile Route are about pod-routes, too.
func capabilitiesOf(t Test) []Capability {
	switch {
	case t.Capability == "":
		return nil
	case t.Profile == Routing && t.Capability != CapabilityPodRoutes:
		return []Capability{CapabilityPodRoutes, t.Capability}
	}
	return []Capability{t.Capability}
}

func namesOf[N ~string](all []N) []string {
	names := make([]string, len(all))
	for i, name := range all {
		names[i] = string(name)
	}
	return names
}

// runClass runs the waiting tests of a class, as many at once as the class allows, until none runs and none can be
// begun. If ctx ends, the remaining tests are left out. If only alive ends, the CCM was given up: they fail unless
// another run takes them.
func (r *run) runClass(ctx, alive context.Context, k schedulingClass) {
	parallel := 1
	if k == classParallel {
		parallel = cmp.Or(r.Parallel, defaultParallel)
	}
	ended := make(chan struct{}, parallel)
	for running := 0; ; {
		var changed <-chan struct{}
		for some := true; some && running < parallel && ctx.Err() == nil; {
			if alive.Err() != nil {
				r.standBack(ctx)
			}
			var t Test
			if t, some, changed = r.Queue.takeNext(k); some {
				running++
				go func() {
					defer func() { ended <- struct{}{} }()
					r.runTest(ctx, alive, t)
				}()
			}
		}
		if running == 0 {
			return
		}
		select {
		case <-ended:
			running--
		case <-changed: // What was held back may be ready now.
		}
	}
}

// standBack takes the run out of the queue, and waits for other runs to take what is left of the tests. It does
// nothing after leaveQueue.
func (r *run) standBack(ctx context.Context) {
	r.leaveOnce.Do(func() { r.Queue.standBack(ctx) })
}

func (r *run) leaveQueue() { r.leaveOnce.Do(r.Queue.leaveRun) }

func (r *run) runTest(ctx, alive context.Context, test Test) {
	if alive.Err() != nil && ctx.Err() == nil {
		r.reportTest(r.reportOf(test, Failed, 0, []string{context.Cause(alive).Error()}, nil))
		r.Queue.markReported(test.ID, false)
		return
	}
	r.reportTest(r.reportOf(test, "", 0, nil, nil))
	began := time.Now()
	trace := r.recorder.Begin(test.ID, test.Alone, began)
	reasons, notMade, notes, spent := r.lookAt(ctx, alive, test, trace, r.boundOf(test))
	took, result, blocks := time.Since(began), Passed, false
	if len(reasons) == 0 && len(notMade) > 0 { // Neither has the CCM passed, nor is it to blame.
		result, reasons = Blocked, notMade
	} else if len(reasons) > 0 {
		result, notes = Failed, append(notes, notMade...)
		for _, line := range r.suite.CCM.Log(logLines) {
			notes = append(notes, "ccm: "+line)
		}
		if alive.Err() == nil && r.Queue.isFoundation(test.ID) {
			var note string
			blocks, note = r.lookAgain(ctx, alive, test, trace)
			notes = slices.Insert(notes, 0, note)
		}
	}
	trace.End(result == Failed)
	if ctx.Err() != nil { // It is not the CCM's failure.
		r.Queue.giveBack(test)
		return
	}
	r.addBudget(spent)
	r.reportTest(r.reportOf(test, result, took, reasons, notes))
	for _, t := range r.Queue.markReported(test.ID, blocks) {
		r.reportBlocked(t, test.ID)
	}
}

// lookAt runs a test within bound. notMade says which of its faults met nothing. If the test fails and cluster or cloud
// do not work, it aborts the run.
func (r *run) lookAt(
	ctx, alive context.Context,
	test Test,
	trace *record.Trace,
	bound time.Duration,
) (reasons, notMade, notes []string, spent []Spent) {
	limited, cancel := context.WithTimeoutCause(alive, bound, fmt.Errorf("gave up after %s", bound))
	defer cancel()
	t := r.suite.newT(limited, test, trace)
	t.overdue = r.Overdue
	reasons, notes, spent = t.runTest()
	if len(reasons) > 0 {
		r.checkHealth(ctx)
	} else if len(t.injections) == 0 && ctx.Err() == nil {
		r.suite.faults.clear()
	}
	return reasons, t.faultsNotMade(), notes, spent
}

const (
	// secondLookShare divides the bound of a test that is retried.
	secondLookShare = 4
	// minSecondLook is the least time for a retry: a test that passes needs less, even on a machine that stands
	// still for a while.
	minSecondLook = 20 * time.Second
)

// lookAgain retries a failed test on which others build: if the machine stood still during that test, that is to
// block no others. It returns whether the others are blocked, and a note that says why. The test's own result
// stays.
func (r *run) lookAgain(ctx, alive context.Context, test Test, trace *record.Trace) (blocks bool, note string) {
	trace.Step("other tests build on this one: it is tried once more")
	whole := r.boundOf(test)
	bound := min(whole, max(whole/secondLookShare, r.scaleBound(minSecondLook)))
	reasons, _, _, _ := r.lookAt(ctx, alive, test, trace, bound)
	switch {
	case len(reasons) == 0:
		return false, fmt.Sprintf(
			"tried once more, for %s at most, and passed: what builds on it is run; that it failed stands", bound,
		)
	case alive.Err() != nil: // The CCM was given up meanwhile, which says why all that is left fails.
		return false, "tried once more: " + context.Cause(alive).Error()
	}
	return true, fmt.Sprintf(
		"tried once more, for %s at most, and failed: what builds on it is blocked. It %s", bound,
		strings.Join(reasons, "; "),
	)
}

// boundOf is how long a test may take in this run.
func (r *run) boundOf(test Test) time.Duration {
	bound := r.scaleBound(cmp.Or(test.Bound, DefaultBound))
	if r.Bound != 0 {
		bound = min(bound, r.Bound)
	}
	return bound
}

func (r *run) scaleBound(bound time.Duration) time.Duration { return r.suite.ScaleBound(bound) }

// healthBound is how long cluster and cloud may take to answer on a busy machine.
const healthBound = 20 * time.Second

// checkHealth aborts the run if cluster or cloud do not work.
func (r *run) checkHealth(ctx context.Context) {
	if r.Healthy == nil {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, healthBound)
	defer cancel()
	if err := pollUntil(bounded, r.Healthy); err != nil && ctx.Err() == nil {
		r.abortRun(fmt.Errorf("cluster or cloud do not work: %w", err))
	}
}

// logLines is how much of the CCM's log goes with a failed test.
const logLines = 25

// addBudget adds the calls that a test has counted to the report.
func (r *run) addBudget(rows []Spent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Budget = append(r.report.Budget, rows...)
}

func (r *run) reportOf(t Test, result Result, took time.Duration, reasons, notes []string) TestReport {
	return TestReport{
		ID: t.ID, Profile: t.Profile, Level: t.Level, Capability: t.Capability, Required: r.isRequired(t),
		Requires: t.Requires, Source: t.Source, Result: result, Seconds: roundedSeconds(took),
		Reasons: plaintext.Lines(reasons), Notes: plaintext.Lines(notes),
	}
}

// reportBlocked reports a test that is not run, since what it builds on has failed.
func (r *run) reportBlocked(t Test, by string) {
	report := r.reportOf(t, Blocked, 0, []string{fmt.Sprintf("it builds on %s, which has failed", by)}, nil)
	report.BlockedBy = by
	r.reportTest(report)
}

func roundedSeconds(d time.Duration) float64 { return d.Round(time.Millisecond * 10).Seconds() }

func (r *run) reportTest(t TestReport) {
	r.Queue.observerMu.Lock()
	defer r.Queue.observerMu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.Result != "" {
		r.report.Tests = append(r.report.Tests, t)
	}
	if t.Result == Passed {
		r.crashesInARow = 0
	}
	if r.Observer != nil {
		r.Observer(t)
	}
}

// maxCrashes is how often in a row, without a test that passes in between, the
// CCM is started again after it ended by itself.
const maxCrashes = 5

// keepCCM starts the CCM again when it ends by itself, as a Deployment would,
// and records that. It gives up on one that does little else.
// What breaks a cluster or a cloud ends a CCM, too, and is not the CCM's failure.
func (r *run) keepCCM(run context.Context, giveUp context.CancelCauseFunc) (stop func()) {
	ctx, cancel := context.WithCancel(run)
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-ctx.Done():
				select {
				case <-r.suite.CCM.Crashed():
					if run.Err() == nil {
						r.recordExit()
					}
				default:
				}
				return
			case <-r.suite.CCM.Crashed():
			}
			if r.checkHealth(run); run.Err() != nil {
				return
			}
			if err := r.restartAfterExit(ctx, r.recordExit()); err != nil {
				giveUp(err)
				return
			}
		}
	})
	return func() { cancel(); watching.Wait() }
}

// recordExit records that the CCM has ended by itself, and tells how often it has in a row. That is
// a crash unless a fault was injected, or the machine stood still for so long that its Lease was lost.
func (r *run) recordExit() (inARow int) {
	lines := plaintext.Lines(r.suite.CCM.Log(logLines))
	n, excused := r.suite.faults.excuseExit()
	if excused || r.standstill.explains(strings.Join(lines, "\n"), time.Now()) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.report.ExitsUnderFault++
		return min(n, maxCrashes-1) // A cloud that fails for long is no reason to give it up.
	}
	r.suite.crashes.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Crashes = append(r.report.Crashes, strings.Join(lines, "\n"))
	r.crashesInARow++
	return r.crashesInARow
}

// restartAfterExit starts the CCM after its nth exit in a row, later each time: what
// brought it down may pass.
func (r *run) restartAfterExit(ctx context.Context, n int) error {
	if n >= maxCrashes {
		return fmt.Errorf(
			"the CCM is not started any more: it ended by itself %d times without a test that passed in between", n,
		)
	}
	if n > 1 {
		select {
		case <-time.After(time.Second << (n - 2)):
		case <-ctx.Done():
			return nil
		}
	}
	if err := r.ccm.restartIfWanted(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("the CCM ended by itself, and starting it again failed: %w", err)
	}
	return nil
}

// finishReport sorts the results in the order of the tests' list, and summarizes them.
func (r *run) finishReport() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	missing, err := r.Queue.sortResults(r.report.Tests)
	if r.sole && len(missing) > 0 && r.report.Unfinished == "" {
		r.report.Unfinished = "not run: " + strings.Join(missing, ", ")
	}
	slices.SortStableFunc(r.report.Budget, func(a, b Spent) int { return cmp.Compare(a.Nodes, b.Nodes) })
	r.report.Seconds = roundedSeconds(time.Since(r.report.began))
	r.report.Summarize()
	return err
}

// pollUntil tries until there is no error, or ctx ends. Then it returns the last error.
func pollUntil(ctx context.Context, try func(context.Context) error) error {
	var last error
	_ = wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
		last = try(ctx)
		return last == nil, nil
	})
	return last
}
