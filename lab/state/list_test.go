package state_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/state"
)

func TestList(t *testing.T) {
	home := filepath.Join(t.TempDir(), "labs")
	t.Setenv("CCMLAB_HOME", home)
	names, err := state.List()
	require.NoError(t, err, "no folder is no labs")
	assert.Empty(t, names)

	for _, name := range []string{"second", "damaged", "first"} {
		l, err := state.Create(name)
		require.NoError(t, err)
		require.NoError(t, l.Save())
		l.Unlock()
	}
	require.NoError(t, os.WriteFile(filepath.Join(home, "damaged", "lab.json"), []byte("{"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(home, "damaged", "logs"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, "file"), nil, 0o600))
	for name, record := range map[string]string{
		"notes": `{"title":"of a laboratory"}`, "renamed": `{"name":"first"}`, "cut": `{"title":`,
		"number": `{"name":1}`, "blank": "",
	} {
		require.NoError(t, os.Mkdir(filepath.Join(home, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(home, name, "lab.json"), []byte(record), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(home, name, "data"), nil, 0o600))
		l, err := state.Unrecorded(name)
		require.NoError(t, err)
		assert.ErrorContains(t, l.CheckContents(), "is no lab's folder, it holds", name)
	}
	require.NoError(t, os.Mkdir(filepath.Join(home, "stranger"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(home, "Not-A-Name", "lab.json"), 0o700))
	names, err = state.List()
	require.NoError(t, err)
	assert.Equal(t, []string{"damaged", "first", "second"}, names, "what can be read and what cannot, and no stranger")
}
