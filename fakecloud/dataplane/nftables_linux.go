package dataplane

// The kernel's part of network balancers: one nftables table on the ingress hook of the network
// interface. Its rules are the same whatever the balancers are; these are elements of its sets and
// maps. A packet for a balancer leaves by the same interface for a target, unchanged but for its
// time to live, and comes into no user space.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// flowTimeout is how long a TCP flow without packets from its client is remembered. AWS's
	// network load balancers have the same.
	flowTimeout = 350 * time.Second
	// maxFlows bounds the remembered flows, and the kernel's memory: some 150 bytes each. Flows
	// beyond it go by the hash alone.
	maxFlows = 1 << 18
	// netlinkTimeout bounds one exchange with the kernel.
	netlinkTimeout = 10 * time.Second
	// netlinkBuffer holds the largest transaction: a balancer with 50 listeners, each with a health
	// check of its own, has 25,000 slots.
	netlinkBuffer = 4 << 20
	// elementsPerMessage keeps a message's list below the 64 KiB that an attribute can have.
	elementsPerMessage = 400
)

// packetForwarder is the table of one network interface.
type packetForwarder struct {
	log   *slog.Logger
	iface string
	index uint32
	table *nftables.Table
	// translation is the table of attached addresses; nil if there can be none.
	translation *nftables.Table
	sets        map[setName]*nftables.Set

	mu     sync.Mutex     // held during an exchange
	conn   *nftables.Conn // nil: the next exchange opens one
	socket *netlink.Conn  // that of conn
}

// newPacketForwarder makes the table. One that is there, of a process that was killed, is replaced.
func newPacketForwarder(iface string, log *slog.Logger) (*packetForwarder, error) {
	link, err := net.InterfaceByName(iface)
	if err != nil {
		return nil, err
	}
	f := &packetForwarder{
		log: log, iface: iface, index: uint32(link.Index),
		table: &nftables.Table{Name: "fakecloud-" + iface, Family: nftables.TableFamilyNetdev},
	}
	f.sets = f.newSets()
	if err := f.createTable(); err != nil {
		return nil, err
	}
	if err := f.createRules(); err != nil {
		return nil, errors.Join(kernelError(err), f.close())
	}
	return f, nil
}

// kernelError says what helps against an error of the kernel.
func kernelError(err error) error {
	switch {
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("nftables: permission denied: run fakecloud with CAP_NET_ADMIN")
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EPROTONOSUPPORT):
		return fmt.Errorf("nftables: %w: the kernel lacks a part of nftables: load its modules with "+
			"`modprobe -a nf_tables nft_fwd_netdev nft_hash`", err)
	}
	return fmt.Errorf("nftables: %w", err)
}

func (f *packetForwarder) newSets() map[setName]*nftables.Set {
	address, number := nftables.TypeIPAddr, nftables.TypeMark
	listener := nftables.MustConcatSetType(address, nftables.TypeInetProto, nftables.TypeInetService)
	all := map[setName]*nftables.Set{
		listenerSet: {
			KeyType: nftables.MustConcatSetType(address, nftables.TypeInetProto, nftables.TypeInetService, number),
			Counter: true,
		},
		targetSet:         {KeyType: nftables.MustConcatSetType(address, address, number), Counter: true},
		groupByFlowMap:    {KeyType: listener, IsMap: true, DataType: number},
		groupByClientMap:  {KeyType: listener, IsMap: true, DataType: number},
		slotMap:           {KeyType: nftables.MustConcatSetType(number, number), IsMap: true, DataType: address},
		restrictedSet:     {KeyType: address},
		allowedSourcesSet: {KeyType: nftables.MustConcatSetType(address, address), Interval: true},
		flowMap: {
			KeyType: nftables.MustConcatSetType(address, address, number), IsMap: true, DataType: address,
			Dynamic: true, HasTimeout: true, Timeout: flowTimeout, Size: maxFlows,
		},
	}
	for name, s := range all {
		s.Table, s.Name, s.Concatenation = f.table, string(name), s.KeyType.Bytes > address.Bytes
	}
	return all
}

// exchangeMessages sends messages to the kernel and reads what it answers, over one connection: when one is closed the
// kernel waits until everything that transactions have replaced is freed, whoever made them. After an error an
// answer may be left in the connection, and the next exchange opens another one.
func (f *packetForwarder) exchangeMessages(do func(*nftables.Conn) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn == nil {
		conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
			f.socket = c
			return errors.Join(c.SetReadBuffer(netlinkBuffer), c.SetWriteBuffer(netlinkBuffer))
		}))
		if err != nil {
			return kernelError(err)
		}
		f.conn = conn
	}
	err := f.socket.SetDeadline(time.Now().Add(netlinkTimeout))
	if err == nil {
		err = do(f.conn)
	}
	if err != nil {
		_ = f.conn.CloseLasting()
		f.conn = nil
		return kernelError(err)
	}
	return nil
}

