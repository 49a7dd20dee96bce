package demoserver

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	requireNoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	requireNoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// newVolume lays files out as the kubelet's AtomicWriter does.
func newVolume(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		writeFile(t, filepath.Join(dir, "..2026_1", name), text)
		top, _, _ := strings.Cut(name, "/")
		if err := os.Symlink(filepath.Join("..data", top), filepath.Join(dir, top)); !os.IsExist(err) {
			requireNoError(t, err)
		}
	}
	requireNoError(t, os.Symlink("..2026_1", filepath.Join(dir, "..data")))
	return dir
}

func TestFilesAreReadThroughKubeletLinks(t *testing.T) {
	dir := newVolume(t, map[string]string{"greeting": "Good morning", "deep/a": "1", "deep/b": "2"})
	at := []VolumeMount{
		{Path: "/etc/config", Host: dir}, {Path: "/etc/one", Host: filepath.Join(dir, "greeting")},
		{Path: "/gone", Host: filepath.Join(dir, "none")},
	}
	want := map[string]string{
		"/etc/config/greeting": "Good morning", "/etc/config/deep/a": "1", "/etc/config/deep/b": "2",
		"/etc/one": "Good morning",
	}
	assertEqual(t, want, ReadVolumes(at))

	// The kubelet swaps all files at once.
	writeFile(t, filepath.Join(dir, "..2026_2", "greeting"), "Good night")
	requireNoError(t, os.Symlink("..2026_2", filepath.Join(dir, "..data_tmp")))
	requireNoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	assertEqual(t, map[string]string{"/etc/config/greeting": "Good night", "/etc/one": "Good night"}, ReadVolumes(at))
}

func TestNothingOutsideAVolumeIsRead(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "token")
	writeFile(t, outside, "secret")
	dir := newVolume(t, map[string]string{"a": "1"})
	for name, to := range map[string]string{
		"absolute": outside, "relative": "../../" + filepath.Base(filepath.Dir(outside)) + "/token",
		"folder": filepath.Dir(outside), "loop": ".", "broken": "none",
	} {
		requireNoError(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	for path, text := range ReadVolumes([]VolumeMount{{Path: "/v", Host: dir}}) {
		assertEqual(t, "1", text, path)
	}
	assertEqual(t, map[string]string{}, ReadVolumes([]VolumeMount{{Path: "/v", Host: filepath.Join(dir, "absolute")}}))
}

func TestLargeFilesAndVolumesAreCut(t *testing.T) {
	files := map[string]string{
		"a-big": strings.Repeat("é", maxTextBytes), "a-binary": "\xff\x00",
		"a-odd": "x" + strings.Repeat("é", maxTextBytes),
	}
	for i := range 2 * maxFiles {
		files["file-"+strconv.Itoa(i)] = ""
	}
	found := ReadVolumes([]VolumeMount{{Path: "/v", Host: newVolume(t, files)}})
	assertEqual(t, strings.Repeat("é", maxTextBytes/2)+"... (only the first 4096 bytes)", found["/v/a-big"])
	assertEqual(t, "x"+strings.Repeat("é", maxTextBytes/2-1)+"... (only the first 4096 bytes)", found["/v/a-odd"])
	assertEqual(t, "(not text)", found["/v/a-binary"])
	assertEqual(t, moreNotShown, found[moreKey])
	assertEqual(t, maxFiles+1, len(found))
}
