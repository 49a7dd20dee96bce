package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

const (
	// tick is how often a client looks for lost datagrams, lostAfter how long a
	// datagram may take.
	tick      = 50 * time.Millisecond
	lostAfter = 250 * time.Millisecond
)

// pingUDP sends a datagram through a proxy and waits for its answer.
func pingUDP(address string) error {
	d, err := newDatagramClient(address, 1)
	if err != nil {
		return err
	}
	defer func() { _ = d.socket.Close() }()
	if err := d.sendNew(0); err != nil {
		return err
	}
	if err := d.socket.SetReadDeadline(time.Now().Add(lostAfter)); err != nil {
		return err
	}
	_, err = d.receiveOne()
	return err
}

// datagramClient is a client with a window of datagrams on their way. For each one that comes back
// it sends another.
type datagramClient struct {
	socket  *net.UDPConn
	next    uint64
	window  []outstanding
	buffer  [datagramSize]byte
	payload [datagramSize]byte

	begin, end     time.Time
	answered, lost int
}

// outstanding is a place in the window, with the datagram sent last. Answers to earlier ones are
// recognised by their number.
type outstanding struct {
	number uint64
	sent   time.Time
}

func newDatagramClient(address string, window int) (*datagramClient, error) {
	to, err := netip.ParseAddrPort(hostPort(address, portUDP))
	if err != nil {
		return nil, err
	}
	socket, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return nil, err
	}
	d := &datagramClient{socket: socket, window: make([]outstanding, window)}
	copy(d.payload[:], block)
	return d, nil
}

// datagramLength is the length of the datagram with that number: 64 to 512 bytes.
func datagramLength(number uint64) int { return 64 + int(number*64)%(datagramSize-63) }

// sendNew sends a new datagram for a place of the window. The place follows from its number.
func (d *datagramClient) sendNew(place int) error {
	d.next++
	number := d.next*uint64(len(d.window)) + uint64(place)
	d.window[place] = outstanding{number: number, sent: time.Now()}
	binary.BigEndian.PutUint64(d.payload[:], number)
	_, err := d.socket.Write(d.payload[:datagramLength(number)])
	return err
}

// receiveOne receives a datagram and returns its place, or -1 if it had been given up as lost.
func (d *datagramClient) receiveOne() (int, error) {
	n, err := d.socket.Read(d.buffer[:])
	if err != nil {
		return -1, err
	}
	if n < 8 {
		return -1, fmt.Errorf("a datagram of %d bytes was not sent", n)
	}
	number := binary.BigEndian.Uint64(d.buffer[:])
	if n != datagramLength(number) || d.buffer[n-1] != block[n-1] {
		return -1, fmt.Errorf("datagram %d of %d bytes was not sent so", number, n)
	}
	place := int(number % uint64(len(d.window)))
	if d.window[place].number != number {
		return -1, nil
	}
	return place, nil
}

// run keeps the window full until d.end.
func (d *datagramClient) run(ctx context.Context) error {
	for place := range d.window {
		if err := d.sendNew(place); err != nil {
			return err
		}
	}
	for {
		// So reads fail at the next tick, even if datagrams keep arriving.
		if err := d.socket.SetReadDeadline(time.Now().Add(tick)); err != nil {
			return err
		}
		if err := d.receiveUntilTick(); err != nil {
			return err
		}
		now := time.Now()
		if ctx.Err() != nil || now.After(d.end) {
			return ctx.Err()
		}
		if err := d.replaceLost(now); err != nil {
			return err
		}
	}
}

// receiveUntilTick receives datagrams until the read deadline, and sends another for each.
func (d *datagramClient) receiveUntilTick() error {
	for {
		place, err := d.receiveOne()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		case place < 0:
			continue
		}
		if err := d.sendNew(place); err != nil {
			return err
		}
		if now := d.window[place].sent; now.After(d.begin) && now.Before(d.end) {
			d.answered++
		}
	}
}

// replaceLost gives up lost datagrams, and sends others in their places.
func (d *datagramClient) replaceLost(now time.Time) error {
	for place, o := range d.window {
		if now.Sub(o.sent) < lostAfter {
			continue
		}
		if now.After(d.begin) {
			d.lost++
		}
		if err := d.sendNew(place); err != nil {
			return err
		}
	}
	return nil
}

// measureDatagrams measures how many datagrams come back within the period.
func (s *stage) measureDatagrams(ctx context.Context, c *contender) (sample, error) {
	all := make([]*datagramClient, s.size.Clients)
	begin := time.Now().Add(s.size.Warm)
	for i := range all {
		d, err := newDatagramClient(c.address, s.size.Window)
		if err != nil {
			return nil, err
		}
		defer func() { _ = d.socket.Close() }()
		d.begin, d.end = begin, begin.Add(s.size.Period)
		all[i] = d
	}
	err := harness.ForAll(ctx, len(all), len(all), func(ctx context.Context, i int) error { return all[i].run(ctx) })
	v := sample{lost: 0}
	for _, d := range all {
		v["perSecond"] += float64(d.answered) / s.size.Period.Seconds()
		v[lost] += float64(d.lost)
	}
	return v, err
}
