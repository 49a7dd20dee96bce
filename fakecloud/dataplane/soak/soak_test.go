// Package soak sends small connections, and datagrams between them, through load balancers on loopback, while
// targets come, go and crash: some thousand in the tests, a million by `make soak`. It fails if a connection fails
// for which no crash accounts, if datagrams are no longer answered, or if files, goroutines or memory are left
// over. It stops when its time is over, and says so if that was before all connections were made.
//
// Clients, balancers and targets share one process, so that everything left over is counted. There are tests only.
// Begin with TestSoak.
package soak

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

const (
	targetCount = 5
	// crashEvery is how many changes of the targets in force there are for each crash.
	crashEvery = 5
	// sessionIdle is the idle timeout of the balancer of datagrams. It is short,
	// because the soak waits until the last session has ended.
	sessionIdle = time.Second
	// endTimeout is how long the soak may take to end. Waiting for a connection or a
	// session times out before.
	endTimeout = time.Minute
	// maxErrors is how many failures are reported.
	maxErrors = 10
)

// options say how much is sent.
type options struct {
	connections, datagrams, clients int
	sessions                        int
	changeEvery                     int // connections
	limit, every                    time.Duration
	seed                            uint64
	progress                        io.Writer
}

const (
	// maxClients is how many different addresses clientAddress has.
	maxClients = 250
	// million is a soak that is large enough to judge its resident memory, and long enough to tell its progress.
	million = 1_000_000
)

var (
	connections = flag.Int("connections", 3000, "how many connections to make, if -for allows")
	datagrams   = flag.Int("datagrams", 600, "how many datagrams to send, spread over the connections")
	clients     = flag.Int("clients", 16, "how many clients connect at a time; at most 250")
	limit       = flag.Duration("for", time.Minute, "stop after so long, however many were made; that is no failure")
	seed        = flag.Uint64("seed", 1, "of the changes and of what is sent; their times differ all the same")
)

// sessions of datagrams are kept open, so that crashes meet many. A listener may have 1024, and the clients have some.
const sessions = 300

func flagOptions() options {
	return options{
		connections: *connections, datagrams: *datagrams, clients: min(*clients, maxClients), sessions: sessions,
		changeEvery: min(*connections/20, 500), limit: *limit, every: 5 * time.Second, seed: *seed,
		progress: io.Discard,
	}
}

func TestSoak(t *testing.T) {
	o := flagOptions()
	if *connections >= million/10 {
		o.progress = os.Stdout
	}
	r, err := run(t.Context(), o)
	if errors.Is(err, errStuck) {
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
	}
	if *connections < million/10 {
		r.end.resident = r.begin.resident // The race detector frees no memory.
	}
	err = errors.Join(err, r.verdict())
	var report strings.Builder
	r.printReport(&report)
	t.Logf("%s\n%s", &report, r.closingLine(err))
	require.NoError(t, err)
	assert.Positive(t, r.crashes)
	assert.Greater(t, r.datagramsSent, int64(o.datagrams)/2)
}

// frontAddress is the balancers' address. All addresses are different in each process, so that
// several soaks can run at the same time.
func frontAddress() netip.Addr { return ownAddress(120) }

func targetAddress(i int) netip.Addr { return ownAddress(byte(121 + i)) }

func ownAddress(net byte) netip.Addr {
	return netip.AddrFrom4([4]byte{127, net, byte(os.Getpid() >> 8), byte(os.Getpid())})
}

func clientAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 127, byte(os.Getpid()), byte(i + 1)})
}

// soak is a running soak.
type soak struct {
	options
	plane   *dataplane.Plane
	front   netip.AddrPort
	targets []*target
	lives   targetLives

	connectionGoal int64 // how many connections are to be begun in this stage
	startTime      time.Time
	changeDue      chan struct{} // holds a value when the targets are to be changed
	crashes        atomic.Int64  // counts twice: at the begin and at the end of each crash
	changes        atomic.Int64  // of the targets in force
	unanswered     chan error    // gets an error when datagrams are no longer answered

	begun, made, crashed, failed atomic.Int64 // connections
	datagramsSent, datagramsLost atomic.Int64 // datagrams
	groupSent, groupAnswered     atomic.Int64 // datagrams of the session group, and answers
	fewestOpen                   atomic.Int64 // the fewest sessions of the group that were open at a crash

	mu   sync.Mutex
	errs []error // the first failures
}