const (
	entryChain   = "ingress"
	forwardChain = "forward"
	refuseChain  = "refuse"
)

func (f *packetForwarder) createTable() error {
	return f.exchangeMessages(func(c *nftables.Conn) error {
		c.AddTable(f.table) // So that there is one to delete.
		c.DelTable(f.table)
		c.AddTable(f.table)
		for _, s := range f.sets {
			if err := c.AddSet(s, nil); err != nil {
				return err
			}
		}
		for _, name := range []string{forwardChain, refuseChain} {
			c.AddChain(&nftables.Chain{Table: f.table, Name: name})
		}
		c.AddChain(&nftables.Chain{
			Table: f.table, Name: entryChain, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookIngress,
			Priority: nftables.ChainPriorityFilter, Device: f.iface, Policy: new(nftables.ChainPolicyAccept),
		})
		return c.Flush()
	})
}

// close deletes the table, and ends the connection.
func (f *packetForwarder) close() error {
	err := f.exchangeMessages(func(c *nftables.Conn) error {
		c.DelTable(f.table)
		if f.translation != nil {
			c.DelTable(f.translation)
		}
		return c.Flush()
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil {
		err = errors.Join(err, f.conn.CloseLasting())
		f.conn = nil
	}
	return err
}

// replaceElements replaces elements by others, in one transaction: all of it or, with an error,
// nothing.
func (f *packetForwarder) replaceElements(from, to elements) error {
	gone, added := map[setName][]nftables.SetElement{}, map[setName][]nftables.SetElement{}
	for e, value := range from {
		if now, stays := to[e]; !stays || now != value {
			gone[e.set] = append(gone[e.set], e.withValue(value))
		}
	}
	for e, value := range to {
		if before, there := from[e]; !there || before != value {
			added[e.set] = append(added[e.set], e.withValue(value))
		}
	}
	if len(gone) == 0 && len(added) == 0 {
		return nil
	}
	err := f.exchangeMessages(func(c *nftables.Conn) error {
		return errors.Join(f.inChunks(gone, c.SetDeleteElements), f.inChunks(added, c.SetAddElements), c.Flush())
	})
	if err != nil {
		return err
	}
	if err := forgetTranslatedFlows(gone[attachedMap]); err != nil {
		f.log.Warn("flows to an address that leads elsewhere now go on as before", "err", err)
	}
	return nil
}

func (f *packetForwarder) inChunks(
	of map[setName][]nftables.SetElement,
	do func(*nftables.Set, []nftables.SetElement) error,
) error {
	for name, all := range of {
		for len(all) > 0 {
			n := min(len(all), elementsPerMessage)
			if err := do(f.sets[name], all[:n]); err != nil {
				return err
			}
			all = all[n:]
		}
	}
	return nil
}

func (e element) withValue(value string) nftables.SetElement {
	return nftables.SetElement{Key: []byte(e.key), KeyEnd: []byte(e.keyEnd), Val: []byte(value)}
}

// readCounters reads the counters of all balancers' listeners and targets.
func (f *packetForwarder) readCounters() (map[element]packetCount, error) {
	all := map[element]packetCount{}
	return all, f.exchangeMessages(func(c *nftables.Conn) error {
		for _, name := range []setName{listenerSet, targetSet} {
			found, err := c.GetSetElements(f.sets[name])
			if err != nil {
				return err
			}
			for _, e := range found {
				if e.Counter != nil {
					all[element{set: name, key: string(e.Key)}] =
						packetCount{packets: int64(e.Counter.Packets), bytes: int64(e.Counter.Bytes)}
				}
			}
		}
		return nil
	})
}

// The registers of 4 bytes each that rules work with. A concatenated key takes several in a row.
const firstRegister = unix.NFT_REG32_00

// rule is a rule as it is built: a list of expressions, each of which the packet has to satisfy.
type rule struct {
	f     *packetForwarder
	chain string
	exprs [][]byte
	err   error
}

func (r *rule) add(all ...expr.Any) {
	for _, e := range all {
		data, err := expr.Marshal(byte(r.f.table.Family), e)
		r.exprs, r.err = append(r.exprs, data), errors.Join(r.err, err)
	}
}

func (r *rule) loadBytes(register, base, offset, length uint32) {
	r.add(&expr.Payload{
		DestRegister: firstRegister + register, Base: expr.PayloadBase(base), Offset: offset, Len: length,
	})
}

// Where things are in the headers of IPv4, TCP and UDP.
func (r *rule) loadSource(register uint32) {
	r.loadBytes(register, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 4)
}

func (r *rule) loadDestination(register uint32) {
	r.loadBytes(register, unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4)
}

func (r *rule) loadSourcePort(register uint32) {
	r.loadBytes(register, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2)
}

func (r *rule) loadNumber(register uint32, n uint32) {
	r.add(&expr.Immediate{Register: firstRegister + register, Data: bigEndian(n)})
}

// loadFlowKey loads the key of flowMap into three registers: both addresses and both ports.
func (r *rule) loadFlowKey(register uint32) {
	r.loadBytes(register, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 8)
	r.loadBytes(register+2, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 4)
}

// loadListenerKey loads a listener's address, protocol and port into three registers.
func (r *rule) loadListenerKey(register uint32) {
	r.loadDestination(register)
	r.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister + register + 1})
	r.loadBytes(register+2, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)
}

