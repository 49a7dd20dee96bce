package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func newTargets(names ...string) (out []target) {
	for _, n := range names {
		out = append(out, target{endpoint: &endpoint{name: n}})
	}
	return out
}

func clientNumber(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

// triedNames returns the names of the targets in the order in which a client tries them.
func triedNames(l *listener, r *route, client netip.Addr) (names []string) {
	for t := range l.candidatesFor(r, client, "") {
		names = append(names, t.name)
	}
	return names
}

func newTestListener() *listener {
	return &listener{balancer: &balancer{affinity: newAffinity(clockwork.NewFakeClock(), 10)}}
}

func TestRoundRobinOrderIsEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "targets")
		r := &route{algorithm: api.AlgorithmRoundRobin}
		for i := range n {
			r.targets = append(r.targets, newTargets(fmt.Sprint(i))...)
		}
		l, seen := newTestListener(), map[string]int{}
		for range rapid.IntRange(0, 40).Draw(t, "connections") {
			names := triedNames(l, r, clientNumber(1))
			require.Len(t, names, n)
			seen[names[0]]++
			for i, name := range names { // The others follow in round robin.
				next := names[(i+1)%n]
				assert.Equal(t, fmt.Sprint((slices.Index(r.targetNames(), name)+1)%n), next)
			}
		}
		least, most := 1<<30, 0
		for _, name := range r.targetNames() {
			least, most = min(least, seen[name]), max(most, seen[name])
		}
		assert.LessOrEqual(t, most-least, 1)
	})
}

func (r *route) targetNames() (names []string) {
	for _, t := range r.targets {
		names = append(names, t.name)
	}
	return names
}

func TestLeastConnectionsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &route{algorithm: api.AlgorithmLeastConnections, targets: newTargets("a", "b", "c", "d")}
		l := newTestListener()
		for _, target := range r.targets {
			target.openConnections.Store(rapid.Int64Range(0, 3).Draw(t, "busy"))
		}
		for range 20 {
			var busy []int64
			for _, name := range triedNames(l, r, clientNumber(1)) {
				busy = append(busy, r.targets[slices.Index(r.targetNames(), name)].openConnections.Load())
			}
			require.Len(t, busy, 4)
			require.True(t, slices.IsSorted(busy), "%v", busy)
			r.targets[slices.Index(r.targetNames(), triedNames(l, r, clientNumber(1))[0])].openConnections.Add(1)
		}
	})
}

func TestRecentRefuserComesLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, algorithm := range []cloud.Algorithm{api.AlgorithmRoundRobin, api.AlgorithmLeastConnections, api.AlgorithmSourceHash} {
			r := &route{algorithm: algorithm, targets: newTargets("a", "b", "c")}
			l := newTestListener()
			l.refusals.recordRefusal(r.targets[1].endpoint)
			for i := range 6 {
				assert.Equal(t, "b", triedNames(l, r, clientNumber(i))[2], algorithm)
			}
			time.Sleep(refusalMemory)
			first := map[string]bool{}
			for i := range 20 {
				first[triedNames(l, r, clientNumber(i))[0]] = true
			}
			assert.True(t, first["b"], algorithm)
		}
	})
}

func TestSourceHashSpreadsClientsAndKeepsThem(t *testing.T) {
	r := &route{algorithm: api.AlgorithmSourceHash}
	for i := range 5 {
		r.targets = append(r.targets, newTargets(fmt.Sprintf("i-01jd3n6f0c5w3y-%d", i))...)
	}
	const clients = 1000
	share := map[string]int{}
	for i := range clients {
		all := triedNames(newTestListener(), r, clientNumber(i))
		assert.ElementsMatch(t, r.targetNames(), all)
		share[all[0]]++
		shuffled := &route{algorithm: api.AlgorithmSourceHash, targets: slices.Clone(r.targets)}
		slices.Reverse(shuffled.targets)
		assert.Equal(
			t, all, triedNames(newTestListener(), shuffled, clientNumber(i)), "the order of the targets means nothing",
		)
		left := shuffled.targets[2].name
		shuffled.targets = slices.Delete(shuffled.targets, 2, 3)
		assert.Equal(t, slices.DeleteFunc(
			all, func(n string) bool { return n == left },
		), triedNames(newTestListener(), shuffled, clientNumber(i)),
			"only the clients of the target that left move")
	}
	for _, target := range r.targets {
		assert.InDelta(t, clients/len(r.targets), share[target.name], 70, "%v", share)
	}
}

func TestSourceHashByWeight(t *testing.T) {
	r := &route{algorithm: api.AlgorithmSourceHash, targets: newTargets("a", "b"), weights: weightsOf([]cloud.Backend{{}, {Weight: 3}})}
	share := map[string]int{}
	for i := range 1000 {
		share[triedNames(newTestListener(), r, clientNumber(i))[0]]++
	}
	assert.InDelta(t, 750, share["b"], 60)
}

func TestTurnsByWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		backends := make([]cloud.Backend, rapid.IntRange(1, 9).Draw(t, "targets"))
		all := 0
		for i := range backends {
			backends[i].Weight = rapid.IntRange(0, 256).Draw(t, "weight")
			all += max(1, backends[i].Weight)
		}
		w := weightsOf(backends)
		if w == nil {
			return // They take turns.
		}
		turns := make([]int, len(backends))
		for turn := range all {
			turns[w.spread(uint64(turn))]++
		}
		for i, b := range backends {
			require.Equal(t, max(1, b.Weight), turns[i], "%v", backends)
		}
	})
}

func TestSlotsByWeight(t *testing.T) {
	slots := assignSlots([]cloud.Backend{
		{Target: "a", Address: netip.MustParseAddr("10.0.0.1"), Weight: 256},
		{Target: "b", Address: netip.MustParseAddr("10.0.0.2"), Weight: 64},
	})
	of := map[string]int{}
	for _, s := range slots {
		of[s.String()]++
	}
	assert.InDelta(t, slotCount/5, of["10.0.0.2"], 2)
}
