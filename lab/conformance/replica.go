package conformance

// Several CCMs beside each other, of which one is to act: what tests do to each.

import (
	"context"
	"errors"
	"slices"
)

// Replica is one of the CCMs, by its number. Number 0 is the CCM, which runs, and
// does so again after the test; the others are there to be started, and stopped
// after the test. One of these that crashes fails the test.
func (t *T) Replica(number int) Replica {
	k, ok := t.CCM.(*kept)
	if !ok {
		t.Fatalf("the CCM is not the suite's")
	}
	if number == 0 {
		t.Cleanup(k.asBefore)
		return k
	}
	r, err := k.replica(number)
	t.Must(err, "replica %d of the CCM", number)
	for drained := false; !drained; { // What an earlier test left is not this one's.
		select {
		case <-r.Crashed():
		default:
			drained = true
		}
	}
	k.mu.Lock()
	if !slices.Contains(k.others, r) {
		k.others = append(k.others, r)
	}
	k.mu.Unlock()
	t.Cleanup(func(ctx context.Context) error {
		select {
		case <-r.Crashed():
			t.Errorf("replica %d of the CCM ended by itself", number)
		default:
		}
		if t.failed() {
			for _, line := range r.Log(logLines) {
				t.Logf("ccm %d: %s", number, line)
			}
		}
		return r.Stop(ctx)
	})
	return tracingReplica{r, t.trace, number}
}

func (t *T) failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.failures) > 0
}

var _ Replica = (*kept)(nil)

// replica is one of the same CCMs.
func (k *kept) replica(number int) (Replica, error) {
	all, ok := k.CCM.(Replicated)
	if !ok {
		return nil, errors.New("of this CCM only one can run")
	}
	return all.Replica(number)
}

// Running implements Replica.
func (k *kept) Running() bool {
	r, err := k.replica(0)
	return err == nil && r.Running()
}

// Kill implements Replica. Like one that was stopped, it is not to run.
func (k *kept) Kill(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, err := k.replica(0)
	if err != nil {
		return err
	}
	k.wanted, k.frozen = false, false
	return k.note("killing the CCM", func() error { return r.Kill(ctx) })
}

// Freeze implements Replica.
func (k *kept) Freeze() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, err := k.replica(0)
	if err != nil {
		return err
	}
	k.frozen = true
	return k.note("freezing the CCM", r.Freeze)
}

// Thaw implements Replica.
func (k *kept) Thaw() error {
	r, err := k.replica(0)
	if err != nil {
		return err
	}
	return k.note("thawing the CCM", r.Thaw)
}

// asBefore has it run, and not one that was frozen: it may be about to end.
func (k *kept) asBefore(ctx context.Context) error {
	k.mu.Lock()
	frozen := k.frozen
	k.mu.Unlock()
	if frozen {
		if err := k.Stop(ctx); err != nil {
			return err
		}
	}
	return k.Start(ctx)
}
