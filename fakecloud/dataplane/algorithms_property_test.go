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

// targetFarm is a balancer with targets named 0, 1, 2 …, each at an address of its own,
// that greet with their name and then echo. A test chooses which of them are in force.
type targetFarm struct {
	plane      *dataplane.Plane
	all        []cloud.Backend
	forwarding cloud.Forwarding
}

// targetAddress is the address of target i of a farm.
func targetAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(100 + i), byte(os.Getpid() >> 8), byte(os.Getpid())})
}

func newTargetFarm(t *testing.T, targets, listeners int, serve func(name string) func(net.Conn)) *targetFarm {
	t.Helper()
	d := &targetFarm{plane: newPlane(t), forwarding: cloud.Forwarding{ID: "lb-1", Addresses: []netip.Addr{front}}}
	port := 0
	for i := range targets {
		port = startTarget(t, targetAddress(i).String(), port, serve(fmt.Sprint(i)))
		// The names, and so their hashes, are the same in each run.
		d.all = append(d.all, cloud.Backend{Target: fmt.Sprintf("i-%d", i), Address: targetAddress(i)})
	}
	for range listeners {
		d.forwarding.Listeners = append(
			d.forwarding.Listeners, cloud.Listener{Protocol: cloud.TCP, Port: freePort(t), TargetPort: port},
		)
	}
	return d
}

// applyTargets puts the targets with these numbers in force, in this order.
func (d *targetFarm) applyTargets(t require.TestingT, numbers []int) {
	d.forwarding.Backends = nil
	for _, i := range numbers {
		d.forwarding.Backends = append(d.forwarding.Backends, d.all[i])
	}
	require.NoError(t, d.plane.Apply(d.forwarding))
}

func (d *targetFarm) activeConnections() (n int64) {
	for _, l := range d.plane.Stats("lb-1").Listeners {
		n += l.Active
	}
	return n
}

// awaitConnections waits until the balancer has n connections.
func (d *targetFarm) awaitConnections(t require.TestingT, n int) {
	require.Eventually(t, func() bool { return d.activeConnections() == int64(n) }, testTimeout, 100*time.Microsecond)
}

// connectFrom opens a connection from host, and returns the number of the target that
// answers.
func (d *targetFarm) connectFrom(t require.TestingT, host netip.Addr, listener int) (net.Conn, int) {
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(host, 0)), Timeout: testTimeout}
	c, err := dialer.Dial("tcp4", netip.AddrPortFrom(front, uint16(d.forwarding.Listeners[listener].Port)).String())
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
	name := make([]byte, 1)
	_, err = io.ReadFull(c, name)
	require.NoError(t, err)
	return c, int(name[0] - '0')
}

// connectOnce opens a connection and resets it, which leaves no socket in TIME_WAIT.
func (d *targetFarm) connectOnce(t require.TestingT, host netip.Addr, listener int) int {
	c, name := d.connectFrom(t, host, listener)
	require.NoError(t, c.(*net.TCPConn).SetLinger(0))
	require.NoError(t, c.Close())
	return name
}

// drawTargets draws at least one of n targets, in any order.
func drawTargets(n int) *rapid.Generator[[]int] {
	return rapid.Custom(func(t *rapid.T) []int {
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		return rapid.Permutation(all).Draw(t, "order")[:rapid.IntRange(1, n).Draw(t, "targets")]
	})
}

// clientAddress is the address of client i.
func clientAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 81, byte(i >> 8), byte(i + 1)})
}

