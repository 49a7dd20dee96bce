package local

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/cluster"
)

func TestMissingBinaries(t *testing.T) {
	dir := t.TempDir()
	own, kube := []string{"fakecloud", "ccm"}, []string{"etcd", "kubectl"}
	bin := cluster.Binaries{Dir: dir, Kube: dir}
	assert.Len(t, bin.Missing(own, kube), len(own)+len(kube))
	require.NoError(t, os.WriteFile(dir+"/etcd", nil, 0o755))
	assert.NotContains(t, bin.Missing(own, kube), dir+"/etcd")
	require.NoError(t, os.WriteFile(dir+"/ccm", nil, 0o644))
	assert.Contains(t, bin.Missing(own, kube), dir+"/ccm", "no program, as nobody may run it")
	err := bin.Need(own, kube)
	assert.ErrorContains(t, err, "`make build` builds them")
	assert.ErrorContains(t, err, dir+"/kubectl;")
	assert.ErrorContains(t, err, dir+"/ccm (there, but it may not be executed: chmod +x)")
	assert.NoError(t, bin.Need(nil, []string{"etcd"}))
}

// Upstream's programs are where LAB_KUBE_BIN says, else where the lab has them
// on record, else beside our own.
func TestFindBinaries(t *testing.T) {
	t.Setenv("LAB_KUBE_BIN", "")
	bin, err := cluster.FindBinaries("/bundle", "")
	require.NoError(t, err)
	assert.Equal(t, cluster.Binaries{Dir: "/bundle", Kube: "/bundle/kube"}, bin)
	assert.Equal(t, "/bundle/fakecloud", bin.Program("fakecloud"))
	assert.Equal(t, "/bundle/kube/etcd", bin.Program("etcd"))
	bin, err = cluster.FindBinaries("/bundle", "/recorded")
	require.NoError(t, err)
	assert.Equal(t, "/recorded", bin.Kube)
	t.Setenv("LAB_KUBE_BIN", "/elsewhere")
	bin, err = cluster.FindBinaries("/bundle", "/recorded")
	require.NoError(t, err)
	assert.Equal(t, "/elsewhere", bin.Kube)
}
