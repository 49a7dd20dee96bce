package dataplane_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

// The ports of the targets, and of the balancers before them.
const (
	portSource = 81 + iota // sends as long as the client reads
	portSink               // reads to the end, and closes
	portOnce               // answers a request, and closes
	portEcho               // answers requests, and datagrams
)

const (
	requestSize = 64
	blockSize   = 256 << 10 // of long transfers
)

// benchNetwork has clients, targets and balancers of both kinds, each on a machine of its own around a switch, as in
// a lab on kind. All share this machine's cores.
type benchNetwork struct {
	clients []*machine
	// addresses are those of the balancers by their kind, and of a target that is asked without any.
	addresses map[string]netip.Addr
}

// BenchmarkBalancers measures balancers of both kinds beside a target that is asked without any. `benchstat -col
// /by` compares them.
func BenchmarkBalancers(b *testing.B) {
	if !runInNamespace(b) {
		return
	}
	n := newBenchNetwork(b)
	for _, figure := range []struct {
		name    string
		measure func(b *testing.B, at netip.Addr)
	}{
		{"download", n.download}, {"upload", n.upload}, {"connections", n.connections}, {"requests", n.requests},
		{"datagrams", n.datagrams}, {"idle", n.idle},
	} {
		for _, by := range slices.Sorted(maps.Keys(n.addresses)) {
			b.Run(figure.name+"/by="+by, func(b *testing.B) { figure.measure(b, n.addresses[by]) })
		}
	}
}

func newBenchNetwork(b *testing.B) *benchNetwork {
	n := newTestNetwork(b)
	n.plug(netip.MustParseAddr("10.9.0.1"))
	f := cloud.Forwarding{
		ID: "lb-proxy", Kind: api.KindProxy, Addresses: []netip.Addr{netip.MustParseAddr("10.9.8.2")}, Targets: 2,
		Listeners: []cloud.Listener{{Protocol: api.ProtocolUDP, Port: portEcho, TargetPort: portEcho}},
	}
	for _, port := range []int{portSource, portSink, portOnce, portEcho} {
		f.Listeners = append(f.Listeners, cloud.Listener{Protocol: api.ProtocolTCP, Port: port, TargetPort: port})
	}
	for i := range f.Targets {
		target := n.addClient(netip.AddrFrom4([4]byte{10, 9, 1, byte(i + 1)}))
		target.Do(func() {
			require.NoError(b, takeAddress(networkVIP))
			serveBenchmark(b, target.address)
			serveBenchmark(b, networkVIP)
		})
		f.Backends = append(f.Backends, cloud.Backend{Target: fmt.Sprintf("i-%d", i), Address: target.address})
	}
	plane := dataplane.New(dataplane.Options{Interface: "eth0"})
	b.Cleanup(plane.Close)
	require.NoError(b, plane.Apply(f))
	all := &benchNetwork{addresses: map[string]netip.Addr{
		"none": f.Backends[0].Address, "proxy": f.Addresses[0],
	}}
	if plane.CanForward(api.KindNetwork) == nil {
		f.ID, f.Kind, f.Algorithm = "lb-network", api.KindNetwork, api.AlgorithmFlowHash
		f.Addresses = []netip.Addr{networkVIP}
		require.NoError(b, plane.Apply(f))
		all.addresses["network"] = networkVIP
	}
	for i := range 8 {
		all.clients = append(all.clients, n.addClient(netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 2)})))
	}
	return all
}

// serveBenchmark starts a target in the calling thread's namespace.
func serveBenchmark(b *testing.B, at netip.Addr) {
	for port, serve := range map[int]func(net.Conn){
		portSource: func(c net.Conn) {
			for block := make([]byte, blockSize); ; {
				if _, err := c.Write(block); err != nil {
					return
				}
			}
		},
		portSink: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		portOnce: func(c net.Conn) { _, _ = io.CopyN(c, c, requestSize) },
		portEcho: echo,
	} {
		l, err := net.Listen("tcp4", netip.AddrPortFrom(at, uint16(port)).String())
		require.NoError(b, err)
		b.Cleanup(func() { _ = l.Close() })
		go acceptAll(l, serve)
	}
	u, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, portEcho)))
	require.NoError(b, err)
	b.Cleanup(func() { _ = u.Close() })
	go func() {
		for buffer := make([]byte, requestSize); ; {
			n, from, err := u.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			_, _ = u.WriteToUDPAddrPort(buffer[:n], from)
		}
	}()
}

func (n *machine) dial(network string, at netip.Addr, port uint16) (c net.Conn, err error) {
	n.Do(func() { c, err = net.DialTimeout(network, netip.AddrPortFrom(at, port).String(), testTimeout) })
	return c, err
}

