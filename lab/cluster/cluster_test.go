package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/cluster"
)

func TestProviderIDsOfAnyCCM(t *testing.T) {
	i := api.Instance{ID: "i-01", Identities: map[string]string{
		"hcloud": "hcloud://42", "oci": "ocid1.instance.fc1.neb.00016",
	}}
	for providerID, want := range map[string]struct{ ours, its bool }{
		"":                 {false, false},
		"fakecloud://i-01": {true, true},
		"fakecloud://i-02": {true, false},
		"hcloud://42":      {true, true},
		"hcloud://43":      {true, false},
		"hcloud://none":    {false, false},
		// Oracle's has none.
		"ocid1.instance.fc1.neb.00016": {true, true},
		"ocid1.instance.fc1.neb.00017": {true, false},
		"ocid1.instance.oc1.phx.abc":   {false, false},
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

func TestCutProviderID(t *testing.T) {
	for providerID, want := range map[string][2]string{
		"": {"", ""}, "i-1": {"", "i-1"}, "hcloud://42": {"hcloud://", "42"}, "nebula:///a.b/i-1": {"nebula://", "/a.b/i-1"},
		"ocid1.instance.fc1.neb.00016": {"ocid1.instance.fc1.neb.", "00016"},
	} {
		prefix, id := cluster.CutProviderID(providerID)
		assert.Equal(t, want, [2]string{prefix, id})
	}
}
