package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

// patience bounds what takes no time if all is well.
const patience = 5 * time.Second

// dialer does without keep-alive: setting it up costs each connection calls.
var dialer = net.Dialer{Timeout: patience, KeepAlive: -1}

func dial(address string, port int) (*net.TCPConn, error) {
	c, err := dialer.Dial("tcp", join(address, port))
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// forAll does something n times, by so many workers, each of which ends with the
// first that fails.
func forAll(ctx context.Context, n, workers int, do func(i int) error) error {
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil && ctx.Err() == nil; i += workers {
				errs[w] = do(i)
			}
		})
	}
	wg.Wait()
	return firstError(append(errs, ctx.Err()))
}

// dialAll opens so many connections.
func dialAll(ctx context.Context, address string, port, n int) ([]*net.TCPConn, error) {
	conns := make([]*net.TCPConn, n)
	err := forAll(ctx, n, 64, func(i int) (err error) {
		conns[i], err = dial(address, port)
		return err
	})
	if err != nil {
		closeAll(conns)
		return nil, err
	}
	return conns, nil
}

// firstError of many that are alike, with how many they are; nil if there is
// none.
func firstError(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) > 1 {
		return fmt.Errorf("%w; and %d more", errs[0], len(errs)-1)
	}
	return errors.Join(errs...)
}

func closeAll(conns []*net.TCPConn) {
	for _, c := range conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

// ping proves that a proxy forwards.
func ping(address string) error {
	c, err := dial(address, portEcho)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return ask(c, 1, make([]byte, requestSize+answerSize))
}

// ask sends a request with that number and reads its answer. buffer has room
// for both.
func ask(c *net.TCPConn, number uint64, buffer []byte) error {
	request, answer := buffer[:requestSize], buffer[requestSize:requestSize+answerSize]
	binary.BigEndian.PutUint64(request, number)
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write(request); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, answer); err != nil {
		return err
	}
	if !bytes.Equal(answer[:requestSize], request) {
		return errors.New("the answer is another request's")
	}
	return nil
}

// download has the clients count what they receive.
func (s *stage) download(ctx context.Context, c *contender) (sample, error) {
	var got atomic.Int64
	return s.transfer(ctx, c, portSource, func(c *net.TCPConn) error {
		buffer := make([]byte, blockSize)
		for at := int64(0); ; {
			n, err := c.Read(buffer)
			if !follows(buffer[:n], at) {
				return fmt.Errorf("after %d bytes comes what was not sent then", at)
			}
			at += int64(n)
			got.Add(int64(n))
			if err != nil {
				return err
			}
		}
	}, func() (int64, error) { return got.Load(), nil })
}

// upload has the backends count what they receive.
func (s *stage) upload(ctx context.Context, c *contender) (sample, error) {
	return s.transfer(ctx, c, portSink, func(c *net.TCPConn) error {
		for {
			if _, err := c.Write(block); err != nil {
				return err
			}
		}
	}, sunk)
}

// sunk asks the backends, not through a proxy.
func sunk() (int64, error) {
	c, err := dial(backendAddresses()[0], portCount)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	var both [16]byte
	if _, err := io.ReadFull(c, both[:]); err != nil {
		return 0, err
	}
	if n := binary.BigEndian.Uint64(both[8:]); n > 0 {
		return 0, fmt.Errorf("%d backends received what was not sent", n)
	}
	return int64(binary.BigEndian.Uint64(both[:])), nil
}

// transfer has every stream do the same until its connection is closed, and
// looks in between how much arrives.
func (s *stage) transfer(ctx context.Context, c *contender, port int, stream func(*net.TCPConn) error, arrived func() (int64, error)) (sample, error) {
	conns, err := dialAll(ctx, c.address, port, s.size.Streams)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	var closing atomic.Bool
	errs := make([]error, len(conns))
	for i, conn := range conns {
		wg.Go(func() {
			if err := stream(conn); !closing.Load() {
				errs[i] = err
			}
		})
	}
	rate, err := s.arriving(ctx, arrived)
	closing.Store(true)
	closeAll(conns)
	wg.Wait()
	return sample{"bytesPerSecond": rate}, firstError(append(errs, err))
}

// arriving is how much arrives each second of the period.
func (s *stage) arriving(ctx context.Context, arrived func() (int64, error)) (float64, error) {
	if err := machine.Sleep(ctx, s.size.Warm); err != nil {
		return 0, err
	}
	before, err := arrived()
	begin := time.Now()
	if err != nil {
		return 0, err
	}
	if err := machine.Sleep(ctx, s.size.Period); err != nil {
		return 0, err
	}
	after, err := arrived()
	return float64(after-before) / time.Since(begin).Seconds(), err
}

