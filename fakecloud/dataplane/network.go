package dataplane

// Network balancers: which elements the kernel's sets and maps have for them. What the kernel does
// with these is in nftables_linux.go.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// setName is the name of one of the kernel's sets and maps.
type setName string

const (
	// listenerSet has a balancer's address, protocol, port and what is counted; it counts.
	listenerSet setName = "listeners"
	// targetSet has a balancer's address, a target's and what is counted; it counts.
	targetSet setName = "targets"
	// The two maps lead from an address, protocol and port to a group of slots, by the flow's or by
	// the client's address.
	groupByFlowMap   setName = "groups-by-flow"
	groupByClientMap setName = "groups-by-client"
	// slotMap leads from a group and a slot of it to the address of a target.
	slotMap setName = "slots"
	// restrictedSet has the addresses of balancers with source ranges, allowedSourcesSet these
	// addresses with each of the ranges.
	restrictedSet     setName = "restricted"
	allowedSourcesSet setName = "allowed-sources"
	// flowMap leads from TCP flows to the addresses of their targets. The kernel fills it.
	flowMap setName = "flows"
	// attachedMap leads from attached addresses to those of their instances.
	attachedMap setName = "attached"
)

// counted is what an element of listenerSet or targetSet counts.
type counted uint32

const (
	countPackets counted = iota // all that are forwarded, or come to the listener
	countOpened                 // TCP flows
	countFailed                 // TCP flows and UDP datagrams for which there was no target
	countRefused                // TCP flows and UDP datagrams from outside of the source ranges
)

// packetCount is what an element has counted.
type packetCount struct{ packets, bytes int64 }

// element is the key of an element, in the kernel's form: each part of a concatenation takes a
// multiple of four bytes. keyEnd is for ranges.
type element struct {
	set         setName
	key, keyEnd string
}

// elements are elements with what they map to; empty in a set.
type elements map[element]string

// canDrain tells whether the element stays for a while when its listener or target is taken out.
func (e element) canDrain() bool { return e.set == listenerSet || e.set == targetSet }

func listenerElement(address netip.Addr, p port, what counted) element {
	return element{set: listenerSet, key: listenerKey(address, p) + numberKey(uint32(what))}
}

// listenerKey is an address with a protocol and a port.
func listenerKey(address netip.Addr, p port) string {
	const tcp, udp = 6, 17
	protocol := byte(tcp)
	if p.protocol == api.ProtocolUDP {
		protocol = udp
	}
	return string(address.AsSlice()) + string([]byte{protocol, 0, 0, 0, byte(p.number >> 8), byte(p.number), 0, 0})
}

func targetElement(address, target netip.Addr, what counted) element {
	return element{
		set: targetSet, key: string(address.AsSlice()) + string(target.AsSlice()) + numberKey(uint32(what)),
	}
}

func numberKey(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }

// slotKey has the slot as the kernel's hash gives it, in this machine's byte order.
func slotKey(group uint32, slot int) string {
	return numberKey(group) + string(binary.NativeEndian.AppendUint32(nil, uint32(slot)))
}

// lastAddress is the last address of a range.
func lastAddress(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(a)
}

// networkState is what the kernel has of a balancer.
type networkState struct {
	inForce elements
	// groups are the groups of slots, one for the listeners with the same receivers.
	groups map[receivers]uint32
	// leftAt says since when an element drains.
	leftAt map[element]time.Time
	// err is why the kernel does not have what it should.
	err error
	// timer has the state synchronised again.
	timer *time.Timer
}

// isForwardedInKernel tells whether the kernel passes packets on, and nothing listens.
func isForwardedInKernel(kind cloud.LoadBalancerKind) bool {
	return kind == api.KindNetwork || kind == cloud.AttachedAddress
}

// CanForward implements cloud.DataPlane.
func (p *Plane) CanForward(kind cloud.LoadBalancerKind) error {
	switch {
	case !isForwardedInKernel(kind):
		return nil
	case kind == cloud.AttachedAddress && p.iface == "":
		return errors.New("this cloud's addresses are its machine's own (loopback), where no packets pass: " +
			"whatever plays the instance has to listen on the address itself, as a node of an embedded lab does")
	case kind == cloud.AttachedAddress:
		return p.translationErr
	case p.iface == "":
		return errors.New("its load balancers listen on this machine's own addresses (loopback), where no packets pass: " +
			"start fakecloud with --load-balancer-interface in a network that the targets are in, as a kind lab does, " +
			"or choose a proxy")
	case p.forwarderErr != nil:
		return fmt.Errorf("%w; or choose a proxy", p.forwarderErr)
	}
	return nil
}

