package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/dialects"
)

func TestKubeletProviderIDs(t *testing.T) {
	machine := cluster.Machine{ID: "i-1", Name: "node-1", Address: "127.30.16.1"}
	for text, want := range map[string]string{
		"":                    "",
		"fakecloud://{{.ID}}": "fakecloud://i-1",
		"mine://{{slice .Name 0 1}}-c2-1/{{.Address}}": "mine://n-c2-1/127.30.16.1",
		"{{.Identities.hcloud}}":                       "hcloud://42",
	} {
		require.NoError(t, cluster.CheckProviderIDs(text))
		id, err := cluster.KubeletProviderID(text, machine, map[string]string{"hcloud": "hcloud://42"})
		require.NoError(t, err)
		assert.Equal(t, want, id)
	}
	_, err := cluster.KubeletProviderID("{{.Identities.hcloud}}", machine, nil)
	require.ErrorContains(t, err, "no entry for key", "a cloud of an earlier version")
	for _, name := range dialects.Names() {
		preset, err := dialects.Named(name)
		require.NoError(t, err)
		assert.NoError(t, cluster.CheckProviderIDs(preset.KubeletProviderIDs), name)
	}
	for text, want := range map[string]string{
		"{{.InstanceID}}": "can't evaluate field InstanceID", "{{": "unclosed action", "mine://one": "two instances get the same",
		"{{.Identities.nimbus}}": "no entry for key",
	} {
		assert.ErrorContains(t, cluster.CheckProviderIDs(text), want)
	}
}
