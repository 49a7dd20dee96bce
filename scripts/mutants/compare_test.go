package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants"
)

func TestCompareWithDeclaration(t *testing.T) {
	m := mutants.Mutant{CaughtBy: []string{"meant"}, AlsoFails: map[string]string{"also": "it leans on it"}}
	report := func(meant, also, other conformance.Result) *conformance.Report {
		return &conformance.Report{Tests: []conformance.TestReport{
			{ID: "meant", Required: true, Result: meant},
			{ID: "also", Required: true, Result: also},
			{ID: "other", Required: true, Result: other, Reasons: []string{"because"}},
			{ID: "unclaimed", Result: conformance.Failed},
		}}
	}
	notRequired := report(conformance.Failed, conformance.Failed, conformance.Passed)
	notRequired.Tests[0].Required = false
	alsoNotRequired := report(conformance.Failed, conformance.Failed, conformance.Passed)
	alsoNotRequired.Tests[1].Required = false
	crashed := report(conformance.Failed, conformance.Failed, conformance.Passed)
	crashed.Crashes = []string{"panic"}
	blocked := report(conformance.Blocked, conformance.Failed, conformance.Failed)
	blocked.Tests[0].BlockedBy = "other"
	onlyMeant := &conformance.Report{Tests: report(conformance.Failed, "", "").Tests[:1]}

	for name, tc := range map[string]struct {
		report   *conformance.Report
		partial  bool
		problems []string
	}{
		"as declared": {report: report(conformance.Failed, conformance.Failed, conformance.Passed)},
		"survives": {
			report:   report(conformance.Passed, conformance.Failed, conformance.Passed),
			problems: []string{"it survives meant, which is meant to fail: passed"},
		},
		"another is blocked": {
			report: report(conformance.Failed, conformance.Blocked, conformance.Blocked),
		},
		"its test is blocked by what is not declared": {
			report:   blocked,
			problems: []string{"other fails, too, and its declaration does not say why: because"},
		},
		"its test proved nothing": {
			report:   report(conformance.Blocked, conformance.Failed, conformance.Passed),
			problems: []string{"it survives meant, which is meant to fail: blocked"},
		},
		"its test is skipped": {
			report:   report(conformance.Skipped, conformance.Failed, conformance.Passed),
			problems: []string{"it survives meant, which is meant to fail: skipped"},
		},
		"its test does not count": {
			report: notRequired, problems: []string{"it survives meant, which is meant to fail: failed"},
		},
		"another does not count": {report: alsoNotRequired},
		"another passes": {
			report:   report(conformance.Failed, conformance.Passed, conformance.Passed),
			problems: []string{"also is declared to fail, too, and has not: passed"},
		},
		"one more fails": {
			report:   report(conformance.Failed, conformance.Failed, conformance.Failed),
			problems: []string{"other fails, too, and its declaration does not say why: because"},
		},
		"it crashes": {
			report: crashed, problems: []string{"it crashes, which is not its mistake:\npanic"},
		},
		"quick":       {report: onlyMeant, partial: true},
		"ended early": {report: onlyMeant, problems: []string{"also, which is to fail, was not run"}},
		"nothing was run, quickly": {
			report: &conformance.Report{}, partial: true, problems: []string{"meant, which is to fail, was not run"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, wrong := compareWithDeclaration(m, tc.report, tc.partial)
			var problems []string
			for _, err := range wrong {
				problems = append(problems, err.Error())
			}
			assert.Equal(t, tc.problems, problems)
		})
	}

	t.Run("pattern", func(t *testing.T) {
		m := mutants.Mutant{CaughtBy: []string{"meant"}, AlsoFails: map[string]string{"a*": "all lean on it"}}
		_, also, wrong := compareWithDeclaration(
			m, report(conformance.Failed, conformance.Failed, conformance.Passed), false,
		)
		assert.Empty(t, wrong)
		assert.Equal(t, []string{"also (all lean on it)"}, also)
		_, _, wrong = compareWithDeclaration(
			m, report(conformance.Failed, conformance.Passed, conformance.Passed), false,
		)
		require.Len(t, wrong, 1)
		assert.EqualError(t, wrong[0], "none of a* fails, which are declared to")
	})

	caught, also, _ := compareWithDeclaration(
		m, report(conformance.Failed, conformance.Failed, conformance.Passed), false,
	)
	assert.Equal(t, []string{"meant"}, caught)
	assert.Equal(t, []string{"also (it leans on it)"}, also)
}
