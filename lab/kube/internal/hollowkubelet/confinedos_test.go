package hollowkubelet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
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
		if err != nil {
			t.Errorf("a convenience was refused: %v", err)
		}
	}
	if _, err := confined.Create(filepath.Join(parent, "file")); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("creating a file outside: %v", err)
	}
	if left, _ := os.ReadDir(parent); len(left) != 0 {
		t.Errorf("outside the root there is now %v", left)
	}
}

func TestFilesInsideRootAreReal(t *testing.T) {
	root := t.TempDir()
	confined := confinedOS{root: root}
	if err := confined.MkdirAll(filepath.Join(root, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := confined.Symlink("b", filepath.Join(root, "a", "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := confined.Stat(filepath.Join(root, "a", "link")); err != nil {
		t.Error(err)
	}
	if found, _ := confined.Glob(filepath.Join(root, "a", "*")); len(found) != 2 {
		t.Errorf("found %v", found)
	}
	if found, _ := confined.Glob("/*"); found != nil {
		t.Errorf("found %v outside", found)
	}
}
