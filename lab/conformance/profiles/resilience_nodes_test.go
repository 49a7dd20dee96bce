package profiles

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

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
