package cli

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/suite"
)

func TestIncidentList(t *testing.T) {
	table, err := executeCommand(t, "incident", "list")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(table), "\n")
	assert.Regexp(t, `^NAME +TITLE +PROFILE +LEVEL$`, lines[0])
	all := suite.Incidents()
	require.Len(t, lines, len(all)+1)
	for i, test := range all {
		assert.Regexp(t, `^`+test.Incident.Name+` +\S.* +`+string(test.Profile)+` +`+string(test.Level)+`$`, lines[i+1])
	}
	for format, decode := range map[string]func([]byte, any) error{
		"json": json.Unmarshal,
		"yaml": func(data []byte, v any) error { return yaml.Unmarshal(data, v) },
	} {
		out, err := executeCommand(t, "incident", "list", "-o", format)
		require.NoError(t, err)
		var list []listedIncident
		require.NoError(t, decode([]byte(out), &list))
		require.Len(t, list, len(all))
		for i, test := range all {
			want := *test.Incident
			got := list[i]
			assert.Equal(t, want, conformance.Incident{
				Name: got.Name, Title: got.Title, Happened: got.Happened, Danger: got.Danger, Watch: got.Watch,
				Right: got.Right, Known: got.Known,
			})
			assert.Equal(t, test.ID, got.Test)
		}
	}
}

// The texts of an incident are whole sentences, and its sources are links.
func TestIncidentTextsAreSentences(t *testing.T) {
	for _, test := range suite.Incidents() {
		i := test.Incident
		assert.Regexp(t, `^[a-z0-9-]+$`, i.Name)
		assert.LessOrEqual(t, len(i.Title), 70, i.Name)
		assert.NotRegexp(t, `\.$`, i.Title)
		for _, text := range []string{i.Happened, i.Danger, i.Watch, i.Right} {
			assert.Regexp(t, `^[A-Z].*\.$`, text, i.Name)
		}
		for _, known := range i.Known {
			assert.Regexp(t, `^https://\S+$`, known, i.Name)
		}
	}
}

func TestIncidentUsageErrors(t *testing.T) {
	for want, args := range map[string][]string{
		`no incident "lost-creat"; did you mean lost-create?; ` + "`lab incident list` prints all": {
			"incident", "run", "lost-creat",
		},
		`no incident "earthquake"; ` + "`lab incident list` prints all":                 {"incident", "run", "earthquake"},
		"`lab incident run` wants NAME [flags] [-- CCM-ARGS...], and was given nothing": {"incident", "run"},
		"and was given nothing":                                     {"incident", "run", "--", "lost-create"},
		`was given ["lost-create" "deleted-by-hand"]`:               {"incident", "run", "lost-create", "deleted-by-hand"},
		"`lab incident` has no command \"lst\"; did you mean list?": {"incident", "lst"},
		"--ccm-env, --ccm-config, --ccm-names, --dialect and arguments after -- are for --ccm PATH": {
			"incident", "run", "lost-create", "--", "--v=2",
		},
		"/none: no such file":                           {"incident", "run", "lost-create", "--ccm", "/none"},
		`--claim "quick": no test is about that`:        {"incident", "run", "earthquake", "--claim", "quick"},
		`lab name "No"`:                                 {"incident", "run", "lost-create", "--name", "No"},
		`--output "xml": want one of table, json, yaml`: {"incident", "run", "lost-create", "-o", "xml"},
		"unknown flag: --focus":                         {"incident", "run", "lost-create", "--focus", "x"},
	} {
		_, err := executeCommand(t, args...)
		var usage clikit.UsageError
		require.ErrorAs(t, err, &usage, want)
		assert.ErrorContains(t, err, want)
		assert.Equal(t, exitUsage, exitCode(t.Context(), new(strings.Builder), err))
	}
}

func TestIncidentNamesAreCompleted(t *testing.T) {
	out, err := executeCommand(t, "__complete", "incident", "run", "")
	require.NoError(t, err)
	for _, test := range suite.Incidents() {
		assert.Contains(t, out, test.Incident.Name+"\t"+test.Incident.Title+"\n")
	}
	out, err = executeCommand(t, "__complete", "incident", "run", "lost-create", "")
	require.NoError(t, err)
	assert.NotContains(t, out, "lost-create")
}

func TestFindIncident(t *testing.T) {
	for _, test := range suite.Incidents() {
		f := &conformanceFlags{opts: suite.Options{Name: "lab", Cluster: cluster.KindEmbedded}}
		found, err := f.findIncident(test.Incident.Name, nil)
		require.NoError(t, err)
		assert.Equal(t, test.ID, found.ID)
		assert.True(t, f.opts.Focus.MatchString(test.ID))
	}
}

func TestPrintIncidentStoryAndAccount(t *testing.T) {
	var out strings.Builder
	require.NoError(t, printIncidentStory(&out, conformance.Test{Incident: &conformance.Incident{
		Name: "flood", Title: "The river rises", Happened: "It rains.", Watch: "The cellar.", Right: "It pumps.",
		Danger: "It is wet.",
	}}))
	assert.Equal(
		t, "The river rises (flood)\n\nWhat happens\n  It rains.\n\nWhat to watch\n  The cellar.\n\n", out.String(),
	)

	a := &suite.IncidentReport{
		Incident: "flood", CCM: conformance.Identity{Name: "nebula"}, Seconds: 2.44, Requires: "It is dry.", Behaved: true,
		IncidentFacts: suite.IncidentFacts{
			Test: "resilience-flood", Capability: "pumps", Right: "It pumps.", Danger: "It is wet.",
			Known: []string{"https://example.org/1"},
		},
		Did: suite.CCMActivity{Warnings: 2, Calls: []suite.OperationCalls{
			{Operation: "listPumps", Calls: 3, Met: 2, Failed: 1}, {Operation: "pump", Calls: 1},
		}},
	}
	out.Reset()
	require.NoError(t, printIncidentAccount(&out, a))
	assert.Equal(t, `
nebula behaved in incident flood, which took 2.4 s.

What the CCM did
  listPumps              3 times, met a fault: 2, failed: 1
  pump                   once
  Events of type Warning meanwhile: 2

What is required
  It is dry. (resilience-flood; extended: required of a CCM that claims
  pumps)

What is right
  It pumps.

Why the other is dangerous
  It is wet.

Where it was told of
  https://example.org/1
`, out.String())

	a.Behaved, a.Reasons, a.Did = false, []string{"the cellar\nis wet"}, suite.CCMActivity{Crashes: 1}
	out.Reset()
	require.NoError(t, printIncidentAccount(&out, a))
	for _, want := range []string{
		"nebula did not behave in incident flood", "no call of the cloud was seen", "It ended by itself, times: 1",
		"Where it went wrong\n  the cellar\n  is wet\n",
	} {
		assert.Contains(t, out.String(), want)
	}
	assert.ErrorContains(t, printIncidentAccount(brokenWriter{}, a), "no paper")
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no paper") }
