//go:build !linux

package dataplane

import (
	"net"
	"net/netip"
)

// inbox takes datagrams from a socket, one at a time, and passes them on. For one
// goroutine.
type inbox struct {
	socket *net.UDPConn
	buffer []byte
	bytes  int
	sender netip.AddrPort
}

// peer is where datagrams are sent to.
type peer = netip.AddrPort

// outlet is a socket that datagrams are passed on through.
type outlet = *net.UDPConn

func outletOf(c *net.UDPConn) (outlet, error) { return c, nil }

func newInbox(c *net.UDPConn) (*inbox, error) {
	return &inbox{socket: c, buffer: make([]byte, 64<<10)}, nil
}

func (in *inbox) receive() (n int, err error) {
	in.bytes, in.sender, err = in.socket.ReadFromUDPAddrPort(in.buffer)
	return 1, err
}

func (in *inbox) from(int) netip.AddrPort { return in.sender }

func (in *inbox) peer(int) peer { return in.sender }

func (in *inbox) size(first, last int) int64 { return int64((last - first) * in.bytes) }

func (in *inbox) send(socket outlet, to *peer, first, last int) (n int, err error) {
	for ; first+n < last && err == nil; n++ {
		if to == nil {
			_, err = socket.Write(in.buffer[:in.bytes])
		} else {
			_, err = socket.WriteToUDPAddrPort(in.buffer[:in.bytes], *to)
		}
	}
	if err != nil {
		n--
	}
	return n, err
}

func (in *inbox) drop() {}