func (r *rule) matchProtocol(protocol byte) {
	const register = 15
	r.add(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister + register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister + register, Data: []byte{protocol}},
	)
}

// matchTCPFlags matches TCP packets of whose flags in mask exactly those given are set.
func (r *rule) matchTCPFlags(mask, set byte) {
	const register = 15
	r.matchProtocol(unix.IPPROTO_TCP)
	r.loadBytes(register, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1)
	r.add(
		&expr.Bitwise{
			SourceRegister: firstRegister + register, DestRegister: firstRegister + register, Len: 1,
			Mask: []byte{mask}, Xor: []byte{0},
		},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister + register, Data: []byte{set}},
	)
}

// matchSet matches if the set has the key in the register and those after it. A set with counters
// counts the packet.
func (r *rule) matchSet(set setName, register uint32) {
	r.add(&expr.Lookup{SetName: string(set), SourceRegister: firstRegister + register})
}

func (r *rule) matchNotInSet(set setName, register uint32) {
	r.add(&expr.Lookup{SetName: string(set), SourceRegister: firstRegister + register, Invert: true})
}

// lookupMap loads what the map has for a key, and matches if it has something.
func (r *rule) lookupMap(set setName, register, into uint32) {
	r.add(&expr.Lookup{
		SetName: string(set), SourceRegister: firstRegister + register, DestRegister: firstRegister + into,
		IsDestRegSet: true,
	})
}

// The operations of a dynamic set (linux/netfilter/nf_tables.h).
const (
	updateElement = 1 // Adds it, or has its timeout begin anew.
	deleteElement = 2
)

func (r *rule) changeFlow(operation, key, data uint32) {
	r.add(&expr.Dynset{
		SetName: string(flowMap), Operation: operation, SrcRegKey: firstRegister + key, SrcRegData: firstRegister + data,
		Timeout: flowTimeout,
	})
}

func (r *rule) addVerdict(kind expr.VerdictKind, chain string) {
	r.add(&expr.Verdict{Kind: kind, Chain: chain})
}

// forwardTo sends the packet to the link-layer address of the neighbour in a register. Package
// expr does not have this expression, fwd.
func (r *rule) forwardTo(register uint32) {
	const device = 15
	r.add(&expr.Immediate{
		Register: firstRegister + device, Data: binary.NativeEndian.AppendUint32(nil, r.f.index),
	})
	data, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: 1, Data: bigEndian(firstRegister + device)},   // NFTA_FWD_SREG_DEV
		{Type: 2, Data: bigEndian(firstRegister + register)}, // NFTA_FWD_SREG_ADDR
		{Type: 3, Data: bigEndian(unix.NFPROTO_IPV4)},        // NFTA_FWD_NFPROTO
	})
	r.err = errors.Join(r.err, err)
	data, err = netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_EXPR_NAME, Data: []byte("fwd\x00")},
		{Type: unix.NLA_F_NESTED | unix.NFTA_EXPR_DATA, Data: data},
	})
	r.exprs, r.err = append(r.exprs, data), errors.Join(r.err, err)
}

