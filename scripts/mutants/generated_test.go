package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants/mutation"
)

var someMutants = []mutation.Mutant{
	{ID: "a.go:f:condition:1", Interfaces: []string{"InstancesV2"}, What: "x == 1"},
	{ID: "a.go:f:error:2", Interfaces: []string{"InstancesV2", "Routes"}, What: "err"},
	{ID: "b.go:g:field:3", Interfaces: []string{"LoadBalancer"}, What: "Name: name"},
	{ID: "b.go:g:field:4", Interfaces: []string{"LoadBalancer"}, What: "Zone: zone"},
}

func TestChooseGenerated(t *testing.T) {
	all, err := generatedOptions{}.choose(someMutants, nil)
	require.NoError(t, err)
	assert.Equal(t, someMutants, all)
	some, err := generatedOptions{}.choose(someMutants, []string{"a.go:f:condition:1", "b.go:*"})
	require.NoError(t, err)
	assert.Len(t, some, 3)
	_, err = generatedOptions{}.choose(someMutants, []string{"b.go:*", "c.go:*"})
	require.ErrorContains(t, err, `"c.go:*"`)

	sample := generatedOptions{sample: 2, seed: 7}
	first, err := sample.choose(someMutants, nil)
	require.NoError(t, err)
	second, err := sample.choose(someMutants, nil)
	require.NoError(t, err)
	assert.Len(t, first, 2)
	assert.Equal(t, first, second)
}

// Profiles that do not reach a mutant are not run on it, and those about it are run first.
func TestStages(t *testing.T) {
	j := generatedJudge{
		profiles: conformance.Profiles,
		baseline: map[conformance.Profile]baseline{
			conformance.Node:       {Reached: map[string]bool{"a.go:f:error:2": true}},
			conformance.Routing:    {Reached: map[string]bool{"a.go:f:error:2": true}},
			conformance.Resilience: {Reached: map[string]bool{"a.go:f:error:2": true, "b.go:g:field:3": true}},
		},
	}
	assert.Empty(t, j.stages(someMutants[0]))
	assert.Equal(t, [][]conformance.Profile{{conformance.Node, conformance.Routing}, {conformance.Resilience}},
		j.stages(someMutants[1]))
	assert.Equal(t, [][]conformance.Profile{{conformance.Resilience}}, j.stages(someMutants[2]))
}

// What was judged is read again, also after a line that was cut short; the last word on a mutant counts.
func TestResultsAreKept(t *testing.T) {
	name := filepath.Join(t.TempDir(), "kept", "results.jsonl")
	f, err := openResults(name)
	require.NoError(t, err)
	assert.Empty(t, f.last)
	one, two := result{ID: "one", Result: resultSurvived}, result{ID: "two", Result: resultCaught, By: "lb-created"}
	require.NoError(t, f.add(one))
	require.NoError(t, f.close())
	cut, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = cut.WriteString("\n" + `{"id":"thr`)
	require.NoError(t, err)
	require.NoError(t, cut.Close())

	f, err = openResults(name)
	require.NoError(t, err)
	assert.Equal(t, map[string]result{"one": one}, f.last)
	one.Result = resultCaught
	require.NoError(t, f.add(two))
	require.NoError(t, f.add(one))
	require.NoError(t, f.close())
	f, err = openResults(name)
	require.NoError(t, err)
	assert.Equal(t, map[string]result{"one": one, "two": two}, f.last)
	require.NoError(t, f.close())
}

// A survivor that nobody has explained is a problem, and so is an explanation of what is caught.
func TestSummarize(t *testing.T) {
	results := map[string]result{
		"a.go:f:condition:1": {Result: resultCaught, By: "node-provider-id"},
		"a.go:f:error:2":     {Result: resultSurvived},
		"b.go:g:field:3":     {Result: resultUnreached},
	}
	summary := func(e mutants.Equivalents) (string, []string) {
		var out strings.Builder
		var problems []string
		for _, err := range summarize(&out, &mutation.Set{Mutants: someMutants}, someMutants, results, e) {
			problems = append(problems, err.Error())
		}
		return out.String(), problems
	}
	out, problems := summary(nil)
	assert.Contains(t, out, "1 caught, 1 survived, 1 not reached by any test, 0 explained as equivalent, 1 not judged")
	require.Len(t, problems, 2)
	assert.Contains(t, problems[0], "survived a.go:f:error:2")
	assert.Contains(t, problems[1], "not reached b.go:g:field:3")

	out, problems = summary(mutants.Equivalents{"*:error:*": "why", "b.go:*": "why"})
	assert.Contains(t, out, "1 caught, 0 survived, 0 not reached by any test, 3 explained as equivalent, 0 not judged")
	assert.Empty(t, problems)

	_, problems = summary(mutants.Equivalents{"*": "why"})
	assert.Equal(t, []string{"a.go:f:condition:1 is declared equivalent, and node-provider-id catches it"}, problems)
}

func TestFirstFailure(t *testing.T) {
	report := &conformance.Report{Tests: []conformance.TestReport{
		{ID: "one", Required: true, Result: conformance.Passed}, {ID: "two", Result: conformance.Failed},
	}}
	assert.Empty(t, firstFailure(report))
	report.Crashes = []string{"panic"}
	assert.Equal(t, "a crash", firstFailure(report))
	report.Tests = append(report.Tests, conformance.TestReport{ID: "three", Required: true, Result: conformance.Failed})
	assert.Equal(t, "three", firstFailure(report))
}
