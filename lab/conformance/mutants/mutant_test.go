package main

import (
	"encoding/json"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
)

const root = "../../.."

// Every mutant fits the product and the suite as they are now.
func TestDeclarations(t *testing.T) {
	known, features := map[string]bool{}, map[string]bool{}
	for _, test := range profiles.All() {
		known[test.ID], features[string(test.Capability)] = true, true
		for _, f := range test.Needs {
			features[string(f)] = true
		}
	}
	mutants, err := choose(nil)
	require.NoError(t, err)
	require.NotEmpty(t, mutants)
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			assert.NotEmpty(t, m.Wrong)
			assert.NotEmpty(t, m.Edits)
			assert.NotEmpty(t, m.CaughtBy)
			changed, err := m.sources(root)
			require.NoError(t, err)
			for file, source := range changed {
				_, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
				assert.NoError(t, err)
			}
			for _, id := range m.CaughtBy {
				assert.True(t, known[id], "there is no test %s", id)
				assert.NotContains(t, m.AlsoFails, id)
			}
			for id, why := range m.AlsoFails {
				assert.True(t, known[id] || matchesAny(t, id, known), "there is no test %s", id)
				assert.NotEmpty(t, why, id)
			}
			for feature, why := range m.Unsupported {
				assert.True(t, features[feature], "no test needs %s", feature)
				assert.NotEmpty(t, why, feature)
			}
		})
	}
}

func matchesAny(t *testing.T, pattern string, ids map[string]bool) bool {
	for id := range ids {
		matched, err := path.Match(pattern, id)
		require.NoError(t, err)
		if matched {
			return true
		}
	}
	return false
}

func TestChoose(t *testing.T) {
	mutants, err := choose([]string{"leaks-on-delete"})
	require.NoError(t, err)
	require.Len(t, mutants, 1)
	assert.Equal(t, "leaks-on-delete", mutants[0].name)
	_, err = choose([]string{"leaks"})
	assert.ErrorContains(t, err, "leaks-on-delete")
}

// An edit that does not meet exactly one place is an error, not a guess.
func TestOverlay(t *testing.T) {
	for name, tc := range map[string]struct {
		edits   []edit
		want    string
		wantErr string
	}{
		"once":                {edits: []edit{{"a.go", "one", "1"}}, want: "1 two two"},
		"one after the other": {edits: []edit{{"a.go", "one", "three"}, {"a.go", "three ", ""}}, want: "two two"},
		"missing":             {edits: []edit{{"a.go", "three", "3"}}, wantErr: "0 times"},
		"twice":               {edits: []edit{{"a.go", "two", "2"}}, wantErr: "2 times"},
		"gone by an edit":     {edits: []edit{{"a.go", "one", "1"}, {"a.go", "one", "1"}}, wantErr: "the product has moved on"},
		"no such file":        {edits: []edit{{"b.go", "one", "1"}}, wantErr: "b.go"},
	} {
		t.Run(name, func(t *testing.T) {
			root, dir := t.TempDir(), t.TempDir()
			source := filepath.Join(root, "a.go")
			require.NoError(t, os.WriteFile(source, []byte("one two two"), 0o600))
			file, err := mutant{name: "m", Edits: tc.edits}.overlay(root, dir)
			if tc.wantErr != "" {
				require.ErrorContains(t, err, tc.wantErr)
				return
			}
			require.NoError(t, err)
			var overlay struct{ Replace map[string]string }
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(data, &overlay))
			require.Len(t, overlay.Replace, 1)
			changed, err := os.ReadFile(overlay.Replace[source])
			require.NoError(t, err)
			assert.Equal(t, tc.want, string(changed))
		})
	}
}

func TestJudge(t *testing.T) {
	m := mutant{CaughtBy: []string{"meant"}, AlsoFails: map[string]string{"also": "it leans on it"}}
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
	onlyMeant := &conformance.Report{Tests: report(conformance.Failed, "", "").Tests[:1]}

	for name, tc := range map[string]struct {
		report   *conformance.Report
		some     bool
		problems []string
	}{
		"as declared":              {report: report(conformance.Failed, conformance.Failed, conformance.Passed)},
		"survives":                 {report: report(conformance.Passed, conformance.Failed, conformance.Passed), problems: []string{"it survives meant, which is meant to fail: passed"}},
		"its test is skipped":      {report: report(conformance.Skipped, conformance.Failed, conformance.Passed), problems: []string{"it survives meant, which is meant to fail: skipped"}},
		"its test does not count":  {report: notRequired, problems: []string{"it survives meant, which is meant to fail: failed"}},
		"another does not count":   {report: alsoNotRequired},
		"another passes":           {report: report(conformance.Failed, conformance.Passed, conformance.Passed), problems: []string{"also is declared to fail, too, and has not: passed"}},
		"one more fails":           {report: report(conformance.Failed, conformance.Failed, conformance.Failed), problems: []string{"other fails, too, and its declaration does not say why: because"}},
		"it crashes":               {report: crashed, problems: []string{"it crashes, which is not its mistake:\npanic"}},
		"quick":                    {report: onlyMeant, some: true},
		"ended early":              {report: onlyMeant, problems: []string{"also, which is to fail, was not run"}},
		"nothing was run, quickly": {report: &conformance.Report{}, some: true, problems: []string{"meant, which is to fail, was not run"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, wrong := m.judge(tc.report, tc.some)
			var problems []string
			for _, err := range wrong {
				problems = append(problems, err.Error())
			}
			assert.Equal(t, tc.problems, problems)
		})
	}

	t.Run("pattern", func(t *testing.T) {
		m := mutant{CaughtBy: []string{"meant"}, AlsoFails: map[string]string{"a*": "all lean on it"}}
		_, also, wrong := m.judge(report(conformance.Failed, conformance.Failed, conformance.Passed), false)
		assert.Empty(t, wrong)
		assert.Equal(t, []string{"also (all lean on it)"}, also)
		_, _, wrong = m.judge(report(conformance.Failed, conformance.Passed, conformance.Passed), false)
		require.Len(t, wrong, 1)
		assert.EqualError(t, wrong[0], "none of a* fails, which are declared to")
	})

	caught, also, _ := m.judge(report(conformance.Failed, conformance.Failed, conformance.Passed), false)
	assert.Equal(t, []string{"meant"}, caught)
	assert.Equal(t, []string{"also (it leans on it)"}, also)
}
