package dataplane_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

const (
	networkPort = 80
	healthPort  = 10256
)

var (
	networkVIP    = netip.MustParseAddr("10.9.8.1")
	networkClient = netip.MustParseAddr("10.9.0.2")
)

// machine is a network namespace with an interface eth0 in the test's network.
type machine struct {
	*namespace
	address netip.Addr
}

// testNetwork is a network of machines around a switch. The test's own namespace has the
// balancers.
type testNetwork struct {
	*bridge
	t testing.TB
}

func newTestNetwork(t testing.TB) *testNetwork {
	n := must.Do(newBridge())(t)
	t.Cleanup(n.Close)
	return &testNetwork{bridge: n, t: t}
}

// plug gives the namespace of the calling thread an interface eth0 with an address.
func (n *testNetwork) plug(address netip.Addr) { require.NoError(n.t, n.Plug(address)) }

// addClient adds a machine.
func (n *testNetwork) addClient(address netip.Addr) *machine {
	c := must.Do(newNamespace())(n.t)
	n.t.Cleanup(c.Close)
	c.Do(func() { n.plug(address) })
	return &machine{namespace: c, address: address}
}

// networkTarget is a node: it takes the balancer's address for its own, as kube-proxy does, and
// answers on it with its name and the address that the client has.
type networkTarget struct {
	*machine
	name   string
	health net.Listener
}

func (n *testNetwork) addTarget(index int) *networkTarget {
	t := n.t
	target := &networkTarget{
		machine: n.addClient(netip.AddrFrom4([4]byte{10, 9, 1, byte(index)})), name: fmt.Sprintf("i-%d", index),
	}
	target.Do(func() { require.NoError(t, takeAddress(networkVIP)) })
	target.answerAt(t, networkVIP, target.name)
	target.setHealthy(true)
	t.Cleanup(func() { _ = target.health.Close() })
	return target
}

// answerAt has the machine answer at an address with a name and the address that the client has, and then echo.
func (n *machine) answerAt(t testing.TB, address netip.Addr, name string) {
	n.Do(func() {
		at := netip.AddrPortFrom(address, networkPort).String()
		l := must.Do(net.Listen("tcp4", at))(t)
		t.Cleanup(func() { _ = l.Close() })
		go acceptAll(l, func(c net.Conn) {
			defer context.AfterFunc(t.Context(), func() { _ = c.Close() })()
			_, _ = fmt.Fprintf(c, "%s %s\n", name, c.RemoteAddr())
			echo(c)
		})
		u := must.Do(net.ListenPacket("udp4", at))(t)
		t.Cleanup(func() { _ = u.Close() })
		go answerDatagrams(u, name)
	})
}

func acceptAll(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() { defer func() { _ = c.Close() }(); serve(c) }()
	}
}

func answerDatagrams(u net.PacketConn, name string) {
	for buffer := make([]byte, 1500); ; {
		_, from, err := u.ReadFrom(buffer)
		if err != nil {
			return
		}
		_, _ = u.WriteTo(fmt.Appendf(nil, "%s %s\n", name, from), from)
	}
}

// setHealthy opens or closes the port of the health check.
func (n *networkTarget) setHealthy(healthy bool) {
	n.Do(func() {
		if !healthy {
			_ = n.health.Close()
			return
		}
		n.health, _ = net.Listen("tcp4", netip.AddrPortFrom(n.address, healthPort).String())
		go acceptAll(n.health, func(net.Conn) {})
	})
}

// ask opens a connection to the balancer and returns it with the name of the target that answers
// and the client's address as that sees it.
func (n *machine) ask(network string) (c net.Conn, target, client string, err error) {
	n.Do(func() {
		c, err = net.DialTimeout(network, netip.AddrPortFrom(networkVIP, networkPort).String(), 2*time.Second)
	})
	if err != nil {
		return nil, "", "", err
	}
	if network == "udp4" {
		_, _ = c.Write([]byte("?"))
	}
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		_ = c.Close()
		return nil, "", "", err
	}
	target, client, _ = strings.Cut(strings.TrimSpace(line), " ")
	return c, target, client, nil
}

// answering are the targets that answer so many connections, and how often.
func (n *machine) answering(t *testing.T, network string, connections int) map[string]int {
	t.Helper()
	by := map[string]int{}
	for range connections {
		c, target, client, err := n.ask(network)
		require.NoError(t, err)
		assert.Equal(t, c.LocalAddr().String(), client, "the target sees the client's address")
		_ = c.Close()
		by[target]++
	}
	return by
}

// requireEchoes requires a connection to be in use.
func requireEchoes(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
	_, err := c.Write([]byte("x"))
	require.NoError(t, err)
	must.Do(c.Read(make([]byte, 1)))(t)
}

