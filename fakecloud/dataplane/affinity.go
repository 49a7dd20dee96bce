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
	open   int // its connections, during which it is not silent
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
	if d <= 0 {
		clear(a.entries)
		a.order.Init()
	}
	a.expire()
}

// stick gives the place of the client's target among those it may have. If it
// has none there, or one that refused somebody lately while others did not, the
// choice that it would have without becomes its target: at once, so that
// connections that begin together end up together.
func (a *affinity) stick(client netip.Addr, among []target, choice int, refused *refusals) int {
	if !a.on.Load() {
		return choice
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expire()
	if e := a.entries[client]; e != nil {
		own := slices.IndexFunc(among, func(t target) bool { return t.name == e.Value.(*sticky).target })
		// The choice has refused somebody only if all have.
		if own >= 0 && (!refused.lately(among[own].endpoint) || refused.lately(among[choice].endpoint)) {
			choice = own
		}
	}
	a.put(client, among[choice].name)
	return choice
}

// begun notes that a connection of the client to the target has begun.
func (a *affinity) begun(client netip.Addr, target string) {
	if !a.on.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expire()
	a.put(client, target).open++
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
	s := a.put(client, target)
	s.open = max(0, s.open-1) // It may have begun when nobody counted.
}

// put notes a client's target, and that the client was heard now.
func (a *affinity) put(client netip.Addr, target string) *sticky {
	e := a.entries[client]
	if e == nil {
		if len(a.entries) >= a.limit {
			a.forget(a.order.Front())
		}
		e = a.order.PushBack(&sticky{client: client})
		a.entries[client] = e
	}
	a.order.MoveToBack(e)
	s := e.Value.(*sticky)
	s.target, s.seen = target, a.clock.Now()
	return s
}

// expire forgets who has been silent for too long.
func (a *affinity) expire() {
	for e := a.order.Front(); e != nil; e = a.order.Front() {
		s := e.Value.(*sticky)
		switch {
		case a.clock.Since(s.seen) < a.keep:
			return
		case s.open > 0: // It is not silent, and looked at again when it may be.
			s.seen = a.clock.Now()
			a.order.MoveToBack(e)
		default:
			a.forget(e)
		}
	}
}

func (a *affinity) forget(e *list.Element) {
	delete(a.entries, a.order.Remove(e).(*sticky).client)
}
