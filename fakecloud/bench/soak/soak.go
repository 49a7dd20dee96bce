package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

const (
	targets = 5
	// crashEvery is how many changes of the targets in force there are to a crash.
	crashEvery = 5
	// sessionIdle is how long the balancer of datagrams keeps a silent session:
	// not long, because the soak waits for the last.
	sessionIdle = time.Second
	// grace is how long all may take to end. Who waits for a connection or a
	// session has given up before.
	grace = time.Minute
	// maxErrors is how many failures are told.
	maxErrors = 10
)

// The addresses are this process's own, so that soaks can run at the same time.
func frontAddress() netip.Addr { return ownAddress(120) }

func targetAddress(i int) netip.Addr { return ownAddress(byte(121 + i)) }

func ownAddress(net byte) netip.Addr {
	return netip.AddrFrom4([4]byte{127, net, byte(os.Getpid() >> 8), byte(os.Getpid())})
}

func clientAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 127, byte(os.Getpid()), byte(i + 1)})
}

// soak is one under way.
type soak struct {
	options
	plane   *dataplane.Plane
	front   netip.AddrPort
	targets []*target
	lives   lives

	last    int64 // so many connections are to have begun in the end
	began   time.Time
	due     chan struct{} // a change is
	crashes atomic.Int64  // twice as many, and one more while a target crashes
	changes atomic.Int64  // of the targets in force
	silence chan error    // Datagrams flow no more.

	begun, made, crashed, failed atomic.Int64 // connections
	told, lost                   atomic.Int64 // datagrams
	spoken, heard                atomic.Int64 // those of the crowd, and answers
	open                         atomic.Int64 // the crowd's sessions at a crash, when they were fewest

	mu   sync.Mutex
	errs []error // the first failures
}

func (s *soak) fail(err error) {
	s.failed.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.errs) < maxErrors {
		s.errs = append(s.errs, err)
	}
}

// errStuck: something waits for what does not come. Its goroutines are still
// there.
var errStuck = errors.New("stuck")

// run soaks. An error means that it could not, or not to its end; what it found
// is the report's.
func run(ctx context.Context, o options) (report, error) {
	s := &soak{options: o, plane: dataplane.New(dataplane.Options{}), began: time.Now(), due: make(chan struct{}, 1), silence: make(chan error, 1)}
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	finished := make(chan error, 1)
	var r report
	go func() { finished <- s.run(ctx, cancel, &r) }()
	var late <-chan time.Time
	for ending := ctx.Done(); ; {
		select {
		case err := <-finished:
			return s.found(r), err
		case err := <-s.silence:
			return s.found(report{}), fmt.Errorf("%w: %w", errStuck, err)
		case <-ending:
			ending, late = nil, time.After(grace)
		case <-late:
			return s.found(report{}), fmt.Errorf("%w: there is no end %v after the last connection", errStuck, grace)
		}
	}
}

// run cancels when the last connection has been made.
func (s *soak) run(ctx context.Context, cancel func(), r *report) error {
	r.before = look()
	err := s.start()
	if err == nil {
		err = s.work(ctx, r)
	}
	cancel()
	s.plane.Close()
	for _, t := range s.targets {
		t.crash()
	}
	r.after = settled(r.before)
	return err
}

// found adds what was counted to what was measured.
func (s *soak) found(r report) report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.limit, r.took, r.wanted = s.limit, time.Since(s.began), int64(s.connections)
	r.made, r.crashed, r.failed, r.errs = s.made.Load(), s.crashed.Load(), s.failed.Load(), slices.Clone(s.errs)
	r.clients, r.sessions, r.open = int64(s.clients), int64(s.sessions), s.open.Load()
	r.told, r.lost = s.told.Load()+s.spoken.Load(), s.lost.Load()+s.spoken.Load()-s.heard.Load()
	r.changes, r.crashes = s.changes.Load(), s.crashes.Load()/2
	return r
}

// start has targets and balancers listen.
func (s *soak) start() error {
	tcp, udp := 0, 0
	for i := range targets {
		t := newTarget(&s.lives, i, targetAddress(i), tcp, udp)
		if err := t.start(); err != nil {
			return err
		}
		s.targets = append(s.targets, t)
		tcp, udp = t.tcp, t.udp
	}
	free, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: frontAddress().AsSlice()})
	if err != nil {
		return err
	}
	s.front = free.Addr().(*net.TCPAddr).AddrPort()
	if err := free.Close(); err != nil {
		return err
	}
	return s.apply(s.targets, 0)
}

// apply puts targets in force, on one balancer for connections and one for
// datagrams.
func (s *soak) apply(using []*target, turn int64) error {
	f := cloud.Forwarding{
		ID: "lb-tcp", Address: s.front.Addr(),
		Listeners: []cloud.Listener{{Protocol: cloud.TCP, Port: int(s.front.Port()), TargetPort: s.targets[0].tcp}},
		// Each algorithm in turn. With and without an idle timeout a balancer may
		// copy in different ways.
		Algorithm:   []cloud.Algorithm{cloud.RoundRobin, cloud.LeastConnections, cloud.SourceHash}[turn%3],
		IdleTimeout: []time.Duration{0, time.Hour}[turn%2],
	}
	for _, t := range using {
		f.Backends = append(f.Backends, t.backend)
	}
	err := s.plane.Apply(f)
	f.ID, f.IdleTimeout = "lb-udp", sessionIdle
	f.Listeners = []cloud.Listener{{Protocol: cloud.UDP, Port: int(s.front.Port()), TargetPort: s.targets[0].udp}}
	return cmp.Or(err, s.plane.Apply(f))
}

