package fsnotify

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
)

func TestChangesOfFilesAndFolders(t *testing.T) {
	folder := t.TempDir()
	socket, certificate := filepath.Join(folder, "plugin.sock"), filepath.Join(t.TempDir(), "ca.crt")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	write(certificate, "one")
	synctest.Test(t, func(t *testing.T) {
		w, err := NewWatcher()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for _, path := range []string{folder, certificate} {
			if err := w.Add(path); err != nil {
				t.Fatal(err)
			}
		}
		for _, step := range []struct {
			name string
			do   func()
			want map[Event]bool
		}{
			{"a new file in a folder", func() { write(socket, "") }, map[Event]bool{{socket, Create}: true}},
			{"a file that was written to", func() { write(certificate, "two three") },
				map[Event]bool{{certificate, Write}: true}},
			{"a file in the place of another, as renewed certificates come",
				func() { write(certificate+".new", "four"); move(certificate+".new", certificate) },
				map[Event]bool{{certificate, Remove}: true, {certificate, Create}: true}},
			{"files that are gone", func() { _, _ = os.Remove(socket), os.Remove(certificate) },
				map[Event]bool{{socket, Remove}: true, {certificate, Remove}: true}},
		} {
			step.do()
			got := map[Event]bool{}
			for range step.want {
				got[<-w.Events] = true
			}
			if !maps.Equal(got, step.want) {
				t.Errorf("%s: got %v, want %v", step.name, got, step.want)
			}
		}
		if err := w.Remove(certificate); !errors.Is(err, ErrNonExistentWatch) {
			t.Errorf("the watch of a file that is gone: %v", err)
		}
		if err := w.Add(certificate); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a watch of no file: %v", err)
		}
	})
}
