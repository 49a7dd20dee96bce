// This file answers: which target was a client sent to?

package dataplane

import (
	"container/list"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
)

// maxClients bounds what one balancer remembers; the client that has been
// silent longest is forgotten first.
const maxClients = 1 << 16

// affinity remembers clients' targets, on all ports of a balancer alike, until
// they have been silent for some time. Safe for concurrent use.
type affinity struct {
	clock clockwork.Clock
	limit int
	on    atomic.Bool // off, nobody waits for mu

	mu      sync.Mutex
	keep    time.Duration
	entries map[netip.Addr]*list.Element // of *sticky
	order   *list.List                   // the longest silent first
}

type sticky struct {
	client netip.Addr
	target string
	seen   time.Time
}

func newAffinity(clock clockwork.Clock, limit int) *affinity {
	return &affinity{clock: clock, limit: limit, entries: map[netip.Addr]*list.Element{}, order: list.New()}
}

// keepFor says how long a silent client is remembered; 0: none is.
func (a *affinity) keepFor(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keep = d
	a.on.Store(d > 0)
	a.expire()
}

// stick gives the place of the client's target among those it may have. If it
// has none there, or one that refused somebody lately, the choice that it would
// have without becomes its target: at once, so that connections that begin
// together end up together.
func (a *affinity) stick(client netip.Addr, among []target, choice int) int {
	if !a.on.Load() {
		return choice
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expire()
	if e := a.entries[client]; e != nil {
		own := slices.IndexFunc(among, func(t target) bool { return t.name == e.Value.(*sticky).target })
		if own >= 0 && !among[own].refusedLately() {
			choice = own
		}
	}
	a.put(client, among[choice].name)
	return choice
}

// remember notes that a connection of the client began at the target.
func (a *affinity) remember(client netip.Addr, target string) {
	if !a.on.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expire()
	a.put(client, target)
}

// ended notes that a connection of the client to the target has ended. A
// target chosen since stays.
func (a *affinity) ended(client netip.Addr, target string) {
	if !a.on.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expire()
	if e := a.entries[client]; e != nil {
		target = e.Value.(*sticky).target
	}
	a.put(client, target)
}

func (a *affinity) put(client netip.Addr, target string) {
	if a.keep <= 0 {
		return
	}
	s := &sticky{client, target, a.clock.Now()}
	if e := a.entries[client]; e != nil {
		e.Value = s
		a.order.MoveToBack(e)
		return
	}
	a.entries[client] = a.order.PushBack(s)
	if len(a.entries) > a.limit {
		a.forget(a.order.Front())
	}
}

func (a *affinity) expire() {
	for e := a.order.Front(); e != nil && a.clock.Since(e.Value.(*sticky).seen) >= a.keep; e = a.order.Front() {
		a.forget(e)
	}
}

func (a *affinity) forget(e *list.Element) {
	delete(a.entries, a.order.Remove(e).(*sticky).client)
}
