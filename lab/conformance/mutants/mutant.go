package main

// What a mutant is, how its sources are made, and what the suite must say of it.

import (
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

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// declarations are the mutants: each file is one, and has its name.
//
//go:embed *.yaml
var declarations embed.FS

// mutant is our CCM with a mistake that a CCM's author could make.
type mutant struct {
	name string
	// Wrong says what it does wrong, and whom that hurts.
	Wrong string `json:"wrong"`
	Edits []edit `json:"edits"`
	// CaughtBy are the tests that are there for this mistake.
	CaughtBy []string `json:"caughtBy"`
	// AlsoFails are the other tests that fail, and why they do. A key with a * is a
	// pattern: of the tests that it matches at least one fails, and each may.
	AlsoFails map[string]string `json:"alsoFails"`
	// Unsupported are features and capabilities whose tests it must do without,
	// and why.
	Unsupported map[string]string `json:"unsupported"`
}

// edit replaces the only occurrence of Find in a file.
type edit struct {
	File    string `json:"file"`
	Find    string `json:"find"`
	Replace string `json:"replace"`
}

// choose is all mutants when none is named.
func choose(names []string) ([]mutant, error) {
	files, err := declarations.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, f := range files {
		all = append(all, strings.TrimSuffix(f.Name(), ".yaml"))
	}
	if len(names) == 0 {
		names = all
	}
	var chosen []mutant
	for _, name := range names {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("there is no mutant %q: choose from %s", name, strings.Join(all, ", "))
		}
		data, err := declarations.ReadFile(name + ".yaml")
		if err != nil {
			return nil, err
		}
		m := mutant{name: name}
		if err := yaml.UnmarshalStrict(data, &m); err != nil {
			return nil, fmt.Errorf("%s.yaml: %w", name, err)
		}
		chosen = append(chosen, m)
	}
	return chosen, nil
}

// sources are the files that the mutant changes, by their path below root, with
// the changes made.
func (m mutant) sources(root string) (map[string]string, error) {
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
			return nil, fmt.Errorf("%s has this %d times, and mutant %s changes it once: the product has moved on, mend the mutant:\n%s", e.File, n, m.name, e.Find)
		}
		changed[e.File] = strings.Replace(source, e.Find, e.Replace, 1)
	}
	return changed, nil
}

// overlay writes the changed sources into dir, and for `go build -overlay` the
// file that says what they stand for.
func (m mutant) overlay(root, dir string) (file string, err error) {
	changed, err := m.sources(root)
	if err != nil {
		return "", err
	}
	if root, err = filepath.Abs(root); err != nil {
		return "", err
	}
	replace := map[string]string{}
	for path, source := range changed {
		to := filepath.Join(dir, "_sources", path) // Go's ./... leaves out such a folder.
		replace[filepath.Join(root, path)] = to
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, []byte(source), 0o644)); err != nil {
			return "", err
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, data, 0o644)
}

// why is the reason that the declaration has for a test to fail, too, and the
// key that it has it under; "" for none.
func (m mutant) why(id string) (key, why string) {
	if why, named := m.AlsoFails[id]; named {
		return id, why
	}
	for _, key := range slices.Sorted(maps.Keys(m.AlsoFails)) {
		if matched, err := path.Match(key, id); err == nil && matched {
			return key, m.AlsoFails[key]
		}
	}
	return "", ""
}

// judge holds a report against the declaration. It returns the tests meant for
// the mutant that failed, others that failed as declared, with the reason, and
// what is not as declared. some says that not all tests were run.
func (m mutant) judge(r *conformance.Report, some bool) (caught, also []string, problems []error) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	seen := map[string]bool{}
	for _, t := range r.Tests {
		seen[t.ID] = true
		failed := t.Result == conformance.Failed
		key, why := m.why(t.ID)
		switch meant := slices.Contains(m.CaughtBy, t.ID); {
		case meant && failed && t.Required:
			caught = append(caught, t.ID)
		case meant:
			problem("it survives %s, which is meant to fail: %s", t.ID, t.Result)
		case key != "" && failed:
			seen[key] = true
			also = append(also, t.ID+" ("+why+")")
		case key == t.ID:
			problem("%s is declared to fail, too, and has not: %s", t.ID, t.Result)
		case failed && t.Required:
			problem("%s fails, too, and its declaration does not say why: %s", t.ID, strings.Join(t.Reasons, "; "))
		}
	}
	for _, id := range slices.Concat(m.CaughtBy, slices.Sorted(maps.Keys(m.AlsoFails))) {
		switch {
		case seen[id] || some && m.AlsoFails[id] != "":
		case strings.Contains(id, "*"):
			problem("none of %s fails, which are declared to", id)
		default:
			problem("%s, which is to fail, was not run", id)
		}
	}
	for _, c := range r.Crashes {
		problem("it crashes, which is not its mistake:\n%s", c)
	}
	return caught, also, problems
}
