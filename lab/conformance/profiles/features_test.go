package profiles

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// A driver that is a program names features: a name that no list has would be refused as a mistake.
func TestEveryNeededFeatureIsListed(t *testing.T) {
	all := append(conformance.AllFeatures(),
		conformance.FeatureReplicas, conformance.FeatureRenameCluster, conformance.FeatureFlags)
	for _, test := range All() {
		for _, f := range test.Needs {
			assert.Contains(t, all, f, test.ID)
		}
	}
}
