package main

import (
	"archive/tar"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/image"
)

// smallRoot is a root file system with a few files.
func smallRoot(t *testing.T) image.Tree {
	t.Helper()
	tree := image.Tree{}
	for name, text := range map[string]string{
		"etc/systemd/journald.conf": "[Journal]\n",
		"usr/lib/systemd/systemd":   "", "dev/null": "", "var/log/dpkg.log": "",
		"usr/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service":     "",
		"usr/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup-dev.service": "",
		"etc/systemd/system/timers.target.wants/apt-daily.timer":                         "",
	} {
		require.NoError(t, tree.Text(name, text, 0o644))
	}
	for _, dir := range []string{"bin", "sbin", "lib"} {
		require.NoError(t, tree.Link(dir, "usr/"+dir))
	}
	return tree
}

func TestAddKind(t *testing.T) {
	tree := smallRoot(t)
	require.NoError(t, removeBootUnits(tree))
	require.NoError(t, addKind(t.Context(), tree, "v1.2.3"))
	version, err := tree.Read("kind/version")
	require.NoError(t, err)
	assert.Equal(t, "v1.2.3", string(version))
	journald, err := tree.Read("etc/systemd/journald.conf")
	require.NoError(t, err)
	assert.Equal(t, "[Journal]\nReadKMsg=no\n", string(journald))
	for name, mode := range map[string]int64{
		"usr/local/bin/entrypoint": 0o755, "kind/bin/mount-product-files.sh": 0o755, "kind/bin": 0o755,
		"etc/containerd/config.toml": 0o644, "kind/manifests/default-storage.yaml": 0o644,
		"kind/manifests/default-cni.yaml": 0o644,
		"usr/share/doc/kind/LICENSE":      0o644,
	} {
		if assert.Contains(t, tree, name) {
			assert.Equal(t, mode, tree[name].Header.Mode, name)
		}
	}
	for _, unit := range []string{"kubelet", "containerd", "undo-mount-hacks"} {
		name := "etc/systemd/system/multi-user.target.wants/" + unit + ".service"
		require.Contains(t, tree, name)
		assert.Equal(t, byte(tar.TypeSymlink), tree[name].Header.Typeflag)
		real, err := tree.Real(name)
		require.NoError(t, err)
		assert.Contains(t, tree, real, "the unit that is switched on is there")
	}
	assert.Equal(t, "/usr/lib/systemd/systemd", tree["usr/sbin/init"].Header.Linkname)
	assert.Contains(t, tree, "usr/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup-dev.service")
	for _, gone := range []string{
		"dev/null", "var/log/dpkg.log", "etc/systemd/system/timers.target.wants/apt-daily.timer",
		"usr/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
	} {
		assert.NotContains(t, tree, gone)
	}
}

func TestPacketFilterNeedsItsPlugins(t *testing.T) {
	require.ErrorContains(t, addPacketFilter(image.Tree{}, smallRoot(t)), "plug-ins of iptables")
}

func TestHashInputs(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	write := func(dir, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".stamp"), []byte(text), 0o600))
	}
	_, err := hashInputs([]string{one})
	require.ErrorIs(t, err, os.ErrNotExist)
	write(one, "ab")
	write(two, "c")
	before, err := hashInputs([]string{one, two})
	require.NoError(t, err)
	write(one, "a")
	write(two, "bc")
	after, err := hashInputs([]string{one, two})
	require.NoError(t, err)
	assert.NotEqual(t, before, after)
}
