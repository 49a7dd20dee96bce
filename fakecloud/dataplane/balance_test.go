package dataplane_test

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

// field is a balancer before targets named 0, 1, 2 …, each at an address of its
// own, that greet with their name and then echo. Which of them are in force is
// the test's choice.
type field struct {
	plane *dataplane.Plane
	all   []cloud.Backend
	f     cloud.Forwarding
}

// targetAddress is where the target of a field is.
func targetAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(100 + i), byte(os.Getpid() >> 8), byte(os.Getpid())})
}

func newField(t *testing.T, targets, listeners int, serve func(name string) func(net.Conn)) *field {
	t.Helper()
	d := &field{plane: newPlane(t), f: cloud.Forwarding{ID: "lb-1", Address: front}}
	port := 0
	for i := range targets {
		port = backend(t, targetAddress(i).String(), port, serve(fmt.Sprint(i)))
		// The names are the same in each run, and so is what is hashed of them.
		d.all = append(d.all, cloud.Backend{Target: fmt.Sprintf("i-%d", i), Address: targetAddress(i)})
	}
	for range listeners {
		d.f.Listeners = append(d.f.Listeners, cloud.Listener{Protocol: cloud.TCP, Port: freePort(t), TargetPort: port})
	}
	return d
}

// use puts the targets of those numbers in force, in any order.
func (d *field) use(t require.TestingT, numbers []int) {
	d.f.Backends = nil
	for _, i := range numbers {
		d.f.Backends = append(d.f.Backends, d.all[i])
	}
	require.NoError(t, d.plane.Apply(d.f))
}

func (d *field) active() (n int64) {
	for _, l := range d.plane.Stats("lb-1").Listeners {
		n += l.Active
	}
	return n
}

// settle waits until the balancer has so many connections.
func (d *field) settle(t require.TestingT, n int) {
	require.Eventually(t, func() bool { return d.active() == int64(n) }, patience, 100*time.Microsecond)
}

// visit opens a connection from host, and gives who answers.
func (d *field) visit(t require.TestingT, host netip.Addr, listener int) (net.Conn, int) {
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(host, 0)), Timeout: patience}
	c, err := dialer.Dial("tcp4", netip.AddrPortFrom(front, uint16(d.f.Listeners[listener].Port)).String())
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	name := make([]byte, 1)
	_, err = io.ReadFull(c, name)
	require.NoError(t, err)
	return c, int(name[0] - '0')
}

// glance is a visit that ends at once, without leaving a socket in TIME_WAIT.
func (d *field) glance(t require.TestingT, host netip.Addr, listener int) int {
	c, name := d.visit(t, host, listener)
	require.NoError(t, c.(*net.TCPConn).SetLinger(0))
	require.NoError(t, c.Close())
	return name
}

// someOf draws which of n are in force: at least one, in any order.
func someOf(n int) *rapid.Generator[[]int] {
	return rapid.Custom(func(t *rapid.T) []int {
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		return rapid.Permutation(all).Draw(t, "order")[:rapid.IntRange(1, n).Draw(t, "targets")]
	})
}

// clientAddress is one of many.
func clientAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 81, byte(i >> 8), byte(i + 1)})
}

// In whatever stretch of connections in a row, while the targets stay, no target
// gets two more than another.
func TestRoundRobinProperties(t *testing.T) {
	const targets = 4
	d := newField(t, targets, 2, greets)
	rapid.Check(t, func(t *rapid.T) {
		d.plane.Remove("lb-1")
		var using, got []int
		use := func(t *rapid.T) {
			using, got = someOf(targets).Draw(t, "using"), nil
			d.use(t, using)
		}
		use(t)
		t.Repeat(map[string]func(*rapid.T){
			"use":     use,
			"connect": func(t *rapid.T) { got = append(got, d.glance(t, front, 0)) },
			"several": func(t *rapid.T) {
				for range 2 * targets {
					got = append(got, d.glance(t, front, 0))
				}
			},
			"elsewhere": func(t *rapid.T) { d.glance(t, front, 1) }, // Another listener has turns of its own.
			"": func(t *rapid.T) {
				for first := range got {
					counts := map[int]int{}
					for _, i := range using {
						counts[i] = 0
					}
					for _, i := range got[first:] {
						counts[i]++
					}
					require.Len(t, counts, len(using), "a target that is none was used: %v of %v", got, using)
					all := slices.Collect(maps.Values(counts))
					require.LessOrEqual(t, slices.Max(all)-slices.Min(all), 1, "%v", got[first:])
				}
			},
		})
	})
}

