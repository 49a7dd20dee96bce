// Package mutants makes variants of our CCM, each with one mistake that a CCM's author could make. The
// conformance suite must catch each; lessons have learners find some.
package mutants

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/build"
)

// declarations has a file for each mutant, with its name.
//
//go:embed *.yaml
var declarations embed.FS

// Mutant is our CCM with a mistake.
type Mutant struct {
	Name string `json:"-"`
	// Wrong says what it does wrong, and whom that hurts.
	Wrong string `json:"wrong"`
	Edits []Edit `json:"edits"`
	// Ring is the package of our CCM that the mutant is without, Core if it is without all but that; "" for any
	// other mistake.
	Ring string `json:"ring"`
	// Cluster is the kind of cluster in which the mistake shows; "" is any.
	Cluster string `json:"cluster"`
	// CaughtBy lists the tests that are meant to catch this mistake.
	CaughtBy []string `json:"caughtBy"`
	// AlsoFails lists the other tests that fail, and why. A key with a * is a pattern: at least one
	// of the tests that it matches fails, and each may.
	AlsoFails map[string]string `json:"alsoFails"`
	// Unsupported lists features and capabilities whose tests are left out, and why.
	Unsupported map[string]string `json:"unsupported"`
}

// Core is the Ring of the mutant that has none.
const Core = "core"

// Edit replaces the only occurrence of Find in a file.
type Edit struct {
	File    string `json:"file"`
	Find    string `json:"find"`
	Replace string `json:"replace"`
}

// Rings returns the core alone, and the mutants that are without a ring.
func Rings() ([]Mutant, error) {
	all, err := Choose(allNames()...)
	return slices.DeleteFunc(all, func(m Mutant) bool { return m.Ring == "" }), err
}

// allNames are those of all mutants.
func allNames() []string {
	files, _ := declarations.ReadDir(".") // They are in the program.
	var all []string
	for _, f := range files {
		all = append(all, strings.TrimSuffix(f.Name(), ".yaml"))
	}
	return all
}

// Choose returns the mutants of these names, or all but those without a ring when none is named.
func Choose(names ...string) ([]Mutant, error) {
	all := allNames()
	isNamed := len(names) > 0
	if !isNamed {
		names = all
	}
	var chosen []Mutant
	for _, name := range names {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("there is no mutant %q: choose from %s", name, strings.Join(all, ", "))
		}
		data, err := declarations.ReadFile(name + ".yaml")
		if err != nil {
			return nil, err
		}
		m := Mutant{Name: name}
		if err := yaml.UnmarshalStrict(data, &m); err != nil {
			return nil, fmt.Errorf("%s.yaml: %w", name, err)
		}
		if m.Ring == "" || isNamed {
			chosen = append(chosen, m)
		}
	}
	return chosen, nil
}

// FindReason returns the reason in AlsoFails for a test, and the key that has it: the test's ID, or a pattern
// of path.Match that matches it. Both are "" if there is none.
func (m Mutant) FindReason(id string) (key, reason string) {
	if reason, named := m.AlsoFails[id]; named {
		return id, reason
	}
	for _, key := range slices.Sorted(maps.Keys(m.AlsoFails)) {
		if matched, err := path.Match(key, id); err == nil && matched {
			return key, m.AlsoFails[key]
		}
	}
	return "", ""
}

// Sources returns the changed sources, by their path below root.
func (m Mutant) Sources(root string) (map[string]string, error) {
	changed := map[string]string{}
	for _, e := range m.Edits {
		source, ok := changed[e.File]
		if !ok {
			data, err := os.ReadFile(filepath.Join(root, e.File))
			if err != nil {
				return nil, err
			}
			source = string(data)
		}
		if n := strings.Count(source, e.Find); n != 1 {
			return nil, fmt.Errorf(
				"%s has this %d times, and mutant %s changes it once: the product has moved on, mend the mutant:\n%s",
				e.File, n, m.Name, e.Find,
			)
		}
		changed[e.File] = strings.Replace(source, e.Find, e.Replace, 1)
	}
	return changed, nil
}

// writeOverlay writes the changed sources into dir, and for `go build -overlay` a file that says so,
// whose path it returns.
func (m Mutant) writeOverlay(root, dir string) (file string, err error) {
	changed, err := m.Sources(root)
	if err != nil {
		return "", err
	}
	if root, err = filepath.Abs(root); err != nil {
		return "", err
	}
	replace := map[string]string{}
	var errs []error
	for path, source := range changed {
		// Go's ./... leaves out such a folder. Two files of one name may be of different packages.
		to := filepath.Join(dir, "_sources", path)
		replace[filepath.Join(root, path)] = to
		errs = append(errs, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, []byte(source), 0o644))
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	file = filepath.Join(dir, "overlay.json")
	return file, errors.Join(append(errs, err, os.WriteFile(file, data, 0o644))...)
}

// Build compiles the mutant of the clone at root into dir, which gets its changed
// sources, too, and returns the program's path.
func (m Mutant) Build(ctx context.Context, root, dir string, note func(string)) (program string, err error) {
	overlay, err := m.writeOverlay(root, dir)
	if err != nil {
		return "", err
	}
	module := build.Own(root) // With its flags, all but package ccm is compiled already.
	module.Mains = map[string]string{"./cmd/ccm": "ccm"}
	module.Flags = append(module.Flags, "-overlay="+overlay)
	if _, err := module.Build(ctx, dir, note); err != nil {
		return "", err
	}
	return filepath.Abs(filepath.Join(dir, "ccm"))
}
