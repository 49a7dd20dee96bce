package dataplane

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// candidates are a route's targets in the order in which a client is to try
// them: its own first, if it has one, then by the route's algorithm, and last
// those that refused somebody lately. As a rule the first will do, so that the
// others are put in order only when they are asked for.
func (l *listener) candidates(r *route, client netip.Addr) iter.Seq[target] {
	return func(yield func(target) bool) {
		if len(r.targets) == 0 {
			return
		}
		o := order{listener: l, route: r, client: client}
		if r.algorithm != cloud.SourceHash {
			o.turn = l.turn.Add(1) - 1
		}
		first := l.balancer.clients.stick(client, r.targets, o.first(), &l.refusals)
		if !yield(r.targets[first]) {
			return
		}
		for _, i := range o.all() {
			if i != first && !yield(r.targets[i]) {
				return
			}
		}
	}
}

// order is how a route's targets rank for one client.
type order struct {
	listener *listener
	route    *route
	client   netip.Addr
	turn     uint64
}

// rank of a target: the least comes first.
type rank struct {
	refused bool
	by      uint64
	turns   uint64
}

func (a rank) compare(b rank) int {
	if a.refused != b.refused {
		if a.refused {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(a.by, b.by), cmp.Compare(a.turns, b.turns))
}

func (o order) rank(i int) rank {
	n := uint64(len(o.route.targets))
	t := o.route.targets[i]
	r := rank{refused: o.listener.refusals.lately(t.endpoint), turns: (uint64(i) + n - o.turn%n) % n}
	switch o.route.algorithm {
	case cloud.LeastConnections:
		r.by = uint64(max(0, t.busy.Load()))
	case cloud.SourceHash:
		// Rendezvous hashing: when targets come or go, only the clients of those
		// move.
		r.by = ^hash(o.client, t.name)
	}
	return r
}

// first is the place of the target that comes first.
func (o order) first() int {
	begin := int(o.turn % uint64(len(o.route.targets)))
	best := o.rank(begin)
	if best == (rank{}) {
		return begin // None is before it.
	}
	at := begin
	for i := range o.route.targets {
		if r := o.rank(i); r.compare(best) < 0 {
			at, best = i, r
		}
	}
	return at
}

// all are the places of all targets, in their order.
func (o order) all() []int {
	places, ranks := make([]int, len(o.route.targets)), make([]rank, len(o.route.targets))
	for i := range places {
		places[i], ranks[i] = i, o.rank(i) // Once each: what they rank by may change meanwhile.
	}
	slices.SortFunc(places, func(i, j int) int { return ranks[i].compare(ranks[j]) })
	return places
}

// hash mixes a client with a target: FNV-1a, which spreads the last bytes hardly
// over the high bits, and so the finalizer of MurmurHash3. Both are the same at
// every start.
func hash(client netip.Addr, name string) uint64 {
	const offset, prime = 0xcbf29ce484222325, 0x100000001b3
	h := uint64(offset)
	for _, b := range client.As16() {
		h = (h ^ uint64(b)) * prime
	}
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * prime
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
