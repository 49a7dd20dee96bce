//go:build !linux

package dataplane

import (
	"net"
	"net/netip"
)

// inbox receives datagrams from a socket, one at a time, and forwards them. For use by
// one goroutine.
type inbox struct {
	socket *net.UDPConn
	buffer []byte
	bytes  int
	sender netip.AddrPort
}

// peer is an address that datagrams are sent to.
type peer = netip.AddrPort

// outlet is a socket that datagrams are sent through.
type outlet = *net.UDPConn

func outletOf(c *net.UDPConn) (outlet, error) { return c, nil }

func newInbox(c *net.UDPConn) (*inbox, error) {
	return &inbox{socket: c, buffer: make([]byte, 64<<10)}, nil
}

func (in *inbox) receiveBatch() (n int, err error) {
	in.bytes, in.sender, err = in.socket.ReadFromUDPAddrPort(in.buffer)
	return 1, err
}

func (in *inbox) senderAddress(int) netip.AddrPort { return in.sender }

func (in *inbox) senderPeer(int) peer { return in.sender }

func (in *inbox) totalBytes(first, last int) int64 { return int64((last - first) * in.bytes) }

func (in *inbox) sendDatagrams(socket outlet, to *peer, first, last int) (n int, err error) {
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

func (in *inbox) releaseBatch() {}
