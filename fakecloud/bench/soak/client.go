package main

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
	// maxBody is the largest request.
	maxBody = 4096
	// patience is how long a client waits before it calls a connection failed.
	patience = 20 * time.Second
	// lossAfter is when a datagram counts as lost.
	lossAfter = 500 * time.Millisecond
	// perSocket is how many datagrams a client sends from one port.
	perSocket = 50
)

// client makes one connection after the other, from an address of its own: the
// ports of one would not be enough for all that TIME_WAIT keeps.
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
	c.dialer = net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(clientAddress(number), 0)), Timeout: patience}
	for i := range c.noise {
		c.noise[i] = byte(c.random.Uint32())
	}
	return c
}

// run connects until enough have been made, or there is no time left.
func (c *client) run(ctx context.Context) {
	defer func() {
		if c.session != nil {
			_ = c.session.Close()
		}
	}()
	for ctx.Err() == nil && c.begun.Add(1) <= c.last {
		c.connect()
		if c.random.IntN(c.connections) < c.datagrams {
			c.tell()
		}
	}
}

// connect makes a connection and judges it.
func (c *client) connect() {
	crashes := c.crashes.Load()
	served, err := c.exchange()
	if c.made.Add(1)%int64(c.changeEvery) == 0 {
		select {
		case c.due <- struct{}{}:
		default: // The last one is still to come.
		}
	}
	switch {
	case err == nil:
	case served != nil && served.crashed.Load():
		c.crashed.Add(1)
	case served == nil && broken(err) && (crashes%2 == 1 || c.crashes.Load() != crashes):
		// The kernel had accepted it for a target that crashed before it could say
		// its name.
		c.crashed.Add(1)
	default:
		c.fail(fmt.Errorf("connection of client %d to %s: %w", c.number, served, err))
	}
}

// broken tells whether a peer broke a connection, rather than said something
// wrong or nothing.
func broken(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)
}

// exchange has one request answered; it gives whose answer that was, or would
// have been, if that is known.
func (c *client) exchange() (served *life, err error) {
	dialled, err := c.dialer.Dial("tcp4", c.front.String())
	if err != nil {
		return nil, err
	}
	conn := dialled.(*net.TCPConn)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	var number [4]byte
	if _, err := io.ReadFull(conn, number[:]); err != nil {
		return nil, err
	}
	if served = c.lives.of(binary.BigEndian.Uint32(number[:])); served == nil {
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

// tell sends a datagram and waits for its answer. Losses are counted; an answer
// to somebody else is a failure.
func (c *client) tell() {
	err := c.ask()
	c.told.Add(1)
	switch {
	case err == nil:
		return
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ECONNREFUSED):
		c.lost.Add(1)
	default:
		c.fail(fmt.Errorf("datagram of client %d: %w", c.number, err))
	}
	if c.session != nil {
		_ = c.session.Close() // A late answer would be taken for the next.
		c.session = nil
	}
}

func (c *client) ask() (err error) {
	if c.session != nil && c.sent%perSocket == 0 {
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
