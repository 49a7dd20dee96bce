package server_test

import (
	"io"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func newRig6(t *testing.T) *rig {
	t.Helper()
	return newRigWith(t, func(cfg *fakecloud.Config) { cfg.Cloud.LoadBalancerCIDR6 = netip.MustParsePrefix("::1/128") })
}

func TestFamiliesThatCannotBeHad(t *testing.T) {
	const create = `{"name":"web","listeners":[{"protocol":"tcp","port":8080,"targetPort":1}],"ipFamilies":`
	r := newRig(t)
	for given, says := range map[string]string{
		`["ipv4","ipv6"]}`: "cannot hold ipv6: the cloud has no --load-balancer-cidr6",
		`["ipv6"]}`:        "must hold ipv4",
		`[]}`:              "minimum number of items is 1",
		`["ipv4","ipv4"]}`: "duplicate",
	} {
		_, p := r.call(t, "POST", "/v1/load-balancers", create+given)
		assert.Equal(t, api.InvalidRequest, p.Code, given)
		assert.Contains(t, fields(p)["ipFamilies"], says, given)
	}
	_, p := r.call(t, "POST", "/v1/load-balancers", create+`["ipv5"]}`)
	assert.Equal(t, "must be ipv4 or ipv6", fields(p)["ipFamilies.0"])
	_, p = r.call(t, "POST", "/v1/load-balancers", create+`["ipv4"],"sourceRanges":["fd00::1/8"]}`)
	assert.Equal(t, "has host bits set: did you mean fd00::/8?", fields(p)["sourceRanges.0"])
}

func TestBothFamiliesOverTheAPI(t *testing.T) {
	r, ctx := newRig6(t), t.Context()
	both := api.IPFamilies{api.IPv4, api.IPv6}
	body := api.LoadBalancerCreate{
		Name: "web", Listeners: oneListener, IPFamilies: &both,
		SourceRanges: &api.SourceRanges{"fd00::/8", "10.0.0.0/8"},
	}
	body.Listeners = []api.Listener{{Protocol: api.ProtocolTCP, Port: freePort(t, "127.0.0.1"), TargetPort: 1}}
	lb := r.createBalancer(t, body)
	assert.Equal(t, both, lb.IPFamilies)
	assert.Equal(t, new("::1"), lb.IPv6Address)
	assert.Equal(t, *body.SourceRanges, lb.SourceRanges)
	plain := r.createBalancer(t, api.LoadBalancerCreate{Name: "plain", Listeners: oneListener})
	assert.Equal(t, api.IPFamilies{api.IPv4}, plain.IPFamilies)
	assert.Nil(t, plain.IPv6Address)
	same, err := r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{IPFamilies: &both, IPv6Address: new("0:0::1")})
	require.NoError(t, err, "the present one is no change, however it is written")
	assert.LessOrEqual(t, same.Version, lb.Version+1, "it may have been built meanwhile")
	update := api.LoadBalancerUpdate{IPv6Address: new("::2")}
	requireCode(t, api.InvalidRequest)(r.UpdateLoadBalancer(ctx, lb.ID, update))
	var told []string
	require.NoError(t, r.Watch(ctx, client.FromOldest, false, func(e api.Event) error {
		if e.ID == lb.ID {
			require.NotNil(t, e.LoadBalancer)
			told = append(told, valueOrZero(e.LoadBalancer.IPv6Address, "none"))
		}
		return nil
	}))
	assert.NotEmpty(t, told)
	assert.NotContains(t, told, "none", "its events show it")
}

func TestBothFamiliesLeadToTheTargets(t *testing.T) {
	free, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("this machine has no IPv6 on loopback: %v", err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	require.NoError(t, free.Close())
	r, ctx := newRig6(t), t.Context()
	target := serveTCP(t, func(c net.Conn) { _, _ = io.WriteString(c, "hello") })
	in := r.runInstance(t, api.InstanceCreate{Address: new("127.0.0.1")})
	lb := r.createBalancer(t, api.LoadBalancerCreate{
		Name: "web", IPFamilies: &api.IPFamilies{api.IPv4, api.IPv6}, Targets: &api.Targets{{InstanceID: in.ID}},
		Listeners: []api.Listener{{Protocol: api.ProtocolTCP, Port: port, TargetPort: target}},
	})
	r.awaitBalancer(t, lb.ID, api.LoadBalancerActive)
	for _, address := range []string{lb.Address, *lb.IPv6Address} {
		c := must(net.DialTimeout("tcp", net.JoinHostPort(address, strconv.Itoa(port)), patience))(t)
		heard := must(io.ReadAll(c))(t)
		assert.Equal(t, "hello", string(heard))
		require.NoError(t, c.Close())
	}
	stats := must(r.LoadBalancerStats(ctx, lb.ID))(t)
	require.Len(t, stats.Listeners, 1)
	assert.EqualValues(t, 2, stats.Listeners[0].Connections, "both count as one listener's")
}
