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
)

const (
	// tick is how often a client looks for what was lost, lostAfter how long a
	// datagram may take.
	tick      = 50 * time.Millisecond
	lostAfter = 250 * time.Millisecond
)

// pingUDP proves that a proxy forwards datagrams.
func pingUDP(address string) error {
	d, err := newDatagrams(address, 1)
	if err != nil {
		return err
	}
	defer func() { _ = d.socket.Close() }()
	if err := d.send(0); err != nil {
		return err
	}
	if err := d.socket.SetReadDeadline(time.Now().Add(lostAfter)); err != nil {
		return err
	}
	_, err = d.receive()
	return err
}

// datagrams is one client: a window of datagrams that are on their way, each of
// which is followed by another when it is back.
type datagrams struct {
	socket  *net.UDPConn
	next    uint64
	window  []outstanding
	buffer  [datagramSize]byte
	payload [datagramSize]byte

	begin, end time.Time
	back, lost int
}

// outstanding is a datagram's place in the window: a late one is told by its
// number.
type outstanding struct {
	number uint64
	sent   time.Time
}

func newDatagrams(address string, window int) (*datagrams, error) {
	to, err := netip.ParseAddrPort(join(address, portUDP))
	if err != nil {
		return nil, err
	}
	socket, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return nil, err
	}
	d := &datagrams{socket: socket, window: make([]outstanding, window)}
	copy(d.payload[:], block)
	return d, nil
}

// length of a datagram follows from its number: 64 to 512 bytes.
func length(number uint64) int { return 64 + int(number*64)%(datagramSize-63) }

// send puts a new datagram into a place of the window. Its number says which.
func (d *datagrams) send(place int) error {
	d.next++
	number := d.next*uint64(len(d.window)) + uint64(place)
	d.window[place] = outstanding{number: number, sent: time.Now()}
	binary.BigEndian.PutUint64(d.payload[:], number)
	_, err := d.socket.Write(d.payload[:length(number)])
	return err
}

// receive gives the place of one that is back, or -1 of one given up before.
func (d *datagrams) receive() (int, error) {
	n, err := d.socket.Read(d.buffer[:])
	if err != nil {
		return -1, err
	}
	if n < 8 {
		return -1, fmt.Errorf("a datagram of %d bytes was not sent", n)
	}
	number := binary.BigEndian.Uint64(d.buffer[:])
	if n != length(number) || d.buffer[n-1] != block[n-1] {
		return -1, fmt.Errorf("datagram %d of %d bytes was not sent so", number, n)
	}
	place := int(number % uint64(len(d.window)))
	if d.window[place].number != number {
		return -1, nil
	}
	return place, nil
}

// run keeps the window full until the end.
func (d *datagrams) run(ctx context.Context) error {
	for place := range d.window {
		if err := d.send(place); err != nil {
			return err
		}
	}
	for {
		// Reads then fail with the next tick, whatever arrives.
		if err := d.socket.SetReadDeadline(time.Now().Add(tick)); err != nil {
			return err
		}
		if err := d.untilTick(); err != nil {
			return err
		}
		now := time.Now()
		if ctx.Err() != nil || now.After(d.end) {
			return ctx.Err()
		}
		if err := d.resend(now); err != nil {
			return err
		}
	}
}

// untilTick sends another for each that is back.
func (d *datagrams) untilTick() error {
	for {
		place, err := d.receive()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		case place < 0:
			continue
		}
		if err := d.send(place); err != nil {
			return err
		}
		if now := d.window[place].sent; now.After(d.begin) && now.Before(d.end) {
			d.back++
		}
	}
}

// resend gives up what is lost, and sends another in its place.
func (d *datagrams) resend(now time.Time) error {
	for place, o := range d.window {
		if now.Sub(o.sent) < lostAfter {
			continue
		}
		if now.After(d.begin) {
			d.lost++
		}
		if err := d.send(place); err != nil {
			return err
		}
	}
	return nil
}

// datagrams measures how many come back in the period.
func (s *stage) datagrams(ctx context.Context, c *contender) (sample, error) {
	all := make([]*datagrams, s.size.Clients)
	begin := time.Now().Add(s.size.Warm)
	for i := range all {
		d, err := newDatagrams(c.address, s.size.Window)
		if err != nil {
			return nil, err
		}
		defer func() { _ = d.socket.Close() }()
		d.begin, d.end = begin, begin.Add(s.size.Period)
		all[i] = d
	}
	err := forAll(ctx, len(all), len(all), func(i int) error { return all[i].run(ctx) })
	v := sample{lost: 0}
	for _, d := range all {
		v["perSecond"] += float64(d.back) / s.size.Period.Seconds()
		v[lost] += float64(d.lost)
	}
	return v, err
}
