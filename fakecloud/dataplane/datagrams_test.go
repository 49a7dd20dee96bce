package dataplane_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestDatagramsOfEachSize(t *testing.T) {
	const largest = 65_507 // payload of an IPv4 datagram
	p, port := newPlane(t), freePort(t)
	require.NoError(t, p.Apply(udpForwarding(portOf(startUDPEcho(t, two, 0)), []string{two}, port)))
	c, total := udpClient(t, four, port), 0
	require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
	got, source := make([]byte, 64<<10), rand.NewChaCha8([32]byte{1})
	for _, size := range []int{
		0, 1, 2, 511, 512, 1471, 1472, 1473, 1500, 2047, 2048, 2049, 4096, 8192, 9000, 16_384, 32_767, 65_506, largest,
		0, largest, 1,
	} {
		sent := make([]byte, size)
		_, _ = source.Read(sent)
		_, err := c.Write(sent)
		require.NoError(t, err)
		n, err := c.Read(got)
		require.NoError(t, err, "%d bytes", size)
		require.True(t, bytes.Equal(sent, got[:n]), "%d bytes went, %d came", size, n)
		total += size
	}
	_, err := c.Write(make([]byte, largest+1))
	require.ErrorIs(t, err, syscall.EMSGSIZE)
	require.Eventually(t, func() bool {
		return listenerStats(p).In == int64(total) &&
			listenerStats(p).Out == int64(total)
	}, testTimeout, time.Millisecond)
	assert.EqualValues(t, 1, listenerStats(p).Connections)
	assert.Zero(t, listenerStats(p).Failed)
}

