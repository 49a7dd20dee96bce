package suite

import (
	"context"
	"io"
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
	protocol.Unanswered // what no check calls

	described  protocol.Driver
	running    []string
	terminated []string
}

func (c *smallCloud) Hello(context.Context, protocol.Hello) (protocol.Driver, error) {
	c.described.Features = append([]string{"zones", "targets"}, c.described.Features...)
	return c.described, nil
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

func (c *smallCloud) ListBalancers(context.Context) (protocol.BalancerList, error) {
	return protocol.BalancerList{}, nil
}

func (c *smallCloud) describe(d protocol.Driver) { c.described = d }

// describable is a driver whose Hello answers what it is given.
type describable interface {
	protocol.Operations
	describe(d protocol.Driver)
}

// tryCloud tries a driver of a cloud, that asks for a proxy with these rules.
func tryCloud(
	t *testing.T, cloud describable, calls []string, rules ...protocol.ProxyRule,
) (*TriedDriver, error) {
	return tryCloudAt(t, "http://127.0.0.1:1/base", cloud, calls, rules...)
}

func tryCloudAt(
	t *testing.T, upstream string, cloud describable, calls []string, rules ...protocol.ProxyRule,
) (*TriedDriver, error) {
	described := protocol.Driver{Name: "nebula"}
	if len(rules) > 0 {
		described.Proxy = &protocol.Proxy{Upstream: upstream, Rules: rules}
	}
	return tryDescribed(t, cloud, described, calls)
}

// tryDescribed tries a driver of a cloud that says this of itself.
func tryDescribed(
	t *testing.T, cloud describable, described protocol.Driver, calls []string,
) (*TriedDriver, error) {
	cloud.describe(described)
	server := httptest.NewServer(protocol.NewHandler(cloud))
	t.Cleanup(server.Close)
	address, err := driver.ParseAddress(server.URL, "secret")
	require.NoError(t, err)
	return Trying{
		Driver: &Driver{Address: address}, Values: program.Values{ClusterName: "kitchen"}, Calls: calls,
		Headers: []string{"Authorization: Bearer {{.ClusterName}}"},
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

// A rule that names a field which no answer has makes no fault: whoever is judged by it passes for nothing.
func TestTryDriverWithWrongFields(t *testing.T) {
	const server = `{"id":"kitchen-check","status":"running"}`
	mux := http.NewServeMux()
	serve := func(pattern, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer kitchen" {
				w.WriteHeader(http.StatusUnauthorized)
			}
			_, _ = io.WriteString(w, body)
		})
	}
	serve("GET /servers", `{"servers":[`+server+`]}`)
	serve("GET /servers/kitchen-check", server)
	serve("GET /balancers", `{"balancers":[]}`)
	nebula := httptest.NewServer(mux)
	defer nebula.Close()
	at := func(s string) *string { return &s }
	rules := func(state string) []protocol.ProxyRule {
		return []protocol.ProxyRule{
			{
				Method: http.MethodGet, Path: "/servers", Thing: conformance.Instances, List: at("/servers"),
				StateFields: []string{"/status"},
			},
			{Method: http.MethodGet, Path: "/servers/{id}", Thing: conformance.Instances, StateFields: []string{state}},
			{
				Method: http.MethodGet, Path: "/balancers", Thing: conformance.Balancers, List: at("/balancers"),
				StateFields: []string{"/status"},
			},
			{Method: http.MethodGet, Path: "/routes", Thing: conformance.Routes, StateFields: []string{"/status"}},
		}
	}
	tried, err := tryCloudAt(t, nebula.URL, &smallCloud{}, nil, rules("/status")...)
	require.NoError(t, err)
	made := map[string]bool{}
	for _, f := range tried.Faults {
		made[string(f.Fault)+" "+f.Call] = f.Made
		assert.Equal(t, !f.Made, f.Unknown, f)
	}
	assert.Equal(t, map[string]bool{
		"empty-list GET /servers": true, "missing-field GET /servers": true, "missing-field GET /servers/kitchen-check": true,
		"empty-list GET /balancers": false, "missing-field GET /routes": false,
	}, made)

	cloud := &smallCloud{}
	_, err = tryCloudAt(t, nebula.URL, cloud, nil, rules("/state")...)
	require.EqualError(t, err, "made: rule 2: fault missing-field was not made: the answer to GET /servers/kitchen-check: "+
		"it has nothing of what is to be left out")
	assert.Equal(t, cloud.running, cloud.terminated)
}

// idleCloud says that it has changed what it has not.
type idleCloud struct{ *smallCloud }

func (c idleCloud) describe(d protocol.Driver) {
	d.Features = []string{"change-addresses", "strangers", "rename-balancer"}
	c.smallCloud.describe(d)
}

func (idleCloud) ChangeAddresses(_ context.Context, id string) (conformance.Instance, error) {
	return conformance.Instance{ID: id, ProviderID: "nebula://" + id, InternalIPs: []string{"10.0.0.1"}}, nil
}

func (idleCloud) CreateForeignBalancer(_ context.Context, body protocol.Name) (conformance.Balancer, error) {
	return conformance.Balancer{ID: "b-1", Name: body.Name}, nil
}

func (idleCloud) RenameBalancer(context.Context, string, protocol.Name) error { return nil }

func (idleCloud) DeleteBalancer(context.Context, string) error { return nil }

func (idleCloud) GetBalancer(_ context.Context, id string) (conformance.Balancer, error) {
	return conformance.Balancer{ID: id, Name: "kitchen-check"}, nil
}

func TestTryDriverThatChangesNothing(t *testing.T) {
	_, err := tryCloud(t, idleCloud{&smallCloud{}}, nil)
	for _, mistake := range []string{
		"change-addresses: instance kitchen-check still has [10.0.0.1]",
		"rename-balancer: balancer b-1 is not as it was asked to be", "balancer b-1 was deleted, and is still there",
	} {
		assert.ErrorContains(t, err, mistake)
	}
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
