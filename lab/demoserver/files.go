package demoserver

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"unicode/utf8"
)

// Files and variables are shown for people to read. What exceeds these limits is left out, with
// a remark in its place.
const (
	maxFiles     = 32
	maxTextBytes = 4 << 10
	maxDepth     = 8
	moreKey      = "and more" // In place of the path of a file.
	moreNotShown = "(more than this is not told)"
)

// VolumeMount is a mounted volume, or a mounted file of one: its path in the container and its
// path on the host.
type VolumeMount struct{ Path, Host string }

// ReadVolumes returns what the files of volumes hold now, by path in the container. It follows
// links inside a volume only: the kubelet swaps the files of a ConfigMap by links
// (key -> ..data/key, ..data -> a folder).
func ReadVolumes(volumes []VolumeMount) map[string]string {
	files := map[string]string{}
	for _, v := range volumes {
		dir, name := v.Host, "."
		if info, err := os.Stat(v.Host); err == nil && !info.IsDir() {
			dir, name = path.Split(v.Host)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			continue // Not there yet, or any more.
		}
		collectFiles(root.FS(), name, v.Path, 0, files)
		_ = root.Close()
	}
	return files
}

// collectFiles adds the text of a file, or of all files below a folder, to into. as is its path
// in the container.
func collectFiles(volume fs.FS, name, as string, depth int, into map[string]string) {
	info, err := fs.Stat(volume, name)
	switch {
	case err != nil, depth > maxDepth:
	case info.Mode().IsRegular() && len(into) >= maxFiles:
		into[moreKey] = moreNotShown
	case info.Mode().IsRegular():
		if text, err := readText(volume, name); err == nil {
			into[as] = text
		}
	case info.IsDir():
		entries, _ := fs.ReadDir(volume, name)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "..") { // The kubelet's own: see ReadVolumes.
				collectFiles(volume, path.Join(name, e.Name()), path.Join(as, e.Name()), depth+1, into)
			}
		}
	}
}

func readText(volume fs.FS, name string) (string, error) {
	file, err := volume.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxTextBytes+1))
	return Shorten(string(data)), err
}

// Shorten cuts a text that is too long to be shown, and says so at its end. It replaces what is
// not UTF-8.
func Shorten(text string) string {
	cut := ""
	if len(text) > maxTextBytes {
		text, cut = text[:maxTextBytes], fmt.Sprintf("... (only the first %d bytes)", maxTextBytes)
		for i := 1; i < utf8.UTFMax && !utf8.ValidString(text); i++ {
			text = text[:len(text)-1]
		}
	}
	if !utf8.ValidString(text) {
		return "(not text)"
	}
	return text + cut
}