func TestDatagramsKeepTheirOrder(t *testing.T) {
	const rounds, burst = 100, 8 // Few enough to fit any socket's buffer.
	p, port := newPlane(t), freePort(t)
	target := portOf(startUDPEcho(t, two, 0))
	startUDPEcho(t, three, target)
	require.NoError(t, p.Apply(udpForwarding(target, []string{two, three}, port)))
	var all errgroup.Group
	for range 4 {
		c := udpClient(t, four, port)
		all.Go(func() error {
			for i := range uint32(rounds * burst) {
				if _, err := c.Write(binary.BigEndian.AppendUint32(nil, i)); err != nil {
					return err
				}
				if i%burst != burst-1 {
					continue
				}
				for want := i - burst + 1; want <= i; want++ {
					var got [5]byte
					_ = c.SetReadDeadline(time.Now().Add(testTimeout))
					if n, err := c.Read(got[:]); err != nil || n != 4 || binary.BigEndian.Uint32(got[:4]) != want {
						return fmt.Errorf("after %d: %d bytes, %v, %w", want, n, got, err)
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	assert.EqualValues(t, 4, listenerStats(p).Connections)
}

// askUntilAnswered repeats a request until it is answered, as datagrams may get lost. It
// skips late answers to the client's earlier requests, and fails on answers to others.
func askUntilAnswered(c net.Conn, client, turn int) (target string, err error) {
	want := fmt.Sprintf("client %d turn ", client)
	buffer := make([]byte, 256)
	for range 50 {
		if _, err := fmt.Fprintf(c, "%s%d", want, turn); err != nil {
			return "", err
		}
		for {
			_ = c.SetReadDeadline(time.Now().Add(testTimeout / 50))
			n, err := c.Read(buffer)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return "", err
			}
			target, said, _ := strings.Cut(string(buffer[:n]), " ")
			if !strings.HasPrefix(said, want) {
				return "", fmt.Errorf("client %d got %q", client, said)
			}
			if said == fmt.Sprintf("%s%d", want, turn) {
				return target, nil
			}
		}
	}
	return "", fmt.Errorf("client %d had no answer", client)
}

// Each client gets the answers to its own requests only, all from one target.
func TestManyUDPClientsGetTheirOwnAnswers(t *testing.T) {
	const clients, turns = 400, 5
	p, port, other := newPlane(t), freePort(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	udpBackend(t, three, "three", target)
	require.NoError(t, p.Apply(udpForwarding(target, []string{two, three}, port, other)))
	var all errgroup.Group
	for i := range clients {
		at := port
		if i%2 == 1 {
			at = other
		}
		c := udpClient(t, four, at)
		all.Go(func() error {
			own, err := askUntilAnswered(c, i, 0)
			if err != nil {
				return err
			}
			for turn := 1; turn < turns; turn++ {
				if is, err := askUntilAnswered(c, i, turn); err != nil || is != own {
					return errors.Join(err, fmt.Errorf("client %d went from %q to %q", i, own, is))
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	for _, l := range p.Stats("lb-1").Listeners {
		assert.EqualValues(t, clients/2, l.Connections)
		assert.EqualValues(t, clients/2, l.Active)
		assert.Zero(t, l.Failed+l.Refused)
	}
}

func TestDatagramsUnderEachSetOfOptions(t *testing.T) {
	here := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	p, port := newPlane(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	udpBackend(t, three, "three", target)
	a, b := udpClient(t, four, port), udpClient(t, three, port)
	turn := 0
	for _, algorithm := range []cloud.Algorithm{cloud.RoundRobin, cloud.LeastConnections, cloud.SourceHash} {
		for _, affinity := range []time.Duration{0, time.Hour} {
			for _, idle := range []time.Duration{0, time.Hour} {
				for _, ranges := range [][]netip.Prefix{nil, here} {
					for _, limit := range []int{0, 2} {
						f := udpForwarding(target, []string{two, three}, port)
						f.Algorithm, f.Affinity, f.IdleTimeout, f.SourceRanges = algorithm, affinity, idle, ranges
						f.Listeners[0].ConnectionLimit = limit
						require.NoError(t, p.Apply(f), "while there are sessions")
						ofA, err := askUntilAnswered(a, 1, turn)
						require.NoError(t, err)
						ofB, err := askUntilAnswered(b, 2, turn)
						require.NoError(t, err)
						for range 3 {
							turn++
							again, err := askUntilAnswered(a, 1, turn)
							require.NoError(t, err)
							assert.Equal(t, ofA, again)
							again, err = askUntilAnswered(b, 2, turn)
							require.NoError(t, err)
							assert.Equal(t, ofB, again)
						}
					}
				}
			}
		}
	}
	assert.EqualValues(t, 2, listenerStats(p).Connections, "none of these changes ends a session")
	assert.Zero(t, listenerStats(p).Failed+listenerStats(p).Refused)
}

func TestDatagramsOfOneClientGoByTheAlgorithm(t *testing.T) {
	p, port, other := newPlane(t), freePort(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	udpBackend(t, three, "three", target)
	f := udpForwarding(target, []string{two, three}, port, other)
	seen := func() map[string]int {
		out := map[string]int{}
		for i := range 8 {
			out[sendAndReadName(t, udpClient(t, four, []int{port, other}[i/4]), "hello")]++
		}
		return out
	}
	require.NoError(t, p.Apply(f))
	assert.Equal(t, map[string]int{"two": 4, "three": 4}, seen())
	f.Algorithm = cloud.LeastConnections
	require.NoError(t, p.Apply(f))
	assert.Equal(t, map[string]int{"two": 4, "three": 4}, seen())
	f.Algorithm = cloud.SourceHash
	require.NoError(t, p.Apply(f))
	assert.Len(t, seen(), 1)
	f.Algorithm, f.Affinity = cloud.RoundRobin, time.Hour
	require.NoError(t, p.Apply(f))
	assert.Len(t, seen(), 1)
}

func TestSessionsOutliveChangesElsewhere(t *testing.T) {
	const clients = 12
	p, port := newPlane(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	udpBackend(t, three, "three", target)
	hosts := map[string]string{"two": two, "three": three}
	require.NoError(t, p.Apply(udpForwarding(target, []string{two}, port)))
	var all []*net.UDPConn
	for range clients / 2 {
		all = append(all, udpClient(t, four, port))
		assert.Equal(t, "two", sendAndReadName(t, all[len(all)-1], "hello"))
	}
	require.NoError(t, p.Apply(udpForwarding(target, []string{two, three}, port)))
	own, share := map[int]string{}, map[string]int{}
	for range clients / 2 {
		all = append(all, udpClient(t, four, port))
	}
	for i, c := range all {
		own[i] = sendAndReadName(t, c, "hello")
		share[own[i]]++
		if i < clients/2 {
			assert.Equal(t, "two", own[i], "a target that comes takes no session")
		}
	}
	require.Len(t, share, 2)
	require.EqualValues(t, clients, listenerStats(p).Connections)

	for _, gone := range []string{"two", "three"} {
		stays := map[string]string{"two": "three", "three": "two"}[gone]
		require.NoError(t, p.Apply(udpForwarding(target, []string{hosts[stays]}, port)))
		began, moved := listenerStats(p).Connections, int64(0)
		for i, c := range all {
			if own[i] == gone {
				moved++
			}
			own[i] = sendAndReadName(t, c, "hello")
			assert.Equal(t, stays, own[i])
		}
		assert.Equal(t, began+moved, listenerStats(p).Connections, "only the sessions of the target that left end")
		require.NoError(t, p.Apply(udpForwarding(target, []string{two, three}, port)))
	}
	require.Eventually(t, func() bool { return listenerStats(p).Active == clients }, testTimeout, time.Millisecond)
}

func TestUDPListenerChangesPortAndTargetPort(t *testing.T) {
	p, port, next := newPlane(t), freePort(t), freePort(t)
	target := portOf(udpBackend(t, two, "one", 0))
	other := portOf(udpBackend(t, two, "other", 0))
	require.NoError(t, p.Apply(udpForwarding(target, []string{two}, port)))
	c := udpClient(t, four, port)
	assert.Equal(t, "one", sendAndReadName(t, c, "hello"))
	require.NoError(t, p.Apply(udpForwarding(other, []string{two}, port)))
	assert.Equal(t, "other", sendAndReadName(t, c, "the listener's target port is another"))

	require.NoError(t, p.Apply(udpForwarding(other, []string{two}, next)))
	assert.Equal(t, "other", sendAndReadName(t, udpClient(t, four, next), "hello"))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(testTimeout)))
	_, _ = io.WriteString(c, "nobody is there")
	_, err := c.Read(make([]byte, 64))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Eventually(t, func() bool { return listenerStats(p).Active == 1 }, testTimeout, time.Millisecond)

	p.Remove("lb-1")
	tcp := startTarget(t, two, 0, echo)
	require.NoError(t, p.Apply(forwarding(tcp, []string{two}, port)), "the port can be of the other protocol")
	requireEcho(t, dial(t, port), "hello")
}

func TestIdleUDPSessionFreesConnectionLimit(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	f := udpForwarding(portOf(udpBackend(t, two, "two", 0)), []string{two}, port)
	f.Listeners[0].ConnectionLimit, f.IdleTimeout = 3, 200*time.Millisecond
	require.NoError(t, p.Apply(f))
	for i := range 4 {
		a, b := udpClient(t, four, port), udpClient(t, three, port)
		_, err := askUntilAnswered(a, i, 0)
		require.NoError(t, err)
		_, err = askUntilAnswered(b, i, 0)
		require.NoError(t, err)
		assert.LessOrEqual(t, listenerStats(p).Active, int64(3))
	}
	awaitNoConnections(t, p)
}

// All clients are served even if they are more than there may be sessions: an idle
// session is ended for a new one.
func TestMoreUDPClientsThanSessions(t *testing.T) {
	const most, clients = 8, 50
	p, port := newPlane(t), freePort(t)
	p.LimitSessions(most, testTimeout)
	require.NoError(t, p.Apply(udpForwarding(portOf(udpBackend(t, two, "two", 0)), []string{two}, port)))
	for i := range clients {
		_, err := askUntilAnswered(udpClient(t, four, port), i, 0)
		require.NoError(t, err)
		// The session that is replaced ends a little later.
		require.Eventually(t, func() bool { return listenerStats(p).Active <= most }, testTimeout, time.Millisecond)
	}
	assert.EqualValues(t, clients, listenerStats(p).Connections)
	assert.Zero(t, listenerStats(p).Refused+listenerStats(p).Failed)
}

// A target that receives and never answers gets all datagrams.
func TestUDPTargetThatNeverAnswers(t *testing.T) {
	const datagrams = 50
	p, port := newPlane(t), freePort(t)
	sink, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(two)})
	require.NoError(t, err)
	defer func() { _ = sink.Close() }()
	require.NoError(t, sink.SetReadDeadline(time.Now().Add(testTimeout)))
	require.NoError(t, p.Apply(udpForwarding(portOf(sink), []string{two}, port)))
	c := udpClient(t, four, port)
	for i := range datagrams {
		sendText(t, c, fmt.Sprint(i))
		buffer := make([]byte, 16)
		n, err := sink.Read(buffer)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(i), string(buffer[:n]))
	}
	s := listenerStats(p)
	assert.EqualValues(t, 1, s.Connections)
	assert.Zero(t, s.Out+s.Failed)
}

// Many sessions notice at once that their target is gone. All of them then need the
// relay's lock at the same time, and their clients new sessions.
func TestTargetDiesWithManySessions(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	gone := udpBackend(t, two, "two", 0)
	target := portOf(gone)
	udpBackend(t, three, "three", target)
	f := udpForwarding(target, []string{two, three}, port)
	f.Algorithm = cloud.SourceHash // So all sessions of a client have the same target.
	require.NoError(t, p.Apply(f))
	host := ""
	for i := 1; host == ""; i++ {
		if at := fmt.Sprintf("127.81.1.%d", i); sendAndReadName(t, udpClient(t, at, port), "hello") == "two" {
			host = at
		}
	}
	for range 3 {
		p.Remove("lb-1") // So no refusals are remembered.
		require.NoError(t, p.Apply(f))
		var clients []*net.UDPConn
		for range 300 {
			c := udpClient(t, host, port)
			require.Eventually(t, func() bool { return readAnswererName(c) == "two" }, testTimeout, time.Millisecond)
			clients = append(clients, c)
		}
		require.NoError(t, gone.Close())
		for _, c := range clients {
			sendText(t, c, "lost")
		}
		for _, c := range clients {
			require.Eventually(t, func() bool { return readAnswererName(c) == "three" }, testTimeout, time.Millisecond)
			require.NoError(t, c.Close())
		}
		gone = udpBackend(t, two, "two", target)
	}
}

// readAnswererName sends a datagram and returns the name of the target that answers, or
// "" if none answers soon: datagrams may get lost.
func readAnswererName(c *net.UDPConn) string {
	_, _ = c.Write([]byte("hello"))
	buffer := make([]byte, 1000)
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	n, err := c.Read(buffer)
	if err != nil {
		return ""
	}
	var name string
	_, _ = fmt.Sscan(string(buffer[:n]), &name)
	return name
}

// A datagram that fits into IPv6 and not into IPv4 counts as no failure of the target.
func TestOversizedDatagramIsDropped(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	six := netip.IPv6Loopback()
	c, err := net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(six, uint16(port))))
	if err != nil {
		t.Skipf("this machine has no IPv6 on loopback: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	target := portOf(udpBackend(t, two, "two", 0))
	udpBackend(t, three, "three", target)
	f := udpForwarding(target, []string{two, three}, port)
	f.Addresses = append(f.Addresses[:1:1], six)
	require.NoError(t, p.Apply(f))
	first := sendAndReadName(t, c, "hello")
	_, err = c.Write(make([]byte, 65_520))
	require.NoError(t, err)
	assert.Equal(t, first, sendAndReadName(t, c, "hello"), "the session goes on")
	s := listenerStats(p)
	assert.EqualValues(t, 1, s.Failed)
	assert.EqualValues(t, 1, s.Connections)
	assert.Zero(t, s.Broken)
	for _, target := range p.Stats("lb-1").Targets {
		assert.Zero(t, target.Failed)
	}
}
