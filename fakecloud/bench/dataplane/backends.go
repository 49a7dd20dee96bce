package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

const backendsCommand = "backends"

// The ports of the backends. Every proxy listens on the same ports, at an address of its own.
const (
	portCount  = 30000 // sends the counts of the sinks; used directly, not through a proxy
	portSource = 30001 // sends as long as the client reads
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

// addressPrefix is the first two bytes of all addresses of the network.
var addressPrefix = "10.77."

func ownAddress(host int) string { return fmt.Sprintf("%s1.%d", addressPrefix, host) }

// backendAddresses are the addresses of the backends, one each, and of the cloud's instances.
func backendAddresses() []string {
	var all []string
	for i := range backends {
		all = append(all, ownAddress(1+i))
	}
	return all
}

// block is sent again and again in long transfers. Its bytes vary, so that a piece left out or sent
// twice is noticed.
var block = func() []byte {
	b := make([]byte, blockSize)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}()

// isExpectedPiece tells whether a piece belongs at that offset of a long transfer. It checks the
// first and the last byte only: checking all would cost more than receiving.
func isExpectedPiece(piece []byte, at int64) bool {
	last := at + int64(len(piece)) - 1
	return len(piece) == 0 || piece[0] == block[at%blockSize] && piece[len(piece)-1] == block[last%blockSize]
}

// receivedBytes and corruptStreams count the bytes that the sinks have received, and the streams
// with other bytes than were sent.
var receivedBytes, corruptStreams atomic.Int64

func runBackends(addresses []string) error {
	if err := startBackends(addresses); err != nil {
		return err
	}
	fmt.Println("backends are ready")
	select {} // Until this process is killed.
}

func startBackends(addresses []string) error {
	for _, address := range addresses {
		for port, serve := range map[int]func(net.Conn){
			portCount: serveCounts, portSource: serveSource, portSink: serveSink, portOnce: serveOnce,
			portEcho: serveEcho,
		} {
			l, err := net.Listen("tcp", hostPort(address, port))
			if err != nil {
				return err
			}
			go acceptConnections(l, serve)
		}
		socket, err := net.ListenUDP(
			"udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(hostPort(address, portUDP))),
		)
		if err != nil {
			return err
		}
		_ = socket.SetReadBuffer(4 << 20) // As much as the machine allows.
		go echoDatagrams(socket)
	}
	return nil
}

func hostPort(address string, port int) string { return fmt.Sprintf("%s:%d", address, port) }

func acceptConnections(l net.Listener, serve func(net.Conn)) {
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
			time.Sleep(time.Millisecond) // Too many open files; some may be closed by then.
		}
	}
}

func serveCounts(c net.Conn) {
	both := binary.BigEndian.AppendUint64(nil, uint64(receivedBytes.Load()))
	_, _ = c.Write(binary.BigEndian.AppendUint64(both, uint64(corruptStreams.Load())))
}

func serveSource(c net.Conn) {
	for {
		if _, err := c.Write(block); err != nil {
			return
		}
	}
}

func serveSink(c net.Conn) {
	buffer := make([]byte, blockSize)
	for at := int64(0); ; {
		n, err := c.Read(buffer)
		if !isExpectedPiece(buffer[:n], at) {
			corruptStreams.Add(1)
			return
		}
		at += int64(n)
		receivedBytes.Add(int64(n))
		if err != nil {
			return
		}
	}
}

func serveOnce(c net.Conn) { _ = answerRequest(c, make([]byte, answerSize)) }

func serveEcho(c net.Conn) {
	buffer := make([]byte, answerSize)
	for answerRequest(c, buffer) == nil {
	}
}

// answerRequest reads a request and sends its answer, which begins with the request.
func answerRequest(c net.Conn, buffer []byte) error {
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
