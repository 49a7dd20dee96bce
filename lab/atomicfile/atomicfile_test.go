package atomicfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
)

// No test can cut the power. That the content is synced before the rename shows in `strace -e fsync,rename`.

func TestWriteReplacesTheWholeFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "missing", "folder", "ca.key")
	for _, content := range []string{"a long first key", "second"} {
		require.NoError(t, atomicfile.Write(file, []byte(content)))
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Equal(t, content, string(data))
		info, err := os.Stat(file)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		assert.Equal(t, []string{"ca.key"}, names(t, filepath.Dir(file)))
	}
}

func TestAWriteThatFailsLeavesWhatWasThere(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken")
	require.NoError(t, os.MkdirAll(filepath.Join(taken, "content"), 0o700))
	require.Error(t, atomicfile.Write(taken, []byte("new")), "a folder has that name")
	require.Error(t, atomicfile.Rename(filepath.Join(dir, "missing"), filepath.Join(dir, "new")))
	assert.Equal(t, []string{"taken"}, names(t, dir))
	assert.Equal(t, []string{"content"}, names(t, taken))
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func BenchmarkWrite(b *testing.B) {
	file := filepath.Join(b.TempDir(), "file")
	for b.Loop() {
		require.NoError(b, atomicfile.Write(file, make([]byte, 2048)))
	}
}
