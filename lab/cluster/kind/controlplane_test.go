package kind

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/build"
)

var update = flag.Bool("update", false, "write the golden files anew")

// assertGolden compares with a file in testdata.
func assertGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), got, "after a change that is meant: go test ./lab/cluster/kind -update")
}

// What kind is told, on each sort of machine.
func TestConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		podNetwork string
		v1, cut    bool
	}{
		"routes":            {podNetwork: Routes},
		"routes-old-cut-vm": {podNetwork: Routes, v1: true, cut: true},
		"kindnet":           {podNetwork: Kindnet},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, "exit 1")
			c.lab.Kind.PodNetwork = tc.podNetwork
			cfg, err := c.configFor(tc.v1, tc.cut)
			require.NoError(t, err)
			told, err := yaml.Marshal(cfg)
			require.NoError(t, err)
			assertGolden(t, "config-"+name+".yaml", strings.ReplaceAll(string(told), c.lab.Path(), "LAB"))
			template, err := os.ReadFile(c.lab.Path("cni.template"))
			if tc.podNetwork == Kindnet {
				assert.ErrorIs(t, err, os.ErrNotExist)
				return
			}
			require.NoError(t, err)
			// As containerd renders it, it is JSON.
			var cni map[string]any
			require.NoError(t, yaml.UnmarshalStrict(
				[]byte(strings.ReplaceAll(string(template), "{{.PodCIDR}}", "10.244.1.0/24")), &cni,
			))
			assert.Len(t, cni["plugins"], 2)
		})
	}
}

func TestCgroupVersion(t *testing.T) {
	for said, want := range map[string]bool{"1": true, "v1": true, "2": false, "v2": false} {
		v1, err := newCluster(t, "echo "+said).cgroupV1(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, v1, said)
	}
	_, err := newCluster(t, isDown).clusterConfig(t.Context())
	assert.Error(t, err)
}

// The image's name says what is in it.
func TestBuiltImageIsOfTheVersionThatIsPinned(t *testing.T) {
	version, err := build.Required("../../kube", "k8s.io/kubernetes")
	require.NoError(t, err)
	assert.Equal(t, "ccmlab/node:"+version, BuiltImage)
	minor := version[:strings.LastIndex(version, ".")+1]
	assert.True(t, strings.HasPrefix(StockImage, "kindest/node:"+minor), "%s is not of %s", StockImage, minor)
}
