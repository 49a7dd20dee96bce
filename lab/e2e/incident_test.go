package e2e

// An incident as its users play it: the command, a real cluster, a real CCM.

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/suite"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

func TestIncident(t *testing.T) {
	f := newFixture(t)
	name := f.name + "-incident"
	cmd := f.command("lab", "incident", "run", "lost-create", "--name", name, "-o", "json")
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	assert.NoDirExists(t, filepath.Join(f.home, name))
	var a suite.IncidentReport
	require.NoError(t, json.Unmarshal(out, &a))

	assert.True(t, a.Behaved)
	assert.Equal(t, "lost-create", a.Incident)
	assert.Equal(t, conformance.Resilience, a.Profile)
	assert.Empty(t, a.Reasons)
	i := slices.IndexFunc(a.Did.Calls, func(d suite.OperationCalls) bool { return d.Operation == "createLoadBalancer" })
	require.GreaterOrEqual(t, i, 0)
	assert.Equal(
		t, suite.OperationCalls{Operation: "createLoadBalancer", Calls: 1, Met: 1, Failed: 1}, a.Did.Calls[i],
		"it has not created again",
	)

	// The call that is never answered counts from when that was clear.
	appear(
		t, a.Timeline, "the incident begins", "injecting fault lost on balancers", "call createLoadBalancer",
		"balancer gone", "the incident is over",
	)
	appear(t, a.Timeline, "injecting fault lost on balancers", "service deleting", "service deleted")
	appear(t, a.Timeline, "injecting fault lost on balancers", "lifting fault lost on balancers", "stopping the CCM")
	assert.Less(t, a.Timeline[0].Seconds, 1.0, "the clock begins with the incident")
}

// appear requires that these are told, in this order. What a name of its own has
// is called by its kind.
func appear(t *testing.T, entries []timeline.Entry, order ...string) {
	for _, want := range order {
		i := slices.IndexFunc(entries, func(e timeline.Entry) bool {
			kind, _, _ := strings.Cut(e.Subject, "/")
			switch {
			case e.Call != nil:
				kind = "call"
			case kind == "suite":
				return want == e.Detail
			}
			return want == kind+" "+e.What
		})
		require.GreaterOrEqual(t, i, 0, "%s is not where it belongs", want)
		entries = entries[i+1:]
	}
}
