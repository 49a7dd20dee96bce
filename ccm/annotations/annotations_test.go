package annotations

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

func TestEveryExampleParses(t *testing.T) {
	for _, d := range Definitions {
		all := map[string]string{Prefix + d.Name: d.Example, "other.example/scheme": "nonsense"}
		v, err := Parse(all)
		require.NoError(t, err, d.Name)
		without, err := Parse(nil)
		require.NoError(t, err)
		assert.True(t, v.Given(d.Name))
		v.given, without.given = nil, nil
		assert.NotEqual(t, without, v, "%s: the example changes something", d.Name)
		assert.NotEmpty(t, d.Want+d.Effect)
	}
}

func TestParse(t *testing.T) {
	v, err := Parse(map[string]string{
		Prefix + Scheme: "internal", Prefix + Algorithm: "source-hash", Prefix + IdleTimeout: "90s", Prefix + Drain: "0",
		Prefix + ConnectionLimit: "1000, 53=20,53/udp=50", Prefix + Tags: "a=b, c=d=e,f=",
		Prefix + HealthCheck: "http", Prefix + HealthCheckPort: "10256", Prefix + HealthCheckPath: "/live?full=1",
		Prefix + HealthCheckCodes: "204,300-399", Prefix + HealthCheckInterval: "1m", Prefix + HealthCheckTimeout: "1s",
		Prefix + HealthCheckHealthyThreshold: "1", Prefix + HealthCheckUnhealthyThreshold: "10",
	})
	require.NoError(t, err)
	assert.EqualValues(t, 90, v.IdleTimeout)
	assert.Equal(t, api.Tags{"a": "b", "c": "d=e", "f": ""}, v.Tags)
	assert.Equal(t, api.HealthCheck{
		Protocol: "http", Port: 10256, Path: "/live?full=1", ExpectedCodes: "204,300-399",
		IntervalSeconds: 60, TimeoutSeconds: 1, HealthyThreshold: 1, UnhealthyThreshold: 10,
	}, v.HealthCheck)
	for want, l := range map[int]api.Listener{
		1000: {Protocol: "tcp", Port: 80}, 20: {Protocol: "tcp", Port: 53}, 50: {Protocol: "udp", Port: 53},
	} {
		assert.Equal(t, want, v.ConnectionLimit.For(l))
	}
	assert.Equal(t, []string{"53/udp"}, v.ConnectionLimit.UnusedPorts([]api.Listener{{Protocol: "tcp", Port: 53}}))
}

func TestRefusedValues(t *testing.T) {
	for name, values := range map[string][]string{
		Scheme:      {"", "Public", "private"},
		Algorithm:   {"", "fair"},
		IdleTimeout: {"", "30", "-1s", "1500ms", "25h", "1d"},
		Drain:       {"", "30", "24h1s"},
		ConnectionLimit: {
			"", "-1", "1000001", "1,2", "80=1,80=2", "80/sctp=1", "0=1", "http=1", "80=", "80=1,",
		},
		ProxyProtocol:                 {"", "v3", "443=v3", "443", "v1,v2"},
		HealthCheck:                   {"", "https"},
		HealthCheckPort:               {"", "0", "65536", "http"},
		HealthCheckPath:               {"", "healthz", "/a b", "/%zz"},
		HealthCheckCodes:              {"", "199", "600", "299-200", "200,", "2xx", "200-"},
		HealthCheckInterval:           {"0", "6m", "5"},
		HealthCheckTimeout:            {"0s", "61s"},
		HealthCheckHealthyThreshold:   {"0", "11", "two"},
		HealthCheckUnhealthyThreshold: {"0", "11"},
		Address:                       {"", "127.0.0.1:80", "Web"},
		IPMode:                        {"", "vip", "proxy", "DSR"},
		Hostname:                      {"", "Web.example.com", "web_1", "127.30.64.1", "fd00::1", "a..b", "*.example.com"},
		OnDelete:                      {"", "Delete", "retain"},
		NodeSelector:                  {"", "pool==web==blue", "in (a)", "a b"},
		Tags:                          {"", "a", "=b", "a=b,a=c", "kubernetes-cluster=mine"},
	} {
		for _, value := range values {
			_, err := Parse(map[string]string{Prefix + name: value})
			assert.ErrorContains(t, err, Prefix+name+" is \""+value+"\"; want ", "%s: %q", name, value)
		}
	}
}

// All that is wrong is told at once.
func TestWhatExcludesEachOther(t *testing.T) {
	for _, tc := range []struct {
		given map[string]string
		want  []string
	}{
		{map[string]string{
			"sheme": "internal", "proxyprotocol": "v2", Scheme: "internal", Address: "web", HealthCheck: "tcp",
			HealthCheckPath: "/", Drain: "soon",
		}, []string{
			"sheme is unknown; did you mean " + Prefix + "scheme?",
			"proxyprotocol is unknown; did you mean " + Prefix + "proxy-protocol?",
			Address + ` is "web"; an internal load balancer takes no reserved address`,
			HealthCheckPath + ` is "/"; it is for HTTP`, Drain + ` is "soon"; want a duration`,
		}},
		{map[string]string{Kind: "network", IdleTimeout: "5m", Algorithm: "round-robin", IPMode: "Proxy"}, []string{
			IdleTimeout + ` is "5m"; the load balancer only passes`,
			Algorithm + ` is "round-robin"; the load balancer spreads`, IPMode + ` is "Proxy"; kube-proxy must take`,
		}},
		{map[string]string{Algorithm: "flow-hash"}, []string{Algorithm + ` is "flow-hash"; a proxy does not have it, as `}},
	} {
		all := map[string]string{}
		for name, value := range tc.given {
			all[Prefix+name] = value
		}
		_, err := Parse(all)
		for _, want := range tc.want {
			assert.ErrorContains(t, err, Prefix+want)
		}
		assert.Len(t, strings.Split(err.Error(), "\n"), len(tc.want))
	}
}
