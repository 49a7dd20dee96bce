package driver

// A driver to start from.

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// starterFiles are templates, and of the example what is about no cloud.
//
//go:embed example/serve.go starter
var starterFiles embed.FS

// starter is a driver to start from, in one language.
type starter struct {
	files   map[string]string // where each file comes from
	build   string            // a command line; "" for none
	program string
}

var starters = map[string]starter{
	"go": {
		map[string]string{
			"go.mod": "starter/go.mod.tmpl", "main.go": "starter/main.go.tmpl", "serve.go": "example/serve.go",
		},
		"go build -o driver .", "driver",
	},
	"python": {map[string]string{"driver.py": "starter/driver.py"}, "", "driver.py"},
}

// StarterLanguages are those that WriteStarter knows.
func StarterLanguages() []string { return slices.Sorted(maps.Keys(starters)) }

// WriteStarter writes a driver to start from into a folder, which it makes, and whose name becomes the driver's. It
// writes nothing beside files that are there. It returns the command line by which the driver is built, "" for none,
// and the program that is there then, both from the folder.
func WriteStarter(language, folder string) (build, program string, err error) {
	if err := makeEmptyFolder(folder); err != nil {
		return "", "", err
	}
	name, err := nameFromFolder(folder)
	if err != nil {
		return "", "", err
	}
	chosen := starters[language]
	for target, source := range chosen.files {
		text, err := starterFiles.ReadFile(source)
		if err != nil {
			return "", "", err
		}
		text = bytes.ReplaceAll(text, []byte("nebula"), []byte(name))
		mode := fs.FileMode(0o644)
		if bytes.HasPrefix(text, []byte("#!")) {
			mode = 0o755
		}
		if err := os.WriteFile(filepath.Join(folder, target), text, mode); err != nil {
			return "", "", err
		}
	}
	return chosen.build, chosen.program, nil
}

// makeEmptyFolder makes a folder unless it is there. It returns an error if there is something in it.
func makeEmptyFolder(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // As mkdir does.
		return err
	}
	there, err := os.ReadDir(folder)
	if err == nil && len(there) > 0 {
		err = fmt.Errorf("%s has files in it, %s for one: give a folder that is new or empty", folder, there[0].Name())
	}
	return err
}

// notInNames matches what the name of a Go module does not have.
var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// nameFromFolder is what a driver in the folder is called.
func nameFromFolder(folder string) (string, error) {
	folder, err := filepath.Abs(folder)
	name := notInNames.ReplaceAllString(strings.ToLower(filepath.Base(folder)), "-")
	return cmp.Or(strings.TrimSuffix(strings.Trim(name, "-"), "-driver"), "nebula"), err
}
