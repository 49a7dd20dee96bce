package cli

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"al.essio.dev/pkg/shellescape"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/doctor"
	"github.com/ccmlab/ccmlab/lab/lifecycle"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/status"
)

func TestValidateUp(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	there, err := state.Create("there")
	require.NoError(t, err)
	there.Cluster = cluster.KindKind
	require.NoError(t, there.Save())
	there.Unlock()
	const nodesGiven = true
	for name, tc := range map[string]struct {
		opts  lifecycle.Options
		nodes bool
		want  []string
	}{
		"as is": {lifecycle.Options{}, false, nil},
		"all of kind": {
			lifecycle.Options{Cluster: "kind", NodeImage: "i", PodNetwork: "kindnet", Profile: "instant", Nodes: 1},
			nodesGiven, nil,
		},
		"all of external": {lifecycle.Options{Cluster: "external", Kubeconfig: "f"}, false, nil},
		"no nodes":        {lifecycle.Options{}, nodesGiven, []string{"--nodes 0: want 1 to 100"}},
		"too many nodes":  {lifecycle.Options{Nodes: 101}, nodesGiven, []string{"--nodes 101: want 1 to 100"}},
		"unknown cluster": {
			lifecycle.Options{Cluster: "k3s"}, false, []string{`--cluster "k3s": want one of embedded, kind, external`},
		},
		"unknown profile and network": {
			lifecycle.Options{Cluster: "kind", Profile: "slow", PodNetwork: "cilium"}, false,
			[]string{`--profile "slow"`, `--pod-network "cilium": want one of routes, kindnet`},
		},
		"kind's flags alone": {lifecycle.Options{NodeImage: "i"}, false, []string{"are for --cluster kind"}},
		"kind's flags for another": {
			lifecycle.Options{Cluster: "embedded", PodNetwork: "routes"}, false, []string{"are for --cluster kind"},
		},
		"kubeconfig alone": {
			lifecycle.Options{Kubeconfig: "f"}, false, []string{"--kubeconfig is for --cluster external"},
		},
		"kubeconfig for kind": {
			lifecycle.Options{Cluster: "kind", Kubeconfig: "f"}, false,
			[]string{"--kubeconfig is for --cluster external"},
		},
		"nodes for external": {
			lifecycle.Options{Cluster: "external", Kubeconfig: "f", Nodes: 3}, nodesGiven,
			[]string{"an external cluster has the nodes it has"},
		},
		"no provider": {lifecycle.Options{CloudProvider: "none"}, false, nil},
		"no provider in kind": {
			lifecycle.Options{Cluster: "kind", CloudProvider: "none"}, false,
			[]string{"--cloud-provider none is for --cluster embedded only"},
		},
		"no provider in external": {
			lifecycle.Options{Cluster: "external", Kubeconfig: "f", CloudProvider: "none"}, false,
			[]string{"is for --cluster embedded only"},
		},
		"unknown provider": {
			lifecycle.Options{CloudProvider: "aws"}, false,
			[]string{`--cloud-provider "aws": want one of external, none`},
		},
		"provider IDs":             {lifecycle.Options{KubeletProviderIDs: "mine://{{.ID}}"}, false, nil},
		"provider IDs in kind":     {lifecycle.Options{Cluster: "kind", KubeletProviderIDs: "mine://{{.ID}}"}, false, nil},
		"a lab that is there says": {lifecycle.Options{Name: "there", NodeImage: "i", Kubeconfig: "f"}, false, nil},
		"unless told another": {
			lifecycle.Options{Name: "there", Cluster: "embedded", NodeImage: "i"}, false,
			[]string{"are for --cluster kind"},
		},
		"a bad name": {lifecycle.Options{Name: "No"}, false, []string{`lab name "No"`}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.opts.Name == "" {
				tc.opts.Name = "new"
			}
			err := validateUp(tc.opts, tc.nodes)
			if len(tc.want) == 0 {
				require.NoError(t, err)
				return
			}
			var usage clikit.UsageError
			require.ErrorAs(t, err, &usage)
			for _, want := range tc.want {
				assert.ErrorContains(t, err, want)
			}
		})
	}
}