// networkFixture is a plane with one network balancer, its targets and a client.
type networkFixture struct {
	network    *testNetwork
	plane      *dataplane.Plane
	client     *machine
	targets    []*networkTarget
	forwarding cloud.Forwarding
}

func newNetworkFixture(t *testing.T, targets int) *networkFixture {
	n := newTestNetwork(t)
	n.plug(netip.MustParseAddr("10.9.0.1"))
	f := &networkFixture{network: n, client: n.addClient(networkClient)}
	f.forwarding = cloud.Forwarding{
		ID: "lb-1", Kind: api.KindNetwork, Addresses: []netip.Addr{networkVIP}, Algorithm: api.AlgorithmFlowHash,
		Listeners: []cloud.Listener{
			{Protocol: api.ProtocolTCP, Port: networkPort, TargetPort: networkPort},
			{Protocol: api.ProtocolUDP, Port: networkPort, TargetPort: networkPort},
		},
		HealthCheck: &cloud.HealthCheck{
			Protocol: api.HealthCheckTCP, Port: healthPort, IntervalSeconds: seconds(20 * time.Millisecond), TimeoutSeconds: seconds(20 * time.Millisecond),
			HealthyThreshold: 1, UnhealthyThreshold: 2,
		},
	}
	for i := range targets {
		f.addTarget(i + 1)
	}
	f.plane = dataplane.New(dataplane.Options{Interface: "eth0"})
	t.Cleanup(f.plane.Close)
	if err := f.plane.CanForward(api.KindNetwork); err != nil {
		require.ErrorContains(t, err, "the kernel lacks a part of nftables")
		t.Skip(err)
	}
	f.apply()
	return f
}

func (f *networkFixture) addTarget(index int) {
	t := f.network.addTarget(index)
	f.targets = append(f.targets, t)
	f.forwarding.Backends = append(f.forwarding.Backends, cloud.Backend{Target: t.name, Address: t.address})
	f.forwarding.Targets = len(f.forwarding.Backends)
}

func (f *networkFixture) apply() { require.NoError(f.network.t, f.plane.Apply(f.forwarding)) }

// setHealthy changes a target's health and waits until the balancer knows.
func (f *networkFixture) setHealthy(index int, healthy bool) {
	f.targets[index].setHealthy(healthy)
	want := api.TargetUnhealthy
	if healthy {
		want = api.TargetHealthy
	}
	require.Eventually(f.network.t, func() bool {
		return f.plane.Health("lb-1")[index].Health == want
	}, testTimeout, time.Millisecond)
}

func TestNetworkBalancerPassesPackets(t *testing.T) {
	if !runInNamespace(t) {
		return
	}
	f := newNetworkFixture(t, 3)
	for _, network := range []string{"tcp4", "udp4"} {
		by := f.client.answering(t, network, 60)
		assert.Len(t, by, 3, "all targets answer: %v", by)
	}
	stats := f.plane.Stats("lb-1")
	require.Len(t, stats.Listeners, 2)
	assert.EqualValues(t, 60, stats.Listeners[0].Connections)
	assert.Greater(t, stats.Listeners[0].PacketsIn, int64(3*60))
	assert.Greater(t, stats.Listeners[0].BytesIn, 40*stats.Listeners[0].PacketsIn)
	assert.EqualValues(t, 60, stats.Listeners[1].PacketsIn)
	var connections, packets int64
	for _, target := range stats.Targets {
		connections, packets = connections+target.Connections, packets+target.PacketsIn
	}
	assert.EqualValues(t, 60, connections)
	assert.Equal(t, stats.Listeners[0].PacketsIn+stats.Listeners[1].PacketsIn, packets)

	f.forwarding.Affinity = time.Hour
	f.apply()
	assert.Len(t, f.client.answering(t, "tcp4", 20), 1, "a client keeps to one target")
	f.forwarding.Affinity = 0
	f.apply()
	assert.Len(t, f.client.answering(t, "tcp4", 40), 3)
}

