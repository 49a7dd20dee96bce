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

// copyMode is a combination of the options that may change how a balancer copies, and
// nothing else.
type copyMode struct {
	idle  time.Duration // an idle timeout may need another way of copying
	proxy cloud.ProxyProtocol
}

// inAllCopyModes runs a test in each mode.
func inAllCopyModes(t *testing.T, test func(*testing.T, copyMode)) {
	t.Helper()
	for _, idle := range []time.Duration{0, time.Hour} {
		for _, proxy := range []cloud.ProxyProtocol{"", cloud.ProxyV1, cloud.ProxyV2} {
			t.Run(fmt.Sprintf("idle=%v,proxy=%s", idle, proxy), func(t *testing.T) { test(t, copyMode{idle, proxy}) })
		}
	}
}

// connEnd is one end of a connection.
type connEnd struct {
	*net.TCPConn
	in io.Reader // what the peer sends, without the PROXY header
}

func (e connEnd) Read(p []byte) (int, error) { return e.in.Read(p) }

// reset closes the connection by RST.
func (e connEnd) reset() error { return errors.Join(e.SetLinger(0), e.Close()) }

// newBalancer starts a balancer with one target. dial opens a connection and returns both
// its ends, the client's and the target's.
func (w copyMode) newBalancer(t *testing.T) (p *dataplane.Plane, dial func() (client, target connEnd)) {
	t.Helper()
	p, port := newPlane(t), freePort(t)
	arrived := make(chan connEnd)
	done := make(chan struct{})
	f := forwarding(startTarget(t, two, 0, func(c net.Conn) {
		select {
		case arrived <- connEnd{c.(*net.TCPConn), c}:
			<-done // The test closes it.
		case <-done:
		}
	}), []string{two}, port)
	t.Cleanup(func() { close(done) })
	f.IdleTimeout, f.Listeners[0].ProxyProtocol = w.idle, w.proxy
	require.NoError(t, p.Apply(f))
	return p, func() (connEnd, connEnd) {
		c, err := dialFrom(t, three, port)
		require.NoError(t, err)
		select {
		case at := <-arrived: // The client has sent nothing yet.
			t.Cleanup(func() { _ = at.Close() })
			require.NoError(t, at.SetDeadline(time.Now().Add(testTimeout)))
			w.skipHeader(t, &at, c)
			return connEnd{c, c}, at
		case <-time.After(testTimeout):
			t.Fatal("the target was not connected")
		}
		return connEnd{}, connEnd{}
	}
}