func (s *soak) recordFailure(err error) {
	s.failed.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.errs) < maxErrors {
		s.errs = append(s.errs, err)
	}
}

// errStuck means that the soak waits for something that does not come. Its goroutines still run.
var errStuck = errors.New("stuck")

// run runs a soak. An error means that it could not run to its end. Whether the soak has passed is
// in the report.
func run(ctx context.Context, o options) (report, error) {
	s := &soak{
		options: o, plane: dataplane.New(dataplane.Options{}), startTime: time.Now(), changeDue: make(chan struct{}, 1),
		unanswered: make(chan error, 1),
	}
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	finished := make(chan error, 1)
	var r report
	go func() { finished <- s.run(ctx, cancel, &r) }()
	var overdue <-chan time.Time
	for ending := ctx.Done(); ; {
		select {
		case err := <-finished:
			return s.fillReport(r), err
		case err := <-s.unanswered:
			return s.fillReport(report{}), fmt.Errorf("%w: %w", errStuck, err)
		case <-ending:
			ending, overdue = nil, time.After(endTimeout)
		case <-overdue:
			return s.fillReport(report{}), fmt.Errorf(
				"%w: there is no end %v after the last connection", errStuck, endTimeout,
			)
		}
	}
}

// run calls cancel when the last connection has been made.
func (s *soak) run(ctx context.Context, cancel func(), r *report) error {
	r.before = figuresAfterGC()
	err := s.startListeners()
	if err == nil {
		err = s.warmUpAndSoak(ctx, r)
	}
	cancel()
	s.plane.Close()
	for _, t := range s.targets {
		t.crash()
	}
	r.after = settledFigures(r.before)
	return err
}

// fillReport adds the counts to the measured figures.
func (s *soak) fillReport(r report) report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.limit, r.took, r.wanted = s.limit, time.Since(s.startTime), int64(s.connections)
	r.made, r.crashed, r.failed, r.errs = s.made.Load(), s.crashed.Load(), s.failed.Load(), slices.Clone(s.errs)
	r.clients, r.sessions, r.fewestOpen = int64(s.clients), int64(s.sessions), s.fewestOpen.Load()
	r.datagramsSent, r.datagramsLost = s.datagramsSent.Load()+s.groupSent.Load(), s.datagramsLost.Load()+
		s.groupSent.Load()-s.groupAnswered.Load()
	r.changes, r.crashes = s.changes.Load(), s.crashes.Load()/2
	return r
}

