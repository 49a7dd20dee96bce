package conformance

// Several CCMs beside each other, of which one is to act: what tests do to each,
// and how a program comes to have others of its kind.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/ccmlab/ccmlab/lab/process"
)

// Replicated is a CCM of which several can run beside each other, as the replicas
// of a Deployment do.
type Replicated interface {
	CCM
	// Replica is one of them, always the same for the same number. Number 0 is the
	// CCM itself, the others are not started. All are given the same, but for
	// where they listen and what only they write to.
	Replica(number int) (Replica, error)
}

// Replica is one of several CCMs.
type Replica interface {
	CCM
	// Running tells whether it runs, frozen or not.
	Running() bool
	// Kill ends it without a chance to do anything, as the end of its machine does,
	// and returns when it has ended. It is no crash.
	Kill(ctx context.Context) error
	// Freeze stops it where it is, as a machine that is suspended does: it does not
	// notice. It must run. When it ends afterwards, that is no crash: a leader that
	// was away for longer than its lease has nothing better to do.
	Freeze() error
	// Thaw lets a frozen one go on.
	Thaw() error
}

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
	return recordedReplica{r, t.trace, number}
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

var _ interface {
	Replicated
	Replica
} = (*Program)(nil)

// Replica implements Replicated: another process of the program, with a port, a log
// and, if that is made of a template, a configuration of its own.
func (p *Program) Replica(number int) (Replica, error) {
	if number == 0 {
		return p, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.replicas[number]; r != nil {
		return r, nil
	}
	r := &Program{
		Path: p.Path, Args: p.Args, Env: p.Env, ConfigTemplate: p.ConfigTemplate, Values: p.Values, Host: p.Host, Noise: p.Noise,
		LogFile: numbered(p.LogFile, number), component: ComponentCCM + "-" + strconv.Itoa(number+1),
	}
	if p.ConfigTemplate != "" {
		r.Values.CloudConfig = numbered(p.Values.CloudConfig, number)
	}
	var err error
	if r.Values.Port, err = freePort(p.Values.Address); err != nil {
		return nil, err
	}
	if p.replicas == nil {
		p.replicas = map[int]*Program{}
	}
	p.replicas[number] = r
	return r, nil
}

// numbered is a file's name for a replica: the second one's ccm.log is ccm-2.log.
func numbered(file string, number int) string {
	ext := filepath.Ext(file)
	return fmt.Sprintf("%s-%d%s", strings.TrimSuffix(file, ext), number+1, ext)
}

// freePort is one that nobody listens on at this address, nor at all of them.
func freePort(address string) (int, error) {
	all, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		return 0, err
	}
	port := all.Addr().(*net.TCPAddr).Port
	if err := all.Close(); err != nil {
		return 0, err
	}
	l, err := net.Listen("tcp4", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return 0, err
	}
	return port, l.Close()
}

// Running implements Replica.
func (p *Program) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running != nil
}

// Kill implements Replica.
func (p *Program) Kill(ctx context.Context) error {
	p.turn.Lock()
	defer p.turn.Unlock()
	run := p.letGo()
	if run == nil {
		return nil
	}
	if err := run.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return run.Wait(ctx)
}

// Freeze implements Replica.
func (p *Program) Freeze() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return errors.New("it does not run")
	}
	p.frozen = p.running
	return p.running.Signal(syscall.SIGSTOP)
}

// Thaw implements Replica.
func (p *Program) Thaw() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return errors.New("it does not run")
	}
	return p.running.Signal(syscall.SIGCONT)
}

// letGo has the program's end be no crash any more.
func (p *Program) letGo() *process.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	run := p.running
	p.running, p.ended = nil, ""
	return run
}
