// Package mutation makes mutants of our CCM mechanically, from its own source. Mutants that are
// written beside the tests are those that somebody has thought of; these are all that follow from a
// few rules, in the methods that Kubernetes calls and in what they call within the package:
//
//	condition  a condition is turned
//	call       a call of the cloud, or of what is remembered of it, is left out: its results are zero
//	error      an error is returned as nil
//	field      a field is left zero, or an assignment to one is left out
//
// All mutants are compiled into one program, and a variable of its environment chooses one: one build
// serves hundreds. The program is made by an overlay of the sources; the sources stay as they are.
//
// The package reads the CCM's source and imports nothing of it. Begin with Generate. The command
// scripts/mutants has the suite judge the mutants.
package mutation

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Kind is a rule by which mutants are made.
type Kind string

// The kinds.
const (
	Condition Kind = "condition"
	Call      Kind = "call"
	Error     Kind = "error"
	Field     Kind = "field"
)

// Mutant is one place where the program can go wrong on purpose.
type Mutant struct {
	// ID is FILE:FUNCTION:KIND:HASH. The hash is of what is mutated and of its place among its equals
	// in the function: an edit elsewhere leaves the ID as it is.
	ID   string `json:"id"`
	File string `json:"file"`
	Line int    `json:"line"`
	Kind Kind   `json:"kind"`
	// What is the text that is mutated, on one line.
	What string `json:"what"`
	// Interfaces are the interfaces whose methods reach the place, sorted.
	Interfaces []string `json:"interfaces"`

	// Number chooses the mutant in the program: see ActiveVariable.
	Number int `json:"-"`
}

// Set has all mutants of a package, and the sources with all of them in it.
type Set struct {
	Mutants []Mutant
	// Broken are the mutants that do not compile. Mutants does not have them.
	Broken []Mutant
	// Fingerprint changes with the sources.
	Fingerprint string

	dir   string
	files map[string]string // the rewritten sources by the path of the original
}

// Options of Generate.
type Options struct {
	// Dir is the package's folder.
	Dir string
	// BuildFlags are the flags that the program will be built with.
	BuildFlags []string
	// Interfaces are the interfaces whose methods are mutated, as PATH.NAME of a package that this one
	// imports.
	Interfaces []string
}

// Variables of the environment of a mutated program.
const (
	// ActiveVariable chooses a mutant by its Number; without it the program has no mistake.
	ActiveVariable = "CCMLAB_MUTANT"
	// ReachedVariable names a file that gets the Number of each mutant that would have made a
	// difference, when that first happens.
	ReachedVariable = "CCMLAB_MUTANTS_REACHED"
)

// switchSource is the source of a file that is added to a mutated program.
//
//go:embed switch.go.txt
var switchSource string

// switchFile is the name of that file.
const switchFile = "mutant_switch.go"

// Generate makes the mutants of a package. What does not compile is left out.
func Generate(ctx context.Context, o Options) (*Set, error) {
	p, err := loadPackage(ctx, o)
	if err != nil {
		return nil, err
	}
	reached, err := p.reachedFunctions(o.Interfaces)
	if err != nil {
		return nil, err
	}
	broken := map[string]bool{}
	for {
		g := &generator{loaded: p, reached: reached, broken: broken, equals: map[string]int{}}
		g.mutatePackage()
		set := &Set{dir: p.dir, Fingerprint: p.fingerprint(), files: map[string]string{}}
		for _, m := range g.mutants {
			if broken[m.ID] {
				set.Broken = append(set.Broken, m)
			} else {
				set.Mutants = append(set.Mutants, m)
			}
		}
		for name, edits := range g.edits {
			set.files[filepath.Join(p.dir, name)] = applyEdits(p.sources[name], edits)
		}
		set.files[filepath.Join(p.dir, switchFile)] = strings.Replace(
			switchSource, "package mutated", "package "+p.types.Name(), 1,
		)
		lines, err := p.checkRewritten(set.files)
		if err != nil {
			return nil, err
		}
		before := len(broken)
		for _, m := range set.Mutants {
			if lines[position{m.File, m.Line}] {
				broken[m.ID] = true
			}
		}
		switch {
		case len(lines) == 0:
			return set, nil
		case len(broken) == before:
			return nil, fmt.Errorf("the mutated sources do not compile, and no mutant is the cause: %v", lines)
		}
	}
}

// WriteOverlay writes the mutated sources as the function of that name does.
func (s *Set) WriteOverlay(dir string) (string, error) { return WriteOverlay(dir, s.files) }

// WriteOverlay writes sources, by the paths of the files that they replace, into dir, and for
// `go build -overlay` a file that says so, whose path it returns.
func WriteOverlay(dir string, sources map[string]string) (string, error) {
	replace := map[string]string{}
	var errs []error
	for original, source := range sources {
		// Go's ./... leaves out such a folder. Two files of one name may be of different packages.
		to := filepath.Join(dir, "_sources", filepath.Base(filepath.Dir(original)), filepath.Base(original))
		replace[original] = to
		errs = append(errs, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, []byte(source), 0o644))
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	file := filepath.Join(dir, "overlay.json")
	return file, errors.Join(append(errs, err, os.WriteFile(file, data, 0o644))...)
}

// mutantID makes the ID of a mutant whose text is the nth of its equals in the function.
func mutantID(file, function string, kind Kind, what string, nth int) string {
	sum := sha256.Sum256([]byte(fmt.Sprintf("%s\x00%d", what, nth)))
	return strings.Join([]string{file, function, string(kind), hex.EncodeToString(sum[:3])}, ":")
}

// edit inserts text into a source, or replaces what is between two offsets.
type edit struct {
	from, to int
	text     string
	// order says which of several insertions at one place comes first: the lower.
	order int
}

// applyEdits makes the edits, none of which replaces what another one touches.
func applyEdits(source []byte, edits []edit) string {
	slices.SortStableFunc(edits, func(a, b edit) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.order, b.order))
	})
	var b strings.Builder
	at := 0
	for _, e := range edits {
		b.Write(source[at:e.from])
		b.WriteString(e.text)
		at = e.to
	}
	b.Write(source[at:])
	return b.String()
}

// ReadReached reads a file that a program wrote for ReachedVariable: the IDs of the mutants that would
// have made a difference.
func (s *Set) ReadReached(file string) (map[string]bool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	numbers := map[string]bool{}
	for _, line := range strings.Fields(string(data)) {
		numbers[line] = true
	}
	ids := map[string]bool{}
	for _, m := range s.Mutants {
		ids[m.ID] = numbers[strconv.Itoa(m.Number)]
	}
	return ids, nil
}
