package profiles

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

func TestFoundations(t *testing.T) {
	listed := map[string]conformance.Test{}
	for _, test := range All() {
		listed[test.ID] = test
	}
	for _, f := range foundations {
		assert.Contains(t, listed, f.on)
		for _, pattern := range f.tests {
			assert.True(t, slices.ContainsFunc(All(), func(test conformance.Test) bool {
				return matchesAny([]string{pattern}, test.ID)
			}), "%s matches no test", pattern)
		}
	}
	// Those that no other test builds on, and that can be told by themselves. Any other one builds on
	// something: a CCM that does nothing is to be told quickly.
	for _, test := range All() {
		standsAlone := slices.Contains([]string{
			initialized, balancerMade, saysWhyAtAll, "node-provided-ip-mismatch-says-why", "node-known-by-provider-id",
			"node-late-instance-at-once", // It takes more than a minute: begun late, the run would wait for it.
		}, test.ID)
		assert.Equal(t, standsAlone, len(test.BuildsOn) == 0,
			"%s builds on %v: what does it wait for on its way? foundations.go is to say it", test.ID, test.BuildsOn)
		for _, id := range test.BuildsOn {
			assert.Contains(t, listed, id, "what %s builds on", test.ID)
		}
	}
}

// The suite's own checks, which come before anything is run.
func TestTablesAreValid(t *testing.T) {
	_, err := conformance.Run(t.Context(), conformance.Options{
		Cluster: &rest.Config{Host: "http://127.0.0.1:1"}, Tests: All(),
	})
	require.ErrorContains(t, err, "asking the cluster for its version")
}

// A foundation runs beside others, in little time: all that builds on it waits for it.
func TestFoundationsAreQuick(t *testing.T) {
	for _, test := range All() {
		if !slices.ContainsFunc(foundations, func(f struct {
			on    string
			tests []string
		}) bool {
			return f.on == test.ID
		}) {
			continue
		}
		assert.LessOrEqual(t, test.Bound, conformance.DefaultBound, test.ID)
		assert.True(t, !test.Alone || test.ID == standbyActs || test.ID == targetsFollow, "%s runs alone", test.ID)
	}
}
