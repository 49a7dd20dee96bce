package dataplane_test

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

// weather is what may change how a balancer copies, and nothing else.
type weather struct {
	idle  time.Duration // whoever listens for silence may copy otherwise
	proxy cloud.ProxyProtocol
}

// inAllWeathers runs a test in each.
func inAllWeathers(t *testing.T, test func(*testing.T, weather)) {
	t.Helper()
	for _, idle := range []time.Duration{0, time.Hour} {
		for _, proxy := range []cloud.ProxyProtocol{"", cloud.ProxyV1, cloud.ProxyV2} {
			t.Run(fmt.Sprintf("idle=%v,proxy=%s", idle, proxy), func(t *testing.T) { test(t, weather{idle, proxy}) })
		}
	}
}

// end is one end of a connection.
type end struct {
	*net.TCPConn
	in io.Reader // what the peer says, without a PROXY header
}

func (e end) Read(p []byte) (int, error) { return e.in.Read(p) }

// reset closes without an orderly end.
func (e end) reset() error { return errors.Join(e.SetLinger(0), e.Close()) }

// balance puts a balancer before one target. What dial gives is a client, and
// what the client's connection is at the target.
func (w weather) balance(t *testing.T) (p *dataplane.Plane, dial func() (client, target end)) {
	t.Helper()
	p, port := newPlane(t), freePort(t)
	arrived := make(chan end)
	done := make(chan struct{})
	f := forwarding(backend(t, two, 0, func(c net.Conn) {
		select {
		case arrived <- end{c.(*net.TCPConn), c}:
			<-done // The test closes it.
		case <-done:
		}
	}), []string{two}, port)
	t.Cleanup(func() { close(done) })
	f.IdleTimeout, f.Listeners[0].ProxyProtocol = w.idle, w.proxy
	require.NoError(t, p.Apply(f))
	return p, func() (end, end) {
		c, err := dialFrom(t, three, port)
		require.NoError(t, err)
		select {
		case at := <-arrived: // The client has said nothing yet.
			t.Cleanup(func() { _ = at.Close() })
			require.NoError(t, at.SetDeadline(time.Now().Add(patience)))
			w.skipHeader(t, &at, c)
			return end{c, c}, at
		case <-time.After(patience):
			t.Fatal("the target was not connected")
		}
		return end{}, end{}
	}
}

// skipHeader reads the PROXY header, if there is to be one.
func (w weather) skipHeader(t *testing.T, at *end, client net.Conn) {
	t.Helper()
	if w.proxy == "" {
		return
	}
	in := bufio.NewReader(at.in)
	h, err := proxyproto.Read(in)
	require.NoError(t, err)
	assert.Equal(t, client.LocalAddr().String(), h.SourceAddr.String())
	at.in = in
}

// eachWay runs a test from the client to the target and the other way round.
func (w weather) eachWay(t *testing.T, test func(t *testing.T, p *dataplane.Plane, from, to end)) {
	t.Helper()
	t.Run("up", func(t *testing.T) {
		p, dial := w.balance(t)
		client, target := dial()
		test(t, p, client, target)
	})
	t.Run("down", func(t *testing.T) {
		p, dial := w.balance(t)
		client, target := dial()
		test(t, p, target, client)
	})
}

// awaitNone waits until a balancer has no connection.
func awaitNone(t *testing.T, p *dataplane.Plane) {
	t.Helper()
	require.Eventually(t, func() bool { return stats(p).Active == 0 }, patience, time.Millisecond)
}

// noise is bytes that repeat with their seed, written in pieces of all sizes
// below most.
type noise struct {
	source *rand.ChaCha8
	sizes  *rand.Rand
	buffer []byte
	sum    interface {
		io.Writer
		Sum([]byte) []byte
	}
}

func newNoise(seed byte, most int) *noise {
	return &noise{rand.NewChaCha8([32]byte{seed}), rand.New(rand.NewPCG(uint64(seed), 0)), make([]byte, most), sha256.New()}
}

// write sends so many bytes more.
func (n *noise) write(to io.Writer, length int) error {
	for length > 0 {
		piece := n.buffer[:min(1+n.sizes.IntN(len(n.buffer)-1), length)]
		_, _ = n.source.Read(piece)
		_, _ = n.sum.Write(piece)
		if _, err := to.Write(piece); err != nil {
			return err
		}
		length -= len(piece)
	}
	return nil
}

// digest tells streams apart.
func (n *noise) digest() string { return fmt.Sprintf("%x", n.sum.Sum(nil)) }

// swallow reads to the end of stream.
func swallow(from io.Reader) (length int64, digest string, err error) {
	sum := sha256.New()
	length, err = io.Copy(sum, struct{ io.Reader }{from})
	return length, fmt.Sprintf("%x", sum.Sum(nil)), err
}

