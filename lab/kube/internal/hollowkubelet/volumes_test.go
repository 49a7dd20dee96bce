package hollowkubelet

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSubpathsAreMadeInsideRootDirectory(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	volume := filepath.Join(root, "volume")
	for _, err := range []error{
		os.Mkdir(volume, 0o755), os.WriteFile(filepath.Join(volume, "key"), []byte("kept"), 0o644),
		os.Symlink(outside, filepath.Join(volume, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s := fakeSubpath{confined: confinedOS{root: root}}
	for _, test := range []struct {
		subdir, base, made string
		fails              bool
	}{
		{subdir: "a/b", base: volume, made: filepath.Join(volume, "a", "b")},
		{subdir: "a/b", base: volume, made: filepath.Join(volume, "a", "b")},
		{subdir: "key", base: volume, made: filepath.Join(volume, "key")},
		{subdir: "c", base: outside},
		{subdir: "link/c", base: volume, fails: true},
	} {
		if err := s.SafeMakeDir(test.subdir, test.base, os.ModeDir|0o755); (err != nil) != test.fails {
			t.Errorf("%s in %s: %v", test.subdir, test.base, err)
		}
		if test.made != "" {
			if _, err := os.Stat(test.made); err != nil {
				t.Error(err)
			}
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("outside there is %v (%v)", entries, err)
	}
}
