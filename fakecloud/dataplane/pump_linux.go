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
	// chunk is what is copied at a time. Who sends more than that at a time has
	// the kernel move it, which costs two calls and no copy; for less, a copy
	// is cheaper.
	chunk = 32 << 10
	// stretch is how much the kernel is asked to move at a time.
	stretch = 256 << 10
)

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// flowing is a pump at work. What it holds bytes in, it has only while there are
// some: a silent connection costs neither a buffer nor a pipe.
type flowing struct {
	*pump
	buffer *[chunk]byte // held from a read to the end of its write
	pipe   *pipe        // the same, where the kernel moves
	n      int          // bytes held; 0 after a read is the end of the stream
	done   int          // of them, those written
	err    error        // of the last call to the kernel
}

// run moves bytes until the end of the stream, which is no error. Otherwise it
// tells whose connection broke.
func (p *pump) run() (*net.TCPConn, error) {
	from, err := p.from.SyscallConn()
	if err != nil {
		return p.from, err
	}
	to, err := p.to.SyscallConn()
	if err != nil {
		return p.to, err
	}
	f := &flowing{pump: p}
	defer f.drop()
	read, write := f.read, f.write // Made once: each is an allocation.
	for {
		if err := from.Read(read); err != nil {
			return p.from, err
		}
		if f.err != nil {
			return p.from, f.err
		}
		if f.n == 0 {
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

// gone tells whether a connection at whose end of stream we are, and which we
// still write to, has broken: the kernel tells of that only once, perhaps
// whoever writes, and then it looks like an orderly end to who reads.
func gone(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	var yes bool
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		yes = err == nil && info.State == unix.BPF_TCP_CLOSE // The kernel's TCP_CLOSE.
	})
	return yes || err != nil // An error: we have cut it meanwhile.
}

// read takes what is there; false if there is nothing yet.
func (f *flowing) read(fd uintptr) bool {
	f.hold(f.n >= chunk)
	for {
		f.n, f.done, f.err = 0, 0, nil
		var n int
		if f.pipe != nil {
			n, f.err = splice(int(fd), f.pipe.in, stretch)
		} else {
			n, f.err = unix.Read(int(fd), f.buffer[:])
		}
		switch {
		case errors.Is(f.err, unix.EINTR):
			continue
		case errors.Is(f.err, unix.EAGAIN):
			f.err = nil
			f.drop()
			return false
		case f.err == nil:
			f.n = n
		}
		return true
	}
}

// hold has something to hold bytes in: a pipe if there is much and a pipe to be
// had, else a buffer.
func (f *flowing) hold(much bool) {
	if much == (f.pipe != nil) && (f.pipe != nil || f.buffer != nil) {
		return
	}
	f.drop()
	if much {
		f.pipe = takePipe()
	}
	if f.pipe == nil {
		f.buffer = chunks.Get().(*[chunk]byte)
	}
}

func splice(from, to, most int) (int, error) {
	n, err := unix.Splice(from, nil, to, nil, most, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	return int(n), err
}

// write passes on what was taken; false if the other side has no room.
func (f *flowing) write(fd uintptr) bool {
	for f.done < f.n {
		var n int
		if f.pipe != nil {
			n, f.err = splice(f.pipe.out, int(fd), f.n-f.done)
		} else {
			n, f.err = unix.Write(int(fd), f.buffer[f.done:f.n])
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
		f.done += n
		f.moved(n)
	}
	return true
}

// drop gives back what bytes are held in.
func (f *flowing) drop() {
	if f.buffer != nil {
		chunks.Put(f.buffer)
		f.buffer = nil
	}
	if f.pipe != nil {
		f.pipe.giveBack(f.n == f.done)
		f.pipe = nil
	}
}

// pipe is where the kernel keeps what it moves from one socket to another.
type pipe struct{ out, in int }

// maxPipes bounds the kernel's memory for what slow readers have still to take, a
// stretch each. Who finds no pipe is copied for.
const maxPipes = 64

var (
	spare = make(chan *pipe, maxPipes/4) // pipes not in use: they count as the user's
	pipes atomic.Int64                   // all there are
)

// takePipe returns nil if there is none to be had.
func takePipe() *pipe {
	select {
	case p := <-spare:
		return p
	default:
	}
	var fds [2]int
	if pipes.Add(1) > maxPipes || unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		pipes.Add(-1)
		return nil
	}
	// It stays smaller if the user has many already.
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, stretch)
	return &pipe{out: fds[0], in: fds[1]}
}

func (p *pipe) giveBack(empty bool) {
	if empty {
		select {
		case spare <- p:
			return
		default:
		}
	}
	_ = unix.Close(p.in)
	_ = unix.Close(p.out)
	pipes.Add(-1)
}