func TestLargeTransfersBothWaysAtOnce(t *testing.T) {
	const length = 24 << 20
	inAllWeathers(t, func(t *testing.T, w weather) {
		p, dial := w.balance(t)
		client, target := dial()
		up, down := newNoise(1, 128<<10), newNoise(2, 128<<10)
		var upThere, downThere string
		var all errgroup.Group
		all.Go(func() error { return errors.Join(up.write(client, length), client.CloseWrite()) })
		all.Go(func() error { return errors.Join(down.write(target, length), target.CloseWrite()) })
		all.Go(func() (err error) { _, upThere, err = swallow(target); return err })
		all.Go(func() (err error) { _, downThere, err = swallow(client); return err })
		require.NoError(t, all.Wait())
		assert.Equal(t, up.digest(), upThere)
		assert.Equal(t, down.digest(), downThere)
		awaitNone(t, p)
		assert.EqualValues(t, length, stats(p).In, "a PROXY header is not counted: the client did not send it")
		assert.EqualValues(t, length, stats(p).Out)
		assert.Zero(t, stats(p).Failed)
	})
}

func TestManySmallWrites(t *testing.T) {
	const length = 20_000
	inAllWeathers(t, func(t *testing.T, w weather) {
		w.eachWay(t, func(t *testing.T, p *dataplane.Plane, from, to end) {
			said := newNoise(3, 8)
			var all errgroup.Group
			all.Go(func() error { return errors.Join(said.write(from, length), from.CloseWrite()) })
			got, digest, err := swallow(to)
			require.NoError(t, err)
			require.NoError(t, all.Wait())
			assert.EqualValues(t, length, got)
			assert.Equal(t, said.digest(), digest)
		})
	})
}

// One end has said all while the other goes on: before, while and after it
// learns of that.
func TestHalfCloseLeavesTheOtherDirection(t *testing.T) {
	const length = 4 << 20
	inAllWeathers(t, func(t *testing.T, w weather) {
		w.eachWay(t, func(t *testing.T, p *dataplane.Plane, first, last end) {
			short, long := newNoise(4, 4<<10), newNoise(5, 64<<10)
			var shortThere, longThere string
			var all errgroup.Group
			heard := make(chan struct{})
			all.Go(func() error { return errors.Join(short.write(first, 10_000), first.CloseWrite()) })
			all.Go(func() (err error) { _, longThere, err = swallow(first); return err })
			all.Go(func() (err error) {
				defer close(heard)
				_, shortThere, err = swallow(last)
				return err
			})
			require.NoError(t, long.write(last, length))
			<-heard
			require.EqualValues(t, 1, stats(p).Active)
			require.NoError(t, long.write(last, length))
			require.NoError(t, last.CloseWrite())
			require.NoError(t, all.Wait())
			assert.Equal(t, short.digest(), shortThere)
			assert.Equal(t, long.digest(), longThere)
			awaitNone(t, p)
		})
	})
}

// requireReset wants whoever reads to its end to see that there was none.
func (e end) requireReset(t *testing.T) {
	t.Helper()
	_, _, err := swallow(e)
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestResetMidTransfer(t *testing.T) {
	inAllWeathers(t, func(t *testing.T, w weather) {
		t.Run("by the reader", func(t *testing.T) {
			w.eachWay(t, func(t *testing.T, p *dataplane.Plane, from, to end) {
				var all errgroup.Group
				all.Go(func() error { return newNoise(6, 64<<10).write(from, 1<<30) })
				_, err := io.CopyN(io.Discard, to, 1<<20)
				require.NoError(t, err)
				require.NoError(t, to.reset())
				err = all.Wait()
				require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE), "%v", err)
				awaitNone(t, p)
			})
		})
		t.Run("by the writer", func(t *testing.T) {
			w.eachWay(t, func(t *testing.T, p *dataplane.Plane, from, to end) {
				var all errgroup.Group
				all.Go(func() error { return errors.Join(newNoise(7, 64<<10).write(from, 5<<20), from.reset()) })
				to.requireReset(t)
				require.NoError(t, all.Wait())
				awaitNone(t, p)
			})
		})
		t.Run("after a half-close", func(t *testing.T) {
			w.eachWay(t, func(t *testing.T, p *dataplane.Plane, from, to end) {
				require.NoError(t, to.CloseWrite())
				got, _, err := swallow(from)
				require.NoError(t, err)
				require.Zero(t, got)
				_, err = io.WriteString(from, "hello")
				require.NoError(t, err)
				_, err = io.ReadFull(to, make([]byte, 5))
				require.NoError(t, err)
				require.NoError(t, from.reset())
				to.requireReset(t)
				awaitNone(t, p)
			})
		})
	})
}

