package conformance

// The CCM in the tests' hands, and further replicas of it.

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// supervisedCCM is the CCM in the tests' hands. It knows whether the CCM should run: after a crash,
// one that a test has stopped meanwhile is not started again.
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

func (k *supervisedCCM) Start(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.shouldRun && !slices.ContainsFunc(k.replicas, Replica.Running) {
		k.leases.releaseStale(ctx)
	}
	k.shouldRun = true
	return k.recordStep("starting the CCM", func() error { return k.CCM.Start(ctx) })
}

func (k *supervisedCCM) Stop(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shouldRun, k.wasFrozen = false, false
	return k.recordStep("stopping the CCM", func() error { return k.CCM.Stop(ctx) })
}

func (k *supervisedCCM) recordStep(what string, do func() error) error {
	if k.beginStep == nil {
		return do()
	}
	ended := k.beginStep(what)
	err := do()
	ended(err)
	return err
}

func (k *supervisedCCM) restartIfWanted(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.shouldRun {
		return nil
	}
	return k.recordStep("starting the CCM again: it ended by itself", func() error { return k.CCM.Start(ctx) })
}

// findReplica returns one of the CCM's replicas.
func (k *supervisedCCM) findReplica(number int) (Replica, error) {
	all, ok := k.CCM.(Replicated)
	if !ok {
		return nil, errors.New("of this CCM only one can run")
	}
	return all.Replica(number)
}

// Running implements Replica.
func (k *supervisedCCM) Running() bool {
	r, err := k.findReplica(0)
	return err == nil && r.Running()
}

// Kill implements Replica. Like one that was stopped, it is not to run.
func (k *supervisedCCM) Kill(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, err := k.findReplica(0)
	if err != nil {
		return err
	}
	k.shouldRun, k.wasFrozen = false, false
	return k.recordStep("killing the CCM", func() error { return r.Kill(ctx) })
}

// Freeze implements Replica.
func (k *supervisedCCM) Freeze() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, err := k.findReplica(0)
	if err != nil {
		return err
	}
	k.wasFrozen = true
	return k.recordStep("freezing the CCM", r.Freeze)
}

// Thaw implements Replica.
func (k *supervisedCCM) Thaw() error {
	r, err := k.findReplica(0)
	if err != nil {
		return err
	}
	return k.recordStep("thawing the CCM", r.Thaw)
}

// restoreRunning starts the CCM unless it runs. One that was frozen is restarted, because it may be
// about to end.
func (k *supervisedCCM) restoreRunning(ctx context.Context) error {
	k.mu.Lock()
	frozen := k.wasFrozen
	k.mu.Unlock()
	if frozen {
		if err := k.Stop(ctx); err != nil {
			return err
		}
	}
	return k.Start(ctx)
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
func (m *faultMark) mark() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.present = true
}

// clear is called when the CCM works without a fault.
func (m *faultMark) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.present, m.inARow = false, 0
}

// excuseExit counts an exit if it is excused, and tells how many there were in a row.
func (m *faultMark) excuseExit() (inARow int, excused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.present {
		return 0, false
	}
	m.excused++
	m.inARow++
	return m.inARow, true
}

func (m *faultMark) excusedExits() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.excused
}

// RestartCCM stops the CCM and starts it with further flags, which it has until it is restarted with
// others, or the test ends.
func (t *T) RestartCCM(flags ...string) {
	k, ok := t.CCM.(*supervisedCCM)
	if !ok {
		t.Fatalf("the CCM is not the suite's")
	}
	ccm, ok := k.CCM.(FlagTaker)
	if !ok {
		t.Fatalf("this CCM takes no further flags")
	}
	t.Cleanup(func(ctx context.Context) error {
		err := k.Stop(ctx)
		ccm.SetExtraFlags()
		return errors.Join(err, k.Start(ctx))
	})
	t.Must(k.Stop(t.Context()), "stopping the CCM")
	ccm.SetExtraFlags(flags...)
	t.Must(k.Start(t.Context()), "starting the CCM with %v", flags)
}

// Replica is one of the CCMs, by its number. Number 0 is the CCM, which runs, and
// does so again after the test; the others are there to be started, and stopped
// after the test. One of these that crashes fails the test.
func (t *T) Replica(number int) Replica {
	k, ok := t.CCM.(*supervisedCCM)
	if !ok {
		t.Fatalf("the CCM is not the suite's")
	}
	if number == 0 {
		t.Cleanup(k.restoreRunning)
		return k
	}
	r, err := k.findReplica(number)
	t.Must(err, "replica %d of the CCM", number)
	for drained := false; !drained; { // What an earlier test left is not this one's.
		select {
		case <-r.Crashed():
		default:
			drained = true
		}
	}
	k.mu.Lock()
	if !slices.Contains(k.replicas, r) {
		k.replicas = append(k.replicas, r)
	}
	k.mu.Unlock()
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
	k, ok := t.CCM.(*supervisedCCM)
	if !ok {
		t.Fatalf("the CCM is not the suite's")
	}
	renamer, ok := k.CCM.(ClusterRenamer)
	if !ok {
		t.Fatalf("this CCM cannot be told another name of its cluster, and the test does not need the feature")
	}
	t.Cleanup(func(ctx context.Context) error {
		err := k.Stop(ctx)
		renamer.RenameCluster("")
		return errors.Join(err, k.Start(ctx))
	})
	renamer.RenameCluster(name)
	t.trace.Step("renamed the cluster to %s", name)
}

func (t *T) hasFailed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.failures) > 0
}
