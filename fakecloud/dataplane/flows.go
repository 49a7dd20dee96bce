package dataplane

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// flow is a client's connection and, once there is one, its target's.
type flow struct {
	at     place // its listener's
	from   netip.Addr
	client *net.TCPConn
	target *net.TCPConn
	to     target
	hush   *silence
	left   time.Time   // since when its listener or target is none any more; zero while they are
	end    *time.Timer // breaks it when it has drained long enough

	passing atomic.Int32 // directions that are open
	ended   atomic.Int32 // directions at the end of their stream
	broken  atomic.Bool
}

// cut breaks both connections.
func (f *flow) cut() {
	reset(f.client)
	reset(f.target)
}

// flows are a balancer's. Safe for concurrent use.
type flows struct {
	mu    sync.Mutex
	all   map[*flow]struct{} // nil once the balancer is removed
	drain time.Duration
	// What is in force; other flows drain.
	places   map[place]bool
	backends map[cloud.Backend]bool
}

// add remembers a flow to close with the balancer; false if that is gone
// already.
func (s *flows) add(f *flow) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		return false
	}
	s.all[f] = struct{}{}
	return true
}

// lead notes where a flow leads, which may be out of force by now; false if the
// balancer is gone.
func (s *flows) lead(f *flow, conn *net.TCPConn, to target) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.target, f.to = conn, to
	if s.all == nil {
		return false
	}
	s.settle(f)
	return true
}

func (s *flows) remove(f *flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.end != nil {
		f.end.Stop()
	}
	delete(s.all, f)
}

// follow has flows drain that do not go by what is in force now, and lets those
// be that do again.
func (s *flows) follow(f cloud.Forwarding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain, s.places, s.backends = f.Drain, map[place]bool{}, map[cloud.Backend]bool{}
	for at := range places(f) {
		s.places[at] = true
	}
	for _, b := range f.Backends {
		s.backends[b] = true
	}
	for flow := range s.all {
		s.settle(flow)
	}
}

// settle gives a flow the end that it is to have. The caller holds mu.
func (s *flows) settle(f *flow) {
	if f.end != nil {
		f.end.Stop()
		f.end = nil
	}
	switch {
	case f.target == nil: // It leads nowhere yet.
	case s.places[f.at] && s.backends[cloud.Backend{Target: f.to.name, Address: f.to.address}]:
		f.left = time.Time{}
	default:
		if f.left.IsZero() {
			f.left = time.Now()
		}
		if s.drain > 0 {
			f.end = time.AfterFunc(time.Until(f.left.Add(s.drain)), f.cut)
		}
	}
}

// close ends all, and those that are still to be added.
func (s *flows) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.all {
		reset(f.client)
		if f.target != nil {
			reset(f.target)
		}
	}
	s.all = nil
}

// silence breaks off what has been silent for too long. Nil never does.
type silence struct {
	limit time.Duration
	began time.Time
	last  atomic.Int64 // when something was heard, since it began
	end   func()

	mu    sync.Mutex
	timer *time.Timer // nil once it is stopped
}

// newSilence calls end once nothing has been heard for so long; it returns nil
// for 0.
func newSilence(limit time.Duration, end func()) *silence {
	if limit == 0 {
		return nil
	}
	s := &silence{limit: limit, began: time.Now(), end: end}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(limit, s.listen)
	return s
}

func (s *silence) heard() {
	if s != nil {
		s.last.Store(int64(time.Since(s.began)))
	}
}

func (s *silence) listen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := s.limit - (time.Since(s.began) - time.Duration(s.last.Load()))
	switch {
	case s.timer == nil:
	case wait <= 0:
		s.end()
	default:
		s.timer.Reset(wait)
	}
}

func (s *silence) stop() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Stop()
	s.timer = nil
}
