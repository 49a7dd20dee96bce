package dialects_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/lab/dialects"
)

func TestEachDialectHasAPreset(t *testing.T) {
	assert.Subset(t, dialects.Names(), identity.Dialects())
	for _, name := range dialects.Names() {
		p, err := dialects.Named(name)
		require.NoError(t, err, name)
		assert.NotEqual(t, p.WithoutAPI, slices.Contains(identity.Dialects(), name), "the cloud speaks %s", name)
		assert.NotEmpty(t, p.Summary, name)
		assert.NotEmpty(t, p.Args, name)
		assert.Len(t, p.Environment(), len(p.Env), name)
	}
	_, err := dialects.Named("nimbus")
	require.ErrorContains(t, err, `no dialect "nimbus": choose brightbox, cloudlycke, hcloud, oci`)
}
