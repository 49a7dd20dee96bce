package dataplane_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// history is what has been in force, by the number of the change.
type history struct {
	mu      sync.Mutex
	change  int
	out     map[string]int // the last change that left out a target or listener, if one did
	refused int            // the last under which a new connection may find no target
}

// now is the number of the change under way, or the last.
func (h *history) now() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.change
}

// wasOut tells whether any of these has been left out since a change.
func (h *history) wasOut(since int, names ...string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range names {
		if h.out[name] >= max(since, 1) {
			return true
		}
	}
	return false
}

// mayRefuse tells whether a connection that began with a change may have found
// no listener or no target. The change may have been under way: then what was
// in force before still was.
func (h *history) mayRefuse(since int, listener string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.out[listener] >= max(since-1, 1) || h.refused >= since-1
}

// traffic is connections in use while a balancer is changed.
type traffic struct {
	*field
	history  history
	drains   bool // the others may be broken
	rounds   []atomic.Int64
	stop     chan struct{}
	failures chan error
	broken   atomic.Int64 // those that might be
}

func listenerName(port int) string { return fmt.Sprint("port ", port) }

// keepBusy connects and talks until the end, and connects anew when it was broken
// and that was in order.
func (d *traffic) keepBusy(i int, listeners []cloud.Listener) error {
	random := rand.New(rand.NewPCG(1, uint64(i)))
	for {
		select {
		case <-d.stop:
			return nil
		default:
		}
		since, port := d.history.now(), listeners[random.IntN(len(listeners))].Port
		c, target, err := d.begin(port)
		if err != nil {
			if !d.history.mayRefuse(since, listenerName(port)) && (!d.drains || !d.anyOut(since)) {
				return fmt.Errorf("port %d should have answered: %w", port, err)
			}
			d.rounds[i].Add(1)
			continue
		}
		err = d.talk(i, c, random)
		_ = c.Close()
		if err == nil {
			continue
		}
		if !d.drains || !d.history.wasOut(since, listenerName(port), target) {
			return fmt.Errorf("a connection of port %d to %s broke: %w", port, target, err)
		}
		d.broken.Add(1)
	}
}

// anyOut tells whether a target was left out since a change: a connection that
// began as it left may be broken before it is known whose it is.
func (d *traffic) anyOut(since int) bool {
	return slices.ContainsFunc(d.all, func(b cloud.Backend) bool { return d.history.wasOut(since, b.Target) })
}

// begin connects, and gives who answers.
func (d *traffic) begin(port int) (net.Conn, string, error) {
	c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(front, uint16(port)).String(), patience)
	if err != nil {
		return nil, "", err
	}
	var name [1]byte
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(c, name[:]); err != nil {
		_ = c.Close()
		return nil, "", err
	}
	return c, fmt.Sprintf("i-%c", name[0]), nil
}

// talk has what it says echoed: many times, now and then nearly at once.
func (d *traffic) talk(i int, c net.Conn, random *rand.Rand) error {
	most := 32 << 10
	sent, got := make([]byte, most), make([]byte, most)
	for range 1 + random.IntN(400) {
		select {
		case <-d.stop:
			return nil
		default:
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		n := 8 + random.IntN(most-8)
		binary.BigEndian.PutUint64(sent[n-8:], random.Uint64())
		if _, err := c.Write(sent[:n]); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, got[:n]); err != nil {
			return err
		}
		if !bytes.Equal(sent[:n], got[:n]) {
			return errors.New("the echo is another")
		}
		d.rounds[i].Add(1)
	}
	return nil
}

// change puts something else in force, and notes what that leaves out before it
// does.
func (d *traffic) change(t *testing.T, all []cloud.Listener, random *rand.Rand) {
	t.Helper()
	pick := func(n int) []int { return random.Perm(n)[:random.IntN(n+1)] }
	d.f.Backends, d.f.Listeners = nil, nil
	for _, i := range pick(len(d.all)) {
		d.f.Backends = append(d.f.Backends, d.all[i])
	}
	for _, i := range pick(len(all)) {
		l := all[i]
		l.ConnectionLimit = []int{0, 1000}[random.IntN(2)]
		d.f.Listeners = append(d.f.Listeners, l)
	}
	d.f.Algorithm = []cloud.Algorithm{cloud.RoundRobin, cloud.LeastConnections, cloud.SourceHash}[random.IntN(3)]
	d.f.Affinity = []time.Duration{0, time.Millisecond, time.Hour}[random.IntN(3)]
	d.f.IdleTimeout = []time.Duration{0, time.Hour}[random.IntN(2)]
	d.f.SourceRanges = [][]netip.Prefix{nil, {netip.MustParsePrefix("127.0.0.0/8")}}[random.IntN(2)]
	d.f.Drain = []time.Duration{0, time.Hour}[random.IntN(2)]
	if d.drains {
		d.f.Drain = time.Duration(random.IntN(3)) * time.Millisecond
	}
	d.f.HealthCheck = nil
	sick := false
	if n := random.IntN(4); n < 2 {
		d.f.HealthCheck = &cloud.HealthCheck{Protocol: cloud.CheckTCP, Port: all[0].TargetPort, Interval: time.Minute, Timeout: time.Minute, HealthyThreshold: 1, UnhealthyThreshold: 1}
		if sick = n == 0; sick {
			d.f.HealthCheck.Port = 1 // Nobody answers: all are unhealthy.
		}
	}

	h := &d.history
	h.mu.Lock()
	h.change++
	in := map[string]bool{}
	for _, b := range d.f.Backends {
		in[b.Target] = true
	}
	for _, l := range d.f.Listeners {
		in[listenerName(l.Port)] = true
	}
	for _, b := range d.all {
		if !in[b.Target] {
			h.out[b.Target] = h.change
		}
	}
	for _, l := range all {
		if !in[listenerName(l.Port)] {
			h.out[listenerName(l.Port)] = h.change
		}
	}
	if sick || len(d.f.Backends) == 0 {
		h.refused = h.change
	}
	h.mu.Unlock()
	require.NoError(t, d.plane.Apply(d.f))
}