// skipHeader reads the PROXY header, if the mode has one.
func (w copyMode) skipHeader(t *testing.T, at *connEnd, client net.Conn) {
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

// inBothDirections runs a test from client to target and from target to client.
func (w copyMode) inBothDirections(t *testing.T, test func(t *testing.T, p *dataplane.Plane, from, to connEnd)) {
	t.Helper()
	t.Run("up", func(t *testing.T) {
		p, dial := w.newBalancer(t)
		client, target := dial()
		test(t, p, client, target)
	})
	t.Run("down", func(t *testing.T) {
		p, dial := w.newBalancer(t)
		client, target := dial()
		test(t, p, target, client)
	})
}

// randomStream writes random bytes, the same for the same seed, in pieces of random sizes
// below most.
type randomStream struct {
	source *rand.ChaCha8
	sizes  *rand.Rand
	buffer []byte
	sum    interface {
		io.Writer
		Sum([]byte) []byte
	}
}

func newRandomStream(seed byte, most int) *randomStream {
	return &randomStream{
		rand.NewChaCha8([32]byte{seed}), rand.New(rand.NewPCG(uint64(seed), 0)), make([]byte, most), sha256.New(),
	}
}

// write writes length more bytes.
func (n *randomStream) write(to io.Writer, length int) error {
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

// digest is the SHA-256 of all bytes written.
func (n *randomStream) digest() string { return fmt.Sprintf("%x", n.sum.Sum(nil)) }

// readToEnd reads to the end of the stream.
func readToEnd(from io.Reader) (length int64, digest string, err error) {
	sum := sha256.New()
	length, err = io.Copy(sum, struct{ io.Reader }{from})
	return length, fmt.Sprintf("%x", sum.Sum(nil)), err
}

func TestLargeTransfersBothWaysAtOnce(t *testing.T) {
	const length = 24 << 20
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		p, dial := w.newBalancer(t)
		client, target := dial()
		up, down := newRandomStream(1, 128<<10), newRandomStream(2, 128<<10)
		var upThere, downThere string
		var all errgroup.Group
		all.Go(func() error { return errors.Join(up.write(client, length), client.CloseWrite()) })
		all.Go(func() error { return errors.Join(down.write(target, length), target.CloseWrite()) })
		all.Go(func() (err error) { _, upThere, err = readToEnd(target); return err })
		all.Go(func() (err error) { _, downThere, err = readToEnd(client); return err })
		require.NoError(t, all.Wait())
		assert.Equal(t, up.digest(), upThere)
		assert.Equal(t, down.digest(), downThere)
		awaitNoConnections(t, p)
		assert.EqualValues(t, length, listenerStats(p).In, "a PROXY header is not counted: the client did not send it")
		assert.EqualValues(t, length, listenerStats(p).Out)
		assert.Zero(t, listenerStats(p).Failed)
	})
}

func TestManySmallWrites(t *testing.T) {
	const length = 20_000
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
			said := newRandomStream(3, 8)
			var all errgroup.Group
			all.Go(func() error { return errors.Join(said.write(from, length), from.CloseWrite()) })
			got, digest, err := readToEnd(to)
			require.NoError(t, err)
			require.NoError(t, all.Wait())
			assert.EqualValues(t, length, got)
			assert.Equal(t, said.digest(), digest)
		})
	})
}

// One end closes its direction while the other goes on sending: before, while and after
// that end notices.
func TestHalfCloseLeavesTheOtherDirection(t *testing.T) {
	const length = 4 << 20
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, first, last connEnd) {
			short, long := newRandomStream(4, 4<<10), newRandomStream(5, 64<<10)
			var shortThere, longThere string
			var all errgroup.Group
			heard := make(chan struct{})
			all.Go(func() error { return errors.Join(short.write(first, 10_000), first.CloseWrite()) })
			all.Go(func() (err error) { _, longThere, err = readToEnd(first); return err })
			all.Go(func() (err error) {
				defer close(heard)
				_, shortThere, err = readToEnd(last)
				return err
			})
			require.NoError(t, long.write(last, length))
			<-heard
			require.EqualValues(t, 1, listenerStats(p).Active)
			require.NoError(t, long.write(last, length))
			require.NoError(t, last.CloseWrite())
			require.NoError(t, all.Wait())
			assert.Equal(t, short.digest(), shortThere)
			assert.Equal(t, long.digest(), longThere)
			awaitNoConnections(t, p)
		})
	})
}

// requireReset requires reading to the end to fail: the stream had no orderly end.
func (e connEnd) requireReset(t *testing.T) {
	t.Helper()
	_, _, err := readToEnd(e)
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestResetMidTransfer(t *testing.T) {
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		t.Run("by the reader", func(t *testing.T) {
			w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
				var all errgroup.Group
				all.Go(func() error { return newRandomStream(6, 64<<10).write(from, 1<<30) })
				_, err := io.CopyN(io.Discard, to, 1<<20)
				require.NoError(t, err)
				require.NoError(t, to.reset())
				err = all.Wait()
				require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE), "%v", err)
				awaitNoConnections(t, p)
			})
		})
		t.Run("by the writer", func(t *testing.T) {
			w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
				var all errgroup.Group
				all.Go(func() error { return errors.Join(newRandomStream(7, 64<<10).write(from, 5<<20), from.reset()) })
				to.requireReset(t)
				require.NoError(t, all.Wait())
				awaitNoConnections(t, p)
			})
		})
		t.Run("after a half-close", func(t *testing.T) {
			w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
				require.NoError(t, to.CloseWrite())
				got, _, err := readToEnd(from)
				require.NoError(t, err)
				require.Zero(t, got)
				_, err = io.WriteString(from, "hello")
				require.NoError(t, err)
				_, err = io.ReadFull(to, make([]byte, 5))
				require.NoError(t, err)
				require.NoError(t, from.reset())
				to.requireReset(t)
				awaitNoConnections(t, p)
			})
		})
	})
}

