package lifecycle

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/state"
)

// A lab that is there is taken as it is, or not at all.
func TestLabThatIsThereIsNotChanged(t *testing.T) {
	embedded := state.Lab{Name: "lab", Profile: "fast"} // Recorded before there were others.
	kind := state.Lab{
		Name: "lab", Cluster: cluster.KindKind, Profile: "fast",
		Kind: &state.Kind{Image: "image:1", PodNetwork: "routes"},
	}
	external := state.Lab{
		Name: "lab", Cluster: cluster.KindExternal, Profile: "fast",
		External: &state.External{Kubeconfig: "/mine.yaml"},
	}
	bundled := state.Lab{Name: "lab", Cluster: cluster.KindEmbedded, Profile: "fast", Bin: "/bundle"}
	for name, tc := range map[string]struct {
		have state.Lab
		want Options
		err  string
	}{
		"nothing asked":      {embedded, Options{}, ""},
		"the same":           {embedded, Options{Cluster: cluster.KindEmbedded, Profile: "fast", Nodes: 7, WithoutCCM: true}, ""},
		"another cluster":    {embedded, Options{Cluster: cluster.KindKind}, "has cluster embedded and cannot take kind"},
		"another profile":    {embedded, Options{Profile: "instant"}, "has profile fast and cannot take instant"},
		"another provider":   {embedded, Options{CloudProvider: "none"}, "has cloud provider external and cannot take none"},
		"an image":           {embedded, Options{NodeImage: "image:1"}, "has node image none and cannot take image:1"},
		"kind, the same":     {kind, Options{Cluster: cluster.KindKind, NodeImage: "image:1", PodNetwork: "routes"}, ""},
		"another image":      {kind, Options{NodeImage: "image:2"}, "has node image image:1 and cannot take image:2"},
		"another network":    {kind, Options{PodNetwork: "kindnet"}, "has pod network routes and cannot take kindnet"},
		"external, the same": {external, Options{Kubeconfig: "/x/../mine.yaml"}, ""},
		"another kubeconfig": {
			external, Options{Kubeconfig: "/theirs.yaml"}, "has kubeconfig /mine.yaml and cannot take /theirs.yaml",
		},
		"the same bundle": {bundled, Options{bin: "/bundle"}, ""},
		"from a bundle now": {
			embedded, Options{bin: "/bundle"}, "has programs of a bundle none and cannot take /bundle",
		},
		"no bundle given": {bundled, Options{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkUnchanged(&tc.have, tc.want)
			if tc.err == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, tc.err)
			assert.ErrorContains(t, err, "`lab down --name lab` first")
		})
	}
}

// A record that this version cannot use says so; it does not panic.
func TestRecordsOfNoUse(t *testing.T) {
	for kind, want := range map[string]string{
		"nebula": "which this version does not know", cluster.KindKind: "the record of lab \"lab\" is damaged",
		cluster.KindExternal: "the record of lab \"lab\" is damaged",
	} {
		t.Setenv("CCMLAB_HOME", t.TempDir())
		t.Setenv("PATH", t.TempDir()) // No container engine is asked.
		st, err := state.Create("lab")
		require.NoError(t, err)
		st.Cluster = kind
		require.NoError(t, st.Save())
		st.Unlock()
		_, err = lab.Open("lab")
		assert.ErrorContains(t, err, want)
		ended, err := Down(t.Context(), "lab")
		require.NoError(t, err)
		assert.Zero(t, ended)
		assert.NoDirExists(t, st.Path())
		_, err = Down(t.Context(), "lab")
		assert.ErrorIs(t, err, state.ErrNone)
	}
}
