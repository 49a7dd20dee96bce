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

// mirror answers each datagram with the same, on host at port (0: any).
func mirror(t *testing.T, host string, port int) int {
	t.Helper()
	c := listenUDP(t, host, port)
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(buffer[:n], from)
		}
	}()
	return portOf(c)
}

func TestDatagramsOfEachSize(t *testing.T) {
	const largest = 65_507 // that IPv4 carries
	p, port := newPlane(t), freePort(t)
	require.NoError(t, p.Apply(udpForwarding(mirror(t, two, 0), []string{two}, port)))
	c, total := udpClient(t, four, port), 0
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	got, source := make([]byte, 64<<10), rand.NewChaCha8([32]byte{1})
	for _, size := range []int{0, 1, 2, 511, 512, 1471, 1472, 1473, 1500, 2047, 2048, 2049, 4096, 8192, 9000, 16_384, 32_767, 65_506, largest, 0, largest, 1} {
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
	require.Eventually(t, func() bool { return stats(p).In == int64(total) && stats(p).Out == int64(total) }, patience, time.Millisecond)
	assert.EqualValues(t, 1, stats(p).Connections)
	assert.Zero(t, stats(p).Failed)
}

func TestDatagramsKeepTheirOrder(t *testing.T) {
	const rounds, burst = 100, 8 // Few enough to fit any socket's buffer.
	p, port := newPlane(t), freePort(t)
	target := mirror(t, two, 0)
	mirror(t, three, target)
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
					_ = c.SetReadDeadline(time.Now().Add(patience))
					if n, err := c.Read(got[:]); err != nil || n != 4 || binary.BigEndian.Uint32(got[:4]) != want {
						return fmt.Errorf("after %d: %d bytes, %v, %w", want, n, got, err)
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	assert.EqualValues(t, 4, stats(p).Connections)
}

// persistent asks until it is answered: datagrams may get lost. Late answers to
// what it asked before are skipped, those to others are not.
func persistent(c net.Conn, client, turn int) (target string, err error) {
	want := fmt.Sprintf("client %d turn ", client)
	buffer := make([]byte, 256)
	for range 50 {
		if _, err := fmt.Fprintf(c, "%s%d", want, turn); err != nil {
			return "", err
		}
		for {
			_ = c.SetReadDeadline(time.Now().Add(patience / 50))
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

// Each client's answers are its own, and come from one target.
func TestHundredsOfClientsGetTheirOwnAnswers(t *testing.T) {
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
			own, err := persistent(c, i, 0)
			if err != nil {
				return err
			}
			for turn := 1; turn < turns; turn++ {
				if is, err := persistent(c, i, turn); err != nil || is != own {
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
						ofA, err := persistent(a, 1, turn)
						require.NoError(t, err)
						ofB, err := persistent(b, 2, turn)
						require.NoError(t, err)
						for range 3 {
							turn++
							again, err := persistent(a, 1, turn)
							require.NoError(t, err)
							assert.Equal(t, ofA, again)
							again, err = persistent(b, 2, turn)
							require.NoError(t, err)
							assert.Equal(t, ofB, again)
						}
					}
				}
			}
		}
	}
	assert.EqualValues(t, 2, stats(p).Connections, "none of these changes ends a session")
	assert.Zero(t, stats(p).Failed+stats(p).Refused)
}

func TestDatagramsOfOneClientGoByTheAlgorithm(t *testing.T) {
	p, port, other := newPlane(t), freePort(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	udpBackend(t, three, "three", target)
	f := udpForwarding(target, []string{two, three}, port, other)
	seen := func() map[string]int {
		out := map[string]int{}
		for i := range 8 {
			out[talk(t, udpClient(t, four, []int{port, other}[i/4]), "hello")]++
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
		assert.Equal(t, "two", talk(t, all[len(all)-1], "hello"))
	}
	require.NoError(t, p.Apply(udpForwarding(target, []string{two, three}, port)))
	own, share := map[int]string{}, map[string]int{}
	for range clients / 2 {
		all = append(all, udpClient(t, four, port))
	}
	for i, c := range all {
		own[i] = talk(t, c, "hello")
		share[own[i]]++
		if i < clients/2 {
			assert.Equal(t, "two", own[i], "a target that comes takes no session")
		}
	}
	require.Len(t, share, 2)
	require.EqualValues(t, clients, stats(p).Connections)

	for _, gone := range []string{"two", "three"} {
		stays := map[string]string{"two": "three", "three": "two"}[gone]
		require.NoError(t, p.Apply(udpForwarding(target, []string{hosts[stays]}, port)))
		began, moved := stats(p).Connections, int64(0)
		for i, c := range all {
			if own[i] == gone {
				moved++
			}
			own[i] = talk(t, c, "hello")
			assert.Equal(t, stays, own[i])
		}
		assert.Equal(t, began+moved, stats(p).Connections, "only the sessions of the target that left end")
		require.NoError(t, p.Apply(udpForwarding(target, []string{two, three}, port)))
	}
	require.Eventually(t, func() bool { return stats(p).Active == clients }, patience, time.Millisecond)
}

func TestUDPListenersMoveAndTurn(t *testing.T) {
	p, port, next := newPlane(t), freePort(t), freePort(t)
	target := portOf(udpBackend(t, two, "one", 0))
	other := portOf(udpBackend(t, two, "other", 0))
	require.NoError(t, p.Apply(udpForwarding(target, []string{two}, port)))
	c := udpClient(t, four, port)
	assert.Equal(t, "one", talk(t, c, "hello"))
	require.NoError(t, p.Apply(udpForwarding(other, []string{two}, port)))
	assert.Equal(t, "other", talk(t, c, "the listener's target port is another"))

	require.NoError(t, p.Apply(udpForwarding(other, []string{two}, next)))
	assert.Equal(t, "other", talk(t, udpClient(t, four, next), "hello"))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	_, _ = io.WriteString(c, "nobody is there")
	_, err := c.Read(make([]byte, 64))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Eventually(t, func() bool { return stats(p).Active == 1 }, patience, time.Millisecond)

	p.Remove("lb-1")
	tcp := backend(t, two, 0, echo)
	require.NoError(t, p.Apply(forwarding(tcp, []string{two}, port)), "the port can be of the other protocol")
	exchange(t, dial(t, port), "hello")
}

// Ranges and limits hold for datagrams at once, and for sessions that have begun.
func TestRangesShutOutSessionsThatHaveBegun(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	f := udpForwarding(portOf(udpBackend(t, two, "two", 0)), []string{two}, port)
	require.NoError(t, p.Apply(f))
	in, out := udpClient(t, three, port), udpClient(t, four, port)
	talk(t, in, "hello")
	talk(t, out, "hello")
	f.SourceRanges = []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(three), 32)}
	require.NoError(t, p.Apply(f))
	say(t, out, "dropped")
	require.Eventually(t, func() bool { return stats(p).Refused == 1 }, patience, time.Millisecond)
	talk(t, in, "hello")
}

func TestSilenceMakesRoomUnderALimit(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	f := udpForwarding(portOf(udpBackend(t, two, "two", 0)), []string{two}, port)
	f.Listeners[0].ConnectionLimit, f.IdleTimeout = 3, 200*time.Millisecond
	require.NoError(t, p.Apply(f))
	for i := range 4 {
		a, b := udpClient(t, four, port), udpClient(t, three, port)
		_, err := persistent(a, i, 0)
		require.NoError(t, err)
		_, err = persistent(b, i, 0)
		require.NoError(t, err)
		assert.LessOrEqual(t, stats(p).Active, int64(3))
	}
	require.Eventually(t, func() bool { return stats(p).Active == 0 }, patience, time.Millisecond)
}

// More clients than sessions are all served in the end: one makes room for
// another.
func TestMoreClientsThanSessions(t *testing.T) {
	const most, clients = 8, 50
	p, port := newPlane(t), freePort(t)
	p.LimitSessions(most, patience)
	require.NoError(t, p.Apply(udpForwarding(portOf(udpBackend(t, two, "two", 0)), []string{two}, port)))
	for i := range clients {
		_, err := persistent(udpClient(t, four, port), i, 0)
		require.NoError(t, err)
		// The one that makes room ends in its own time.
		require.Eventually(t, func() bool { return stats(p).Active <= most }, patience, time.Millisecond)
	}
	assert.EqualValues(t, clients, stats(p).Connections)
	assert.Zero(t, stats(p).Refused+stats(p).Failed)
}

// No answer is an answer too: a target that only listens gets everything.
func TestTargetsThatDoNotAnswer(t *testing.T) {
	const datagrams = 50
	p, port := newPlane(t), freePort(t)
	sink, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(two)})
	require.NoError(t, err)
	defer func() { _ = sink.Close() }()
	require.NoError(t, sink.SetReadDeadline(time.Now().Add(patience)))
	require.NoError(t, p.Apply(udpForwarding(portOf(sink), []string{two}, port)))
	c := udpClient(t, four, port)
	for i := range datagrams {
		say(t, c, fmt.Sprint(i))
		buffer := make([]byte, 16)
		n, err := sink.Read(buffer)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(i), string(buffer[:n]))
	}
	s := stats(p)
	assert.EqualValues(t, 1, s.Connections)
	assert.Zero(t, s.Out+s.Failed)
}
