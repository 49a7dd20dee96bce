package local

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Two labs that start at once get different slots.
func TestSlotsAreDisjoint(t *testing.T) {
	a, err := ClaimSlot()
	require.NoError(t, err)
	defer func() { _ = a.Lock.Close() }()
	b, err := ClaimSlot()
	require.NoError(t, err)
	defer func() { _ = b.Lock.Close() }()
	assert.NotEqual(t, a.Number, b.Number)
}

// Labs of one process that start at once agree on what is free everywhere.
func TestPortsAreProbedOneAfterTheOther(t *testing.T) {
	want, err := freePorts()
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				ports, err := freePorts()
				assert.NoError(t, err)
				assert.Equal(t, want, ports)
			}
		})
	}
	all.Wait()
}

// testSlot is outside of what ClaimSlot gives, so that no lab of a test beside
// this one takes it.
func testSlot() int { return lastSlot + 1 + os.Getpid()%100 }

// A slot is free again when its lock is closed; until then a lab that comes
// back waits for it.
func TestReclaim(t *testing.T) {
	ports, err := freePorts()
	require.NoError(t, err)
	held, err := claimSlot(testSlot(), ports, false)
	require.NoError(t, err)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = ReclaimSlot(short, testSlot(), ports, false)
	require.ErrorIs(t, err, errTaken)

	long, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, held.Lock.Close())
	again, err := ReclaimSlot(long, testSlot(), ports, false)
	require.NoError(t, err)
	require.NoError(t, again.Lock.Close())
}

// A slot in which any of the lab's ports is held belongs to somebody: a lab
// whose agent has died, for one.
func TestSlotWithAHeldPortIsTaken(t *testing.T) {
	ports, err := freePorts()
	require.NoError(t, err)
	held, err := listenTCP(slotAddress(testSlot()), ports[PortEtcd])
	require.NoError(t, err)
	defer func() { _ = held.Close() }()
	_, err = claimSlot(testSlot(), ports, false)
	assert.ErrorIs(t, err, errTaken)
	mine, err := claimSlot(testSlot(), ports, true)
	require.NoError(t, err, "but its own lab may come back to it")
	require.NoError(t, mine.Lock.Close())
}

// A server on 0.0.0.0 holds its port in every slot; another is taken.
func TestPortHeldOnTheWildcard(t *testing.T) {
	port := wildcard(t)
	saved := preferredPorts[PortScheduler]
	preferredPorts[PortScheduler] = port
	defer func() { preferredPorts[PortScheduler] = saved }()
	ports, err := freePorts()
	require.NoError(t, err)
	assert.NotEqual(t, port, ports[PortScheduler])
}

// wildcard holds a port on every address, for as long as the test runs.
func wildcard(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	return l.Addr().(*net.TCPAddr).Port
}

// A lab without a lock would not be alone: where none can be had, it says why.
func TestAllLockPortsHeld(t *testing.T) {
	saved := lockPorts
	defer func() { lockPorts = saved }()
	lockPorts = []int{wildcard(t), wildcard(t)}
	_, err := ClaimSlot()
	require.ErrorContains(t, err, "address already in use")
	assert.ErrorContains(t, err, "`lab doctor` says who holds them")
}

func TestAllSlotsTaken(t *testing.T) {
	saved := lockPorts
	defer func() { lockPorts = saved }()
	lockPorts = []int{FreePort("127.29.0.1", 0)}
	for x := firstSlot; x <= lastSlot; x++ {
		l, err := listenTCP(slotAddress(x), lockPorts[0])
		require.NoError(t, err)
		defer func() { _ = l.Close() }()
	}
	_, err := ClaimSlot()
	require.ErrorContains(t, err, "all 70 slots (127.30.0.0/16 to 127.99.0.0/16) are taken")
	assert.ErrorContains(t, err, "`lab down --name NAME` frees one")
}

// A lab whose own address is taken by somebody, while it was away, says by what.
func TestReclaimOfATakenPort(t *testing.T) {
	ports, err := freePorts()
	require.NoError(t, err)
	for _, name := range []string{
		PortLock, PortCloud, PortEtcd, PortEtcdPeer, PortAPIServer, PortKCM, PortCCM, PortScheduler,
	} {
		held, err := listenTCP(slotAddress(testSlot()), ports[name])
		require.NoError(t, err)
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err = ReclaimSlot(short, testSlot(), ports, false)
		cancel()
		assert.ErrorIs(t, err, errTaken, name)
		assert.ErrorContains(t, err, held.Addr().String(), "it says which")
		require.NoError(t, held.Close())
	}
}
