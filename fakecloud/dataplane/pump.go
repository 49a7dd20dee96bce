package dataplane

import (
	"net"
	"sync/atomic"
)

// pump copies one direction of a connection. run does so, in a way of its own on each
// operating system: on Linux the kernel moves large streams (splice).
type pump struct {
	from, to *net.TCPConn
	counts   [2]*atomic.Int64 // to which the bytes copied are added: the listener's and the target's
	idle     *idleTimer       // may be nil
}

// countMoved counts bytes that were written, as activity too.
func (p *pump) countMoved(n int) {
	for _, c := range p.counts {
		c.Add(int64(n))
	}
	p.idle.recordActivity()
}
