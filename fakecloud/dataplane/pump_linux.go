package dataplane

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// copySize is how many bytes are copied at a time. When a read fills that, the
	// kernel moves the following bytes by splice(2), which takes two system calls
	// and no copy; for less, copying is cheaper.
	copySize = 32 << 10
	// spliceSize is how many bytes one splice(2) moves at most.
	spliceSize = 256 << 10
)

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// pumpState is the state of a running pump. It has a buffer or a pipe only while that
// holds bytes: a silent connection takes neither.
type pumpState struct {
	*pump
	buffer  *[copySize]byte // between a read and the end of its write
	pipe    *pipe           // likewise, instead of buffer, for splice(2)
	held    int             // bytes read; 0 after a read is the end of the stream
	written int             // bytes of them that are written
	err     error           // of the last system call
}

// run copies until the end of the stream, which is no error. With an error it returns the
// connection that failed.
func (p *pump) run() (*net.TCPConn, error) {
	from, err := p.from.SyscallConn()
	if err != nil {
		return p.from, err
	}
	to, err := p.to.SyscallConn()
	if err != nil {
		return p.to, err
	}
	f := &pumpState{pump: p}
	defer f.releaseBuffer()
	read, write := f.readSome, f.writeSome // Made once: each is an allocation.
	for {
		if err := from.Read(read); err != nil {
			return p.from, err
		}
		if f.err != nil {
			return p.from, f.err
		}
		if f.held == 0 {
			return nil, nil //nolint:nilnil // The end of the stream.
		}
		if err := to.Write(write); err != nil {
			return p.to, err
		}
		if f.err != nil {
			return p.to, f.err
		}
	}
}

// isConnectionLost tells whether a connection whose stream has ended, and which is still
// written to, is broken. The kernel reports a reset only once: if the writer gets the
// report, the reader sees what looks like an orderly end of the stream.
func isConnectionLost(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	var closed bool
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		closed = err == nil && info.State == unix.BPF_TCP_CLOSE // The kernel's TCP_CLOSE.
	})
	return closed || err != nil // An error means that this process has closed it meanwhile.
}

// readSome reads without blocking. It returns false if there is nothing to read, so that
// syscall.RawConn waits for it.
func (f *pumpState) readSome(fd uintptr) bool {
	f.acquireBuffer(f.held >= copySize)
	for {
		f.held, f.written, f.err = 0, 0, nil
		var n int
		if f.pipe != nil {
			n, f.err = spliceBytes(int(fd), f.pipe.in, spliceSize)
		} else {
			n, f.err = unix.Read(int(fd), f.buffer[:])
		}
		switch {
		case errors.Is(f.err, unix.EINTR):
			continue
		case errors.Is(f.err, unix.EAGAIN):
			f.err = nil
			f.releaseBuffer()
			return false
		case f.err == nil:
			f.held = n
		}
		return true
	}
}

// acquireBuffer gets a pipe if there is much to read and a pipe is free, otherwise a
// buffer.
func (f *pumpState) acquireBuffer(much bool) {
	if much == (f.pipe != nil) && (f.pipe != nil || f.buffer != nil) {
		return
	}
	f.releaseBuffer()
	if much {
		f.pipe = takePipe()
	}
	if f.pipe == nil {
		f.buffer = copyBuffers.Get().(*[copySize]byte)
	}
}

func spliceBytes(from, to, most int) (int, error) {
	n, err := unix.Splice(from, nil, to, nil, most, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	return int(n), err
}

// writeSome writes what was read, without blocking. It returns false if the connection
// takes no more for now, so that syscall.RawConn waits for it.
func (f *pumpState) writeSome(fd uintptr) bool {
	for f.written < f.held {
		var n int
		if f.pipe != nil {
			n, f.err = spliceBytes(f.pipe.out, int(fd), f.held-f.written)
		} else {
			n, f.err = unix.Write(int(fd), f.buffer[f.written:f.held])
		}
		switch {
		case errors.Is(f.err, unix.EINTR):
			f.err = nil
			continue
		case errors.Is(f.err, unix.EAGAIN):
			f.err = nil
			return false
		case f.err == nil && n == 0:
			f.err = io.ErrShortWrite
		}
		if f.err != nil {
			return true
		}
		f.written += n
		f.countMoved(n)
	}
	return true
}

// releaseBuffer gives the buffer or pipe back.
func (f *pumpState) releaseBuffer() {
	if f.buffer != nil {
		copyBuffers.Put(f.buffer)
		f.buffer = nil
	}
	if f.pipe != nil {
		f.pipe.giveBack(f.held == f.written)
		f.pipe = nil
	}
}

// pipe holds the bytes that splice(2) moves from one socket to another.
type pipe struct{ out, in int }

// maxPipes bounds the kernel's memory for bytes that slow readers have not yet read,
// spliceSize in each pipe. A pump that gets no pipe copies.
const maxPipes = 64

var (
	idlePipes = make(chan *pipe, maxPipes/4) // open but not in use; they count towards the user's limit
	pipeCount atomic.Int64                   // all open pipes
)

// takePipe returns an idle pipe or a new one, or nil if maxPipes are open.
func takePipe() *pipe {
	select {
	case p := <-idlePipes:
		return p
	default:
	}
	var fds [2]int
	if pipeCount.Add(1) > maxPipes || unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		pipeCount.Add(-1)
		return nil
	}
	// The pipe stays smaller if the user has many already.
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, spliceSize)
	return &pipe{out: fds[0], in: fds[1]}
}

// giveBack keeps the pipe for the next pump, unless bytes are left in it or enough pipes
// are idle.
func (p *pipe) giveBack(empty bool) {
	if empty {
		select {
		case idlePipes <- p:
			return
		default:
		}
	}
	_ = unix.Close(p.in)
	_ = unix.Close(p.out)
	pipeCount.Add(-1)
}
