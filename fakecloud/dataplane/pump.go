package dataplane

import (
	"net"
	"sync/atomic"
)

// pump carries one direction of a connection. How it does is the operating
// system's matter: see run.
type pump struct {
	from, to *net.TCPConn
	counts   [2]*atomic.Int64 // grow by each byte as it is passed on
	hush     *silence         // may be nil
}

func (p *pump) moved(n int) {
	for _, c := range p.counts {
		c.Add(int64(n))
	}
	p.hush.heard()
}
