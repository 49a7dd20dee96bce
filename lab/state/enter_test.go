package state_test

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/state"
)

func TestEnter(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	l, fresh, err := state.Enter("lab")
	require.NoError(t, err)
	assert.True(t, fresh)
	_, _, err = state.Enter("lab")
	require.ErrorContains(t, err, `another command is working on lab "lab": `+"`state.test ")
	l.Slot, l.Ports["etcd"] = 42, 2379
	require.NoError(t, l.Save())
	l.Unlock()

	again, fresh, err := state.Enter("lab")
	require.NoError(t, err)
	assert.False(t, fresh)
	assert.Equal(t, 42, again.Slot)
	_, _, err = state.Enter("lab")
	assert.ErrorContains(t, err, "another command", "it is locked as well")
	require.NoError(t, again.Remove())
	again.Unlock()
	assert.NoDirExists(t, l.Path())
}

// A folder that a crash left half made or half deleted is no lab, and is emptied. A folder that
// never was a lab's is left alone.
func TestEnterAfterCrash(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	for name, files := range map[string][]string{
		"made": {".new-123"}, "removed": {"removing.json", "etcd", "pki"}, "empty": nil,
	} {
		l, err := state.Unrecorded(name)
		require.NoError(t, err)
		require.NoError(t, os.Mkdir(l.Path(), 0o700))
		for _, f := range files {
			require.NoError(t, os.WriteFile(l.Path(f), nil, 0o600))
		}
		entered, fresh, err := state.Enter(name)
		require.NoError(t, err, name)
		assert.True(t, fresh, name)
		left, err := filepath.Glob(l.Path("*"))
		require.NoError(t, err)
		assert.Empty(t, left, name)
		entered.Unlock()
	}

	l, err := state.Unrecorded("photos")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(l.Path(), 0o700))
	require.NoError(t, os.WriteFile(l.Path("cat.jpg"), nil, 0o600))
	_, _, err = state.Enter("photos")
	require.ErrorContains(t, err, "is no lab's folder, it holds cat.jpg")
	assert.FileExists(t, l.Path("cat.jpg"))
	require.NoError(t, l.Lock(), "it is not left locked")
	l.Unlock()

	require.NoError(t, os.WriteFile(l.Path("lab.json"), []byte("{"), 0o600))
	_, _, err = state.Enter("photos")
	require.ErrorContains(t, err, "is damaged")
	require.NoError(t, l.Lock(), "nor is that")
	l.Unlock()
}

// A command that holds the lock holds it on the folder that exists, not on one that another
// command has deleted meanwhile.
func TestConcurrentEnterAndRemove(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	var inside atomic.Int32
	var entered atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				l, _, err := state.Enter("lab")
				if err != nil {
					assert.ErrorContains(t, err, "another command is working on lab")
					continue
				}
				assert.Equal(t, int32(1), inside.Add(1))
				entered.Add(1)
				assert.NoError(t, l.Save())
				inside.Add(-1)
				assert.NoError(t, l.Remove()) // The next lab of that name may begin.
				l.Unlock()
			}
		})
	}
	all.Wait()
	assert.NotZero(t, entered.Load())
}

func TestDeletedFolders(t *testing.T) {
	home := t.TempDir()
	t.Setenv("CCMLAB_HOME", home)
	l, _, err := state.Enter("whole")
	require.NoError(t, err)
	defer l.Unlock()
	require.NoError(t, l.Save())
	require.NoError(t, os.MkdirAll(filepath.Join(home, "anew", "n"), 0o700))
	for dir, want := range map[string]bool{
		filepath.Join(home, "whole"): false,
		filepath.Join(home, "anew"):  true,
		filepath.Join(home, "gone"):  true,
		t.TempDir():                  false, // Nothing shows that it is a lab's.
	} {
		assert.Equal(t, want, state.Deleted(dir), dir)
	}
}