// syncNetwork has the kernel forward as f says, or as it did before and returns an error. Of a
// proxy it has nothing. The caller holds Plane.mu.
func (b *balancer) syncNetwork(f cloud.Forwarding) error {
	if err := b.plane.CanForward(f.Kind); err != nil {
		return err
	}
	wanted := elements{}
	switch f.Kind {
	case api.KindNetwork:
		wanted = b.networkElements(f)
		b.keepDraining(f, wanted)
	case cloud.AttachedAddress:
		wanted = attachedElements(f)
	}
	if len(wanted) > 0 || len(b.network.inForce) > 0 {
		if err := b.plane.forwarder.replaceElements(b.network.inForce, wanted); err != nil {
			return err
		}
	}
	b.network.inForce, b.network.err = wanted, nil
	return nil
}

// resyncNetwork has the kernel know of a change of health, or that draining has ended. If it
// fails, it is tried again. The caller holds Plane.mu.
func (b *balancer) resyncNetwork() {
	if err := b.syncNetwork(b.forwarding); err != nil {
		b.network.err = err
		b.log.Warn("the kernel forwards as before", "err", err)
		b.resyncAfter(maxRetryPause)
	}
}

// resyncAfter has resyncNetwork called after a while, or sooner if it was to be called sooner. The
// caller holds Plane.mu.
func (b *balancer) resyncAfter(pause time.Duration) {
	if b.network.timer != nil {
		b.network.timer.Stop()
	}
	b.network.timer = time.AfterFunc(pause, func() {
		b.plane.mu.Lock()
		defer b.plane.mu.Unlock()
		if b.plane.balancers[b.forwarding.ID] == b {
			b.resyncNetwork()
			b.updateCondition()
		}
	})
}

// networkElements are the elements for what f asks for, without what drains.
func (b *balancer) networkElements(f cloud.Forwarding) elements {
	all := elements{}
	for _, address := range f.Addresses {
		for _, l := range f.Listeners {
			p := port{l.Protocol, l.Port}
			for _, what := range []counted{countPackets, countOpened, countFailed, countRefused} {
				all[listenerElement(address, p, what)] = ""
			}
			groups := groupByFlowMap
			if f.Affinity > 0 || f.Algorithm == api.AlgorithmSourceHash {
				groups = groupByClientMap
			}
			group := b.slotGroup(receiversOf(f, l))
			all[element{set: groups, key: listenerKey(address, p)}] = numberKey(group)
		}
		for _, backend := range f.AllBackends() {
			for _, what := range []counted{countPackets, countOpened} {
				all[targetElement(address, backend.Address, what)] = ""
			}
		}
		if len(f.SourceRanges) > 0 {
			all[element{set: restrictedSet, key: string(address.AsSlice())}] = ""
		}
		for _, r := range withoutCovered(f.SourceRanges) {
			key := string(address.AsSlice())
			all[element{
				set: allowedSourcesSet,
				key: key + string(r.Masked().Addr().AsSlice()), keyEnd: key + string(lastAddress(r).AsSlice()),
			}] = ""
		}
	}
	filled := map[receivers]bool{}
	for _, l := range f.Listeners {
		r := receiversOf(f, l)
		if filled[r] {
			continue
		}
		filled[r] = true
		for slot, target := range assignSlots(b.receivingBackends(f.BackendsOf(l), r)) {
			all[element{set: slotMap, key: slotKey(b.slotGroup(r), slot)}] = string(target.AsSlice())
		}
	}
	return all
}

// attachedElements are the elements for an attached address, whose instance is the one backend while it runs.
func attachedElements(f cloud.Forwarding) elements {
	all := elements{}
	for _, instance := range f.Backends {
		all[element{set: attachedMap, key: string(f.Addresses[0].AsSlice())}] = string(instance.Address.AsSlice())
	}
	return all
}

// withoutCovered are the IPv4 ranges that no other of the ranges covers: the kernel refuses
// elements that overlap.
func withoutCovered(ranges []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(ranges), func(r netip.Prefix) bool {
		return !r.Addr().Is4() || slices.ContainsFunc(ranges, func(other netip.Prefix) bool {
			return other.Bits() < r.Bits() && other.Contains(r.Addr())
		})
	})
}

