package lab

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

// ofCCM is a cluster that has nothing but a CCM.
type ofCCM struct {
	cluster.Cluster
	command cluster.CCMCommand
	traits  cluster.Traits
}

func (c ofCCM) Kubeconfig() string { return "/k" }
func (c ofCCM) Cloud() cluster.Cloud {
	return cluster.Cloud{URL: "https://127.30.0.1:8470", Dialects: map[string]string{"nimbus": "https://127.30.0.1:8479"}}
}
func (c ofCCM) CCMCommand() cluster.CCMCommand                          { return c.command }
func (c ofCCM) Traits() cluster.Traits                                  { return c.traits }
func (c ofCCM) UseCCM(*cluster.Program) error                           { return nil }
func (c ofCCM) Components(context.Context) ([]cluster.Component, error) { return nil, nil }

func TestCCMCommand(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "cloud-config.yaml")
	command := cluster.CCMCommand{Path: "/bin/ccm", Args: []string{"--secure-port=1"}, CloudConfig: config}
	of := func(kind string, traits cluster.Traits) *Lab {
		s := state.InDir(dir, "lab")
		s.Cluster = kind
		return &Lab{State: s, Host: process.Host{Lab: dir}, Cluster: ofCCM{command: command, traits: traits}}
	}
	_, err := of(cluster.KindEmbedded, cluster.Traits{}).CCMCommand()
	require.ErrorContains(t, err, "`lab ccm start --name lab` makes one")
	require.NoError(t, os.WriteFile(config, nil, 0o600))
	words, err := of(cluster.KindEmbedded, cluster.Traits{}).CCMCommand()
	require.NoError(t, err)
	assert.Equal(t, []string{"env", "-i"}, words[:2])
	assert.Equal(
		t, []string{"CCMLAB_STATE=" + dir, "CCMLAB_COMPONENT=ccm-by-hand", "/bin/ccm", "--secure-port=1"},
		words[len(words)-4:],
	)
	_, err = of(cluster.KindKind, cluster.Traits{InContainers: true}).CCMCommand()
	require.ErrorContains(t, err, "is a Deployment in its cluster")
	_, err = of(cluster.KindEmbedded, cluster.Traits{NoCloudProvider: true}).CCMCommand()
	require.ErrorContains(t, err, "without an external cloud provider")

	other := &cluster.Program{Path: "/bin/other", Args: []string{"--v=1"}, Env: []string{"REALM=x"}}
	require.NoError(t, local.Site{Lab: state.InDir(dir, "lab")}.UseCCM(other))
	words, err = of(cluster.KindKind, cluster.Traits{InContainers: true}).CCMCommand()
	require.NoError(t, err, "it is a process on this machine, whatever the cluster is")
	assert.Subset(t, words, []string{"REALM=x", "/bin/other", "--v=1"})
	assert.NotContains(t, words, "/bin/ccm")
}

// It is shown while it runs, and no lab is incomplete without one.
func TestManualCCMIsShown(t *testing.T) {
	l := &Lab{State: &state.Lab{Name: "lab"}, Host: process.Host{Lab: t.TempDir()}, Cluster: ofCCM{}}
	shown := func() map[string]string {
		all, err := l.Components(t.Context())
		require.NoError(t, err)
		states := map[string]string{}
		for _, c := range all {
			states[c.Name] = c.State
		}
		return states
	}
	assert.NotContains(t, shown(), ComponentManualCCM)
	p, err := l.Host.Start(process.Spec{
		Component: ComponentManualCCM, Path: "/bin/sleep", Args: []string{"1000"},
		LogFile: filepath.Join(l.Host.Lab, "log"),
	})
	require.NoError(t, err)
	defer func() { assert.NoError(t, process.Stop(t.Context(), 0, p)) }()
	assert.Equal(t, cluster.StateRunning, shown()[ComponentManualCCM])
}

// A program's configuration is a file of its own beside that of the lab's own CCM, for its owner alone.
func TestFillProgram(t *testing.T) {
	dir := t.TempDir()
	own := cluster.CCMCommand{CloudConfig: filepath.Join(dir, "cloud-config.yaml")}
	l := &Lab{State: state.InDir(dir, "lab"), Cluster: ofCCM{command: own}}
	p := &cluster.Program{Templates: &cluster.Templates{
		Args: []string{"--cloud-config={{.CloudConfig}}"}, Env: []string{"REALM=x@{{.DialectHost}}"},
		Config: "tenancy: {{.Project}}\n", Dialect: "nimbus",
	}}
	require.NoError(t, l.FillProgram(t.Context(), p))
	config := filepath.Join(dir, "ccm-nimbus-config")
	assert.Equal(t, []string{"--cloud-config=" + config}, p.Args)
	assert.Equal(t, []string{"REALM=x@127.30.0.1:8479"}, p.Env)
	content, err := os.ReadFile(config)
	require.NoError(t, err)
	assert.Equal(t, "tenancy: lab\n", string(content))
	info, err := os.Stat(config)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())

	p.Templates.Config = ""
	require.NoError(t, l.FillProgram(t.Context(), p))
	assert.Equal(t, []string{"--cloud-config=" + own.CloudConfig}, p.Args)
}

// What a preset asked for Nodes goes with its program. What a person asked for stays.
func TestProviderIDsGoWithTheirProgram(t *testing.T) {
	const nimbus = "{{.Identities.nimbus}}"
	preset := &cluster.Program{Path: "/bin/nimbus", ProviderIDs: nimbus}
	for name, tc := range map[string]struct {
		have string
		used *cluster.Program
		next *cluster.Program
		want string
	}{
		"the lab's own next":        {nimbus, preset, nil, ""},
		"another program next":      {nimbus, preset, &cluster.Program{Path: "/bin/other"}, ""},
		"the same again":            {nimbus, preset, preset, nimbus},
		"a person's":                {"mine://{{.ID}}", preset, nil, "mine://{{.ID}}"},
		"a person's and no preset":  {nimbus, &cluster.Program{Path: "/bin/other"}, nil, nimbus},
		"the lab's own, and no use": {nimbus, nil, nil, nimbus},
	} {
		l := &Lab{State: state.InDir(t.TempDir(), "lab"), Cluster: ofCCM{}}
		l.State.KubeletProviderIDs = tc.have
		require.NoError(t, local.Site{Lab: l.State}.UseCCM(tc.used), name)
		require.NoError(t, l.UseCCM(t.Context(), tc.next), name)
		assert.Equal(t, tc.want, l.State.KubeletProviderIDs, name)
	}
}
