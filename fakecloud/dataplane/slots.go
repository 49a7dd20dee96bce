package dataplane

import (
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// slotCount is how many slots a network balancer spreads new flows over. It is a prime, as
// assignSlots needs, and large enough for a hundred targets to get shares that differ little.
const slotCount = 509

// assignSlots gives each slot to a target, by Maglev's consistent hashing (Eisenbud et al., NSDI
// 2016): the shares of targets of the same weight differ by at most one slot, the order of the targets does not
// matter, and when one comes or goes, few slots of the others change hands. It returns nil if
// there are no targets.
func assignSlots(targets []cloud.Backend) []netip.Addr {
	if len(targets) == 0 {
		return nil
	}
	targets = slices.Clone(targets)
	slices.SortFunc(targets, func(a, b cloud.Backend) int { return strings.Compare(a.Target, b.Target) })
	type preference struct { // a target's favourite slot, the way to the others, and how many turns it has saved up
		next, step uint32
		credit     int
	}
	heaviest := 1
	for _, t := range targets {
		heaviest = max(heaviest, t.Weight)
	}
	preferences := make([]preference, len(targets))
	for i, t := range targets {
		h := fnv.New64a()
		_, _ = h.Write([]byte(t.Target))
		sum := h.Sum64()
		preferences[i] = preference{uint32(sum % slotCount), uint32((sum>>32)%(slotCount-1)) + 1, 0}
	}
	slots := make([]netip.Addr, slotCount)
	for filled := 0; ; {
		for i := range targets {
			p := &preferences[i]
			if p.credit += max(1, targets[i].Weight); p.credit < heaviest {
				continue
			}
			p.credit -= heaviest
			for slots[p.next].IsValid() {
				p.next = (p.next + p.step) % slotCount
			}
			slots[p.next] = targets[i].Address
			if filled++; filled == slotCount {
				return slots
			}
		}
	}
}
