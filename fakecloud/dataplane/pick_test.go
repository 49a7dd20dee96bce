package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func named(names ...string) (out []target) {
	for _, n := range names {
		out = append(out, target{name: n})
	}
	return out
}

func clientNumber(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

func TestInTurnBeginsWithEachTargetAsOften(t *testing.T) {
	targets := named("a", "b", "c")
	first := ""
	for turn := range uint64(6) {
		all := inTurn(targets, turn)
		assert.ElementsMatch(t, targets, all)
		first += all[0].name
	}
	assert.Equal(t, "abcabc", first)
}

func TestByHashSpreadsClientsAndKeepsThem(t *testing.T) {
	var targets []target
	for i := range 5 {
		targets = append(targets, target{name: fmt.Sprintf("i-01jd3n6f0c5w3y-%d", i)})
	}
	const clients = 1000
	share := map[string]int{}
	for i := range clients {
		all := byHash(targets, clientNumber(i))
		assert.ElementsMatch(t, targets, all)
		share[all[0].name]++
		shuffled := slices.Clone(targets)
		slices.Reverse(shuffled)
		assert.Equal(t, all, byHash(shuffled, clientNumber(i)), "the order of the targets means nothing")
		gone := slices.DeleteFunc(slices.Clone(targets), func(t target) bool { return t.name == targets[2].name })
		want := all[0]
		if want == targets[2] {
			want = all[1]
		}
		assert.Equal(t, want, byHash(gone, clientNumber(i))[0], "only the clients of the target that left move")
	}
	for _, target := range targets {
		assert.InDelta(t, clients/len(targets), share[target.name], 70, "%v", share)
	}
}

func TestLeastFirst(t *testing.T) {
	l := load{of: map[string]int{}}
	first := func() string { return l.leastFirst(named("a", "b", "c"))[0].name }
	assert.Equal(t, "a", first(), "of the same load: in their order")
	l.begin("a")
	l.begin("b")
	assert.Equal(t, "c", first())
	l.begin("c")
	l.begin("c")
	l.end("b")
	assert.Equal(t, "b", first())
	l.end("a")
	l.end("c")
	l.end("c")
	assert.Empty(t, l.of, "nothing is kept of targets without connections")
}

func TestSilenceLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := newSilence(10 * time.Second)
		go func() {
			for range 3 {
				time.Sleep(7 * time.Second)
				s.heard()
			}
		}()
		assert.True(t, s.lasted(nil))
		assert.Equal(t, 31*time.Second, time.Since(start), "21 s of noise, 10 s of silence")

		done := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(done) })
		assert.False(t, newSilence(10*time.Second).lasted(done))
	})
}
