package dialects_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/lab/dialects"
)

func TestEachDialectHasAPreset(t *testing.T) {
	assert.Equal(t, identity.Dialects(), dialects.Names())
	for _, name := range dialects.Names() {
		p, err := dialects.Named(name)
		require.NoError(t, err, name)
		assert.NotEmpty(t, p.Summary, name)
		assert.NotEmpty(t, p.Args, name)
		assert.Len(t, p.Environment(), len(p.Env), name)
	}
	_, err := dialects.Named("nimbus")
	require.ErrorContains(t, err, `no dialect "nimbus": choose brightbox, hcloud`)
}
