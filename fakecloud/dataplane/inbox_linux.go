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
	// batchSize is how many datagrams one system call receives or sends at most.
	batchSize = 16
	// maxBatches bounds the memory for datagrams being forwarded. A batch takes a
	// megabyte. An inbox that gets none receives its datagrams a little later.
	maxBatches = 16
)

// inbox receives datagrams from a socket and forwards them, without copying them in
// between and without allocating. It holds a batch only while there are datagrams in it.
// For use by one goroutine.
type inbox struct {
	socket syscall.RawConn
	*batch

	received int   // by the last receiveBatch
	readErr  error // of the last receiveBatch

	nextToSend, sendEnd int // the datagrams being sent
	writeErr            error

	read, write func(fd uintptr) bool // readSome and writeSome; made once, as each method value is an allocation
}

// batch is the memory that recvmmsg(2) and sendmmsg(2) work on. The headers point into
// the other arrays.
type batch struct {
	headers [batchSize]header
	vectors [batchSize]unix.Iovec
	names   [batchSize]unix.RawSockaddrInet6 // or Inet4, which is smaller
	data    [batchSize][64 << 10]byte
}

// header is struct mmsghdr of recvmmsg(2).
type header struct {
	unix.Msghdr
	bytes uint32
}

// peer is an address that datagrams are sent to, in the form that the kernel takes.
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

// outlet is a socket that datagrams are sent through.
type outlet = syscall.RawConn

func outletOf(c *net.UDPConn) (outlet, error) { return c.SyscallConn() }

// inUse holds a value for each batch that an inbox holds.
var inUse = make(chan struct{}, maxBatches)

// takeBatch waits until fewer than maxBatches are in use, and returns one.
func takeBatch() *batch {
	inUse <- struct{}{}
	return batches.Get().(*batch)
}

// tryTakeBatch returns nil if maxBatches are in use.
func tryTakeBatch() *batch {
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

// receiveBatch waits until there are datagrams, receives up to batchSize, and returns
// their number.
func (in *inbox) receiveBatch() (int, error) {
	for {
		if err := in.socket.Read(in.read); err != nil {
			return 0, err
		}
		if in.batch != nil {
			return in.received, in.readErr
		}
		// Wait for a batch here and not in readSome: closing the socket waits for its
		// readers, and the goroutine that closes it may hold a lock that the holders
		// of the batches wait for.
		in.batch, in.received = takeBatch(), batchSize
	}
}

// readSome receives without blocking. It returns false if there are no datagrams, so that
// syscall.RawConn waits for some.
func (in *inbox) readSome(fd uintptr) bool {
	if in.batch == nil {
		// All of its vectors are set below: its last user may have shortened any.
		if in.batch, in.received = tryTakeBatch(), batchSize; in.batch == nil {
			return true
		}
	}
	for i := range in.received {
		in.vectors[i].SetLen(len(in.data[i]))
		in.headers[i].Name, in.headers[i].Namelen = (*byte)(unsafe.Pointer(&in.names[i])), unix.SizeofSockaddrInet6
	}
	var errno syscall.Errno
	for {
		in.received, errno = in.callKernel(unix.SYS_RECVMMSG, fd, 0, batchSize)
		if errno != unix.EINTR {
			break
		}
	}
	if errno == unix.EAGAIN {
		in.releaseBatch()
		return false
	}
	if in.readErr = nil; errno != 0 {
		in.readErr = errno
	}
	for i := range in.received {
		in.vectors[i].SetLen(int(in.headers[i].bytes))
	}
	return true
}

// callKernel makes the system call for count datagrams from first on, and returns how many
// it received or sent.
func (in *inbox) callKernel(number, fd uintptr, first, count int) (int, syscall.Errno) {
	n, _, errno := unix.Syscall6(
		number, fd, uintptr(unsafe.Pointer(&in.headers[first])), uintptr(count), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0,
		0,
	)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// senderAddress is the sender of datagram i.
func (in *inbox) senderAddress(i int) netip.AddrPort {
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

// senderPeer is the sender of datagram i, as a peer to send to.
func (in *inbox) senderPeer(i int) peer {
	if in.names[i].Family == unix.AF_INET {
		return peer{in.names[i], unix.SizeofSockaddrInet4}
	}
	return peer{in.names[i], unix.SizeofSockaddrInet6}
}

// totalBytes is the size of the datagrams from first to before last.
func (in *inbox) totalBytes(first, last int) (bytes int64) {
	for _, v := range in.vectors[first:last] {
		bytes += int64(v.Len)
	}
	return bytes
}

// sendDatagrams sends the datagrams from first to before last through a socket: to a
// peer, or, if that is nil, to where the socket is connected. It returns how many were
// sent before an error.
func (in *inbox) sendDatagrams(socket outlet, to *peer, first, last int) (int, error) {
	for i := first; i < last; i++ {
		in.headers[i].Name, in.headers[i].Namelen = nil, 0
		if to != nil {
			in.headers[i].Name, in.headers[i].Namelen = (*byte)(unsafe.Pointer(&to.name)), to.size
		}
	}
	in.nextToSend, in.sendEnd, in.writeErr = first, last, nil
	err := socket.Write(in.write)
	if err == nil {
		err = in.writeErr
	}
	return in.nextToSend - first, err
}

// writeSome sends without blocking. It returns false if the socket has no room, so that
// syscall.RawConn waits for it.
func (in *inbox) writeSome(fd uintptr) bool {
	for in.nextToSend < in.sendEnd {
		n, errno := in.callKernel(unix.SYS_SENDMMSG, fd, in.nextToSend, in.sendEnd-in.nextToSend)
		in.nextToSend += n
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

// releaseBatch gives the batch back to the others.
func (in *inbox) releaseBatch() {
	if in.batch != nil {
		in.giveBack()
		in.batch = nil
	}
}
