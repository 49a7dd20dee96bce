package oci_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	dialect "github.com/ccmlab/ccmlab/fakecloud/dialect/oci"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

// shown is what the tests here look at in a load balancer.
type shown struct {
	Listeners map[string]struct {
		Port                    int
		DefaultBackendSetName   string
		ConnectionConfiguration *struct{ BackendTCPProxyProtocolVersion int }
	}
	BackendSets map[string]struct {
		Policy        string
		HealthChecker struct {
			Protocol         string
			URLPath          string
			IntervalInMillis int
		}
		Backends []struct {
			IPAddress    string
			Port, Weight int
		}
	}
}

// caller sends requests as no SDK does: with a bearer token, and with bodies of the test's own.
type caller struct {
	t          *testing.T
	url, token string
}

func (c caller) call(method, path string, body, into any) (status int) {
	c.t.Helper()
	raw := must(json.Marshal(body))(c.t)
	req := must(http.NewRequestWithContext(c.t.Context(), method, c.url+path, bytes.NewReader(raw)))(c.t)
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp := must(http.DefaultClient.Do(req))(c.t)
	defer func() { _ = resp.Body.Close() }()
	if into != nil {
		require.Equal(c.t, http.StatusOK, resp.StatusCode)
		require.NoError(c.t, json.NewDecoder(resp.Body).Decode(into))
	}
	return resp.StatusCode
}

func startBalancer(t *testing.T, instances, ports int) (*cloudtest.Cloud, caller, *api.LoadBalancer) {
	c := cloudtest.Start(t, cloudtest.WithoutTraffic(), cloudtest.Dialect(dialect.Dialect))
	to := caller{t, c.DialectURL("oci"), strings.TrimSpace(string(must(os.ReadFile(c.TokenFile))(t)))}
	var backends []map[string]any
	for i := range instances {
		in := must(c.CreateInstance(t.Context(), api.InstanceCreate{Name: new(fmt.Sprintf("node-%d", i))}))(t)
		backends = append(backends, map[string]any{"ipAddress": in.Addresses[0].IP, "weight": 1})
	}
	listeners, sets := map[string]any{}, map[string]any{}
	for port := 8080; port < 8080+ports; port++ {
		var onPort []map[string]any
		for _, b := range backends {
			onPort = append(onPort, map[string]any{"ipAddress": b["ipAddress"], "weight": 1, "port": port + 22000})
		}
		name := fmt.Sprintf("TCP-%d", port)
		listeners[name] = map[string]any{"defaultBackendSetName": name, "port": port, "protocol": "TCP"}
		sets[name] = map[string]any{
			"policy": "ROUND_ROBIN", "backends": onPort,
			"healthChecker": map[string]any{"protocol": "HTTP", "port": 10256, "urlPath": "/healthz"},
		}
	}
	status := to.call(http.MethodPost, "/20170115/loadBalancers", map[string]any{
		"compartmentId": "ocid1.tenancy.fc1.." + cloudtest.ProjectName, "displayName": "uid", "shapeName": "100Mbps",
		"subnetIds": []string{"ocid1.subnet.fc1.neb.00001"}, "listeners": listeners, "backendSets": sets,
	}, nil)
	require.Equal(t, http.StatusNoContent, status)
	all := must(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)
	require.Len(t, all, 1)
	return c, to, c.AwaitLoadBalancer(all[0].ID, api.LoadBalancerActive)
}

func (c caller) balancer(lb *api.LoadBalancer) (out shown) {
	c.t.Helper()
	c.call(http.MethodGet, "/20170115/loadBalancers/ocid1.loadbalancer.fc1.neb."+identity.Code(lb.Serial), nil, &out)
	return out
}

