package dataplane

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// flow is a client's TCP connection and, once it is forwarded, the one to its target.
type flow struct {
	listenAddress listenAddress // of its listener
	clientAddress netip.Addr
	clientConn    *net.TCPConn
	targetConn    *net.TCPConn
	target        target
	idle          *idleTimer
	drainStart    time.Time   // when its listener or target was taken out; zero while both are in force
	drainTimer    *time.Timer // resets it when the drain timeout has passed

	openDirections  atomic.Int32 // directions still being copied
	endedDirections atomic.Int32 // directions whose sender has closed in good order
	broken          atomic.Bool
}

// resetBoth resets both connections, or that of a client of http, whose requests are flows of their own.
func (f *flow) resetBoth() {
	f.broken.Store(true)
	resetConnection(f.clientConn)
	if f.targetConn != nil {
		resetConnection(f.targetConn)
	}
}

// flows are the open flows of a balancer. Safe for concurrent use.
type flows struct {
	mu           sync.Mutex
	all          map[*flow]struct{} // nil once the balancer is closed
	drainTimeout time.Duration
	// The listeners in force, and the backends of each. Flows of any other drain.
	backends map[listenAddress]map[cloud.Backend]bool
}

// add remembers a flow, to close it with the balancer. It returns false if the balancer
// is closed already.
func (s *flows) add(f *flow) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		return false
	}
	s.all[f] = struct{}{}
	return true
}

// setTarget sets the target of a flow and the connection to it. If that target has been
// taken out meanwhile, the flow drains. setTarget returns false if the balancer is
// closed.
func (s *flows) setTarget(f *flow, conn *net.TCPConn, to target) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.targetConn, f.target = conn, to
	if s.all == nil {
		return false
	}
	s.scheduleDrain(f)
	return true
}

func (s *flows) remove(f *flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.drainTimer != nil {
		f.drainTimer.Stop()
	}
	delete(s.all, f)
}

// applyForwarding begins to drain the flows whose listener or backend f leaves out. A
// draining flow whose listener and backend are back no longer drains.
func (s *flows) applyForwarding(f cloud.Forwarding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drainTimeout, s.backends = f.Drain, map[listenAddress]map[cloud.Backend]bool{}
	shared := flowBackends(f.Backends)
	for at, l := range listenersByAddress(f) {
		s.backends[at] = shared
		if l.Targets != nil {
			s.backends[at] = flowBackends(f.BackendsOf(l))
		}
	}
	for flow := range s.all {
		s.scheduleDrain(flow)
	}
}

// flowBackends are the backends as flows know them: those that were let in continue.
func flowBackends(backends []cloud.Backend) map[cloud.Backend]bool {
	all := make(map[cloud.Backend]bool, len(backends))
	for _, b := range backends {
		all[cloud.Backend{Target: b.Target, Address: b.Address}] = true
	}
	return all
}

// scheduleDrain sets or stops a flow's drain timer, by whether its listener and backend
// are in force. The caller holds mu.
func (s *flows) scheduleDrain(f *flow) {
	if f.drainTimer != nil {
		f.drainTimer.Stop()
		f.drainTimer = nil
	}
	switch {
	case f.targetConn == nil: // It has no target yet.
	case s.backends[f.listenAddress][cloud.Backend{Target: f.target.name, Address: f.target.address}]:
		f.drainStart = time.Time{}
	default:
		if f.drainStart.IsZero() {
			f.drainStart = time.Now()
		}
		if s.drainTimeout > 0 {
			f.drainTimer = time.AfterFunc(time.Until(f.drainStart.Add(s.drainTimeout)), f.resetBoth)
		}
	}
}

// close resets all flows. Flows cannot be added any more.
func (s *flows) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.all {
		f.resetBoth()
	}
	s.all = nil
}
