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

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

// ioTimeout is the timeout of everything that takes no time if all is well.
const ioTimeout = 5 * time.Second

// dialer sets no keep-alives, which would take further system calls for each connection.
var dialer = net.Dialer{Timeout: ioTimeout, KeepAlive: -1}

func dialTCP(address string, port int) (*net.TCPConn, error) {
	c, err := dialer.Dial("tcp", hostPort(address, port))
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// dialAll opens n connections.
func dialAll(ctx context.Context, address string, port, n int) ([]*net.TCPConn, error) {
	conns := make([]*net.TCPConn, n)
	err := harness.ForAll(ctx, n, 64, func(_ context.Context, i int) (err error) {
		conns[i], err = dialTCP(address, port)
		return err
	})
	if err != nil {
		closeAll(conns)
		return nil, err
	}
	return conns, nil
}

// firstError is the first of the errors, with the number of further ones; nil if there is none.
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

// pingTCP sends a request through a proxy and checks its answer.
func pingTCP(address string) error {
	c, err := dialTCP(address, portEcho)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return exchangeRequest(c, 1, make([]byte, requestSize+answerSize))
}

// exchangeRequest sends a request with a number and checks its answer. buffer has room for both.
func exchangeRequest(c *net.TCPConn, number uint64, buffer []byte) error {
	request, answer := buffer[:requestSize], buffer[requestSize:requestSize+answerSize]
	binary.BigEndian.PutUint64(request, number)
	if err := c.SetDeadline(time.Now().Add(ioTimeout)); err != nil {
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

// measureDownload measures how many bytes the clients receive.
func (s *stage) measureDownload(ctx context.Context, c *contender) (sample, error) {
	var got atomic.Int64
	return s.runTransfers(ctx, c, portSource, func(c *net.TCPConn) error {
		buffer := make([]byte, blockSize)
		for at := int64(0); ; {
			n, err := c.Read(buffer)
			if !isExpectedPiece(buffer[:n], at) {
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

// measureUpload measures how many bytes the backends receive.
func (s *stage) measureUpload(ctx context.Context, c *contender) (sample, error) {
	return s.runTransfers(ctx, c, portSink, func(c *net.TCPConn) error {
		for {
			if _, err := c.Write(block); err != nil {
				return err
			}
		}
	}, readSinkCount)
}

// readSinkCount reads from the backends, not through a balancer, how many bytes the sinks received.
func readSinkCount() (sum int64, err error) {
	for _, address := range backendAddresses() {
		n, err := readSinkCountOf(address)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func readSinkCountOf(address string) (int64, error) {
	c, err := dialTCP(address, portCount)
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

// runTransfers runs all streams, each until its connection is closed, and measures how much arrives
// meanwhile.
func (s *stage) runTransfers(
	ctx context.Context,
	c *contender,
	port int,
	stream func(*net.TCPConn) error,
	arrived func() (int64, error),
) (sample, error) {
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
	rate, err := s.arrivalRate(ctx, arrived)
	closing.Store(true)
	closeAll(conns)
	wg.Wait()
	return sample{"bytesPerSecond": rate}, firstError(append(errs, err))
}

// arrivalRate is how many bytes arrive in a second, during the period.
func (s *stage) arrivalRate(ctx context.Context, arrived func() (int64, error)) (float64, error) {
	if err := harness.Sleep(ctx, s.size.Warm); err != nil {
		return 0, err
	}
	before, err := arrived()
	begin := time.Now()
	if err != nil {
		return 0, err
	}
	if err := harness.Sleep(ctx, s.size.Period); err != nil {
		return 0, err
	}
	after, err := arrived()
	return float64(after-before) / time.Since(begin).Seconds(), err
}

// clientWork is what one client has done within the period.
type clientWork struct {
	took   harness.Latencies
	failed int
	err    error // the first failure
}

func (w *clientWork) recordFailure(err error) {
	if w.failed++; w.err == nil {
		w.err = err
	}
}

// maxFailures is how many failures end the work of a client.
const maxFailures = 100

// runClients runs all clients at the same time until the period ends. begin prepares a client; do is
// one exchange, and returns how long it took.
func (s *stage) runClients(
	ctx context.Context,
	c *contender,
	begin func(client int) (do func() (time.Duration, error), end func(), err error),
) (sample, error) {
	parts := make([]clientWork, s.size.Clients)
	start := time.Now().Add(s.size.Warm)
	stop := start.Add(s.size.Period)
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() { parts[i].runUntil(ctx, start, stop, i, begin) })
	}
	wg.Wait()
	for _, p := range parts {
		if p.err != nil && c.failure == nil {
			c.failure = p.err
		}
	}
	return summarize(parts, s.size.Period), ctx.Err()
}

func (w *clientWork) runUntil(
	ctx context.Context,
	start, stop time.Time,
	i int,
	begin func(int) (func() (time.Duration, error), func(), error),
) {
	do, end, err := begin(i)
	if err != nil {
		w.recordFailure(err)
		return
	}
	defer end()
	w.took = make(harness.Latencies, 0, 1<<14)
	for w.failed < maxFailures && ctx.Err() == nil {
		took, err := do()
		now := time.Now()
		switch {
		case now.After(stop):
			return
		case err != nil:
			w.recordFailure(err)
		case now.After(start):
			w.took = append(w.took, took)
		}
	}
}

// summarize adds up the work of all clients.
func summarize(parts []clientWork, period time.Duration) sample {
	var all harness.Latencies
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

// measureConnections measures connections that each client opens one after the other, each for one
// request. The backend closes when it has answered, and the client when it has seen that through
// the proxy, so both connections of the proxy end in good order. The end that closes first stays
// in TIME_WAIT for a minute. Here these are the accepting ends, which take no local port, so
// neither the clients nor a proxy run out of ports.
func (s *stage) measureConnections(ctx context.Context, c *contender) (sample, error) {
	return s.runClients(ctx, c, func(client int) (func() (time.Duration, error), func(), error) {
		buffer := make([]byte, requestSize+answerSize)
		number := uint64(client) << 32
		return func() (time.Duration, error) {
			number++
			begin := time.Now()
			err := exchangeOnce(c.address, number, buffer)
			return time.Since(begin), err
		}, func() {}, nil
	})
}

func exchangeOnce(address string, number uint64, buffer []byte) error {
	c, err := dialTCP(address, portOnce)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := exchangeRequest(c, number, buffer); err != nil {
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

// measureRequests measures requests on connections that stay open, each sent as soon as the one
// before is answered.
func (s *stage) measureRequests(ctx context.Context, c *contender) (sample, error) {
	return s.runRequests(ctx, c, 0)
}

// measurePacedRequests measures requests at a rate that every proxy can sustain. The latency counts
// from when a request was sent, not from when it was due: the clients' timers are accurate to a
// millisecond only.
func (s *stage) measurePacedRequests(ctx context.Context, c *contender) (sample, error) {
	return s.runRequests(ctx, c, time.Second*time.Duration(s.size.Clients)/time.Duration(s.size.Rate))
}

// runRequests runs clients that each send at most one request in every interval.
func (s *stage) runRequests(ctx context.Context, c *contender, interval time.Duration) (sample, error) {
	return s.runClients(ctx, c, func(client int) (func() (time.Duration, error), func(), error) {
		conn, err := dialTCP(c.address, portEcho)
		if err != nil {
			return nil, nil, err
		}
		buffer := make([]byte, requestSize+answerSize)
		number := uint64(client) << 32
		// The clients begin spread over the interval.
		due := time.Now().Add(interval * time.Duration(client) / time.Duration(s.size.Clients))
		return func() (time.Duration, error) {
			if interval > 0 {
				time.Sleep(time.Until(due))
				due = due.Add(interval)
			}
			number++
			begin := time.Now()
			err := exchangeRequest(conn, number, buffer)
			return time.Since(begin), err
		}, func() { _ = conn.Close() }, nil
	})
}
