package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/cluster"
)

func TestProviderIDsOfAnyCCM(t *testing.T) {
	i := api.Instance{ID: "i-01", Identities: map[string]string{"hcloud": "hcloud://42"}}
	for providerID, want := range map[string]struct{ ours, its bool }{
		"":                 {false, false},
		"fakecloud://i-01": {true, true},
		"fakecloud://i-02": {true, false},
		"hcloud://42":      {true, true},
		"hcloud://43":      {true, false},
		"hcloud://none":    {false, false},
		// A CCM whose scheme the lab does not know has the instance's ID in it, too.
		"nebula://i-01":    {false, true},
		"nebula:///a/i-01": {false, true},
		"nebula:///a/i-02": {false, false},
		"nebula:///i-01/a": {false, false},
		"i-01":             {false, false},
	} {
		assert.Equal(t, want.ours, cluster.IsOfThisCloud(providerID), providerID)
		assert.Equal(t, want.its, cluster.IsProviderIDOf(providerID, i), providerID)
	}
}