// Whatever changes, connections whose listener and target remain go on, byte for
// byte; so do the others, unless they have only so long to drain.
func TestChangesSpareConnectionsInUse(t *testing.T) {
	for _, drains := range []bool{false, true} {
		t.Run(fmt.Sprintf("drains=%v", drains), func(t *testing.T) {
			const users, changes = 8, 80
			seed := rand.Uint64()
			t.Log("the changes' seed is", seed)
			d := &traffic{
				field: newField(t, 4, 3, greets), history: history{out: map[string]int{}, refused: -2}, drains: drains,
				rounds: make([]atomic.Int64, users), stop: make(chan struct{}), failures: make(chan error, users),
			}
			all := d.f.Listeners
			d.use(t, []int{0, 1, 2, 3})
			var running sync.WaitGroup
			for i := range users {
				running.Go(func() {
					if err := d.keepBusy(i, all); err != nil {
						d.failures <- err
					}
				})
			}
			random := rand.New(rand.NewPCG(seed, 0))
			for range changes {
				d.change(t, all, random)
				if !d.goOn(t) {
					break
				}
			}
			close(d.stop)
			running.Wait()
			close(d.failures)
			for err := range d.failures {
				assert.NoError(t, err)
			}
			if drains {
				assert.Positive(t, d.broken.Load(), "nothing drained")
			}
		})
	}
}

// goOn waits until each user has had an answer, or has found none where that was
// in order; false if one has failed.
func (d *traffic) goOn(t *testing.T) bool {
	t.Helper()
	for i := range d.rounds {
		was, late := d.rounds[i].Load(), time.After(patience)
		for look := time.Tick(100 * time.Microsecond); d.rounds[i].Load() == was && len(d.failures) == 0; {
			select {
			case <-look:
			case <-late:
				t.Errorf("user %d has stopped", i)
				return false
			}
		}
	}
	return len(d.failures) == 0
}

// One long transfer each way outlives any number of changes that leave it its
// listener and target.
func TestLongTransfersOutliveChanges(t *testing.T) {
	inAllWeathers(t, func(t *testing.T, w weather) {
		p, port, other := newPlane(t), freePort(t), freePort(t)
		target := backend(t, two, 0, echo)
		backend(t, three, target, echo)
		f := forwarding(target, []string{two}, port)
		f.IdleTimeout = w.idle
		require.NoError(t, p.Apply(f))
		c := dial(t, port)
		exchange(t, c, "hello") // It has its target.
		said := newNoise(12, 64<<10)
		done, written := make(chan struct{}), make(chan error, 1)
		go func() {
			var err error
			for more := true; more && err == nil; {
				err = said.write(c, 256<<10)
				select {
				case <-done:
					more = false
				default:
				}
			}
			written <- errors.Join(err, c.CloseWrite())
		}()
		changed := make(chan error, 1)
		go func() {
			defer close(done)
			for i := range 100 {
				g := f
				g.Drain, g.Listeners = time.Nanosecond, f.Listeners[:1:1]
				g.Backends = forwarding(0, [][]string{{two}, {three, two}, {two, three}}[i%3]).Backends
				g.Affinity = time.Duration(i%2) * time.Hour
				if i%2 == 0 {
					g.Listeners = append(g.Listeners, cloud.Listener{Protocol: cloud.TCP, Port: other, TargetPort: target})
				}
				if i%5 == 0 {
					g.HealthCheck = &cloud.HealthCheck{Protocol: cloud.CheckTCP, Port: 1, Interval: time.Second, Timeout: time.Second}
				}
				g.SourceRanges = [][]netip.Prefix{nil, {netip.MustParsePrefix("10.0.0.0/8")}}[i%2]
				g.Listeners[0].ProxyProtocol = []cloud.ProxyProtocol{"", cloud.ProxyV1, cloud.ProxyV2}[i%3]
				if err := p.Apply(g); err != nil {
					changed <- err
					return
				}
			}
			changed <- nil
		}()
		_, digest, err := swallow(c)
		require.NoError(t, err)
		require.NoError(t, <-written)
		require.NoError(t, <-changed)
		assert.Equal(t, said.digest(), digest)
		awaitNone(t, p)
	})
}

// A balancer that gets an address of its own takes new connections there, and
// those of before go on.
func TestConnectionsOutliveTheirBalancersAddress(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := backend(t, two, 0, echo)
	f := forwarding(target, []string{two}, port)
	require.NoError(t, p.Apply(f))
	c := dial(t, port)
	exchange(t, c, "hello")
	f.Address = netip.AddrFrom4([4]byte{127, 76, byte(os.Getpid() >> 8), byte(os.Getpid())})
	require.NoError(t, p.Apply(f))
	exchange(t, c, "still here")
	there, err := net.DialTimeout("tcp4", netip.AddrPortFrom(f.Address, uint16(port)).String(), patience)
	require.NoError(t, err)
	defer func() { _ = there.Close() }()
	exchange(t, there, "and there")
	_, err = net.DialTimeout("tcp4", netip.AddrPortFrom(front, uint16(port)).String(), patience)
	require.Error(t, err)
}