// mostBuffered is how many bytes the kernel may hold between a writer and a reader with a
// proxy between them: two connections, each with a buffer at both ends, and some more for
// pipes.
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

// A writer whose reader does not read is stopped, and nothing is lost.
func TestSlowReadersStopTheWriter(t *testing.T) {
	const piece, stalled = 64 << 10, 300 * time.Millisecond
	most := mostBuffered(t)
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
			source, sum, sent := rand.NewChaCha8([32]byte{8}), sha256.New(), 0
			buffer := make([]byte, piece)
			var err error
			for err == nil && sent <= most {
				_, _ = source.Read(buffer)
				// On a slow machine this only gives up too soon.
				require.NoError(t, from.SetWriteDeadline(time.Now().Add(stalled)))
				var n int
				n, err = from.Write(buffer)
				_, _ = sum.Write(buffer[:n])
				sent += n
			}
			require.ErrorIs(t, err, os.ErrDeadlineExceeded, "%d bytes were taken and none was read", sent)
			require.NoError(t, from.SetDeadline(time.Now().Add(testTimeout)))
			require.NoError(t, to.SetDeadline(time.Now().Add(testTimeout)))
			rest := newRandomStream(9, piece)
			var all errgroup.Group
			all.Go(func() error {
				return errors.Join(rest.write(io.MultiWriter(from, sum), 1<<20), from.CloseWrite())
			})
			got, digest, err := readToEnd(to)
			require.NoError(t, err)
			require.NoError(t, all.Wait())
			assert.EqualValues(t, sent+1<<20, got)
			assert.Equal(t, fmt.Sprintf("%x", sum.Sum(nil)), digest)
		})
	})
}

// A reset discards what was sent before the reader began to read, but the reader does see
// the reset.
func TestResetReachesASlowReader(t *testing.T) {
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
			require.NoError(t, from.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
			require.ErrorIs(t, newRandomStream(10, 64<<10).write(from, 1<<30), os.ErrDeadlineExceeded)
			require.NoError(t, from.reset())
			to.requireReset(t)
			awaitNoConnections(t, p)
		})
	})
}

func TestConnectionsWithoutData(t *testing.T) {
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		p, dial := w.newBalancer(t)
		const many = 20
		for range many {
			client, target := dial() // The target gets a connection although the client sends nothing.
			require.NoError(t, client.Close())
			got, _, err := readToEnd(target)
			require.NoError(t, err)
			assert.Zero(t, got)
			require.NoError(t, target.Close())
		}
		awaitNoConnections(t, p)
		s := listenerStats(p)
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
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		p, port := newPlane(t), freePort(t)
		f := forwarding(startTarget(t, two, 0, func(c net.Conn) {
			if w.proxy != "" { // Closing with unread data resets the connection.
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
		awaitNoConnections(t, p)
		assert.Zero(t, listenerStats(p).Failed)
	})
}

// readAll connects and returns all that the target sends. It may run in any goroutine.
func readAll(t *testing.T, port int) string {
	t.Helper()
	c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(front, uint16(port)).String(), testTimeout)
	if !assert.NoError(t, err) {
		return ""
	}
	defer func() { _ = c.Close() }()
	assert.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
	all, err := io.ReadAll(c)
	assert.NoError(t, err)
	return string(all)
}
