package conformance

// The CCM that the tests start, stop and kill, and further replicas of it.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// supervisedCCM is the CCM as tests have it. It knows whether the CCM should run: after a crash, one that a test
// has stopped meanwhile is not started again.
type supervisedCCM struct {
	CCM
	// beginStep, unless nil, is called with what is done to the CCM, and returns a function to
	// call with how that ended.
	beginStep func(what string) func(error)
	mu        sync.Mutex
	shouldRun bool
	wasFrozen bool // ever, since it was last stopped
	replicas  []Replica
	leases    *leaseReleaser
}

var _ Replica = (*supervisedCCM)(nil)

func (s *supervisedCCM) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.shouldRun && !slices.ContainsFunc(s.replicas, Replica.Running) {
		s.leases.releaseStale(ctx)
	}
	s.shouldRun = true
	return s.recordStep("starting the CCM", func() error { return s.CCM.Start(ctx) })
}

func (s *supervisedCCM) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shouldRun, s.wasFrozen = false, false
	return s.recordStep("stopping the CCM", func() error { return s.CCM.Stop(ctx) })
}

func (s *supervisedCCM) recordStep(what string, do func() error) error {
	if s.beginStep == nil {
		return do()
	}
	ended := s.beginStep(what)
	err := do()
	ended(err)
	return err
}

func (s *supervisedCCM) restartIfWanted(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.shouldRun {
		return nil
	}
	return s.recordStep("starting the CCM again: it ended by itself", func() error { return s.CCM.Start(ctx) })
}

// findReplica returns one of the CCM's replicas.
func (s *supervisedCCM) findReplica(number int) (Replica, error) {
	all, ok := s.CCM.(Replicated)
	if !ok {
		return nil, errors.New("of this CCM only one can run")
	}
	return all.Replica(number)
}

// Running implements Replica.
func (s *supervisedCCM) Running() bool {
	r, err := s.findReplica(0)
	return err == nil && r.Running()
}

// Kill implements Replica. Like one that was stopped, it is not to run.
func (s *supervisedCCM) Kill(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.findReplica(0)
	if err != nil {
		return err
	}
	s.shouldRun, s.wasFrozen = false, false
	return s.recordStep("killing the CCM", func() error { return r.Kill(ctx) })
}

// Freeze implements Replica.
func (s *supervisedCCM) Freeze() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.findReplica(0)
	if err != nil {
		return err
	}
	s.wasFrozen = true
	return s.recordStep("freezing the CCM", r.Freeze)
}

// Thaw implements Replica.
func (s *supervisedCCM) Thaw() error {
	r, err := s.findReplica(0)
	if err != nil {
		return err
	}
	return s.recordStep("thawing the CCM", r.Thaw)
}

// restoreRunning starts the CCM unless it runs. One that was frozen is restarted, because it may be
// about to end.
func (s *supervisedCCM) restoreRunning(ctx context.Context) error {
	s.mu.Lock()
	frozen := s.wasFrozen
	s.mu.Unlock()
	if frozen {
		if err := s.Stop(ctx); err != nil {
			return err
		}
	}
	return s.Start(ctx)
}

// restart stops the CCM, changes how it is started, and starts it.
func (s *supervisedCCM) restart(ctx context.Context, change func()) error {
	err := s.Stop(ctx)
	change()
	return errors.Join(err, s.Start(ctx))
}

// faultMark tells whether the end of the CCM by itself is excused: exiting on a bad start is
// upstream's idiom (k8s.io/cloud-provider app/controllermanager.go: klog.Fatalf,
// klog.FlushAndExit), and so a program may end, and be started again by its Deployment, for as long
// as the suite makes the cloud misbehave, and until it has worked again afterwards: until a test
// has passed that injects no fault.
type faultMark struct {
	mu      sync.Mutex
	present bool
	inARow  int // exits since it was marked
	excused int // exits in the whole run
}

// mark is called before a fault is injected.
func (f *faultMark) mark() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.present = true
}

// clear is called when the CCM works without a fault.
func (f *faultMark) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.present, f.inARow = false, 0
}

// excuseExit counts an exit if it is excused, and tells how many there were in a row.
func (f *faultMark) excuseExit() (inARow int, excused bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.present {
		return 0, false
	}
	f.excused++
	f.inARow++
	return f.inARow, true
}

func (f *faultMark) excusedExits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.excused
}

// supervisedCCM is the CCM as Run has given it to the test.
func (t *T) supervisedCCM() *supervisedCCM {
	supervised, ok := t.CCM.(*supervisedCCM)
	if !ok {
		t.Fatalf("the CCM is not the suite's")
	}
	return supervised
}

// HealthAddress is where the CCM is told to serve health and metrics.
func (t *T) HealthAddress() string {
	server, ok := t.supervisedCCM().CCM.(HealthServer)
	if !ok {
		t.Fatalf("this CCM is not told where to serve")
	}
	return server.HealthAddress()
}

// RestartCCM stops the CCM and starts it with further flags, which it has until it is restarted with
// others, or the test ends.
func (t *T) RestartCCM(flags ...string) {
	s := t.supervisedCCM()
	ccm, ok := s.CCM.(FlagTaker)
	if !ok {
		t.Fatalf("this CCM takes no further flags")
	}
	t.Cleanup(func(ctx context.Context) error { return s.restart(ctx, func() { ccm.SetExtraFlags() }) })
	t.Must(s.Stop(t.Context()), "stopping the CCM")
	ccm.SetExtraFlags(flags...)
	t.Must(s.Start(t.Context()), "starting the CCM with %v", flags)
}

