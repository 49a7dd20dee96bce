package e2e

// That another program can be the lab's CCM.

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAnotherProgramIsTheCCM(t *testing.T) {
	f := newFixture(t)
	data, err := os.ReadFile(filepath.Join(f.bin, "ccm"))
	require.NoError(t, err)
	other := filepath.Join(t.TempDir(), "other-ccm")
	require.NoError(t, os.WriteFile(other, data, 0o700)) //nolint:gosec // It is a program.
	up := f.lab(
		"up", "--nodes", "1", "--profile", "instant", "--without-ccm", "--ccm", other,
		"--kubelet-provider-ids", "fakecloud://{{.ID}}",
	)
	assert.Contains(t, up, other+"; --without-ccm leaves it stopped")
	node := f.status().Nodes[0]
	assert.True(t, node.Tainted, "no CCM has run")
	assert.Regexp(t, `^fakecloud://i-`, node.ProviderID, "the kubelet itself registered with it")
	runs := func() string {
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", f.component("ccm").PID))
		require.NoError(t, err)
		return path
	}

	assert.Contains(t, f.lab("ccm", "use", "--own"), "none runs before")
	f.lab("ccm", "use", other)
	assert.Nil(t, f.component("ccm"), "one that was not wanted is not for that")
	f.lab("ccm", "start")
	assert.Equal(t, other, runs())
	f.explains("node/node-1", "ready", "Node node-1 is ready.", "")

	out, err := f.try("ccm", "use", filepath.Join(f.bin, "none"))
	require.Error(t, err)
	assert.Contains(t, out, "no such file")
	out, err = f.try("ccm", "use", other, "--", "--flag={{.Nonsense}}")
	require.Error(t, err)
	assert.Contains(t, out, "the fields are .Kubeconfig")
	assert.Equal(t, other, runs(), "what is refused changes nothing")

	f.lab("ccm", "use", "--own")
	assert.Equal(t, filepath.Join(f.bin, "ccm"), runs())
}
