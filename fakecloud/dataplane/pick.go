// This file answers: in which order does a client try the targets?

package dataplane

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"sync"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// candidates are a route's targets in the order in which a client is to try
// them: its own first, if it has one, then by the route's algorithm.
func (l *listener) candidates(r *route, client netip.Addr) []target {
	if len(r.targets) == 0 {
		return nil
	}
	var out []target
	switch r.algorithm {
	case cloud.SourceHash:
		out = byHash(r.targets, client)
	case cloud.LeastConnections:
		out = l.balancer.load.leastFirst(inTurn(r.targets, l.turn.Add(1)-1))
	default:
		out = inTurn(r.targets, l.turn.Add(1)-1)
	}
	own := l.balancer.clients.stick(client, out)
	out[0], out[own] = out[own], out[0]
	return out
}

// inTurn begins with another target each turn.
func inTurn(targets []target, turn uint64) []target {
	first := turn % uint64(len(targets))
	return slices.Concat(targets[first:], targets[:first])
}

// byHash ranks the targets by a hash of each with the client (rendezvous
// hashing): when targets come or go, only the clients of those move.
func byHash(targets []target, client netip.Addr) []target {
	type ranked struct {
		target
		score uint64
	}
	all := make([]ranked, len(targets))
	for i, t := range targets {
		h := fnv.New64a()
		_, _ = h.Write(client.AsSlice())
		_, _ = h.Write([]byte(t.name))
		all[i] = ranked{t, mix(h.Sum64())}
	}
	slices.SortFunc(all, func(a, b ranked) int { return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.name, b.name)) })
	out := make([]target, len(all))
	for i, r := range all {
		out[i] = r.target
	}
	return out
}

// mix spreads every bit of an FNV sum, whose last bytes hardly reach the high
// ones, over all of it (the finalizer of MurmurHash3).
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// load counts a balancer's connections and sessions by target, those that are
// being opened included. Safe for concurrent use.
type load struct {
	mu sync.Mutex
	of map[string]int
}

func (l *load) begin(target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of[target]++
}

func (l *load) end(target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[target]--; l.of[target] == 0 {
		delete(l.of, target)
	}
}

// leastFirst sorts by load; those of the same load stay in their order.
func (l *load) leastFirst(targets []target) []target {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortStableFunc(targets, func(a, b target) int { return l.of[a.name] - l.of[b.name] })
	return targets
}
