package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/build"
)

// The shared programs are links into bin/kube, also where there was a file before.
func TestLinkSharedPrograms(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "kube-v1.0")
	require.NoError(t, os.Mkdir(bin, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "etcd"), []byte("old"), 0o600))
	for range 2 {
		require.NoError(t, linkSharedPrograms(bin))
		for _, program := range []string{"etcd", "kubectl"} {
			to, err := os.Readlink(filepath.Join(bin, program))
			require.NoError(t, err)
			assert.Equal(t, filepath.Join("..", "kube", program), to)
		}
	}
}

// A report about another version of Kubernetes is an error.
func TestCheckVersion(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(
		filepath.Join(dir, "go.mod"), []byte("module example\n\nrequire k8s.io/kubernetes v1.0.7\n"), 0o600,
	))
	m, report := build.Module{Dir: dir}, filepath.Join(dir, "report.yaml")
	require.ErrorIs(t, checkVersion(m, report), os.ErrNotExist)
	for version, want := range map[string]string{"v1.0.7": "", "v1.1.0": "ran on Kubernetes v1.1.0, want v1.0.7"} {
		require.NoError(t, os.WriteFile(report, []byte("cluster:\n  name: embedded\n  version: "+version+"\n"), 0o600))
		if err := checkVersion(m, report); want == "" {
			assert.NoError(t, err)
		} else {
			assert.ErrorContains(t, err, want)
		}
	}
}
