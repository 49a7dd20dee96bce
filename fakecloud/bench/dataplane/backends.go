package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

const backendsCommand = "backends"

// The backends' ports; every proxy listens on the same, on an address of its
// own.
const (
	portCount  = 30000 // says how much the sinks have had; not behind a proxy
	portSource = 30001 // sends for as long as somebody reads
	portSink   = 30002 // reads and counts
	portOnce   = 30003 // answers a request and closes
	portEcho   = 30004 // answers requests
	portUDP    = 30005 // sends datagrams back
)

var tcpPorts = []int{portSource, portSink, portOnce, portEcho}

const (
	backends     = 4
	requestSize  = 64
	answerSize   = 128
	blockSize    = 256 << 10 // of long transfers
	datagramSize = 512       // at most
)

// ownAddress is one that no other benchmark at the same time is likely to have.
func ownAddress(host int) string {
	return fmt.Sprintf("%s%d.%d", machine.Pool(), 1+os.Getpid()/120%100, host)
}

// backendAddresses are where the backends are; instances of the cloud have the
// same.
func backendAddresses() []string {
	var all []string
	for i := range backends {
		all = append(all, ownAddress(1+i))
	}
	return all
}

// block is what long transfers repeat. At each place it differs from its
// neighbours, so that a piece left out or sent twice is noticed.
var block = func() []byte {
	b := make([]byte, blockSize)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}()

// follows tells whether a piece is what comes at that place of a long transfer,
// by its ends: looking at all of it would cost the clients more than receiving.
func follows(piece []byte, at int64) bool {
	last := at + int64(len(piece)) - 1
	return len(piece) == 0 || piece[0] == block[at%blockSize] && piece[len(piece)-1] == block[last%blockSize]
}

// received counts what the sinks have had, and how many of them had something
// else than was sent.
var received, spoilt atomic.Int64

func runBackends(addresses []string) error {
	if err := startBackends(addresses); err != nil {
		return err
	}
	fmt.Println("backends are ready")
	select {} // Until we are killed.
}

func startBackends(addresses []string) error {
	for _, address := range addresses {
		for port, serve := range map[int]func(net.Conn){
			portCount: count, portSource: source, portSink: sink, portOnce: once, portEcho: echo,
		} {
			l, err := net.Listen("tcp", join(address, port))
			if err != nil {
				return err
			}
			go accept(l, serve)
		}
		socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(join(address, portUDP))))
		if err != nil {
			return err
		}
		_ = socket.SetReadBuffer(4 << 20) // As much as the machine allows.
		go echoDatagrams(socket)
	}
	return nil
}

func join(address string, port int) string { return fmt.Sprintf("%s:%d", address, port) }

func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			go func() {
				defer func() { _ = c.Close() }()
				serve(c)
			}()
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(time.Millisecond) // Too many files: one may be closed by then.
		}
	}
}

func count(c net.Conn) {
	both := binary.BigEndian.AppendUint64(nil, uint64(received.Load()))
	_, _ = c.Write(binary.BigEndian.AppendUint64(both, uint64(spoilt.Load())))
}

func source(c net.Conn) {
	for {
		if _, err := c.Write(block); err != nil {
			return
		}
	}
}

func sink(c net.Conn) {
	buffer := make([]byte, blockSize)
	for at := int64(0); ; {
		n, err := c.Read(buffer)
		if !follows(buffer[:n], at) {
			spoilt.Add(1)
			return
		}
		at += int64(n)
		received.Add(int64(n))
		if err != nil {
			return
		}
	}
}

func once(c net.Conn) { _ = answer(c, make([]byte, answerSize)) }

func echo(c net.Conn) {
	buffer := make([]byte, answerSize)
	for answer(c, buffer) == nil {
	}
}

// answer begins with the request.
func answer(c net.Conn, buffer []byte) error {
	if _, err := io.ReadFull(c, buffer[:requestSize]); err != nil {
		return err
	}
	_, err := c.Write(buffer)
	return err
}

func echoDatagrams(socket *net.UDPConn) {
	buffer := make([]byte, 64<<10)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buffer)
		switch {
		case err == nil:
			_, _ = socket.WriteToUDPAddrPort(buffer[:n], from) // Datagrams may be lost.
		case errors.Is(err, net.ErrClosed):
			return
		}
	}
}
