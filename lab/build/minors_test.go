package build

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A minor's control plane is complete, has that minor's version, and has no kubelet.
func TestMinors(t *testing.T) {
	minors, err := Minors(filepath.Join("..", ".."))
	require.NoError(t, err)
	require.NotEmpty(t, minors)
	newest, err := Kubernetes(filepath.Join("..", ".."))
	require.NoError(t, err)
	for name, m := range minors {
		assert.Contains(t, m.Flags[len(m.Flags)-1], "gitVersion="+name+".")
		assert.NotEqual(t, newest.Flags, m.Flags, "lab/kube is of that minor already")
		assert.Len(t, m.Mains, 3)
		assert.NotContains(t, m.Mains, "./hollow-node")
	}
	assert.Equal(t, []string{"minor"}, newest.Without, "a change of theirs builds nothing anew here")
}
