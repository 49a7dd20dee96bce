package dataplane

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// width is how many datagrams are taken at a time.
	width = 16
	// maxBatches bounds the memory for datagrams under way, a batch being a
	// megabyte: who finds none takes its datagrams a little later.
	maxBatches = 16
)

// inbox takes datagrams from a socket and passes them on, without a copy
// between and without allocating. It holds memory for them only while there are
// some. For one goroutine.
type inbox struct {
	socket syscall.RawConn
	*batch

	n       int   // received at last
	readErr error // of that

	next, end int // to be sent
	writeErr  error

	read, write func(fd uintptr) bool // Made once: each is an allocation.
}

// batch is what recvmmsg(2) and sendmmsg(2) take. The headers point into the
// rest.
type batch struct {
	headers [width]header
	vectors [width]unix.Iovec
	names   [width]unix.RawSockaddrInet6 // or Inet4, which is smaller
	data    [width][64 << 10]byte
}

type header struct {
	unix.Msghdr
	bytes uint32
}

// peer is where datagrams are sent to.
type peer struct {
	name unix.RawSockaddrInet6
	size uint32
}

var batches = sync.Pool{New: func() any {
	b := new(batch)
	for i := range b.headers {
		b.vectors[i].Base = &b.data[i][0]
		b.headers[i].Iov = &b.vectors[i]
		b.headers[i].SetIovlen(1)
	}
	return b
}}

// outlet is a socket that datagrams are passed on through.
type outlet = syscall.RawConn

func outletOf(c *net.UDPConn) (outlet, error) { return c.SyscallConn() }

// inUse has one for each batch that somebody holds.
var inUse = make(chan struct{}, maxBatches)

// takeBatch waits until there is one.
func takeBatch() *batch {
	inUse <- struct{}{}
	return batches.Get().(*batch)
}

// tryBatch gives nil when there is none.
func tryBatch() *batch {
	select {
	case inUse <- struct{}{}:
		return batches.Get().(*batch)
	default:
		return nil
	}
}

func (b *batch) giveBack() {
	batches.Put(b)
	<-inUse
}

func newInbox(c *net.UDPConn) (*inbox, error) {
	socket, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	in := &inbox{socket: socket}
	in.read, in.write = in.readSome, in.writeSome
	return in, nil
}

// receive waits until there are datagrams, takes them, and gives their number.
func (in *inbox) receive() (int, error) {
	for {
		if err := in.socket.Read(in.read); err != nil {
			return 0, err
		}
		if in.batch != nil {
			return in.n, in.readErr
		}
		// Here, and not while reading: who closes the socket waits for its readers,
		// and may hold what those wait for who have a batch.
		in.batch, in.n = takeBatch(), width
	}
}

func (in *inbox) readSome(fd uintptr) bool {
	if in.batch == nil {
		// Whoever had it may have used all.
		if in.batch, in.n = tryBatch(), width; in.batch == nil {
			return true
		}
	}
	for i := range in.n {
		in.vectors[i].SetLen(len(in.data[i]))
		in.headers[i].Name, in.headers[i].Namelen = (*byte)(unsafe.Pointer(&in.names[i])), unix.SizeofSockaddrInet6
	}
	var errno syscall.Errno
	for {
		in.n, errno = in.call(unix.SYS_RECVMMSG, fd, 0, width)
		if errno != unix.EINTR {
			break
		}
	}
	if errno == unix.EAGAIN {
		in.drop()
		return false
	}
	if in.readErr = nil; errno != 0 {
		in.readErr = errno
	}
	for i := range in.n {
		in.vectors[i].SetLen(int(in.headers[i].bytes))
	}
	return true
}

// call gives the number of datagrams that a system call took or gave.
func (in *inbox) call(number, fd uintptr, first, count int) (int, syscall.Errno) {
	n, _, errno := unix.Syscall6(number, fd, uintptr(unsafe.Pointer(&in.headers[first])), uintptr(count), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// from is who sent a datagram.
func (in *inbox) from(i int) netip.AddrPort {
	name := &in.names[i]
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&name.Port))[:])
	if name.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr), port)
	}
	address := netip.AddrFrom16(name.Addr)
	if name.Scope_id != 0 {
		address = address.WithZone(strconv.FormatUint(uint64(name.Scope_id), 10))
	}
	return netip.AddrPortFrom(address, port)
}

// peer is the same, to send to.
func (in *inbox) peer(i int) peer {
	if in.names[i].Family == unix.AF_INET {
		return peer{in.names[i], unix.SizeofSockaddrInet4}
	}
	return peer{in.names[i], unix.SizeofSockaddrInet6}
}

// size is how many bytes some datagrams have.
func (in *inbox) size(first, last int) (bytes int64) {
	for _, v := range in.vectors[first:last] {
		bytes += int64(v.Len)
	}
	return bytes
}

// send passes some of the datagrams on through a socket: to a peer, or where
// the socket is connected to. It gives the number of those that went before an
// error.
func (in *inbox) send(socket outlet, to *peer, first, last int) (int, error) {
	for i := first; i < last; i++ {
		in.headers[i].Name, in.headers[i].Namelen = nil, 0
		if to != nil {
			in.headers[i].Name, in.headers[i].Namelen = (*byte)(unsafe.Pointer(&to.name)), to.size
		}
	}
	in.next, in.end, in.writeErr = first, last, nil
	err := socket.Write(in.write)
	if err == nil {
		err = in.writeErr
	}
	return in.next - first, err
}

func (in *inbox) writeSome(fd uintptr) bool {
	for in.next < in.end {
		n, errno := in.call(unix.SYS_SENDMMSG, fd, in.next, in.end-in.next)
		in.next += n
		switch {
		case errno == 0, errors.Is(errno, unix.EINTR):
		case errors.Is(errno, unix.EAGAIN):
			return false
		default:
			in.writeErr = errno
			return true
		}
	}
	return true
}

// drop gives back what datagrams are held in.
func (in *inbox) drop() {
	if in.batch != nil {
		in.giveBack()
		in.batch = nil
	}
}
