package main

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants"
)

// why is the reason that the declaration has for a test to fail, too, and the
// key that it has it under; "" for none.
func why(m mutants.Mutant, id string) (key, reason string) {
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

// verdict holds a report against the declaration. It returns the tests meant for
// the mutant that failed, others that failed as declared, with the reason, and
// what is not as declared. some says that not all tests were run.
func verdict(m mutants.Mutant, r *conformance.Report, some bool) (caught, also []string, problems []error) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	seen := map[string]bool{}
	for _, t := range r.Tests {
		seen[t.ID] = true
		failed := t.Result == conformance.Failed
		key, reason := why(m, t.ID)
		switch meant := slices.Contains(m.CaughtBy, t.ID); {
		case meant && failed && t.Required:
			caught = append(caught, t.ID)
		case meant:
			problem("it survives %s, which is meant to fail: %s", t.ID, t.Result)
		case key != "" && failed:
			seen[key] = true
			also = append(also, t.ID+" ("+reason+")")
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
