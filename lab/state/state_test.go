package state_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/state"
)

func TestLabFolderLifecycle(t *testing.T) {
	t.Setenv("CCMLAB_HOME", "")
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	home, err := state.Root()
	require.NoError(t, err)
	_, err = state.Open("lab")
	require.ErrorIs(t, err, state.ErrNone)
	require.ErrorContains(t, err, "`lab up` makes one")
	t.Setenv("CCMLAB_SEAT", "seat-07")
	_, err = state.Open("lab")
	require.ErrorContains(t, err, "`lab lesson reset` makes those of your lesson again")
	assert.NotContains(t, err.Error(), "lab up", "that would make one beside the lesson's")

	l, err := state.Create("lab")
	require.NoError(t, err)
	_, err = state.Create("lab")
	assert.ErrorContains(t, err, "another command is working on lab")
	l.Slot, l.Ports["kube-apiserver"] = 42, 6443
	require.NoError(t, l.Save())
	l.Unlock()

	again, err := state.Open("lab")
	require.NoError(t, err)
	assert.Equal(t, 42, again.Slot)
	assert.Equal(t, map[string]int{"kube-apiserver": 6443}, again.Ports)
	info, err := os.Stat(again.Path("lab.json"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	other, err := state.Create("other")
	require.NoError(t, err)
	require.NoError(t, again.Remove())
	assert.DirExists(t, home, "another lab still lives there")
	require.NoError(t, other.Remove())
	assert.NoDirExists(t, home)
}

func TestDamagedRecord(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	l, err := state.Create("lab")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(l.Path("pki"), 0o700))
	for _, cut := range []string{"", "{", `{"name":"lab"`} {
		require.NoError(t, atomicfile.Write(l.Path("lab.json"), []byte(cut)))
		_, err = state.Open("lab")
		assert.ErrorContains(t, err, "`lab down --name lab` removes it", cut)
		assert.NoError(t, l.CheckContents(), cut)
	}
}

// A lab without a record has a name and a path, and nothing on disk.
func TestUnrecorded(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	l, err := state.Unrecorded("lab")
	require.NoError(t, err)
	dir, err := state.Dir("lab")
	require.NoError(t, err)
	assert.Equal(t, "lab", l.Name)
	assert.Equal(t, dir, l.Path())
	assert.NoDirExists(t, dir, "nothing is made")
	assert.Error(t, l.Lock())
	require.NoError(t, l.Remove(), "there is nothing to remove")
	l.Ports["etcd"] = 1 // Not a nil map.

	damaged, err := state.Create("lab")
	require.NoError(t, err)
	require.NoError(t, atomicfile.Write(damaged.Path("lab.json"), []byte("{")))
	damaged.Unlock()
	require.NoError(t, l.Lock())
	defer l.Unlock()
	require.NoError(t, l.Remove())
	assert.NoDirExists(t, dir)
	_, err = state.Unrecorded("../lab")
	assert.ErrorContains(t, err, "lab name")
}

func TestLabNames(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	for _, bad := range []string{
		"", "..", "a/b", "A", "-a", "a-", "a b", "this-name-is-longer-than-a-lab-may-be-named-here",
	} {
		_, err := state.Dir(bad)
		assert.ErrorContains(t, err, "lab name", "%q", bad)
	}
	for _, good := range []string{"a", "lab", "seat-12"} {
		_, err := state.Dir(good)
		assert.NoError(t, err)
	}
}