// While the targets stay the same, in any run of consecutive connections, no target gets
// two connections more than another.
func TestRoundRobinProperties(t *testing.T) {
	const targets = 4
	d := newTargetFarm(t, targets, 2, greetAndEcho)
	rapid.Check(t, func(t *rapid.T) {
		d.plane.Remove("lb-1")
		var using, got []int
		use := func(t *rapid.T) {
			using, got = drawTargets(targets).Draw(t, "using"), nil
			d.applyTargets(t, using)
		}
		use(t)
		t.Repeat(map[string]func(*rapid.T){
			"use":     use,
			"connect": func(t *rapid.T) { got = append(got, d.connectOnce(t, front, 0)) },
			"several": func(t *rapid.T) {
				for range 2 * targets {
					got = append(got, d.connectOnce(t, front, 0))
				}
			},
			"elsewhere": func(t *rapid.T) { d.connectOnce(t, front, 1) }, // Each listener has its own round robin.
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
	d := newTargetFarm(t, targets, 2, greetAndEcho)
	d.forwarding.Algorithm = cloud.LeastConnections
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
			using = drawTargets(targets).Draw(t, "using")
			d.applyTargets(t, using)
		}
		use(t)
		t.Repeat(map[string]func(*rapid.T){
			"use": use, // Targets that are left out keep their connections, and may come back.
			"open": func(t *rapid.T) {
				c, target := d.connectFrom(t, front, rapid.IntRange(0, 1).Draw(t, "listener"))
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
				d.awaitConnections(t, len(held))
			},
		})
	})
}

// A client's target follows from its address and the set of targets. When targets come or
// go, only their clients move.
func TestSourceHashProperties(t *testing.T) {
	const targets, clients = 5, 12
	d := newTargetFarm(t, targets, 2, greetAndEcho)
	d.forwarding.Algorithm = cloud.SourceHash
	everywhere := func(t *rapid.T, using []int) map[int]int {
		d.applyTargets(t, using)
		out := map[int]int{}
		for c := range clients {
			out[c] = d.connectOnce(t, clientAddress(c), c%2)
			require.Contains(t, using, out[c])
		}
		return out
	}
	rapid.Check(t, func(t *rapid.T) {
		d.plane.Remove("lb-1")
		using := drawTargets(targets).Draw(t, "using")
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

// With any algorithm, a client stays with its target on all listeners as long as the
// target is in force, and then with the next target.
func TestAffinityKeepsClients(t *testing.T) {
	const targets = 4
	d := newTargetFarm(t, targets, 2, greetAndEcho)
	d.forwarding.Affinity = time.Hour
	rapid.Check(t, func(t *rapid.T) {
		d.plane.Remove("lb-1") // So affinity is forgotten.
		own := map[int]int{}
		var using []int
		use := func(t *rapid.T) {
			using = drawTargets(targets).Draw(t, "using")
			d.forwarding.Algorithm = rapid.SampledFrom(
				[]cloud.Algorithm{"", cloud.RoundRobin, cloud.LeastConnections, cloud.SourceHash},
			).Draw(t, "algorithm")
			d.applyTargets(t, using)
		}
		use(t)
		t.Repeat(map[string]func(*rapid.T){
			"use": use,
			"connect": func(t *rapid.T) {
				c := rapid.IntRange(0, 5).Draw(t, "client")
				target := d.connectOnce(t, clientAddress(c), rapid.IntRange(0, 1).Draw(t, "listener"))
				was, known := own[c]
				if known && slices.Contains(using, was) {
					require.Equal(t, was, target)
				}
				require.Contains(t, using, target)
				own[c] = target
				d.awaitConnections(t, 0) // A connection whose end is noticed late would count as later activity.
			},
		})
	})
}

// Many clients that connect at the same time are spread over the targets, and no client
// has two targets.
func TestAffinityOfConcurrentClients(t *testing.T) {
	const targets, clients, each = 3, 12, 8
	d := newTargetFarm(t, targets, 1, greetAndEcho)
	d.forwarding.Affinity = time.Hour
	d.applyTargets(t, []int{0, 1, 2})
	order := rand.Perm(clients * each)
	type answer struct{ client, target int }
	answers := make(chan answer)
	for _, i := range order {
		go func() {
			got := answer{i % clients, -1}
			defer func() { answers <- got }()
			got.target = d.connectOnce(failOnlyGoroutine{t}, clientAddress(got.client), 0)
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

// failOnlyGoroutine is a test in a goroutine of its own: FailNow ends that goroutine only.
type failOnlyGoroutine struct{ *testing.T }

func (failOnlyGoroutine) FailNow() { runtime.Goexit() }
