package suite

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// smallCloud has one instance at most, and no balancers.
type smallCloud struct {
	conformance.Cloud // what no check calls

	running    []string
	terminated []string
}

func (c *smallCloud) Features() []conformance.Feature {
	return []conformance.Feature{conformance.FeatureZones, conformance.FeatureTargets}
}

func (c *smallCloud) CreateInstance(
	_ context.Context, spec conformance.InstanceSpec,
) (conformance.Instance, error) {
	c.running = append(c.running, spec.Name)
	return conformance.Instance{
		ID: spec.Name, Name: spec.Name, ProviderID: "nebula://" + spec.Name, InternalIPs: []string{"10.0.0.1"},
	}, nil
}

func (c *smallCloud) TerminateInstance(_ context.Context, id string) error {
	c.terminated = append(c.terminated, id)
	return nil
}

func (c *smallCloud) ListBalancers(context.Context) ([]conformance.Balancer, error) { return nil, nil }

// tryCloud tries a driver of a cloud, that asks for a proxy with these rules.
func tryCloud(
	t *testing.T, cloud conformance.Cloud, calls []string, rules ...protocol.ProxyRule,
) (*TriedDriver, error) {
	described := protocol.Driver{Name: "nebula"}
	if len(rules) > 0 {
		described.Proxy = &protocol.Proxy{Upstream: "http://127.0.0.1:1/base", Rules: rules}
	}
	return tryDescribed(t, cloud, described, calls)
}

// tryDescribed tries a driver of a cloud that says this of itself.
func tryDescribed(
	t *testing.T, cloud conformance.Cloud, described protocol.Driver, calls []string,
) (*TriedDriver, error) {
	server := httptest.NewServer(driver.NewHandler(described,
		func(context.Context, protocol.Hello) (conformance.Cloud, error) { return cloud, nil }))
	t.Cleanup(server.Close)
	address, err := driver.ParseAddress(server.URL, "secret")
	require.NoError(t, err)
	return Trying{
		Driver: &Driver{Address: address}, Values: program.Values{ClusterName: "kitchen"}, Calls: calls,
	}.Try(t.Context(), ui.Discard())
}

func TestTryDriver(t *testing.T) {
	cloud := &smallCloud{}
	tried, err := tryCloud(t, cloud, []string{"DELETE /servers/1", "/servers", "GET /images"},
		protocol.ProxyRule{Method: http.MethodGet, Path: "/servers/{id}", Thing: conformance.Instances},
		protocol.ProxyRule{Path: "/servers/{rest...}", Thing: conformance.Routes},
		protocol.ProxyRule{Method: http.MethodGet, Path: "/servers/{name}", Thing: conformance.Balancers})
	require.NoError(t, err)
	assert.Equal(t, []string{"kitchen-check"}, cloud.running)
	assert.Equal(t, cloud.running, cloud.terminated)
	assert.Equal(t, []MatchedCall{
		{Call: "GET /servers/x", Rule: 1, Thing: conformance.Instances},
		{Call: "POST /servers/x", Rule: 2, Thing: conformance.Routes},
		{Call: "GET /servers/x", Rule: 1, Thing: conformance.Instances, Meant: 3},
		{Call: "DELETE /servers/1", Rule: 2, Thing: conformance.Routes},
		{Call: "GET /servers", Rule: 2, Thing: conformance.Routes},
		{Call: "GET /images"},
	}, tried.Calls)
	lost := map[conformance.Feature][]string{}
	for _, l := range tried.Lost {
		lost[l.Feature] = l.Core
	}
	assert.NotContains(t, lost, conformance.FeatureZones)
	assert.NotContains(t, lost, conformance.FaultFeature(conformance.FaultUnavailable), "the proxy makes it")
	assert.Contains(t, lost[conformance.FeatureNodePorts], "lb-node-port-changed")
}

func TestTryDriverThatFails(t *testing.T) {
	_, err := tryCloud(t, &smallCloud{}, nil, protocol.ProxyRule{Path: "servers", Thing: conformance.Instances})
	assert.ErrorContains(t, err, "proxy: the driver nebula: its proxy: rule 1, servers: the path does not begin with /")
}

// A mistake in how the driver starts the CCM is found without a lab.
func TestTryDriverWithMistakesOfItsCCM(t *testing.T) {
	for _, said := range []protocol.CCM{
		{Args: []string{"--cloud={{.CloudURI}}"}},
		{Config: "url = {{.CloudURL"},
		{Env: []string{"{{.Project}}"}},
		{Path: "nebula-ccm", Args: []string{"--kubeconfig={{.Kubeconfig}}"}},
	} {
		_, err := tryDescribed(t, &smallCloud{}, protocol.Driver{Name: "nebula", CCM: &said}, nil)
		assert.ErrorContains(t, err, "ccm: ", "%v", said)
	}
	_, err := tryDescribed(t, &smallCloud{}, protocol.Driver{
		Name: "nebula", CCM: &protocol.CCM{Args: []string{"--cloud={{.CloudURL}}"}, Config: "{{readFile .TokenFile}}"},
	}, nil)
	assert.NoError(t, err)
}

// What a driver says that its cloud does not have is among what is lost.
func TestTryDriverWithoutLoadBalancers(t *testing.T) {
	for why, wanted := range map[string]bool{"": false, "nebula has none": true} {
		described := protocol.Driver{Name: "nebula"}
		if wanted {
			described.Unsupported = map[string]string{string(conformance.FeatureLoadBalancers): why}
		}
		tried, err := tryDescribed(t, &smallCloud{}, described, nil)
		require.NoError(t, err)
		assert.Equal(t, wanted, slices.ContainsFunc(tried.Lost, func(l LostFeature) bool {
			return l.Feature == conformance.FeatureLoadBalancers && slices.Contains(l.Core, "resilience-lost-create")
		}))
	}
}