// Without a container engine doctor finds nothing to fix, because there is the embedded
// cluster. For a new lab, up does not suggest kind then.
func TestUpAndDoctorWithoutContainerEngine(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("CCMLAB_HOME", t.TempDir())
	t.Setenv("KIND_EXPERIMENTAL_PROVIDER", "")
	kindsFinding := func(cluster string) doctor.Finding {
		findings := doctor.Examine(t.Context(), doctor.ThisMachine(cluster))
		i := slices.IndexFunc(findings, func(f doctor.Finding) bool { return f.Check == "kind" })
		require.GreaterOrEqual(t, i, 0)
		return findings[i]
	}
	f := kindsFinding(cluster.KindEmbedded)
	assert.Equal(t, doctor.Info, f.Level)
	assert.Equal(
		t, "not to be had, and the embedded cluster needs none: kind needs Docker or Podman, and neither is installed",
		f.Seen,
	)
	assert.Equal(t, "install one (https://docs.docker.com/engine/install)", f.Fix)
	assert.Equal(t, doctor.Fix, kindsFinding(cluster.KindKind).Level, "kind itself needs one")
	assert.Empty(t, kindSuggestion(t.Context(), lifecycle.Options{Name: "lab"}))
}

// The demo comes first. A Service that cannot answer is not offered.
func TestServicesToTry(t *testing.T) {
	none, some := 0, 2
	services := []status.Service{
		{Namespace: "a", Name: "one", Address: "192.0.2.1", ReadyEndpoints: &some},
		{Namespace: "a", Name: "empty", Address: "192.0.2.2", ReadyEndpoints: &none},
		{Namespace: "a", Name: "pending", ReadyEndpoints: &some},
		{Namespace: "a", Name: "unknown", Address: "192.0.2.3"},
		{Namespace: "a", Name: "web", Address: "192.0.2.4"},
		{Namespace: "default", Name: "web", Address: "192.0.2.5", ReadyEndpoints: &some},
	}
	var addresses []string
	for _, s := range servicesToTry(services) {
		addresses = append(addresses, s.Address)
	}
	assert.Equal(t, []string{"192.0.2.5", "192.0.2.1", "192.0.2.3"}, addresses)
	assert.Empty(t, servicesToTry(nil))
}

// A shell reads the printed command line back as the same words.
func TestShellCommandLine(t *testing.T) {
	words := []string{"--plain=/a/b:1,2", "two words", "it's", "$HOME", "", "a*"}
	assert.Equal(t, `--plain=/a/b:1,2 'two words'`, shellescape.QuoteCommand(words[:2]))
	said, err := exec.CommandContext(t.Context(), "bash", "-c", `printf '%s\n' `+shellescape.QuoteCommand(words)).Output()
	require.NoError(t, err)
	assert.Equal(t, strings.Join(words, "\n")+"\n", string(said))
}

// The summary offers a second lab whose name differs from this lab's.
func TestSummaryWithoutProvider(t *testing.T) {
	for name, other := range map[string]string{"lab": "full", "full": "other"} {
		var said string
		printSummaryWithoutProvider(
			func(format string, args ...any) { said += fmt.Sprintf(format+"\n", args...) }, "bin/lab", name,
		)
		assert.Contains(t, said, "bin/lab up --name "+other+" ")
		assert.Contains(t, said, "bin/lab compare "+name+" "+other+"\n")
	}
}

// A preset's provider IDs are those of the kubelets, unless a person gives others.
func TestPresetGivesKubeletsProviderIDs(t *testing.T) {
	for given, want := range map[string]string{
		"": "cloudlycke://{{slice .Name 0 1}}-c2-1", "cloudlycke://m-c2-1/{{.ID}}": "cloudlycke://m-c2-1/{{.ID}}",
	} {
		o := lifecycle.Options{Name: "new", KubeletProviderIDs: given}
		require.NoError(t, (&guestFlags{dialect: "cloudlycke"}).forUp(&o, "./cloudlycke-ccm", nil))
		assert.NotNil(t, o.UseCCM)
		assert.Equal(t, want, o.KubeletProviderIDs)
		require.NoError(t, validateUp(o, false))
		o.Cluster = "kind"
		require.NoError(t, validateUp(o, false))
	}
	var o lifecycle.Options
	require.ErrorContains(t, (&guestFlags{env: []string{"A=b"}}).forUp(&o, "", nil), "are for --ccm PROGRAM")
	require.NoError(t, (&guestFlags{dialect: "cloudlycke"}).forUp(&o, "", nil))
	assert.True(t, o.WithoutCCM, "its own would initialise the Nodes")
	assert.NotEmpty(t, o.KubeletProviderIDs)
	assert.Nil(t, o.UseCCM)
	require.ErrorContains(t, (&guestFlags{dialect: "nimbus"}).forUp(&o, "ccm", nil), `no dialect "nimbus"`)
}