// work warms up, so that pools and stacks have the size that they will have,
// and then soaks.
func (s *soak) work(ctx context.Context, r *report) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	told := make(chan struct{})
	go func() {
		defer close(told)
		s.tellProgress(ctx)
	}()
	defer func() {
		cancel()
		<-told
	}()
	all := int64(s.connections)
	if err := s.stage(ctx, max(all/50, min(all, 1000))); err != nil {
		return err
	}
	r.begin = settled(figures{})
	if err := s.stage(ctx, all); err != nil {
		return err
	}
	r.end = settled(r.begin)
	return nil
}

// stage runs the clients, and the crowd, until so many connections have been
// made, and then waits until the balancers have none.
func (s *soak) stage(ctx context.Context, last int64) error {
	s.last = last
	s.begun.Store(s.made.Load())
	all, err := s.gather()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	var changer, clients, talk sync.WaitGroup
	var failure error
	changer.Go(func() { failure = s.change(all, done) })
	talk.Go(func() {
		if err := all.converse(ctx, time.Tick(speakEvery)); err != nil {
			s.silence <- err
		}
	})
	for i := range s.clients {
		clients.Go(func() { newClient(s, i).run(ctx) })
	}
	clients.Wait()
	close(done)
	changer.Wait()
	cancel()
	talk.Wait()
	all.leave()
	if failure != nil {
		return failure
	}
	return s.drain()
}

func (s *soak) drain() error {
	for deadline := time.Now().Add(patience); s.active() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d connections and sessions are still open %v after the last client left", s.active(), patience)
		}
	}
	return nil
}

func (s *soak) active() (n int64) {
	for _, id := range []string{"lb-tcp", "lb-udp"} {
		for _, l := range s.plane.Stats(id).Listeners {
			n += l.Active
		}
	}
	return n
}

// change adds and removes targets until done is closed. Now and then one that is
// in force crashes, while the crowd has sessions, and comes back with the next
// change; there is always one more in force.
func (s *soak) change(all *crowd, done <-chan struct{}) error {
	random := rand.New(rand.NewPCG(s.seed, uint64(s.changes.Load())))
	var dead *target
	for {
		select {
		case <-done:
			return revive(dead)
		case <-s.due:
		}
		if err := revive(dead); err != nil {
			return err
		}
		dead = nil
		using := make([]*target, 0, targets)
		for _, i := range random.Perm(targets)[:2+random.IntN(targets-1)] {
			using = append(using, s.targets[i])
		}
		turn := s.changes.Add(1)
		if err := s.apply(using, turn); err != nil {
			return err
		}
		if turn%crashEvery == 0 {
			dead = using[0]
			all.witness(dead.crash)
		}
	}
}

func revive(t *target) error {
	if t == nil {
		return nil
	}
	return t.start()
}

func (s *soak) tellProgress(ctx context.Context) {
	var last int64
	for tick := time.Tick(s.every); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		made := s.made.Load()
		f, found := measure(), s.found(report{})
		fmt.Fprintf(s.progress, "%s %d connections (%.0f/s), %d failed, %d crashed with a target; %d datagrams, %d lost; %d files, %d goroutines, %.0f MiB resident\n",
			time.Now().Format(time.TimeOnly), made, float64(made-last)/s.every.Seconds(), s.failed.Load(), s.crashed.Load(),
			found.told, found.lost, f.files, f.goroutines, f.resident)
		last = made
	}
}

// verdict says what is wrong with what a soak found; nil if nothing is. That
// its time was over before all was made is nothing wrong: closing says so.
func (r report) verdict() error {
	var errs []error
	if r.made == 0 {
		errs = append(errs, errors.New("no connection was made"))
	}
	if r.failed > 0 {
		errs = append(errs, fmt.Errorf("%d failures that no crash accounts for, among them:\n%w", r.failed, errors.Join(r.errs...)))
	}
	// With a crash, each client may lose the one that finds out about it.
	if most := r.crashes*(r.clients+lastWords*r.sessions) + r.told/maxLoss; r.lost > most {
		errs = append(errs, fmt.Errorf("%d of %d datagrams were lost; crashes account for %d at most", r.lost, r.told, most))
	}
	if r.crashes > 0 && r.open < r.sessions/2 {
		errs = append(errs, fmt.Errorf("only %d of %d sessions were open when a target crashed", r.open, r.sessions))
	}
	errs = append(errs, r.end.beyond(r.begin, "after the connections"), r.after.beyond(r.before, "after the balancers"))
	return errors.Join(append(errs, r.memory())...)
}

// closing are the last words on a soak: whether it passed, and whether all of it
// was made. err says what was wrong.
func (r report) closing(err error) string {
	switch all := fmt.Sprintf("%d of %d connections", r.made, r.wanted); {
	case err != nil:
		return "FAILED after " + all
	case r.made < r.wanted:
		return fmt.Sprintf("NOT ALL WAS MADE: stopped by -for %v after %s; nothing failed", r.limit, all)
	default:
		return "PASSED: " + all
	}
}
