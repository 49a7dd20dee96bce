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

// changeLog records what each numbered change has left out.
type changeLog struct {
	mu                sync.Mutex
	change            int
	lastLeftOut       map[string]int // by target or listener: the last change that left it out
	lastWithoutTarget int            // the last change after which a new connection may find no target
}

// currentChange is the number of the change under way, or of the last one.
func (h *changeLog) currentChange() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.change
}

// wasLeftOut tells whether any of these was left out by change since or a later one.
func (h *changeLog) wasLeftOut(since int, names ...string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range names {
		if h.lastLeftOut[name] >= max(since, 1) {
			return true
		}
	}
	return false
}

// mayRefuse tells whether a connection that began at change since may have found no
// listener or no target. If that change was under way, the state before it counts too.
func (h *changeLog) mayRefuse(since int, listener string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastLeftOut[listener] >= max(since-1, 1) || h.lastWithoutTarget >= since-1
}

// changingTraffic is a balancer that is changed while its connections are in use.
type changingTraffic struct {
	*targetFarm
	history  changeLog
	drains   bool // connections to what is left out may break
	rounds   []atomic.Int64
	stop     chan struct{}
	failures chan error
	broken   atomic.Int64 // connections that broke and were allowed to
}

func listenerName(port int) string { return fmt.Sprint("port ", port) }

// keepBusy opens connections and exchanges messages until stop. It fails if a connection
// breaks or is refused that should not be.
func (d *changingTraffic) keepBusy(i int, listeners []cloud.Listener) error {
	random := rand.New(rand.NewPCG(1, uint64(i)))
	for {
		select {
		case <-d.stop:
			return nil
		default:
		}
		since, port := d.history.currentChange(), listeners[random.IntN(len(listeners))].Port
		c, target, err := d.connect(port)
		if err != nil {
			if !d.history.mayRefuse(since, listenerName(port)) && (!d.drains || !d.wasAnyTargetLeftOut(since)) {
				return fmt.Errorf("port %d should have answered: %w", port, err)
			}
			d.rounds[i].Add(1)
			continue
		}
		err = d.exchangeMessages(i, c, random)
		_ = c.Close()
		if err == nil {
			continue
		}
		if !d.drains || !d.history.wasLeftOut(since, listenerName(port), target) {
			return fmt.Errorf("a connection of port %d to %s broke: %w", port, target, err)
		}
		d.broken.Add(1)
	}
}

// wasAnyTargetLeftOut tells whether a target was left out since a change. A connection to
// it may break before the test knows its target.
func (d *changingTraffic) wasAnyTargetLeftOut(since int) bool {
	return slices.ContainsFunc(d.all, func(b cloud.Backend) bool { return d.history.wasLeftOut(since, b.Target) })
}

// connect opens a connection, and returns the name of the target that answers.
func (d *changingTraffic) connect(port int) (net.Conn, string, error) {
	c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(front, uint16(port)).String(), testTimeout)
	if err != nil {
		return nil, "", err
	}
	var name [1]byte
	_ = c.SetDeadline(time.Now().Add(testTimeout))
	if _, err := io.ReadFull(c, name[:]); err != nil {
		_ = c.Close()
		return nil, "", err
	}
	return c, fmt.Sprintf("i-%c", name[0]), nil
}