// TestDrift changes a balancer natively, and looks for that in what the dialect shows.
func TestDrift(t *testing.T) {
	c, to, lb := startBalancer(t, 3, 2)
	before := to.balancer(lb)
	require.Len(t, before.BackendSets["TCP-8080"].Backends, 3)
	require.Equal(t, 30081, before.BackendSets["TCP-8081"].Backends[2].Port)

	listeners, targets := lb.Listeners[:1], lb.Targets[1:]
	listeners[0].TargetPort, listeners[0].ProxyProtocol = 31000, api.ProxyProtocolV2
	listeners[0].HealthCheck = &api.HealthCheck{Protocol: api.HealthCheckTCP, Port: 31000, IntervalSeconds: 7}
	listeners = append(listeners, api.Listener{Protocol: api.ProtocolTCP, Port: 9999, TargetPort: 30999})
	must(c.UpdateLoadBalancer(t.Context(), lb.ID, api.LoadBalancerUpdate{
		Listeners: &listeners, Targets: &targets, Algorithm: new(api.AlgorithmSourceHash),
	}))(t)
	after := to.balancer(lb)
	assert.NotContains(t, after.Listeners, "TCP-8081")
	assert.Equal(t, 9999, after.Listeners["TCP-9999"].Port)
	assert.Equal(t, 30999, after.BackendSets["TCP-9999"].Backends[0].Port)
	assert.Equal(t, 2, after.Listeners["TCP-8080"].ConnectionConfiguration.BackendTCPProxyProtocolVersion)
	set := after.BackendSets["TCP-8080"]
	assert.Equal(t, "IP_HASH", set.Policy)
	assert.Equal(t, "TCP", set.HealthChecker.Protocol)
	assert.Equal(t, 7000, set.HealthChecker.IntervalInMillis)
	assert.Len(t, set.Backends, 2)
	assert.Equal(t, 31000, set.Backends[0].Port)
}

// TestThousandBackends has so many of each of ten sets. They fit into what this cloud records of a balancer, also
// while one of the sets differs from the others.
func TestThousandBackends(t *testing.T) {
	_, to, lb := startBalancer(t, 1000, 10)
	all := to.balancer(lb)
	require.Len(t, all.BackendSets, 10)
	for name, set := range all.BackendSets {
		assert.Len(t, set.Backends, 1000, name)
	}
	fewer := []map[string]any{{"ipAddress": all.BackendSets["TCP-8080"].Backends[0].IPAddress, "port": 30080, "weight": 3}}
	status := to.call(
		http.MethodPut,
		"/20170115/loadBalancers/ocid1.loadbalancer.fc1.neb."+identity.Code(lb.Serial)+"/backendSets/TCP-8080",
		map[string]any{
			"policy": "ROUND_ROBIN", "backends": fewer, "healthChecker": map[string]any{"protocol": "TCP", "port": 0},
		}, nil,
	)
	require.Equal(t, http.StatusNoContent, status)
	all = to.balancer(lb)
	assert.Len(t, all.BackendSets["TCP-8081"].Backends, 1000)
	require.Len(t, all.BackendSets["TCP-8080"].Backends, 1)
	assert.Equal(t, 3, all.BackendSets["TCP-8080"].Backends[0].Weight)
}

// TestTwoProtocols has one listener of TCP and UDP, of which TCP alone has the PROXY protocol.
func TestTwoProtocols(t *testing.T) {
	_, to, _ := startBalancer(t, 1, 1)
	var made struct {
		ID        string
		Listeners map[string]struct{ IsPpv2Enabled bool }
	}
	status := to.call(http.MethodPost, "/20200501/networkLoadBalancers", map[string]any{
		"compartmentId": "ocid1.tenancy.fc1.." + cloudtest.ProjectName, "displayName": "a/b/c",
		"subnetId":    "ocid1.subnet.fc1.neb.00001",
		"backendSets": map[string]any{"both": map[string]any{"healthChecker": map[string]any{"protocol": "TCP", "port": 1}}},
		"listeners": map[string]any{"both": map[string]any{
			"defaultBackendSetName": "both", "port": 9000, "protocol": "TCP_AND_UDP", "isPpv2Enabled": true,
		}},
	}, nil)
	require.Equal(t, http.StatusAccepted, status)
	var all struct{ Items []json.RawMessage }
	list := "/20200501/networkLoadBalancers?compartmentId=ocid1.tenancy.fc1.." + cloudtest.ProjectName
	to.call(http.MethodGet, list, nil, &all)
	require.Len(t, all.Items, 1)
	require.NoError(t, json.Unmarshal(all.Items[0], &made))
	assert.Len(t, made.Listeners, 1)
	assert.True(t, made.Listeners["both"].IsPpv2Enabled)
}
