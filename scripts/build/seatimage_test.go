package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/image"
)

// A seat's image has Debian's users as well as the lab's.
func TestSeatSpec(t *testing.T) {
	lab := filepath.Join(t.TempDir(), "lab")
	require.NoError(t, os.WriteFile(lab, []byte("lab"), 0o600))
	programs := map[string]string{"usr/local/bin/lab": lab}
	tree := image.Tree{}
	require.NoError(t, tree.Text("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n", 0o644))
	require.NoError(t, tree.Text("var/log/dpkg.log", "", 0o644))
	parts := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(parts, "own", "go", "bin"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(parts, "own", "go", "bin", "go"), nil, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(parts, "own", "go.mod"), nil, 0o644))
	spec, err := seatSpec(tree, parts, programs)
	require.NoError(t, err)
	assert.EqualValues(t, 0o755, spec.Tree["usr/local/bin/own/go/bin/go"].Header.Mode)
	assert.EqualValues(t, 0o644, spec.Tree["usr/local/bin/own/go.mod"].Header.Mode)
	assert.Equal(t, "65532:65532", spec.User)
	assert.Contains(t, spec.Env, "CCMLAB_HOME=/home/lab")
	assert.NotContains(t, spec.Tree, "var/log/dpkg.log")
	passwd, err := spec.Tree.Read("etc/passwd")
	require.NoError(t, err)
	assert.Equal(t, "root:x:0:0:root:/root:/bin/bash\nlab:x:65532:65532::/home/lab:/bin/bash\n", string(passwd))

	spec, err = labSpec(programs)
	require.NoError(t, err)
	passwd, err = spec.Tree.Read("etc/passwd")
	require.NoError(t, err)
	assert.Equal(t, "lab:x:65532:65532::/home/lab:/\n", string(passwd))
	assert.Contains(
		t, spec.Env, "KUBECONFIG=/home/lab/lab/kubeconfig/operator.yaml",
		"a lab alone is the one that kubectl is about",
	)
	assert.EqualValues(t, 0o755, spec.Tree["usr/local/bin/lab"].Header.Mode)
}
