// This file answers: what is a soak, from its first connection to the last?

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
	"sync"
	"sync/atomic"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

const (
	targets = 5
	// changeEvery is how many connections there are to a change of the targets in
	// force, crashEvery how many of these to a crash.
	changeEvery = 500
	crashEvery  = 5
	// sessionIdle is how long the balancer of datagrams keeps a silent session:
	// not long, because the soak waits for the last.
	sessionIdle = time.Second
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
	changes int64         // of the targets in force

	begun, made, crashed, failed atomic.Int64 // connections
	told, lost                   atomic.Int64 // datagrams

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

// run soaks. An error means that it could not; what it found is the report's.
func run(ctx context.Context, o options) (r report, err error) {
	r.before = look()
	s := &soak{options: o, plane: dataplane.New(dataplane.Options{}), began: time.Now(), due: make(chan struct{}, 1)}
	err = s.start()
	if err == nil {
		err = s.work(ctx, &r)
	}
	s.plane.Close()
	for _, t := range s.targets {
		t.crash()
	}
	r.after = settled(r.before)
	r.took, r.made, r.crashed, r.failed = time.Since(s.began), s.made.Load(), s.crashed.Load(), s.failed.Load()
	r.clients, r.told, r.lost, r.changes, r.crashes, r.errs = int64(s.clients), s.told.Load(), s.lost.Load(), s.changes, s.crashes.Load()/2, s.errs
	return r, err
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

// stage runs the clients until so many connections have been made, and then
// waits until the balancers have none.
func (s *soak) stage(ctx context.Context, last int64) error {
	s.last = last
	s.begun.Store(s.made.Load())
	done := make(chan struct{})
	var changer, clients sync.WaitGroup
	var failure error
	changer.Go(func() { failure = s.change(done) })
	for i := range s.clients {
		clients.Go(func() { newClient(s, i).run(ctx) })
	}
	clients.Wait()
	close(done)
	changer.Wait()
	if failure != nil {
		return failure
	}
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
// in force crashes, and comes back with the next change; there is always one
// more in force.
func (s *soak) change(done <-chan struct{}) error {
	random := rand.New(rand.NewPCG(s.seed, uint64(s.changes)))
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
		s.changes++
		if err := s.apply(using, s.changes); err != nil {
			return err
		}
		if s.changes%crashEvery == 0 {
			dead = using[0]
			s.crashes.Add(1)
			dead.crash()
			s.crashes.Add(1)
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
		f := measure()
		fmt.Fprintf(s.progress, "%s %d connections (%.0f/s), %d failed, %d crashed with a target; %d datagrams, %d lost; %d files, %d goroutines, %.0f MiB resident\n",
			time.Now().Format(time.TimeOnly), made, float64(made-last)/s.every.Seconds(), s.failed.Load(), s.crashed.Load(),
			s.told.Load(), s.lost.Load(), f.files, f.goroutines, f.resident)
		last = made
	}
}

// verdict says what is wrong with what a soak found; nil if nothing is.
func (r report) verdict() error {
	var errs []error
	if r.failed > 0 {
		errs = append(errs, fmt.Errorf("%d failures that no crash accounts for, among them:\n%w", r.failed, errors.Join(r.errs...)))
	}
	// With a crash, each client may lose the one that finds out about it.
	if most := r.crashes*r.clients + r.told/maxLoss; r.lost > most {
		errs = append(errs, fmt.Errorf("%d of %d datagrams were lost; crashes account for %d at most", r.lost, r.told, most))
	}
	errs = append(errs, r.end.beyond(r.begin, "after the connections"), r.after.beyond(r.before, "after the balancers"))
	return errors.Join(append(errs, r.memory())...)
}
