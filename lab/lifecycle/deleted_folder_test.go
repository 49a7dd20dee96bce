package lifecycle

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

// Somebody has deleted the folder of a lab that runs: a new one of that name is
// not made among its processes, and `lab down` ends them and leaves nothing.
func TestFolderDeletedUnderALab(t *testing.T) {
	home := filepath.Join(t.TempDir(), "not", "there")
	t.Setenv("CCMLAB_HOME", home)
	dir, err := state.Dir("lab")
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	p, err := process.Host{Lab: dir}.Start(process.Spec{
		Component: "fakecloud", Path: "/bin/sleep", Args: []string{"1000"},
		LogFile: filepath.Join(dir, "logs", "fakecloud.log"),
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, process.Stop(t.Context(), 0, p)) })
	require.NoError(t, os.RemoveAll(filepath.Dir(home)))

	st, fresh, err := state.Enter("lab")
	require.NoError(t, err)
	assert.True(t, fresh)
	_, _, err = createLab(t.Context(), st, Options{Name: "lab"})
	require.ErrorContains(
		t, err,
		"1 processes of an earlier lab \"lab\" still run, whose folder was deleted; `lab down --name lab` ends them",
	)
	st.Unlock()
	assert.NoDirExists(t, dir)
	assert.True(t, p.Alive())
	require.NoError(t, os.RemoveAll(filepath.Dir(home)))

	ended, err := Down(t.Context(), "lab")
	require.NoError(t, err)
	assert.Equal(t, 1, ended)
	assert.False(t, p.Alive())
	assert.NoDirExists(t, filepath.Dir(home), "what was made to be locked is gone")
	_, err = Down(t.Context(), "lab")
	assert.ErrorIs(t, err, state.ErrNone)
	assert.NoDirExists(t, filepath.Dir(home))
}

// What changes a lab reads its record under the lock.
func TestRecordIsReadUnderTheLock(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	_, err := lab.OpenLocked("lab")
	require.ErrorIs(t, err, state.ErrNone)
	st, _, err := state.Enter("lab")
	require.NoError(t, err)
	for _, record := range []string{"", "{}"} { // What is half-way is not looked at.
		require.NoError(t, os.WriteFile(st.Path("lab.json"), []byte(record), 0o600))
		_, err = lab.OpenLocked("lab")
		assert.ErrorContains(t, err, "another command is working on lab")
		_, err = Pause(t.Context(), "lab")
		assert.ErrorContains(t, err, "another command is working on lab")
	}
	st.Slot, st.Ports["etcd"] = 42, 2379
	require.NoError(t, st.Save())
	st.Unlock()
	l, err := lab.OpenLocked("lab")
	require.NoError(t, err)
	assert.Equal(t, 42, l.State.Slot)
	_, _, err = state.Enter("lab")
	assert.ErrorContains(t, err, "another command is working on lab")
	l.State.Unlock()
}
