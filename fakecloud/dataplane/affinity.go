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

// maxClients bounds the clients that one balancer remembers. The client that has
// been silent longest is forgotten first.
const maxClients = 1 << 16

// affinity is client-IP affinity: it remembers each client's target until the client
// has been silent for the timeout. All ports of a balancer share one affinity. Safe
// for concurrent use.
type affinity struct {
	clock   clockwork.Clock
	limit   int
	enabled atomic.Bool // while false, no method but setTimeout takes mu

	mu        sync.Mutex
	timeout   time.Duration
	entries   map[netip.Addr]*list.Element // of *stickyClient
	bySilence *list.List                   // of *stickyClient; the longest silent first
}

// stickyClient is a client and the target that it stays with.
type stickyClient struct {
	client      netip.Addr
	target      string
	lastHeard   time.Time
	connections int // open ones; the client is not silent while there are any
}

func newAffinity(clock clockwork.Clock, limit int) *affinity {
	return &affinity{clock: clock, limit: limit, entries: map[netip.Addr]*list.Element{}, bySilence: list.New()}
}

// setTimeout sets how long a silent client is remembered. 0 turns affinity off and
// forgets all clients.
func (a *affinity) setTimeout(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timeout = d
	a.enabled.Store(d > 0)
	if d <= 0 {
		clear(a.entries)
		a.bySilence.Init()
	}
	a.expireSilentClients()
}

// ownTargetIndex returns the index of a client's own target among the candidates. If that
// is not among them, or if it refused a connection lately and another candidate did not, it
// is choice.
func ownTargetIndex(own string, candidates []target, choice int, refused *refusals) int {
	at := slices.IndexFunc(candidates, func(t target) bool { return t.name == own })
	// The choice ranks first, so it is a recent refuser only if all candidates are.
	if at >= 0 && (!refused.isRecent(candidates[at].endpoint) || refused.isRecent(candidates[choice].endpoint)) {
		return at
	}
	return choice
}

// stickyTargetIndex returns the index of the client's target among the candidates, or choice,
// as ownTargetIndex does. The new target is remembered at once, so that connections that a
// client opens at the same time go to the same target.
func (a *affinity) stickyTargetIndex(client netip.Addr, candidates []target, choice int, refused *refusals) int {
	if !a.enabled.Load() {
		return choice
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expireSilentClients()
	if e := a.entries[client]; e != nil {
		choice = ownTargetIndex(e.Value.(*stickyClient).target, candidates, choice, refused)
	}
	a.setTarget(client, candidates[choice].name)
	return choice
}

// addConnection records that the client opened a connection to the target.
func (a *affinity) addConnection(client netip.Addr, target string) {
	if !a.enabled.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expireSilentClients()
	a.setTarget(client, target).connections++
}

// removeConnection records that a connection of the client to the target has ended.
// If the client has got another target since, it keeps that one.
func (a *affinity) removeConnection(client netip.Addr, target string) {
	if !a.enabled.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expireSilentClients()
	if e := a.entries[client]; e != nil {
		target = e.Value.(*stickyClient).target
	}
	s := a.setTarget(client, target)
	s.connections = max(0, s.connections-1) // It may have begun while affinity was off.
}

// setTarget sets the client's target, and marks the client as active now. The caller
// holds mu.
func (a *affinity) setTarget(client netip.Addr, target string) *stickyClient {
	e := a.entries[client]
	if e == nil {
		if len(a.entries) >= a.limit {
			a.forgetClient(a.bySilence.Front())
		}
		e = a.bySilence.PushBack(&stickyClient{client: client})
		a.entries[client] = e
	}
	a.bySilence.MoveToBack(e)
	s := e.Value.(*stickyClient)
	s.target, s.lastHeard = target, a.clock.Now()
	return s
}

// expireSilentClients forgets the clients that have been silent for the timeout. The
// caller holds mu.
func (a *affinity) expireSilentClients() {
	for e := a.bySilence.Front(); e != nil; e = a.bySilence.Front() {
		s := e.Value.(*stickyClient)
		switch {
		case a.clock.Since(s.lastHeard) < a.timeout:
			return
		case s.connections > 0: // It is not silent; it is checked again after another timeout.
			s.lastHeard = a.clock.Now()
			a.bySilence.MoveToBack(e)
		default:
			a.forgetClient(e)
		}
	}
}

func (a *affinity) forgetClient(e *list.Element) {
	delete(a.entries, a.bySilence.Remove(e).(*stickyClient).client)
}
