package hollowkubelet

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNothingIsWrittenOutsideRoot(t *testing.T) {
	parent := t.TempDir()
	root, outside := filepath.Join(parent, "root"), filepath.Join(parent, "root-of-another")
	confined := confinedOS{root: root}

	for _, err := range []error{
		confined.MkdirAll(filepath.Join(outside, "logs"), 0o755),
		confined.Symlink(root, outside),
		confined.MkdirAll(filepath.Join(root, "..", "sibling"), 0o755),
	} {
		assert.NoError(t, err, "a convenience was refused")
	}
	_, err := confined.Create(filepath.Join(parent, "file"))
	assert.ErrorIs(t, err, fs.ErrPermission, "creating a file outside")
	left, _ := os.ReadDir(parent)
	assert.Empty(t, left, "outside the root")
}

func TestFilesInsideRootAreReal(t *testing.T) {
	root := t.TempDir()
	confined := confinedOS{root: root}
	require.NoError(t, confined.MkdirAll(filepath.Join(root, "a", "b"), 0o755))
	require.NoError(t, confined.Symlink("b", filepath.Join(root, "a", "link")))
	if _, err := confined.Stat(filepath.Join(root, "a", "link")); err != nil {
		t.Error(err)
	}
	found, _ := confined.Glob(filepath.Join(root, "a", "*"))
	assert.Len(t, found, 2)
	found, _ = confined.Glob("/*")
	assert.Nil(t, found, "outside")
}