// No connection goes to a target that has more than another.
func TestLeastConnectionsProperties(t *testing.T) {
	const targets = 4
	d := newField(t, targets, 2, greets)
	d.f.Algorithm = cloud.LeastConnections
	type open struct {
		net.Conn
		target int
	}
	rapid.Check(t, func(t *rapid.T) {
		d.plane.Remove("lb-1")
		var using []int
		var held []open
		counts := map[int]int{}
		defer func() {
			for _, c := range held {
				_ = c.Close()
			}
		}()
		use := func(t *rapid.T) {
			using = someOf(targets).Draw(t, "using")
			d.use(t, using)
		}
		use(t)
		t.Repeat(map[string]func(*rapid.T){
			"use": use, // Targets that left keep their connections, and may come back with them.
			"open": func(t *rapid.T) {
				c, target := d.visit(t, front, rapid.IntRange(0, 1).Draw(t, "listener"))
				held = append(held, open{c, target})
				require.Contains(t, using, target)
				for _, other := range using {
					require.LessOrEqual(t, counts[target], counts[other], "target %d, of %v", target, counts)
				}
				counts[target]++
			},
			"close": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip("none is open")
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				require.NoError(t, held[i].Close())
				counts[held[i].target]--
				held = slices.Delete(held, i, i+1)
				d.settle(t, len(held))
			},
		})
	})
}

// A client's target follows from its address and the set of targets, and only
// the clients of those move that come or go.
func TestSourceHashProperties(t *testing.T) {
	const targets, clients = 5, 12
	d := newField(t, targets, 2, greets)
	d.f.Algorithm = cloud.SourceHash
	everywhere := func(t *rapid.T, using []int) map[int]int {
		d.use(t, using)
		out := map[int]int{}
		for c := range clients {
			out[c] = d.glance(t, clientAddress(c), c%2)
			require.Contains(t, using, out[c])
		}
		return out
	}
	rapid.Check(t, func(t *rapid.T) {
		d.plane.Remove("lb-1")
		using := someOf(targets).Draw(t, "using")
		if len(using) == 1 {
			using = []int{0, 1}
		}
		before := everywhere(t, using)
		gone := rapid.SampledFrom(using).Draw(t, "gone")
		left := slices.DeleteFunc(slices.Clone(using), func(i int) bool { return i == gone })
		for c, target := range everywhere(t, left) {
			if before[c] != gone {
				require.Equal(t, before[c], target, "client %d moved, and its target had not", c)
			}
		}
		back := rapid.Permutation(using).Draw(t, "order")
		require.Equal(t, before, everywhere(t, back), "all is as it was, in whatever order the targets are given")
	})
}

func TestSourceHashSpreadsClientsEvenly(t *testing.T) {
	const targets, clients = 5, 500
	d := newField(t, targets, 1, greets)
	d.f.Algorithm = cloud.SourceHash
	d.use(t, []int{0, 1, 2, 3, 4})
	share := map[int]int{}
	for c := range clients {
		share[d.glance(t, clientAddress(c), 0)]++
	}
	for i := range targets {
		// The standard deviation of a fair share is 9; the addresses and names are
		// the same in each run.
		assert.InDelta(t, clients/targets, share[i], 45, "%v", share)
	}
}

// Whatever the algorithm, a client that has a target stays with it on all
// listeners while it is one, and then with the next.
func TestAffinityKeepsClients(t *testing.T) {
	const targets = 4
	d := newField(t, targets, 2, greets)
	d.f.Affinity = time.Hour
	rapid.Check(t, func(t *rapid.T) {
		d.plane.Remove("lb-1") // It forgets.
		own := map[int]int{}
		var using []int
		use := func(t *rapid.T) {
			using = someOf(targets).Draw(t, "using")
			d.f.Algorithm = rapid.SampledFrom([]cloud.Algorithm{"", cloud.RoundRobin, cloud.LeastConnections, cloud.SourceHash}).Draw(t, "algorithm")
			d.use(t, using)
		}
		use(t)
		t.Repeat(map[string]func(*rapid.T){
			"use": use,
			"connect": func(t *rapid.T) {
				c := rapid.IntRange(0, 5).Draw(t, "client")
				target := d.glance(t, clientAddress(c), rapid.IntRange(0, 1).Draw(t, "listener"))
				was, known := own[c]
				if known && slices.Contains(using, was) {
					require.Equal(t, was, target)
				}
				require.Contains(t, using, target)
				own[c] = target
				d.settle(t, 0) // An end that is seen late must not be the client's last word.
			},
		})
	})
}

// Many clients that come at once are spread, and none has two targets.
func TestAffinityOfClientsThatComeAtOnce(t *testing.T) {
	const targets, clients, each = 3, 12, 8
	d := newField(t, targets, 1, greets)
	d.f.Affinity = time.Hour
	d.use(t, []int{0, 1, 2})
	order := rand.Perm(clients * each)
	type answer struct{ client, target int }
	answers := make(chan answer)
	for _, i := range order {
		go func() {
			got := answer{i % clients, -1}
			defer func() { answers <- got }()
			got.target = d.glance(aside{t}, clientAddress(got.client), 0)
		}()
	}
	own, seen := map[int]int{}, map[int]bool{}
	for range order {
		got := <-answers
		if was, known := own[got.client]; known {
			assert.Equal(t, was, got.target)
		}
		own[got.client], seen[got.target] = got.target, true
	}
	assert.Greater(t, len(seen), 1)
}

// aside is a test as seen by a goroutine of its own, which may end only itself.
type aside struct{ *testing.T }

func (aside) FailNow() { runtime.Goexit() }