func TestNetworkBalancerKeepsFlows(t *testing.T) {
	if !runInNamespace(t) {
		return
	}
	f := newNetworkFixture(t, 2)
	flows := map[string]net.Conn{}
	for len(flows) < 2 {
		c, target, _, err := f.client.ask("tcp4")
		require.NoError(t, err)
		flows[target] = c
		t.Cleanup(func() { _ = c.Close() })
	}

	f.setHealthy(0, false)
	assert.Equal(t, map[string]int{"i-2": 20}, f.client.answering(t, "tcp4", 20), "new flows avoid the unhealthy target")
	assert.Equal(t, map[string]int{"i-2": 20}, f.client.answering(t, "udp4", 20))
	requireEchoes(t, flows["i-1"])
	f.setHealthy(1, false)
	_, _, _, err := f.client.ask("tcp4")
	require.ErrorIs(t, err, unix.ECONNREFUSED, "without a target, clients are refused")
	requireEchoes(t, flows["i-2"])
	f.setHealthy(0, true)
	f.setHealthy(1, true)

	f.addTarget(3)
	f.apply()
	requireEchoes(t, flows["i-1"])
	requireEchoes(t, flows["i-2"])
	f.forwarding.Backends = f.forwarding.Backends[1:]
	f.apply()
	requireEchoes(t, flows["i-1"])
	assert.NotContains(t, f.client.answering(t, "tcp4", 40), "i-1")

	f.forwarding.Drain = 50 * time.Millisecond
	f.apply()
	_ = flows["i-1"].SetDeadline(time.Now().Add(testTimeout))
	for err = nil; err == nil; { // Another target, which does not know the flow, resets it.
		if _, err = flows["i-1"].Write([]byte("x")); err == nil {
			_, err = flows["i-1"].Read(make([]byte, 1))
		}
	}
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	requireEchoes(t, flows["i-2"])
}

func TestNetworkBalancerSourceRanges(t *testing.T) {
	if !runInNamespace(t) {
		return
	}
	f := newNetworkFixture(t, 1)
	f.forwarding.SourceRanges = []netip.Prefix{
		netip.MustParsePrefix("10.9.0.3/32"), netip.MustParsePrefix("10.10.0.0/15"), netip.MustParsePrefix("10.10.1.0/24"),
		netip.MustParsePrefix("fd00::/8"),
	}
	f.apply()
	other := f.network.addClient(netip.MustParseAddr("10.9.0.3"))
	other.answering(t, "tcp4", 1)
	_, _, _, err := f.client.ask("tcp4")
	require.ErrorContains(t, err, "timeout", "packets from elsewhere are dropped")
	require.Eventually(t, func() bool { return f.plane.Stats("lb-1").Listeners[0].RefusedConnections > 0 }, testTimeout, 10*time.Millisecond)
	f.forwarding.SourceRanges = nil
	f.apply()
	f.client.answering(t, "tcp4", 1)
}

func TestNetworkBalancerChangesItsKind(t *testing.T) {
	if !runInNamespace(t) {
		return
	}
	f := newNetworkFixture(t, 1)
	f.client.answering(t, "tcp4", 1)
	f.forwarding.Kind, f.forwarding.Algorithm = api.KindProxy, api.AlgorithmRoundRobin
	f.forwarding.Listeners = f.forwarding.Listeners[:1]
	f.forwarding.Listeners[0].TargetPort = 8080
	f.targets[0].Do(func() {
		l := must.Do(net.Listen("tcp4", netip.AddrPortFrom(f.targets[0].address, 8080).String()))(t)
		t.Cleanup(func() { _ = l.Close() })
		go acceptAll(l, func(c net.Conn) { _, _ = fmt.Fprintf(c, "proxied %s\n", c.RemoteAddr()) })
	})
	f.apply()
	_, target, client, err := f.client.ask("tcp4")
	require.NoError(t, err)
	assert.Equal(t, "proxied", target)
	assert.Contains(t, client, "10.9.", "from the balancer")
	assert.NotContains(t, client, networkClient.String())
	f.forwarding.Kind, f.forwarding.Algorithm = api.KindNetwork, api.AlgorithmFlowHash
	f.forwarding.Listeners[0].TargetPort = networkPort
	f.apply()
	f.client.answering(t, "tcp4", 1)
}

func TestNetworkBalancerLeavesNothingBehind(t *testing.T) {
	if !runInNamespace(t) {
		return
	}
	f := newNetworkFixture(t, 1)
	tables := func() int {
		c := must.Do(nftables.New())(t)
		all := must.Do(c.ListTables())(t)
		return len(all)
	}
	begin := tables() // Where packets are forwarded, one more, for attached addresses.
	require.Positive(t, begin)
	second := dataplane.New(dataplane.Options{Interface: "eth0"}) // As after SIGKILL.
	require.Equal(t, begin, tables())
	require.NoError(t, second.Apply(f.forwarding))
	f.client.answering(t, "tcp4", 1)
	second.Remove("lb-1")
	_, _, _, err := f.client.ask("tcp4")
	require.Error(t, err)
	second.Close()
	assert.Zero(t, tables())
}

func TestNetworkBalancerNeedsAnInterface(t *testing.T) {
	p := newPlane(t)
	require.NoError(t, p.CanForward(api.KindProxy))
	require.ErrorContains(t, p.CanForward(api.KindNetwork), "--load-balancer-interface")
	require.Error(t, p.Apply(cloud.Forwarding{ID: "lb-1", Kind: api.KindNetwork}))
}
