package cloudtest_test

import (
	"io"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// serveName has an instance answer each connection with a name.
func serveName(t *testing.T, in *api.Instance, name string) {
	t.Helper()
	l := must.Do((&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(in.Addresses[0].IP, "30080")))(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, name)
			_ = c.Close()
		}
	}()
}

// ask gives the name that a balancer's port answers with; "" if it refuses.
func ask(t *testing.T, lb *api.LoadBalancer, port int) string {
	t.Helper()
	c, err := net.Dial("tcp", net.JoinHostPort(lb.Address, strconv.Itoa(port)))
	if err != nil {
		return ""
	}
	defer c.Close()
	name, _ := io.ReadAll(c)
	return string(name)
}

func update(t *testing.T, c *cloudtest.Cloud, lb *api.LoadBalancer, u api.LoadBalancerUpdate) {
	t.Helper()
	*lb = *must.Do(c.UpdateLoadBalancer(t.Context(), lb.ID, u))(t)
	c.AwaitLoadBalancer(lb.ID, api.LoadBalancerActive)
}

func TestTargetsOfListenersAndByIP(t *testing.T) {
	c := cloudtest.Start(t)
	one, two := c.RunInstance("one"), c.RunInstance("two")
	serveName(t, one, "one")
	serveName(t, two, "two")
	byIP := api.Target{IP: two.Addresses[0].IP}
	listener := api.Listener{Protocol: api.ProtocolTCP, Port: 8080, TargetPort: 30080}
	own := listener
	own.Port, own.Targets = 8081, []api.Target{byIP}
	none := listener
	none.Port, none.Targets = 8082, []api.Target{}
	lb := must.Do(c.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Name: "web", Listeners: api.Listeners{listener, own, none}, Targets: api.Targets{{InstanceID: one.ID, Weight: 1}},
	}))(t)
	c.AwaitLoadBalancer(lb.ID, api.LoadBalancerActive)
	assert.Equal(t, api.Targets{{InstanceID: one.ID}}, lb.Targets)
	assert.Equal(t, "one", ask(t, lb, 8080))
	assert.Equal(t, "two", ask(t, lb, 8081))
	assert.Empty(t, ask(t, lb, 8082))
	stats := must.Do(c.LoadBalancerStats(t.Context(), lb.ID))(t).Targets
	require.Len(t, stats, 2)
	assert.Equal(t, one.ID, stats[0].InstanceID)
	assert.Equal(t, byIP.IP, stats[1].IP)
	assert.EqualValues(t, 1, stats[1].Connections)
	health := must.Do(c.LoadBalancerHealth(t.Context(), lb.ID))(t).Targets
	require.Len(t, health, 2)
	assert.Equal(t, api.TargetHealth{IP: byIP.IP, Health: api.TargetUnknown, Reason: "there is no health check"}, api.TargetHealth{
		IP: health[1].IP, InstanceID: health[1].InstanceID, Health: health[1].Health, Reason: health[1].Reason,
	})

	own.Targets = []api.Target{{InstanceID: two.ID}}
	update(t, c, lb, api.LoadBalancerUpdate{Listeners: &api.Listeners{listener, own}, Targets: &api.Targets{byIP}})
	_, err := c.TerminateInstance(t.Context(), two.ID)
	require.NoError(t, err)
	c.AwaitInstance(two.ID, api.InstanceTerminated)
	lb = must.Do(c.GetLoadBalancer(t.Context(), lb.ID))(t)
	assert.Equal(t, []api.Target{}, lb.Listeners[1].Targets, "it left, and the balancer's do not come instead")
	assert.Empty(t, ask(t, lb, 8081))
	assert.Equal(t, "two", ask(t, lb, 8080), "an address is no instance")
}

func TestRefusedTargets(t *testing.T) {
	c := cloudtest.Start(t)
	in := c.RunInstance("one")
	for target, field := range map[api.Target]string{
		{}:                                    "targets.0.instanceId",
		{IP: "8.8.8.8"}:                       "targets.0.ip",
		{IP: "127.0.0.1"}:                     "listeners.0.targets.0.ip",
		{InstanceID: "i-none"}:                "listeners.0.targets.0.instanceId",
		{IP: in.Addresses[0].IP, Weight: 257}: "targets.0.weight",
	} {
		spec := api.LoadBalancerCreate{
			Name: "web", Listeners: api.Listeners{{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 80}},
		}
		if field[0] == 't' {
			spec.Targets = api.Targets{target}
		} else {
			spec.Listeners[0].Targets = []api.Target{target}
		}
		_, err := c.CreateLoadBalancer(t.Context(), spec)
		assert.ErrorContains(t, err, field)
	}
	_, err := c.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Name: "web", Listeners: api.Listeners{}, Targets: api.Targets{{IP: "fd00::1"}},
	})
	assert.ErrorContains(t, err, "IPv4")
	twice := api.Target{InstanceID: in.ID, IP: in.Addresses[0].IP}
	_, err = c.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Name: "web", Listeners: api.Listeners{}, Targets: api.Targets{twice},
	})
	assert.ErrorContains(t, err, "either instanceId or ip")
}

// A firewall sees the balancer, by the address from which it comes, and not the balancer's clients.
func TestFirewallsKnowSources(t *testing.T) {
	c := cloudtest.Start(t)
	in := c.RunInstance("one")
	serveName(t, in, "one")
	lb := must.Do(c.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Name: "web", Listeners: api.Listeners{
			{Protocol: api.ProtocolTCP, Port: 8080, TargetPort: 30080},
			{Protocol: api.ProtocolTCP, Port: 8081, TargetPort: 30080, Targets: []api.Target{{IP: in.Addresses[0].IP}}},
		}, Targets: api.Targets{{InstanceID: in.ID}},
	}))(t)
	lb = c.AwaitLoadBalancer(lb.ID, api.LoadBalancerActive)
	rule := api.FirewallRule{Protocol: api.FirewallTCP, FirstPort: 30080, LastPort: 30080, Sources: []string{lb.Address + "/32"}}
	f := must.Do(c.CreateFirewall(t.Context(), api.FirewallCreate{
		InstanceIDs: &[]string{in.ID}, Rules: &api.FirewallRules{rule},
	}))(t)
	answers := func() [2]string { return [2]string{ask(t, lb, 8080), ask(t, lb, 8081)} }
	let := func(sources ...string) {
		rule.Sources = sources
		must.Do(c.UpdateFirewall(t.Context(), f.ID, api.FirewallUpdate{Rules: &api.FirewallRules{rule}}))(t)
	}
	assert.Equal(t, [2]string{"one", "one"}, answers())
	network := must.Do(c.ListNetworks(t.Context(), client.NetworkFilter{}))(t)[0]
	let(network.Cidr)
	assert.Equal(t, [2]string{}, answers(), "it comes from its public address")
	update(t, c, lb, api.LoadBalancerUpdate{NetworkID: &network.ID})
	assert.Equal(t, [2]string{"one", "one"}, answers(), "it comes from its private address")
	let()
	assert.Equal(t, [2]string{"one", "one"}, answers(), "from anywhere")
	_, err := c.UpdateFirewall(t.Context(), f.ID, api.FirewallUpdate{Rules: &api.FirewallRules{
		{Protocol: api.FirewallTCP, FirstPort: 1, LastPort: 2, Sources: []string{"10.0.0.0/8", "everybody"}},
	}})
	assert.ErrorContains(t, err, "rules.0.sources.1")
}