func bigEndian(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

const (
	fin, syn, rst, ack = 1, 2, 4, 16
)

// allRules are all rules, in their order.
func (f *packetForwarder) allRules() []*rule {
	var all []*rule
	begin := func(chain string) *rule {
		r := &rule{f: f, chain: chain}
		all = append(all, r)
		return r
	}

	r := begin(entryChain)
	r.add(
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{8, 0}}, // IPv4
	)
	r.countForListener(countPackets)
	r.addVerdict(expr.VerdictJump, forwardChain)

	// A TCP flow that is remembered goes on, while its target is one or drains.
	for _, refresh := range []bool{true, false} {
		r = begin(forwardChain)
		if refresh {
			r.matchTCPFlags(syn|fin|rst, 0)
		} else {
			r.matchTCPFlags(syn, 0)
		}
		r.loadFlowKey(0)
		r.loadDestination(3)
		r.lookupMap(flowMap, 0, 4)
		r.loadNumber(5, uint32(countPackets))
		r.matchSet(targetSet, 3)
		if refresh {
			r.changeFlow(updateElement, 0, 4)
		}
		r.forwardTo(4)
	}

	r = begin(forwardChain)
	r.loadDestination(0)
	r.loadSource(1)
	r.matchSet(restrictedSet, 0)
	r.matchNotInSet(allowedSourcesSet, 0)
	r.addVerdict(expr.VerdictGoto, refuseChain)

	for _, groups := range []setName{groupByFlowMap, groupByClientMap} {
		f.newFlowRule(begin(forwardChain), groups, true)
		f.newFlowRule(begin(forwardChain), groups, false)
	}

	// Without a target, the packet goes on into this machine, which refuses it.
	countFlows := func(chain string, what counted) {
		r := begin(chain)
		r.matchTCPFlags(syn|ack, syn)
		r.countForListener(what)
		r = begin(chain)
		r.matchProtocol(unix.IPPROTO_UDP)
		r.countForListener(what)
	}
	countFlows(forwardChain, countFailed)
	countFlows(refuseChain, countRefused)
	begin(refuseChain).addVerdict(expr.VerdictDrop, "")
	return all
}

// countForListener counts the packet, and matches if it is for a listener.
func (r *rule) countForListener(what counted) {
	r.loadListenerKey(0)
	r.loadNumber(3, uint32(what))
	r.matchSet(listenerSet, 0)
}

// newFlowRule sends a packet whose flow is not known to the target that has its slot. With
// remember, it is for TCP alone, and the flow is known from then on. It does not match when there
// is no more room to remember flows.
func (f *packetForwarder) newFlowRule(r *rule, groups setName, remember bool) {
	const group, slot, balancer, target, what = 4, 5, 6, 7, 8
	if remember {
		r.matchTCPFlags(fin|rst, 0)
	}
	r.loadListenerKey(0)
	r.lookupMap(groups, 0, group)
	hashed := uint32(4)
	r.loadSource(0)
	if groups == groupByFlowMap {
		r.loadSourcePort(1)
		hashed = 8
	}
	r.add(&expr.Hash{
		SourceRegister: firstRegister, DestRegister: firstRegister + slot, Length: hashed, Modulus: slotCount,
		Seed: hashSeed, Type: expr.HashTypeJenkins,
	})
	r.loadDestination(balancer)
	r.lookupMap(slotMap, group, target)
	if remember {
		r.loadFlowKey(0)
		r.changeFlow(deleteElement, 0, target) // Of an earlier connection from the same port.
		r.changeFlow(updateElement, 0, target)
		r.countForListener(countOpened)
		r.loadNumber(what, uint32(countOpened))
		r.matchSet(targetSet, balancer)
	}
	r.loadNumber(what, uint32(countPackets))
	r.matchSet(targetSet, balancer)
	r.forwardTo(target)
}

// hashSeed is fixed, so that a flow goes to the same target after a restart.
const hashSeed = 0x66636c64

// createRules adds the rules in one transaction of its own: package nftables cannot send fwd.
func (f *packetForwarder) createRules() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(netlinkTimeout)); err != nil {
		return err
	}
	rules := f.allRules()
	batch := []netlink.Message{batchMessage(unix.NFNL_MSG_BATCH_BEGIN)}
	for _, r := range rules {
		m, err := r.toMessage()
		if err != nil {
			return err
		}
		batch = append(batch, m)
	}
	batch = append(batch, batchMessage(unix.NFNL_MSG_BATCH_END))
	if _, err := conn.SendMessages(batch); err != nil {
		return err
	}
	for range rules {
		if _, err := conn.Receive(); err != nil {
			return err
		}
	}
	return nil
}

// batchMessage begins or ends a transaction of nftables.
func batchMessage(kind netlink.HeaderType) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
	}
}

// toMessage is the message that appends the rule to its chain.
func (r *rule) toMessage() (netlink.Message, error) {
	var list []netlink.Attribute
	for _, e := range r.exprs {
		list = append(list, netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: e})
	}
	exprs, err := netlink.MarshalAttributes(list)
	data, err2 := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_RULE_TABLE, Data: []byte(r.f.table.Name + "\x00")},
		{Type: unix.NFTA_RULE_CHAIN, Data: []byte(r.chain + "\x00")},
		{Type: unix.NLA_F_NESTED | unix.NFTA_RULE_EXPRESSIONS, Data: exprs},
	})
	return netlink.Message{
		Header: netlink.Header{
			Type:  unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE,
			Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Append,
		},
		Data: append([]byte{byte(r.f.table.Family), unix.NFNETLINK_V0, 0, 0}, data...),
	}, errors.Join(r.err, err, err2)
}
