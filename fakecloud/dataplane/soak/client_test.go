package soak

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

const (
	// maxBody is the size of the largest request, in bytes.
	maxBody = 4096
	// clientTimeout is how long a client waits until a connection counts as failed.
	clientTimeout = 20 * time.Second
	// lossAfter is how long a client waits until a datagram counts as lost.
	lossAfter = 500 * time.Millisecond
	// datagramsPerSocket is how many datagrams a client sends from one port.
	datagramsPerSocket = 50
)

// client makes one connection after the other, from an address of its own: one address has too
// few ports for all connections in TIME_WAIT.
type client struct {
	*soak
	number int
	random *rand.Rand
	dialer net.Dialer
	noise  [maxBody]byte
	answer [maxBody]byte

	session *net.UDPConn
	sent    uint64 // datagrams
}

func newClient(s *soak, number int) *client {
	c := &client{soak: s, number: number, random: rand.New(rand.NewPCG(s.seed, uint64(number)))}
	c.dialer = net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(clientAddress(number), 0)), Timeout: clientTimeout,
	}
	for i := range c.noise {
		c.noise[i] = byte(c.random.Uint32())
	}
	return c
}

// run makes connections, and now and then sends a datagram, until connectionGoal is reached or
// ctx ends.
func (c *client) run(ctx context.Context) {
	defer func() {
		if c.session != nil {
			_ = c.session.Close()
		}
	}()
	for ctx.Err() == nil && c.begun.Add(1) <= c.connectionGoal {
		c.makeConnection()
		if c.random.IntN(c.connections) < c.datagrams {
			c.sendDatagram()
		}
	}
}

// makeConnection makes a connection, and counts how it ended.
func (c *client) makeConnection() {
	crashes := c.crashes.Load()
	served, err := c.exchangeRequest()
	if c.made.Add(1)%int64(c.changeEvery) == 0 {
		select {
		case c.changeDue <- struct{}{}:
		default: // A change is due already.
		}
	}
	switch {
	case err == nil:
	case served != nil && served.crashed.Load():
		c.crashed.Add(1)
	case served == nil && isBrokenConnection(err) && (crashes%2 == 1 || c.crashes.Load() != crashes):
		// The kernel had accepted the connection for a target that crashed before it
		// sent its number.
		c.crashed.Add(1)
	default:
		c.recordFailure(fmt.Errorf("connection of client %d to %s: %w", c.number, served, err))
	}
}

// isBrokenConnection tells whether the peer has broken the connection, rather than sent a wrong
// answer or none.
func isBrokenConnection(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)
}

// exchangeRequest makes a connection, sends one request and checks its answer. It returns the
// life of the target that served it, if that is known.
func (c *client) exchangeRequest() (served *targetLife, err error) {
	dialled, err := c.dialer.Dial("tcp4", c.front.String())
	if err != nil {
		return nil, err
	}
	conn := dialled.(*net.TCPConn)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(clientTimeout))
	var number [4]byte
	if _, err := io.ReadFull(conn, number[:]); err != nil {
		return nil, err
	}
	if served = c.lives.byNumber(binary.BigEndian.Uint32(number[:])); served == nil {
		return nil, fmt.Errorf("no target is called %x", number)
	}
	how := clientResets
	switch c.random.IntN(8) {
	case 0:
		how = clientEnds
	case 1:
		how = targetEnds
	}
	start := c.random.IntN(maxBody)
	body := c.noise[start:][:c.random.IntN(maxBody-start)]
	request := binary.BigEndian.AppendUint32([]byte{byte(how)}, uint32(len(body)))
	if _, err := conn.Write(append(request, body...)); err != nil {
		return served, err
	}
	if how == clientEnds {
		if err := conn.CloseWrite(); err != nil {
			return served, err
		}
	}
	answer := c.answer[:len(body)]
	if _, err := io.ReadFull(conn, answer); err != nil {
		return served, err
	}
	if !bytes.Equal(answer, body) {
		return served, errors.New("the answer is not what was asked")
	}
	if how == clientResets {
		return served, conn.SetLinger(0)
	}
	if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
		return served, errors.Join(err, fmt.Errorf("%d bytes came after the answer", len(rest)))
	}
	return served, nil
}

// sendDatagram sends a datagram and waits for its answer. A lost one is counted; a wrong answer
// is a failure.
func (c *client) sendDatagram() {
	err := c.exchangeDatagram()
	c.datagramsSent.Add(1)
	switch {
	case err == nil:
		return
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ECONNREFUSED):
		c.datagramsLost.Add(1)
	default:
		c.recordFailure(fmt.Errorf("datagram of client %d: %w", c.number, err))
	}
	if c.session != nil {
		_ = c.session.Close() // A late answer would be taken for that of the next datagram.
		c.session = nil
	}
}

func (c *client) exchangeDatagram() (err error) {
	if c.session != nil && c.sent%datagramsPerSocket == 0 {
		_ = c.session.Close()
		c.session = nil
	}
	if c.session == nil {
		from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(clientAddress(c.number), 0))
		if c.session, err = net.DialUDP("udp4", from, net.UDPAddrFromAddrPort(c.front)); err != nil {
			return err
		}
	}
	c.sent++
	datagram := fmt.Appendf(nil, "datagram %d of client %d", c.sent, c.number)
	datagram = append(datagram, c.noise[:c.random.IntN(1200)]...)
	if _, err := c.session.Write(datagram); err != nil {
		return err
	}
	_ = c.session.SetReadDeadline(time.Now().Add(lossAfter))
	n, err := c.session.Read(c.answer[:])
	if err == nil && !bytes.Equal(c.answer[:n], datagram) {
		return fmt.Errorf("number %d was answered with %.60q", c.sent, c.answer[:n])
	}
	return err
}