// ShutGate shuts a way that the CCM takes, until that is lifted, at the end of the test at the latest. That the
// CCM ends meanwhile is no crash.
func (t *T) ShutGate(way string, gate interface{ Refuse() (Injection, error) }) Injection {
	shut, err := t.Cloud.hold("shutting "+way, "opening "+way, "shut "+way, gate.Refuse)
	t.Must(err, "shutting %s", way)
	t.Cleanup(shut.Lift)
	return shut
}

// Replica is one of the CCMs, by its number. Number 0 is the CCM, which runs, and
// does so again after the test; the others are there to be started, and stopped
// after the test. One of these that crashes fails the test.
func (t *T) Replica(number int) Replica {
	s := t.supervisedCCM()
	if number == 0 {
		t.Cleanup(s.restoreRunning)
		return s
	}
	r, err := s.findReplica(number)
	t.Must(err, "replica %d of the CCM", number)
	for drained := false; !drained; { // What an earlier test left is not this one's.
		select {
		case <-r.Crashed():
		default:
			drained = true
		}
	}
	s.mu.Lock()
	if !slices.Contains(s.replicas, r) {
		s.replicas = append(s.replicas, r)
	}
	s.mu.Unlock()
	t.Cleanup(func(ctx context.Context) error {
		select {
		case <-r.Crashed():
			t.Errorf("replica %d of the CCM ended by itself", number)
		default:
		}
		if t.hasFailed() {
			for _, line := range r.Log(logLines) {
				t.Logf("ccm %d: %s", number, line)
			}
		}
		return r.Stop(ctx)
	})
	return tracingReplica{r, t.trace, number}
}

// RenameCluster has the CCM, which must not run, call its cluster by another name. After the test
// it is started again, and calls the cluster as before.
func (t *T) RenameCluster(name string) {
	s := t.supervisedCCM()
	renamer, ok := s.CCM.(ClusterRenamer)
	if !ok {
		t.Fatalf("this CCM cannot be told another name of its cluster, and the test does not need the feature")
	}
	t.Cleanup(func(ctx context.Context) error { return s.restart(ctx, func() { renamer.RenameCluster("") }) })
	renamer.RenameCluster(name)
	t.trace.Step("renamed the cluster to %s", name)
}

func (t *T) hasFailed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.failures) > 0
}

// traceAction calls do, and records that in the timeline as what.
func traceAction(trace *record.Trace, what string, do func() error) error {
	ended := trace.Begin(what)
	err := do()
	ended(err, "")
	return err
}

// tracingReplica is a further replica of the CCM. It records in the test's timeline what the test does to it.
type tracingReplica struct {
	Replica
	trace  *record.Trace
	number int
}

func (t tracingReplica) traceAction(what string, do func() error) error {
	return traceAction(t.trace, fmt.Sprintf("%s replica %d of the CCM", what, t.number), do)
}

func (t tracingReplica) Start(ctx context.Context) error {
	return t.traceAction("starting", func() error { return t.Replica.Start(ctx) })
}

func (t tracingReplica) Stop(ctx context.Context) error {
	return t.traceAction("stopping", func() error { return t.Replica.Stop(ctx) })
}

func (t tracingReplica) Kill(ctx context.Context) error {
	return t.traceAction("killing", func() error { return t.Replica.Kill(ctx) })
}

func (t tracingReplica) Freeze() error { return t.traceAction("freezing", t.Replica.Freeze) }

func (t tracingReplica) Thaw() error { return t.traceAction("thawing", t.Replica.Thaw) }

// leaseReleaser releases the Leases of a CCM that has ended. Upstream's framework does not, so the next CCM
// would wait for their end at each of the suite's many restarts. They are the Leases whose holder has changed
// since the CCM was started, and is named as upstream names it, after the machine. The Leases of others have
// the holder that they had before.
type leaseReleaser struct {
	kube          kubernetes.Interface
	holdersBefore map[string]string // holders at the last start
}

// releaseStale releases the Leases. It is to be called when no CCM of the suite runs. When it fails, the
// next CCM waits for the Lease to expire.
func (l *leaseReleaser) releaseStale(ctx context.Context) {
	if l == nil {
		return
	}
	host, err := os.Hostname()
	if err != nil {
		return
	}
	list, err := l.kube.CoordinationV1().Leases(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	first, now := l.holdersBefore == nil, map[string]string{}
	for _, lease := range list.Items {
		if lease.Namespace == corev1.NamespaceNodeLease || lease.Spec.HolderIdentity == nil {
			continue
		}
		key, holder := lease.Namespace+"/"+lease.Name, *lease.Spec.HolderIdentity
		now[key] = holder
		if first || l.holdersBefore[key] == holder || !strings.HasPrefix(holder, host+"_") {
			continue
		}
		// As client-go's own release does.
		nobody, shortly, at := "", int32(1), metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &nobody, &shortly, &at
		if _, err := l.kube.CoordinationV1().Leases(lease.Namespace).
			Update(ctx, &lease, metav1.UpdateOptions{}); err == nil {
			now[key] = ""
		}
	}
	l.holdersBefore = now
}