// share has the clients make b.N operations, each its part, at the same time.
func (n *benchNetwork) share(b *testing.B, do func(client *machine, operations int) error) {
	var all errgroup.Group
	b.ResetTimer()
	for i, client := range n.clients {
		all.Go(func() error { return do(client, (b.N+i)/len(n.clients)) })
	}
	require.NoError(b, all.Wait())
}

func (n *benchNetwork) download(b *testing.B, at netip.Addr) {
	b.SetBytes(blockSize)
	n.share(b, func(client *machine, blocks int) error {
		c, err := client.dial("tcp4", at, portSource)
		if err != nil {
			return err
		}
		_, err = io.CopyN(io.Discard, c, int64(blocks)*blockSize)
		return errors.Join(err, c.Close())
	})
}

func (n *benchNetwork) upload(b *testing.B, at netip.Addr) {
	b.SetBytes(blockSize)
	n.share(b, func(client *machine, blocks int) error {
		c, err := client.dial("tcp4", at, portSink)
		block := make([]byte, blockSize)
		for i := 0; err == nil && i < blocks; i++ {
			_, err = c.Write(block)
		}
		if err != nil {
			return err
		}
		err = c.(*net.TCPConn).CloseWrite()
		_, atEnd := io.Copy(io.Discard, c) // The target has all.
		return errors.Join(err, atEnd, c.Close())
	})
}

// timed is share for operations that are timed one by one. begin prepares a client.
func (n *benchNetwork) timed(b *testing.B, begin func(client *machine) (do func() error, err error)) {
	var mu sync.Mutex
	var all []time.Duration
	n.share(b, func(client *machine, operations int) error {
		do, err := begin(client)
		took := make([]time.Duration, 0, operations)
		for i := 0; err == nil && i < operations; i++ {
			start := time.Now()
			err = do()
			took = append(took, time.Since(start))
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, took...)
		return err
	})
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
}

// exchange sends a request and reads its answer, which is as long.
func exchange(c net.Conn, buffer []byte) error {
	if _, err := c.Write(buffer); err != nil {
		return err
	}
	_, err := io.ReadFull(c, buffer)
	return err
}

// connections are opened one after the other by each client, for one request each. The target closes first: the
// ends that stay in TIME_WAIT take no port of the clients and the proxy.
func (n *benchNetwork) connections(b *testing.B, at netip.Addr) {
	n.timed(b, func(client *machine) (func() error, error) {
		buffer := make([]byte, requestSize)
		return func() error {
			c, err := client.dial("tcp4", at, portOnce)
			if err != nil {
				return err
			}
			err = exchange(c, buffer)
			_, atEnd := io.Copy(io.Discard, c)
			return errors.Join(err, atEnd, c.Close())
		}, nil
	})
}

// requests are sent on a connection of each client that stays open, each when the one before is answered.
func (n *benchNetwork) requests(b *testing.B, at netip.Addr) {
	n.timed(b, func(client *machine) (func() error, error) {
		c, err := client.dial("tcp4", at, portEcho)
		if err != nil {
			return nil, err
		}
		b.Cleanup(func() { _ = c.Close() })
		buffer := make([]byte, requestSize)
		return func() error { return exchange(c, buffer) }, nil
	})
}

// datagrams go there and back, one of each client at a time.
func (n *benchNetwork) datagrams(b *testing.B, at netip.Addr) {
	var lost atomic.Int64
	n.timed(b, func(client *machine) (func() error, error) {
		c, err := client.dial("udp4", at, portEcho)
		if err != nil {
			return nil, err
		}
		b.Cleanup(func() { _ = c.Close() })
		buffer := make([]byte, requestSize)
		return func() error {
			_ = c.SetDeadline(time.Now().Add(250 * time.Millisecond))
			err := exchange(c, buffer)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				lost.Add(1)
				return nil
			}
			return err
		}, nil
	})
	b.ReportMetric(float64(lost.Load()), "lost")
}

// idle connections have been used once. What one takes without a balancer is its client and its target.
func (n *benchNetwork) idle(b *testing.B, at netip.Addr) {
	const connections = 500
	for b.Loop() {
		before := memoryInUse()
		var open []net.Conn
		for range connections {
			c, err := n.clients[0].dial("tcp4", at, portEcho)
			require.NoError(b, err)
			require.NoError(b, exchange(c, make([]byte, requestSize)))
			open = append(open, c)
		}
		b.ReportMetric((memoryInUse()-before)/connections, "B/connection")
		for _, c := range open {
			_ = c.Close()
		}
	}
}

func memoryInUse() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse + m.StackInuse)
}
