package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants"
)

// compareWithDeclaration compares a report with the mutant's declaration. It returns the tests
// meant for the mutant that failed, the other tests that failed as declared, with the reason, and
// what is not as declared. partial says that not all tests were run. A test that is blocked needs no
// declaration of its own: what blocks it has one.
func compareWithDeclaration(
	m mutants.Mutant,
	r *conformance.Report,
	partial bool,
) (caught, also []string, problems []error) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	covered := map[string]bool{}
	for _, t := range r.Tests {
		covered[t.ID] = true
		failed, blocked := t.Result == conformance.Failed, t.Result == conformance.Blocked
		key, reason := m.FindReason(t.ID)
		switch meant := slices.Contains(m.CaughtBy, t.ID); {
		case meant && failed && t.Required:
			caught = append(caught, t.ID)
		case meant && t.BlockedBy != "" && t.Required: // What blocks it fails as declared, or is told below.
			caught = append(caught, fmt.Sprintf("%s (blocked by %s)", t.ID, t.BlockedBy))
		case meant:
			problem("it survives %s, which is meant to fail: %s", t.ID, t.Result)
		case key != "" && (failed || blocked):
			covered[key] = true
			also = append(also, t.ID+" ("+reason+")")
		case key == t.ID:
			problem("%s is declared to fail, too, and has not: %s", t.ID, t.Result)
		case failed && t.Required:
			problem("%s fails, too, and its declaration does not say why: %s", t.ID, strings.Join(t.Reasons, "; "))
		}
	}
	for _, id := range slices.Concat(m.CaughtBy, slices.Sorted(maps.Keys(m.AlsoFails))) {
		switch {
		case covered[id] || partial && m.AlsoFails[id] != "":
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
