package dataplane_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

// setForwarding sets whether the calling thread's namespace forwards packets.
func setForwarding(t *testing.T, on string) {
	t.Helper()
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/conf/eth0/forwarding", []byte(on), 0))
}

// addInstance adds a machine that answers on its own address as a networkTarget does on the balancer's.
func (n *testNetwork) addInstance(index int) cloud.Backend {
	in := n.addClient(netip.AddrFrom4([4]byte{10, 9, 2, byte(index)}))
	name := fmt.Sprintf("i-%d", index)
	in.answerAt(n.t, in.address, name)
	return cloud.Backend{Target: name, Address: in.address}
}

func TestAttachedAddressLeadsToItsInstance(t *testing.T) {
	if !runInNamespace(t) {
		return
	}
	n := newTestNetwork(t)
	n.plug(netip.MustParseAddr("10.9.0.1"))
	client := n.addClient(networkClient)
	first, second := n.addInstance(1), n.addInstance(2)
	setForwarding(t, "1")
	plane := dataplane.New(dataplane.Options{Interface: "eth0"})
	t.Cleanup(plane.Close)
	if err := plane.CanForward(cloud.AttachedAddress); err != nil {
		require.ErrorContains(t, err, "the kernel lacks a part of nftables")
		t.Skip(err) // It takes a kernel that has it.
	}
	apply := func(instance ...cloud.Backend) {
		t.Helper()
		require.NoError(t, plane.Apply(cloud.Forwarding{
			ID: "a-1", Kind: cloud.AttachedAddress, Addresses: []netip.Addr{networkVIP}, Backends: instance,
		}))
	}
	requireAnswer := func(network, from string) net.Conn {
		t.Helper()
		c, name, source, err := client.ask(network)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		assert.Equal(t, from, name)
		host, _, _ := net.SplitHostPort(source)
		assert.Equal(t, networkVIP.String(), host, "the instance sees the attached address")
		return c
	}

	apply(first)
	open := requireAnswer("tcp4", "i-1")
	requireAnswer("udp4", "i-1")
	requireEchoes(t, open)

	apply(second)
	requireAnswer("tcp4", "i-2")
	requireAnswer("udp4", "i-2")
	require.NoError(t, open.SetDeadline(time.Now().Add(testTimeout)))
	_, err := open.Write([]byte("x"))
	require.NoError(t, err)
	_, err = open.Read(make([]byte, 1))
	require.ErrorContains(t, err, "reset", "the instance that has the address now knows no such connection")

	apply() // It does not run.
	_, _, _, err = client.ask("tcp4")
	require.ErrorContains(t, err, "refused")
	apply(first)
	requireAnswer("tcp4", "i-1")
	plane.Remove("a-1")
	_, _, _, err = client.ask("tcp4")
	require.Error(t, err)
}

func TestAttachedAddressNeedsForwarding(t *testing.T) {
	if !runInNamespace(t) {
		return
	}
	newTestNetwork(t).plug(netip.MustParseAddr("10.9.0.1"))
	setForwarding(t, "0")
	plane := dataplane.New(dataplane.Options{Interface: "eth0"})
	t.Cleanup(plane.Close)
	require.ErrorContains(t, plane.CanForward(cloud.AttachedAddress), "net.ipv4.conf.eth0.forwarding=1")
	require.ErrorContains(t, newPlane(t).CanForward(cloud.AttachedAddress), "loopback")
}
