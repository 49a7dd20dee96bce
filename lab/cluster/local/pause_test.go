package local

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/state"
)

// The slot of a lab that is stopped is left for it, though nobody listens there.
func TestClaimLeavesKeptSlots(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	first, err := ClaimSlot()
	require.NoError(t, err)
	stopped, err := state.Create("stopped")
	require.NoError(t, err)
	defer stopped.Unlock()
	stopped.Slot, stopped.Ports = first.Number, first.Ports
	require.NoError(t, stopped.Save())
	damaged, err := state.Create("damaged")
	require.NoError(t, err)
	defer damaged.Unlock()
	require.NoError(t, atomicfile.Write(damaged.Path("lab.json"), []byte("{")))
	require.NoError(t, first.Lock.Close())

	kept, err := keptSlots()
	require.NoError(t, err)
	assert.Equal(t, []int{first.Number}, kept)
	site := NewSite(stopped, cluster.Binaries{})
	other, err := state.Create("other")
	require.NoError(t, err)
	defer other.Unlock()
	hold, err := NewSite(other, cluster.Binaries{}).Claim(t.Context())
	require.NoError(t, err)
	defer func() { _ = hold.Close() }()
	assert.NotEqual(t, stopped.Slot, other.Slot)
	assert.NotZero(t, other.Slot)
	ended, err := site.Pause(t.Context())
	require.NoError(t, err)
	assert.Zero(t, ended, "nothing of it runs")
}

// There is no slot when all are kept, and the reason says what to do.
func TestAllSlotsAreKept(t *testing.T) {
	var all []int
	for x := firstSlot; x <= lastSlot; x++ {
		all = append(all, x)
	}
	_, err := ClaimSlot(all...)
	assert.ErrorContains(t, err, "are taken or kept; `lab list` says which labs there are")
}