// startListeners starts the targets and the balancers.
func (s *soak) startListeners() error {
	tcp, udp := 0, 0
	for i := range targetCount {
		t := newTarget(&s.lives, i, targetAddress(i), tcp, udp)
		if err := t.startLife(); err != nil {
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
	return s.applyTargets(s.targets, 0)
}

// applyTargets puts targets in force, on the balancer for connections and on the one for
// datagrams.
func (s *soak) applyTargets(using []*target, turn int64) error {
	f := cloud.Forwarding{
		ID: "lb-tcp", Addresses: []netip.Addr{s.front.Addr()},
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

// warmUpAndSoak makes some connections first, so that pools and stacks have their final size, and
// then all of them.
func (s *soak) warmUpAndSoak(ctx context.Context, r *report) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	progressDone := make(chan struct{})
	go func() {
		defer close(progressDone)
		s.printProgress(ctx)
	}()
	defer func() {
		cancel()
		<-progressDone
	}()
	all := int64(s.connections)
	if err := s.runStage(ctx, max(all/50, min(all, 1000))); err != nil {
		return err
	}
	r.begin = settledFigures(figures{})
	if err := s.runStage(ctx, all); err != nil {
		return err
	}
	r.end = settledFigures(r.begin)
	return nil
}

// runStage runs the clients and the session group until last connections have been made, and then
// waits until the balancers have none open.
func (s *soak) runStage(ctx context.Context, last int64) error {
	s.connectionGoal = last
	s.begun.Store(s.made.Load())
	all, err := s.openSessionGroup()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	var changer, clients, talk sync.WaitGroup
	var failure error
	changer.Go(func() { failure = s.changeTargets(all, done) })
	talk.Go(func() {
		if err := all.keepSessionsAlive(ctx, time.Tick(sendInterval)); err != nil {
			s.unanswered <- err
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
	all.closeSessions()
	if failure != nil {
		return failure
	}
	return s.awaitDrained()
}

func (s *soak) awaitDrained() error {
	for deadline := time.Now().Add(clientTimeout); s.activeConnections() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf(
				"%d connections and sessions are still open %v after the last client left", s.activeConnections(),
				clientTimeout,
			)
		}
	}
	return nil
}

func (s *soak) activeConnections() (n int64) {
	for _, id := range []string{"lb-tcp", "lb-udp"} {
		for _, l := range s.plane.Stats(id).Listeners {
			n += l.Active
		}
	}
	return n
}

// changeTargets changes the targets in force, whenever that is due, until done is closed. Each
// crashEvery-th time it crashes one that is in force, and restarts it at the next change. At
// least one other is always in force.
func (s *soak) changeTargets(all *sessionGroup, done <-chan struct{}) error {
	random := rand.New(rand.NewPCG(s.seed, uint64(s.changes.Load())))
	var dead *target
	for {
		select {
		case <-done:
			return restartTarget(dead)
		case <-s.changeDue:
		}
		if err := restartTarget(dead); err != nil {
			return err
		}
		dead = nil
		using := make([]*target, 0, targetCount)
		for _, i := range random.Perm(targetCount)[:2+random.IntN(targetCount-1)] {
			using = append(using, s.targets[i])
		}
		turn := s.changes.Add(1)
		if err := s.applyTargets(using, turn); err != nil {
			return err
		}
		if turn%crashEvery == 0 {
			dead = using[0]
			all.crashWithSessions(dead.crash)
		}
	}
}

func restartTarget(t *target) error {
	if t == nil {
		return nil
	}
	return t.startLife()
}

func (s *soak) printProgress(ctx context.Context) {
	var last int64
	for tick := time.Tick(s.every); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		made := s.made.Load()
		f, found := currentFigures(), s.fillReport(report{})
		fmt.Fprintf(s.progress, "%s %d connections (%.0f/s), %d failed, %d crashed with a target; "+
			"%d datagrams, %d lost; %d files, %d goroutines, %.0f MiB resident\n",
			time.Now().Format(time.TimeOnly), made, float64(made-last)/s.every.Seconds(), found.failed, found.crashed,
			found.datagramsSent, found.datagramsLost, f.files, f.goroutines, f.resident)
		last = made
	}
}

// verdict is an error with everything that is wrong in the report, or nil. It is not wrong if the
// time was over before all connections were made; closingLine says so.
func (r report) verdict() error {
	var errs []error
	if r.made == 0 {
		errs = append(errs, errors.New("no connection was made"))
	}
	if r.failed > 0 {
		errs = append(
			errs,
			fmt.Errorf("%d failures that no crash accounts for, among them:\n%w", r.failed, errors.Join(r.errs...)),
		)
	}
	// With each crash, a client may lose the datagram that notices it.
	if most := r.crashes*(r.clients+sendsAfterCrash*r.sessions) + r.datagramsSent/maxLoss; r.datagramsLost > most {
		errs = append(errs, fmt.Errorf(
			"%d of %d datagrams were lost; crashes account for %d at most", r.datagramsLost, r.datagramsSent, most,
		))
	}
	if r.crashes > 0 && r.fewestOpen < r.sessions/2 {
		errs = append(
			errs, fmt.Errorf("only %d of %d sessions were open when a target crashed", r.fewestOpen, r.sessions),
		)
	}
	errs = append(
		errs, r.end.excessOver(r.begin, "after the connections"), r.after.excessOver(r.before, "after the balancers"),
	)
	return errors.Join(append(errs, r.memoryGrowth())...)
}

// closingLine is the last line of the output: whether the soak has passed, and whether all
// connections were made. err is what was wrong.
func (r report) closingLine(err error) string {
	switch all := fmt.Sprintf("%d of %d connections", r.made, r.wanted); {
	case err != nil:
		return "FAILED after " + all
	case r.made < r.wanted:
		return fmt.Sprintf("NOT ALL WAS MADE: stopped by -for %v after %s; nothing failed", r.limit, all)
	default:
		return "PASSED: " + all
	}
}