// mostBuffered is what the kernel may hold between a writer and a reader with a
// proxy between them: two connections, each with a buffer at either end. The
// rest is for pipes and such.
func mostBuffered(t *testing.T) int {
	t.Helper()
	most := 8 << 20
	for _, name := range []string{"tcp_rmem", "tcp_wmem"} {
		text, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
		if err != nil {
			t.Skipf("this system does not tell how large its buffers grow: %v", err)
		}
		var least, usual, largest int
		_, err = fmt.Sscan(string(text), &least, &usual, &largest)
		require.NoError(t, err)
		most += 2 * largest
	}
	return most
}

// A writer whose reader does not read comes to a stop, and nothing is lost.
func TestSlowReadersStopTheWriter(t *testing.T) {
	const piece, stalled = 64 << 10, 300 * time.Millisecond
	most := mostBuffered(t)
	inAllWeathers(t, func(t *testing.T, w weather) {
		w.eachWay(t, func(t *testing.T, p *dataplane.Plane, from, to end) {
			source, sum, sent := rand.NewChaCha8([32]byte{8}), sha256.New(), 0
			buffer := make([]byte, piece)
			var err error
			for err == nil && sent <= most {
				_, _ = source.Read(buffer)
				// A slow machine only makes this give up too soon.
				require.NoError(t, from.SetWriteDeadline(time.Now().Add(stalled)))
				var n int
				n, err = from.Write(buffer)
				_, _ = sum.Write(buffer[:n])
				sent += n
			}
			require.ErrorIs(t, err, os.ErrDeadlineExceeded, "%d bytes were taken and none was read", sent)
			require.NoError(t, from.SetDeadline(time.Now().Add(patience)))
			require.NoError(t, to.SetDeadline(time.Now().Add(patience)))
			rest := newNoise(9, piece)
			var all errgroup.Group
			all.Go(func() error {
				return errors.Join(rest.write(io.MultiWriter(from, sum), 1<<20), from.CloseWrite())
			})
			got, digest, err := swallow(to)
			require.NoError(t, err)
			require.NoError(t, all.Wait())
			assert.EqualValues(t, sent+1<<20, got)
			assert.Equal(t, fmt.Sprintf("%x", sum.Sum(nil)), digest)
		})
	})
}

// What was sent before a reader began to read is lost with a reset, but the
// reset is not.
func TestResetReachesASlowReader(t *testing.T) {
	inAllWeathers(t, func(t *testing.T, w weather) {
		w.eachWay(t, func(t *testing.T, p *dataplane.Plane, from, to end) {
			require.NoError(t, from.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
			require.ErrorIs(t, newNoise(10, 64<<10).write(from, 1<<30), os.ErrDeadlineExceeded)
			require.NoError(t, from.reset())
			to.requireReset(t)
			awaitNone(t, p)
		})
	})
}

func TestConnectionsThatSayNothing(t *testing.T) {
	inAllWeathers(t, func(t *testing.T, w weather) {
		p, dial := w.balance(t)
		const many = 20
		for range many {
			client, target := dial() // The target learns of the client that says nothing.
			require.NoError(t, client.Close())
			got, _, err := swallow(target)
			require.NoError(t, err)
			assert.Zero(t, got)
			require.NoError(t, target.Close())
		}
		awaitNone(t, p)
		s := stats(p)
		assert.EqualValues(t, many, s.Connections)
		assert.Zero(t, s.In+s.Out+s.Failed)

		client, target := dial()
		_, err := io.WriteString(target, "220 the target speaks first")
		require.NoError(t, err)
		require.NoError(t, target.CloseWrite())
		all, err := io.ReadAll(client)
		require.NoError(t, err)
		assert.Equal(t, "220 the target speaks first", string(all))
	})
}

func TestTargetClosesAtOnce(t *testing.T) {
	inAllWeathers(t, func(t *testing.T, w weather) {
		p, port := newPlane(t), freePort(t)
		f := forwarding(backend(t, two, 0, func(c net.Conn) {
			if w.proxy != "" { // What is left unread makes a close a reset.
				_, _ = proxyproto.Read(bufio.NewReader(c))
			}
		}), []string{two}, port)
		f.IdleTimeout, f.Listeners[0].ProxyProtocol = w.idle, w.proxy
		require.NoError(t, p.Apply(f))
		for range 10 {
			c := dial(t, port)
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
			require.NoError(t, c.Close())
		}
		awaitNone(t, p)
		assert.Zero(t, stats(p).Failed)
	})
}

// readAll is what a client is told that says nothing; from any goroutine.
func readAll(t *testing.T, port int) string {
	t.Helper()
	c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(front, uint16(port)).String(), patience)
	if !assert.NoError(t, err) {
		return ""
	}
	defer func() { _ = c.Close() }()
	assert.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	all, err := io.ReadAll(c)
	assert.NoError(t, err)
	return string(all)
}
