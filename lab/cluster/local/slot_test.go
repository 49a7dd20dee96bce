package local

import (
	"context"
	"net"
	"os"
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

// testSlot is outside of what ClaimSlot gives, so that no lab of a test beside
// this one takes it.
func testSlot() int { return lastSlot + 1 + os.Getpid()%100 }

// A slot is free again when its lock is closed; until then a lab that comes
// back waits for it.
func TestReclaim(t *testing.T) {
	ports, err := freePorts()
	require.NoError(t, err)
	held, err := claim(testSlot(), ports, false)
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
	held, err := listen(address(testSlot()), ports[PortEtcd])
	require.NoError(t, err)
	defer func() { _ = held.Close() }()
	_, err = claim(testSlot(), ports, false)
	assert.ErrorIs(t, err, errTaken)
	mine, err := claim(testSlot(), ports, true)
	require.NoError(t, err, "but its own lab may come back to it")
	require.NoError(t, mine.Lock.Close())
}

// A server on 0.0.0.0 holds its port in every slot; another is taken.
func TestPortHeldOnTheWildcard(t *testing.T) {
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	port := l.Addr().(*net.TCPAddr).Port
	saved := preferredPorts[PortScheduler]
	preferredPorts[PortScheduler] = port
	defer func() { preferredPorts[PortScheduler] = saved }()
	ports, err := freePorts()
	require.NoError(t, err)
	assert.NotEqual(t, port, ports[PortScheduler])
}
