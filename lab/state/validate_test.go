package state_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/state"
)

// The error of each record that cannot be used says what is wrong, and what removes the lab.
func TestInvalidRecords(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	l, err := state.Create("lab")
	require.NoError(t, err)
	defer l.Unlock()
	require.NoError(t, os.Mkdir(l.Path("pki"), 0o700))
	for record, want := range map[string]string{
		"": "is damaged", "[]": "is damaged", `{"name":1}`: "is damaged", "\x00": "is damaged",
		"{}": `it is called ""`, `{"name":"other","slot":30,"ports":{"etcd":1}}`: `it is called "other"`,
		`{"name":"lab"}`: "does not say which addresses",
		`{"name":"lab","slot":-1,"ports":{"etcd":1}}`:             "does not say which addresses",
		`{"name":"lab","slot":256,"ports":{"etcd":1}}`:            "does not say which addresses",
		`{"name":"lab","slot":30,"cluster":"external"}`:           "does not say which addresses",
		`{"name":"lab","slot":30,"ports":{"etcd":1},"format":99}`: "was made by a newer version",
	} {
		require.NoError(t, atomicfile.Write(l.Path("lab.json"), []byte(record)))
		_, err := state.Open("lab")
		require.ErrorContains(t, err, want, record)
		if l.CheckContents() == nil {
			assert.ErrorContains(t, err, "`lab down --name lab` removes", record)
		} else {
			assert.ErrorContains(t, err, "delete the folder "+l.Path()+" yourself", record)
		}
	}
	require.NoError(
		t, atomicfile.Write(l.Path("lab.json"), []byte(`{"name":"lab","slot":30,"ports":{"etcd":1},"later":"field"}`)),
	)
	_, err = state.Open("lab")
	assert.NoError(t, err, "one from before formats had numbers, with an unknown field")
}

// Where no folder can be made, the error says so and what to set.
func TestFolderCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	t.Setenv("CCMLAB_HOME", file)
	_, err := state.Create("lab")
	assert.ErrorContains(t, err, "a part of the path is a file: set CCMLAB_HOME")
	_, err = state.Open("lab")
	assert.ErrorContains(t, err, "a part of the path is a file: set CCMLAB_HOME")
	blank, err := state.Unrecorded("lab")
	require.NoError(t, err)
	assert.ErrorContains(t, blank.Lock(), "a part of the path is a file: set CCMLAB_HOME")

	t.Setenv("CCMLAB_HOME", "")
	t.Setenv("XDG_STATE_HOME", "relative/is/ignored")
	t.Setenv("HOME", "")
	_, err = state.Create("lab")
	assert.ErrorContains(t, err, "set CCMLAB_HOME or HOME")

	if os.Geteuid() != 0 { // root may write anywhere.
		dir := t.TempDir()
		require.NoError(t, os.Chmod(dir, 0o500))
		t.Setenv("CCMLAB_HOME", dir)
		_, err = state.Create("lab")
		assert.ErrorContains(t, err, "set CCMLAB_HOME to a folder you may write")
	}
}