// worked is what one client did within the period.
type worked struct {
	took   machine.Latencies
	failed int
	err    error // the first
}

func (w *worked) fail(err error) {
	if w.failed++; w.err == nil {
		w.err = err
	}
}

// maxFailures of one client end its work: nothing is to be had any more.
const maxFailures = 100

// clients work at the same time, each until the period ends. do says how long
// what counts took.
func (s *stage) clients(ctx context.Context, c *contender, begin func(client int) (do func() (time.Duration, error), end func(), err error)) (sample, error) {
	parts := make([]worked, s.size.Clients)
	start := time.Now().Add(s.size.Warm)
	stop := start.Add(s.size.Period)
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() { parts[i].work(ctx, start, stop, i, begin) })
	}
	wg.Wait()
	for _, p := range parts {
		if p.err != nil && c.failure == nil {
			c.failure = p.err
		}
	}
	return summary(parts, s.size.Period), ctx.Err()
}

func (w *worked) work(ctx context.Context, start, stop time.Time, i int, begin func(int) (func() (time.Duration, error), func(), error)) {
	do, end, err := begin(i)
	if err != nil {
		w.fail(err)
		return
	}
	defer end()
	w.took = make(machine.Latencies, 0, 1<<14)
	for w.failed < maxFailures && ctx.Err() == nil {
		took, err := do()
		now := time.Now()
		switch {
		case now.After(stop):
			return
		case err != nil:
			w.fail(err)
		case now.After(start):
			w.took = append(w.took, took)
		}
	}
}

// summary is of all clients' work within the period.
func summary(parts []worked, period time.Duration) sample {
	var all machine.Latencies
	v := sample{failed: 0}
	for _, p := range parts {
		all = append(all, p.took...)
		v[failed] += float64(p.failed)
	}
	slices.Sort(all)
	v["perSecond"] = float64(len(all)) / period.Seconds()
	v["p50"], v["p99"] = all.Percentile(50).Seconds(), all.Percentile(99).Seconds()
	return v
}

// connections opens one after the other, each for one request. The backend
// closes once it has answered, and the client when it has seen that through the
// proxy: a whole life in order, of both of the proxy's connections. Who closes
// first keeps the pair of addresses for a minute (TIME_WAIT). Here these are
// the ends that were connected to, which do not choose a port, so that neither
// the client nor any proxy runs out of ports.
func (s *stage) connections(ctx context.Context, c *contender) (sample, error) {
	return s.clients(ctx, c, func(client int) (func() (time.Duration, error), func(), error) {
		buffer := make([]byte, requestSize+answerSize)
		number := uint64(client) << 32
		return func() (time.Duration, error) {
			number++
			begin := time.Now()
			err := askOnce(c.address, number, buffer)
			return time.Since(begin), err
		}, func() {}, nil
	})
}

func askOnce(address string, number uint64, buffer []byte) error {
	c, err := dial(address, portOnce)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := ask(c, number, buffer); err != nil {
		return err
	}
	switch n, err := c.Read(buffer); {
	case err == nil:
		return fmt.Errorf("after the answer come %d bytes, and not its end", n)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

// requests are asked on connections that last, the next as soon as one is
// answered.
func (s *stage) requests(ctx context.Context, c *contender) (sample, error) {
	return s.ask(ctx, c, 0)
}

// pacedRequests are the same at a rate that every proxy bears. What counts is
// the time from when a request was sent, not from when it was due: the clients'
// timers are no better than a millisecond.
func (s *stage) pacedRequests(ctx context.Context, c *contender) (sample, error) {
	return s.ask(ctx, c, time.Second*time.Duration(s.size.Clients)/time.Duration(s.size.Rate))
}

// ask has each client ask at most once in every interval.
func (s *stage) ask(ctx context.Context, c *contender, interval time.Duration) (sample, error) {
	return s.clients(ctx, c, func(client int) (func() (time.Duration, error), func(), error) {
		conn, err := dial(c.address, portEcho)
		if err != nil {
			return nil, nil, err
		}
		buffer := make([]byte, requestSize+answerSize)
		number := uint64(client) << 32
		// They begin spread over the interval.
		due := time.Now().Add(interval * time.Duration(client) / time.Duration(s.size.Clients))
		return func() (time.Duration, error) {
			if interval > 0 {
				time.Sleep(time.Until(due))
				due = due.Add(interval)
			}
			number++
			begin := time.Now()
			err := ask(conn, number, buffer)
			return time.Since(begin), err
		}, func() { _ = conn.Close() }, nil
	})
}