// exchangeMessages sends many messages and checks the echo of each, now and then almost
// without a pause.
func (d *changingTraffic) exchangeMessages(i int, c net.Conn, random *rand.Rand) error {
	most := 32 << 10
	sent, got := make([]byte, most), make([]byte, most)
	for range 1 + random.IntN(400) {
		select {
		case <-d.stop:
			return nil
		default:
		}
		_ = c.SetDeadline(time.Now().Add(testTimeout))
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

// applyRandomChange records what a random change leaves out, and then applies it.
func (d *changingTraffic) applyRandomChange(t *testing.T, all []cloud.Listener, random *rand.Rand) {
	t.Helper()
	pick := func(n int) []int { return random.Perm(n)[:random.IntN(n+1)] }
	d.forwarding.Backends, d.forwarding.Listeners = nil, nil
	for _, i := range pick(len(d.all)) {
		d.forwarding.Backends = append(d.forwarding.Backends, d.all[i])
	}
	for _, i := range pick(len(all)) {
		l := all[i]
		l.ConnectionLimit = []int{0, 1000}[random.IntN(2)]
		d.forwarding.Listeners = append(d.forwarding.Listeners, l)
	}
	d.forwarding.Algorithm = []cloud.Algorithm{
		cloud.RoundRobin, cloud.LeastConnections, cloud.SourceHash,
	}[random.IntN(3)]
	d.forwarding.Affinity = []time.Duration{0, time.Millisecond, time.Hour}[random.IntN(3)]
	d.forwarding.IdleTimeout = []time.Duration{0, time.Hour}[random.IntN(2)]
	d.forwarding.SourceRanges = [][]netip.Prefix{nil, {netip.MustParsePrefix("127.0.0.0/8")}}[random.IntN(2)]
	d.forwarding.Drain = []time.Duration{0, time.Hour}[random.IntN(2)]
	if d.drains {
		d.forwarding.Drain = time.Duration(random.IntN(3)) * time.Millisecond
	}
	d.forwarding.HealthCheck = nil
	sick := false
	if n := random.IntN(4); n < 2 {
		d.forwarding.HealthCheck = &cloud.HealthCheck{
			Protocol: cloud.CheckTCP, Port: all[0].TargetPort, Interval: time.Minute, Timeout: time.Minute,
			HealthyThreshold: 1, UnhealthyThreshold: 1,
		}
		if sick = n == 0; sick {
			d.forwarding.HealthCheck.Port = 1 // Nothing listens there: all targets are unhealthy.
		}
	}

	h := &d.history
	h.mu.Lock()
	h.change++
	in := map[string]bool{}
	for _, b := range d.forwarding.Backends {
		in[b.Target] = true
	}
	for _, l := range d.forwarding.Listeners {
		in[listenerName(l.Port)] = true
	}
	for _, b := range d.all {
		if !in[b.Target] {
			h.lastLeftOut[b.Target] = h.change
		}
	}
	for _, l := range all {
		if !in[listenerName(l.Port)] {
			h.lastLeftOut[listenerName(l.Port)] = h.change
		}
	}
	if sick || len(d.forwarding.Backends) == 0 {
		h.lastWithoutTarget = h.change
	}
	h.mu.Unlock()
	require.NoError(t, d.plane.Apply(d.forwarding))
}

// In any change, connections whose listener and target stay go on, byte for byte. So do
// the others, unless a drain timeout ends them.
func TestReconfigurationSparesConnectionsInUse(t *testing.T) {
	for _, drains := range []bool{false, true} {
		t.Run(fmt.Sprintf("drains=%v", drains), func(t *testing.T) {
			const users, changes = 8, 80
			seed := rand.Uint64()
			t.Log("the changes' seed is", seed)
			d := &changingTraffic{
				targetFarm: newTargetFarm(t, 4, 3, greetAndEcho),
				history:    changeLog{lastLeftOut: map[string]int{}, lastWithoutTarget: -2}, drains: drains,
				rounds: make([]atomic.Int64, users), stop: make(chan struct{}), failures: make(chan error, users),
			}
			all := d.forwarding.Listeners
			d.applyTargets(t, []int{0, 1, 2, 3})
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
				d.applyRandomChange(t, all, random)
				if !d.awaitProgress(t) {
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

// awaitProgress waits until each client has got an answer, or has been refused where that
// is allowed. It returns false if a client has failed.
func (d *changingTraffic) awaitProgress(t *testing.T) bool {
	t.Helper()
	for i := range d.rounds {
		was, late := d.rounds[i].Load(), time.After(testTimeout)
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

// A long transfer in each direction outlives any number of changes that keep its listener
// and target.
func TestReconfigurationSparesLongTransfers(t *testing.T) {
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		p, port, other := newPlane(t), freePort(t), freePort(t)
		target := startTarget(t, two, 0, echo)
		startTarget(t, three, target, echo)
		f := forwarding(target, []string{two}, port)
		f.IdleTimeout = w.idle
		require.NoError(t, p.Apply(f))
		c := dial(t, port)
		requireEcho(t, c, "hello") // The connection now has its target.
		said := newRandomStream(12, 64<<10)
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
					g.Listeners = append(
						g.Listeners, cloud.Listener{Protocol: cloud.TCP, Port: other, TargetPort: target},
					)
				}
				if i%5 == 0 {
					g.HealthCheck = &cloud.HealthCheck{
						Protocol: cloud.CheckTCP, Port: 1, Interval: time.Second, Timeout: time.Second,
					}
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
		_, digest, err := readToEnd(c)
		require.NoError(t, err)
		require.NoError(t, <-written)
		require.NoError(t, <-changed)
		assert.Equal(t, said.digest(), digest)
		awaitNoConnections(t, p)
	})
}

// A balancer that gets another address accepts connections there, and the connections to
// its former address go on.
func TestConnectionsOutliveAddressChange(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := startTarget(t, two, 0, echo)
	f := forwarding(target, []string{two}, port)
	require.NoError(t, p.Apply(f))
	c := dial(t, port)
	requireEcho(t, c, "hello")
	f.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{127, 76, byte(os.Getpid() >> 8), byte(os.Getpid())})}
	require.NoError(t, p.Apply(f))
	requireEcho(t, c, "still here")
	there, err := net.DialTimeout("tcp4", netip.AddrPortFrom(f.Addresses[0], uint16(port)).String(), testTimeout)
	require.NoError(t, err)
	defer func() { _ = there.Close() }()
	requireEcho(t, there, "and there")
	_, err = net.DialTimeout("tcp4", netip.AddrPortFrom(front, uint16(port)).String(), testTimeout)
	require.Error(t, err)
}