// slotGroup is the number of the group of slots of listeners with the same receivers. The caller
// holds Plane.mu.
func (b *balancer) slotGroup(r receivers) uint32 {
	group, ok := b.network.groups[r]
	if !ok {
		b.plane.lastGroup++
		group = b.plane.lastGroup
		b.network.groups[r] = group
	}
	return group
}

// keepDraining adds to the wanted elements those of listeners and targets that were taken out and
// may keep their flows, and has the state synchronised again when the first of them may no longer.
func (b *balancer) keepDraining(f cloud.Forwarding, wanted elements) {
	now := time.Now()
	var next time.Duration
	kept := map[element]time.Time{}
	for e, value := range b.network.inForce {
		if _, stays := wanted[e]; stays || !e.canDrain() || !slices.ContainsFunc(f.Addresses, e.isOf) {
			continue
		}
		since, ok := b.network.leftAt[e]
		if !ok {
			since = now
		}
		left := f.Drain - now.Sub(since)
		if f.Drain > 0 && left <= 0 || len(kept) == maxFormerEndpoints {
			continue
		}
		kept[e], wanted[e] = since, value
		if f.Drain > 0 && (next == 0 || left < next) {
			next = left
		}
	}
	b.network.leftAt = kept
	if next > 0 {
		b.resyncAfter(next)
	}
}

// isOf tells whether the element is of a balancer's address.
func (e element) isOf(address netip.Addr) bool {
	return len(e.key) >= 4 && e.key[:4] == string(address.AsSlice())
}

// removeNetwork takes what the kernel has of a balancer out. The caller holds Plane.mu.
func (b *balancer) removeNetwork() {
	if b.network.timer != nil {
		b.network.timer.Stop()
	}
	if len(b.network.inForce) == 0 {
		return
	}
	if err := b.plane.forwarder.replaceElements(b.network.inForce, nil); err != nil {
		b.log.Warn("the kernel still forwards for a load balancer that is gone", "err", err)
	}
}

// packetCounts are the counters of all network balancers. To read them costs the kernel as much as
// there are listeners and targets of all balancers together, so what was read is used for ten
// times as long as that took. The caller holds mu.
func (p *Plane) packetCounts() map[element]packetCount {
	if p.forwarder == nil || time.Now().Before(p.countsValidUntil) {
		return p.counts
	}
	begin := time.Now()
	counts, err := p.forwarder.readCounters()
	if err != nil {
		p.log.Warn("the kernel's counters are those of before", "err", err)
		return p.counts
	}
	p.counts, p.countsValidUntil = counts, time.Now().Add(10*time.Since(begin))
	return counts
}

// networkStats are the counters of a network balancer: what came to its addresses. Answers do not
// pass the balancer. The caller holds Plane.mu.
func (b *balancer) networkStats() (out api.LoadBalancerStats) {
	counts := b.plane.packetCounts()
	sum := func(of func(address netip.Addr) element) (n packetCount) {
		for _, address := range b.forwarding.Addresses {
			c := counts[of(address)]
			n.packets, n.bytes = n.packets+c.packets, n.bytes+c.bytes
		}
		return n
	}
	for _, l := range b.forwarding.Listeners {
		of := func(what counted) packetCount {
			return sum(func(a netip.Addr) element { return listenerElement(a, port{l.Protocol, l.Port}, what) })
		}
		all := of(countPackets)
		out.Listeners = append(out.Listeners, api.ListenerStats{
			Protocol: l.Protocol, Port: l.Port,
			Connections: of(countOpened).packets, FailedConnections: of(countFailed).packets,
			RefusedConnections: of(countRefused).packets, PacketsIn: all.packets, BytesIn: all.bytes,
		})
	}
	for _, backend := range b.forwarding.AllBackends() {
		of := func(what counted) packetCount {
			return sum(func(a netip.Addr) element { return targetElement(a, backend.Address, what) })
		}
		all := of(countPackets)
		out.Targets = append(out.Targets, api.TargetStats{
			InstanceID: backend.Target, Connections: of(countOpened).packets, PacketsIn: all.packets, BytesIn: all.bytes,
		})
	}
	return out
}

func newNetworkState() networkState {
	return networkState{groups: map[receivers]uint32{}, leftAt: map[element]time.Time{}}
}
