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

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// copyMode is a combination of the options that may change how a balancer copies, and
// nothing else.
type copyMode struct {
	idle  time.Duration // an idle timeout may need another way of copying
	proxy api.ProxyProtocol
}

// inAllCopyModes runs a test in each mode.
func inAllCopyModes(t *testing.T, test func(*testing.T, copyMode)) {
	t.Helper()
	for _, idle := range []time.Duration{0, time.Hour} {
		for _, proxy := range []api.ProxyProtocol{"", api.ProxyProtocolV1, api.ProxyProtocolV2} {
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
	}), []string{four, two}, port) // Nobody answers at four.
	t.Cleanup(func() { close(done) })
	f.IdleTimeout, f.Listeners[0].ProxyProtocol = w.idle, w.proxy
	require.NoError(t, p.Apply(f))
	return p, func() (connEnd, connEnd) {
		c := must.Do(dialFrom(t, three, port))(t)
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
	h := must.Do(proxyproto.Read(in))(t)
	assert.Equal(t, map[api.ProxyProtocol]byte{api.ProxyProtocolV1: 1, api.ProxyProtocolV2: 2}[w.proxy], h.Version)
	assert.Equal(t, client.LocalAddr().String(), h.SourceAddr.String())
	assert.Equal(t, client.RemoteAddr().String(), h.DestinationAddr.String())
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
		assert.EqualValues(t, length, listenerStats(p).BytesIn, "a PROXY header is not counted: the client did not send it")
		assert.EqualValues(t, length, listenerStats(p).BytesOut)
		assert.Zero(t, listenerStats(p).FailedConnections)
	})
}

// One end closes its direction while the other goes on sending: before, while and after
// that end notices.
func TestHalfCloseLeavesTheOtherDirection(t *testing.T) {
	const length = 4 << 20
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, first, last connEnd) {
			short, long := newRandomStream(4, 8), newRandomStream(5, 64<<10) // In many small writes, and in large ones.
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
			require.EqualValues(t, 1, listenerStats(p).ActiveConnections)
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

// A reset of one end reaches the other, which sees no orderly end.
func TestResetsReachTheOtherEnd(t *testing.T) {
	for name, reset := range map[string]func(t *testing.T, from, to connEnd) (other connEnd){
		"of the writer": func(t *testing.T, from, to connEnd) connEnd {
			var all errgroup.Group
			t.Cleanup(func() { require.NoError(t, all.Wait()) })
			all.Go(func() error { return errors.Join(newRandomStream(7, 64<<10).write(from, 5<<20), from.reset()) })
			return to
		},
		"of a writer that waits": func(t *testing.T, from, to connEnd) connEnd {
			from.writeUntilStopped(t)
			require.NoError(t, from.reset())
			return to
		},
		"of the reader for which the writer waits": func(t *testing.T, from, to connEnd) connEnd {
			from.writeUntilStopped(t)
			require.NoError(t, to.reset())
			return from
		},
		"after a half-close": func(t *testing.T, from, to connEnd) connEnd {
			require.NoError(t, to.CloseWrite())
			got, _, err := readToEnd(from)
			require.NoError(t, err)
			require.Zero(t, got)
			must.Do(io.WriteString(from, "hello"))(t)
			must.Do(io.ReadFull(to, make([]byte, 5)))(t)
			require.NoError(t, from.reset())
			return to
		},
	} {
		t.Run(name, func(t *testing.T) {
			inAllCopyModes(t, func(t *testing.T, w copyMode) {
				w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
					reset(t, from, to).requireReset(t)
					awaitNoConnections(t, p)
				})
			})
		})
	}
}

// writeUntilStopped writes until the balancer takes no more because nobody reads.
func (e connEnd) writeUntilStopped(t *testing.T) {
	t.Helper()
	require.NoError(t, e.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	require.ErrorIs(t, newRandomStream(10, 64<<10).write(e, 1<<30), os.ErrDeadlineExceeded)
}

// requireCut requires that cut resets both ends of a connection: neither sees an orderly end.
func requireCut(t *testing.T, from, to connEnd, cut func()) {
	t.Helper()
	_, err := io.WriteString(from, "half of")
	require.NoError(t, err)
	must.Do(io.ReadFull(to, make([]byte, len("half of"))))(t)
	cut()
	to.requireReset(t)
	from.requireReset(t)
}

func TestDrainedAndRemovedConnectionsAreReset(t *testing.T) {
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
			requireCut(t, from, to, func() {
				s := listenerStats(p)
				left := []cloud.Listener{{Protocol: s.Protocol, Port: s.Port, TargetPort: 1}}
				drained := cloud.Forwarding{ID: "lb-1", Addresses: []netip.Addr{front}, Listeners: left, Drain: time.Millisecond}
				require.NoError(t, p.Apply(drained))
			})
			awaitNoConnections(t, p)
		})
		w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
			requireCut(t, from, to, func() { p.Remove("lb-1") })
		})
	})
}

func TestIdleConnectionsAreReset(t *testing.T) {
	for _, proxy := range []api.ProxyProtocol{"", api.ProxyProtocolV1, api.ProxyProtocolV2} {
		w := copyMode{200 * time.Millisecond, proxy}
		w.inBothDirections(t, func(t *testing.T, p *dataplane.Plane, from, to connEnd) {
			requireCut(t, from, to, func() {})
			awaitNoConnections(t, p)
			assert.Zero(t, listenerStats(p).FailedConnections)
		})
	}
}

func TestConnectionsWithoutData(t *testing.T) {
	inAllCopyModes(t, func(t *testing.T, w copyMode) {
		p, dial := w.newBalancer(t)
		const many = 20
		for range many {
			client, target := dial() // The target gets a connection although the client sends nothing.
			require.NoError(t, client.Close())
			got := must.First(readToEnd(target))(t)
			assert.Zero(t, got)
			require.NoError(t, target.Close())
		}
		awaitNoConnections(t, p)
		s := listenerStats(p)
		assert.EqualValues(t, many, s.Connections)
		assert.Zero(t, s.BytesIn+s.BytesOut+s.FailedConnections)

		client, target := dial()
		must.Do(io.WriteString(target, "220 the target speaks first"))(t)
		require.NoError(t, target.CloseWrite())
		all := must.Do(io.ReadAll(client))(t)
		assert.Equal(t, "220 the target speaks first", string(all))
	})
}
