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

// What is told of files and variables is for people to look at: what is more
// than this is left out, and said to be.
const (
	maxFiles    = 32
	maxTold     = 4 << 10
	maxNesting  = 8
	andMore     = "and more"
	notToldHere = "(more than this is not told)"
)

// Mounted is a volume, or a single file of one, as a container sees it.
type Mounted struct{ Path, Host string }

// Contents are what the files of volumes hold now, by their path in the
// container. Links are followed inside their volume only: that is how the kubelet
// swaps the files of a ConfigMap (key -> ..data/key, ..data -> a folder).
func Contents(volumes []Mounted) map[string]string {
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
		collect(root.FS(), name, v.Path, 0, files)
		_ = root.Close()
	}
	return files
}

// collect reads a file, or all files below a folder.
func collect(volume fs.FS, name, as string, depth int, into map[string]string) {
	info, err := fs.Stat(volume, name)
	switch {
	case err != nil, depth > maxNesting:
	case info.Mode().IsRegular() && len(into) >= maxFiles:
		into[andMore] = notToldHere
	case info.Mode().IsRegular():
		if text, err := readText(volume, name); err == nil {
			into[as] = text
		}
	case info.IsDir():
		entries, _ := fs.ReadDir(volume, name)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "..") { // The kubelet's own, see Contents.
				collect(volume, path.Join(name, e.Name()), path.Join(as, e.Name()), depth+1, into)
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
	data, err := io.ReadAll(io.LimitReader(file, maxTold+1))
	return Shortened(string(data)), err
}

// Shortened is a text that is short enough to tell.
func Shortened(text string) string {
	cut := ""
	if len(text) > maxTold {
		text, cut = text[:maxTold], fmt.Sprintf("... (only the first %d bytes)", maxTold)
		for i := 1; i < utf8.UTFMax && !utf8.ValidString(text); i++ {
			text = text[:len(text)-1]
		}
	}
	if !utf8.ValidString(text) {
		return "(not text)"
	}
	return text + cut
}
