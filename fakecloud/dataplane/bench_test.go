package dataplane_test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

// startBenchBalancer starts a balancer before a target that echoes, by TCP or UDP.
// Clients and target share the process with the balancer; `make bench-dataplane` keeps
// them apart.
func startBenchBalancer(b *testing.B, protocol cloud.Protocol) netip.AddrPort {
	b.Helper()
	var target int
	if protocol == cloud.UDP {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(two)})
		require.NoError(b, err)
		b.Cleanup(func() { _ = c.Close() })
		target = portOf(c)
		go func() {
			for buffer := make([]byte, 64<<10); ; {
				n, from, err := c.ReadFromUDPAddrPort(buffer)
				if err != nil {
					return
				}
				_, _ = c.WriteToUDPAddrPort(buffer[:n], from)
			}
		}()
	} else {
		l, err := net.Listen("tcp4", two+":0")
		require.NoError(b, err)
		b.Cleanup(func() { _ = l.Close() })
		target = l.Addr().(*net.TCPAddr).Port
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					echo(c)
					_ = c.Close()
				}()
			}
		}()
	}
	p := dataplane.New(dataplane.Options{})
	b.Cleanup(p.Close)
	l, err := net.Listen("tcp4", netip.AddrPortFrom(front, 0).String())
	require.NoError(b, err)
	at := l.Addr().(*net.TCPAddr).AddrPort()
	require.NoError(b, l.Close())
	f := forwarding(target, []string{two}, int(at.Port()))
	f.Listeners[0].Protocol = protocol
	require.NoError(b, p.Apply(f))
	return at
}

// pingPong sends messages of the given size and waits for each one's echo.
func pingPong(b *testing.B, network string, at netip.AddrPort, size int) {
	b.Helper()
	c, err := net.DialTimeout(network, at.String(), testTimeout)
	require.NoError(b, err)
	defer func() { _ = c.Close() }()
	require.NoError(b, c.SetDeadline(time.Now().Add(time.Hour)))
	message := make([]byte, size)
	b.SetBytes(int64(2 * size))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(message); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, message); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSmallMessages(b *testing.B) { pingPong(b, "tcp4", startBenchBalancer(b, cloud.TCP), 64) }

func BenchmarkLargeMessages(b *testing.B) {
	at := startBenchBalancer(b, cloud.TCP)
	c, err := net.DialTimeout("tcp4", at.String(), testTimeout)
	require.NoError(b, err)
	defer func() { _ = c.Close() }()
	message := make([]byte, 1<<20)
	b.SetBytes(2 << 20)
	b.ReportAllocs()
	sent := make(chan error, 1)
	go func() {
		for range b.N {
			if _, err := c.Write(message); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	got := make([]byte, 1<<20)
	for range b.N {
		if _, err := io.ReadFull(c, got); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, <-sent)
}

func BenchmarkDatagrams(b *testing.B) { pingPong(b, "udp4", startBenchBalancer(b, cloud.UDP), 64) }

func BenchmarkConnections(b *testing.B) {
	at := startBenchBalancer(b, cloud.TCP)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		message := make([]byte, 64)
		for pb.Next() {
			c, err := net.DialTimeout("tcp4", at.String(), testTimeout)
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = c.Write(message)
			if _, err := io.ReadFull(c, message); err != nil {
				b.Error(err)
			}
			_ = c.(*net.TCPConn).SetLinger(0) // No port stays in TIME_WAIT.
			_ = c.Close()
		}
	})
}
