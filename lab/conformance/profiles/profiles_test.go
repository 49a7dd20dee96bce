package profiles

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// upstreamSource is what a core requirement rests on: a file of upstream's, an enhancement proposal,
// an issue, or a page of the documentation.
var upstreamSource = regexp.MustCompile(
	`https://|k8s\.io/[a-z-]+ [a-z]+[a-z/_.]*|KEP-\d+|kubernetes/[a-z-]+#\d+|kubernetes\.io: [A-Z]`,
)

// Core is what upstream's documentation or code requires. What has no such source is extended.
func TestCoreTestsCiteUpstream(t *testing.T) {
	for _, test := range All() {
		if test.Level == conformance.Core {
			assert.Regexp(t, upstreamSource, test.Source, test.ID)
		}
	}
}

// A driver that is a program names features: a name that no list has would be refused as a mistake.
func TestEveryNeededFeatureIsListed(t *testing.T) {
	all := append(conformance.AllFeatures(),
		conformance.FeatureReplicas, conformance.FeatureRenameCluster, conformance.FeatureFlags, conformance.FeatureHealthAddress,
		conformance.FeatureLocalAPIServer)
	for _, test := range All() {
		for _, f := range test.Needs {
			assert.Contains(t, all, f, test.ID)
		}
	}
}

// An incident is shown to people, and they are to be able to read of the real one.
func TestIncidentsOfNodesAreTold(t *testing.T) {
	for _, test := range slices.Concat(resilienceNodeTests, resilienceClusterTests) {
		if assert.NotNil(t, test.Incident, test.ID) {
			assert.Equal(t, "resilience-"+test.Incident.Name, test.ID)
			assert.NotEmpty(t, test.Incident.Known, test.ID)
			for _, known := range test.Incident.Known {
				assert.True(t, strings.HasPrefix(known, "https://"), known)
			}
		}
	}
}
