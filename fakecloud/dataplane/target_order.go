package dataplane

import (
	"cmp"
	"iter"
	"math"
	"net/netip"
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// candidatesFor yields a route's targets in the order in which a client tries them: first
// the one that the client's cookie names, or else the client's own target, if affinity has
// one for it, then the others by the route's algorithm, and last the targets that refused a
// connection lately. As a rule the first target answers, so the others are sorted only when
// the iteration reaches them.
func (l *listener) candidatesFor(r *route, client netip.Addr, cookie string) iter.Seq[target] {
	return func(yield func(target) bool) {
		if len(r.targets) == 0 {
			return
		}
		o := targetOrder{listener: l, route: r, client: client}
		if r.algorithm != api.AlgorithmSourceHash {
			o.turn = r.weights.spread(l.nextTurn.Add(1) - 1)
		}
		first := o.firstIndex()
		if named := r.targetOfCookie(cookie); named != "" {
			first = ownTargetIndex(named, r.targets, first, &l.refusals)
		} else {
			first = l.balancer.affinity.stickyTargetIndex(client, r.targets, first, &l.refusals)
		}
		if !yield(r.targets[first]) {
			return
		}
		for _, i := range o.sortedIndexes() {
			if i != first && !yield(r.targets[i]) {
				return
			}
		}
	}
}

// targetOrder ranks a route's targets for one client.
type targetOrder struct {
	listener *listener
	route    *route
	client   netip.Addr
	turn     uint64
}

// rank decides when a target is tried: the one with the least rank comes first.
type rank struct {
	refused   bool
	score     uint64
	turnsAway uint64
}

func (a rank) compare(b rank) int {
	if a.refused != b.refused {
		if a.refused {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.turnsAway, b.turnsAway))
}

func (o targetOrder) rankOf(i int) rank {
	n := uint64(len(o.route.targets))
	t := o.route.targets[i]
	r := rank{refused: o.listener.refusals.isRecent(t.endpoint), turnsAway: (uint64(i) + n - o.turn%n) % n}
	switch o.route.algorithm {
	case api.AlgorithmLeastConnections:
		r.score = uint64(max(0, t.openConnections.Load())) * scale / o.route.weights.of(i)
	case api.AlgorithmSourceHash:
		// Rendezvous hashing: when targets come or go, only the clients of those
		// targets move.
		r.score = ^hashClientTarget(o.client, t.name)
		if o.route.weights != nil {
			// A client's hash is the time after which the target rings first; a heavier one rings more often.
			first := -math.Log(float64(^r.score)/math.MaxUint64) / float64(o.route.weights.of(i))
			r.score = math.Float64bits(first) // In the same order, as it is not negative.
		}
	}
	return r
}

// scale is what open connections are multiplied by, for quotients by weights to differ.
const scale = 1 << 16

// weights are the sums of the targets' weights up to each of them; nil if all have the same.
type weights []uint64

func weightsOf(backends []cloud.Backend) weights {
	differs := func(b cloud.Backend) bool { return max(1, b.Weight) != max(1, backends[0].Weight) }
	if !slices.ContainsFunc(backends, differs) {
		return nil
	}
	sums, sum := make(weights, len(backends)), uint64(0)
	for i, b := range backends {
		sum += uint64(max(1, b.Weight))
		sums[i] = sum
	}
	return sums
}

// of is the weight of a target.
func (w weights) of(i int) uint64 {
	switch {
	case w == nil:
		return 1
	case i == 0:
		return w[0]
	}
	return w[i] - w[i-1]
}

// spread gives the index of the target whose turn it is. In as many turns as all weights together, each target has as
// many as its weight, and they are spread: steps of about the golden ratio visit each place of the circle once.
func (w weights) spread(turn uint64) uint64 {
	if w == nil {
		return turn
	}
	all := w[len(w)-1]
	step := all*618/1000 | 1
	for gcd(step, all) > 1 {
		step += 2
	}
	at, _ := slices.BinarySearch(w, turn%all*step%all+1)
	return uint64(at)
}

func gcd(a, b uint64) uint64 {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// firstIndex is the index of the target with the least rank.
func (o targetOrder) firstIndex() int {
	begin := int(o.turn % uint64(len(o.route.targets)))
	best := o.rankOf(begin)
	if best == (rank{}) {
		return begin // No rank is less.
	}
	at := begin
	for i := range o.route.targets {
		if r := o.rankOf(i); r.compare(best) < 0 {
			at, best = i, r
		}
	}
	return at
}

// sortedIndexes are the indexes of all targets, by rank.
func (o targetOrder) sortedIndexes() []int {
	places, ranks := make([]int, len(o.route.targets)), make([]rank, len(o.route.targets))
	for i := range places {
		places[i], ranks[i] = i, o.rankOf(i) // Ranked once, as connections that come and go change the rank.
	}
	slices.SortFunc(places, func(i, j int) int { return ranks[i].compare(ranks[j]) })
	return places
}

// hashClientTarget hashes a client together with a target: by FNV-1a and then, because
// that hardly spreads the last bytes over the high bits, by the finalizer of MurmurHash3.
// The result is the same in every process.
func hashClientTarget(client netip.Addr, name string) uint64 {
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
