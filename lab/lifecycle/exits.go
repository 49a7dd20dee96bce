package lifecycle

// A component that exits while a step waits for its work ends the step at once, with the
// end of its log, rather than when the step reaches its bound.

import (
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/agent"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// exitCheckInterval is how often the components are checked.
const exitCheckInterval = 500 * time.Millisecond

// runUntilExit runs a step, and ends it when the agent or one of the control plane's
// processes exits.
func (u *upRun) runUntilExit(
	ctx context.Context,
	note func(string),
	do func(context.Context, func(string)) (string, error),
) (string, error) {
	if u.kube == nil { // The step that starts the control plane watches it itself.
		return do(ctx, note)
	}
	ctx, cancel := context.WithCancel(ctx)
	exited := make(chan error, 1)
	go func() {
		exited <- waitForExit(ctx, u.checkExits)
		cancel()
	}()
	said, err := do(ctx, note)
	cancel()
	if exitErr := <-exited; err != nil && exitErr != nil {
		return "", exitErr // What was waited for could not come.
	}
	return said, err
}

// checkExits is an error that names what does not run any more though an earlier step
// started it.
func (u *upRun) checkExits() error {
	var errs []error
	if c, ok := u.Cluster.(cluster.Supervised); ok {
		errs = append(errs, c.Ended())
	}
	if u.agentStarted {
		errs = append(errs, local.NewSite(u.State, cluster.Binaries{}).Ended(lab.ComponentAgent))
	}
	return errors.Join(errs...)
}

// maxMachineExits is how often a machine may end by itself while a step waits for its node;
// the agent boots it again each time.
const maxMachineExits = 3

// machineExits counts, from the timeline, how often each machine has ended by itself.
type machineExits struct {
	timeline *timeline.Reader
	count    map[string]int
}

// countMachineExits begins to count now. The caller closes its timeline.
func (u *upRun) countMachineExits() (*machineExits, error) {
	reader, err := u.Timeline().Open()
	if err != nil {
		return nil, err
	}
	m := &machineExits{reader, map[string]int{}}
	if _, err := reader.Next(); err != nil {
		return nil, errors.Join(err, reader.Close())
	}
	return m, nil
}

// machineThatKeepsExiting names a machine that ends again and again; "" if none does.
func (m *machineExits) machineThatKeepsExiting() (machine string, err error) {
	entries, err := m.timeline.Next()
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Subject, agent.MachineSubject); ok && e.What == agent.MachineEnded {
			m.count[name]++
		}
	}
	for name, times := range m.count {
		if times >= maxMachineExits {
			return name, err
		}
	}
	return "", err
}

// waitForExit calls check until it returns an error, or ctx ends.
func waitForExit(ctx context.Context, check func() error) error {
	err := wait.PollUntilContextCancel(ctx, exitCheckInterval, true, func(context.Context) (bool, error) {
		return false, check()
	})
	if wait.Interrupted(err) {
		return nil
	}
	return err
}
