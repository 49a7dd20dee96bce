package suite

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
)

// What the command line says of the CCM counts; what it leaves out, the driver says.
func TestCCMOfADriver(t *testing.T) {
	said := &protocol.CCM{
		Path: "/bin/false", Args: []string{"--cloud={{.CloudURL}}"}, Env: []string{"A=b"}, Config: "{{.Project}}",
	}
	for name, tc := range map[string]struct {
		line *program.CCM
		said *protocol.CCM
		want *program.CCM
	}{
		"the driver alone": {nil, said, &program.CCM{
			Path: "/bin/false", Args: said.Args, Env: said.Env, ConfigTemplate: said.Config,
		}},
		"the line alone": {&program.CCM{Path: "/bin/true"}, nil, &program.CCM{Path: "/bin/true"}},
		"a program, started as the driver says": {&program.CCM{Path: "/bin/true"}, said, &program.CCM{
			Path: "/bin/true", Args: said.Args, Env: said.Env, ConfigTemplate: said.Config,
		}},
		"arguments of the line": {&program.CCM{Path: "/bin/true", Args: []string{"-v"}}, said, &program.CCM{
			Path: "/bin/true", Args: []string{"-v"}, Env: said.Env, ConfigTemplate: said.Config,
		}},
	} {
		ccm, err := Options{Program: tc.line}.driversCCM(protocol.Driver{Name: "nebula", CCM: tc.said})
		require.NoError(t, err, name)
		assert.Equal(t, tc.want, ccm, name)
	}
	_, err := Options{}.driversCCM(protocol.Driver{Name: "nebula"})
	assert.EqualError(t, err, "the driver nebula names no CCM: give one with --ccm PATH")
	_, err = Options{}.driversCCM(protocol.Driver{CCM: &protocol.CCM{Path: "/bin/true", Args: []string{"{{.Nothing}}"}}})
	assert.ErrorContains(t, err, "{{.Nothing}}", "a template of the driver's is checked as one of the line")
}

// Machines and traffic need Nodes that are the driver's instances.
func TestWhatADriverCannotShowHere(t *testing.T) {
	described := protocol.Driver{Unsupported: map[string]string{"udp-services": "nebula has TCP"}}
	known := program.Values{ClusterCIDR: "10.0.0.0/16"}
	keys := func(o Options, values program.Values) (names []string) {
		for name := range o.unsupportedByDriver(described, values) {
			names = append(names, name)
		}
		return names
	}
	own, theirs := cluster.KindEmbedded, cluster.KindExternal
	assert.ElementsMatch(t, []string{"machines", "traffic", "udp-services"}, keys(Options{Cluster: own}, known))
	assert.ElementsMatch(t, []string{"udp-services"}, keys(Options{Cluster: own, Traffic: true}, known))
	assert.ElementsMatch(t, []string{"traffic", "udp-services"}, keys(Options{Cluster: theirs}, known))
	withTraffic := Options{Cluster: theirs, Traffic: true}
	assert.ElementsMatch(t, []string{"routes", "udp-services"}, keys(withTraffic, program.Values{}))
}
