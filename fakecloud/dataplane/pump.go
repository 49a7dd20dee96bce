package dataplane

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	// copySize is how many bytes are copied at a time. When a read fills that, and as
	// much is waiting, the kernel moves the following bytes without a copy, where it
	// can (TCPConn.ReadFrom calls splice(2)); for less, copying is cheaper.
	copySize = 32 << 10
	// spliceSize is how many bytes one call of ReadFrom moves at most.
	spliceSize = 512 << 10
	// maxSplices bounds the calls of ReadFrom that run, each of which has a pipe, and
	// with them the kernel's memory for bytes that slow readers have not yet read. A
	// pump that may not splice copies.
	maxSplices = 64
)

var (
	copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}
	splices     = make(chan struct{}, maxSplices) // holds a value for each that runs
)

// pump copies one direction of a connection. Its bytes count as they move, and it has a
// buffer or a pipe only while that holds bytes. One io.Copy of all would tell their number
// at the end, and a silent connection would hold two pipes.
type pump struct {
	from, to *net.TCPConn
	counts   [2]*atomic.Int64 // to which the bytes copied are added: the listener's and the target's
	idle     *idleTimer       // may be nil
}

// run copies until the end of the stream, which is no error. With an error it returns the
// connection that failed.
func (p *pump) run() (*net.TCPConn, error) {
	raw, err := p.from.SyscallConn()
	if err != nil {
		return p.from, err
	}
	var buffer *[copySize]byte
	var read int // bytes in buffer; 0 is the end of the stream
	waiting := &io.LimitedReader{R: p.from}
	// readSome fills the buffer, or says with waiting.N how many bytes to splice. It
	// returns false if there is nothing to read, so that raw waits for it.
	readSome := func(fd uintptr) bool {
		if waiting.N = 0; read == copySize {
			waiting.N = claimSplice(fd)
		}
		if waiting.N > 0 {
			return true
		}
		buffer = copyBuffers.Get().(*[copySize]byte)
		if read, err = syscall.Read(int(fd), buffer[:]); err != nil {
			copyBuffers.Put(buffer)
		}
		return !errors.Is(err, syscall.EAGAIN) // No EINTR: the socket does not block.
	}
	for {
		if closed := raw.Read(readSome); closed != nil {
			return p.from, closed
		}
		if err != nil {
			return p.from, err
		}
		switch {
		case read == 0:
			copyBuffers.Put(buffer)
			return nil, nil //nolint:nilnil // The end of the stream.
		case waiting.N > 0:
			var moved int64
			moved, err = p.to.ReadFrom(waiting) // What waits can be read: an error is of the other connection.
			<-splices
			p.countMoved(moved)
		default:
			var written int
			written, err = p.to.Write(buffer[:read])
			copyBuffers.Put(buffer)
			p.countMoved(int64(written))
		}
		if err != nil {
			return p.to, err
		}
	}
}

// claimSplice returns how many bytes of a socket may be spliced, and claims one of
// splices for them. It returns 0 if copying is better.
func claimSplice(fd uintptr) int64 {
	waiting := bytesWaiting(fd)
	if waiting < copySize {
		return 0
	}
	select {
	case splices <- struct{}{}:
		return int64(min(waiting, spliceSize))
	default:
		return 0
	}
}

// countMoved counts bytes that were written, as activity too.
func (p *pump) countMoved(n int64) {
	for _, c := range p.counts {
		c.Add(n)
	}
	p.idle.recordActivity()
}
