package cloud

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestLetIn(t *testing.T) {
	for _, test := range []struct {
		letIn    LetIn
		protocol Protocol
		port     int
		want     bool
	}{
		{"", api.ProtocolTCP, 80, true},
		{nothing, api.ProtocolTCP, 80, false},
		{"nothing,tcp 80-80", api.ProtocolTCP, 80, true},
		{"nothing,tcp 80-80", api.ProtocolUDP, 80, false},
		{"nothing,tcp 80-80,udp 53-60", api.ProtocolUDP, 60, true},
		{"nothing,tcp 80-80,udp 53-60", api.ProtocolUDP, 61, false},
	} {
		assert.Equal(t, test.want, test.letIn.Has(test.protocol, test.port), "%q %s %d", test.letIn, test.protocol, test.port)
	}
}

func TestFirewallsDecideWhatBackendsLetIn(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	in := must.First(c.CreateInstance(t.Context(), p, api.InstanceCreate{Name: "node-1"}))(t)
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "web", Listeners: oneListener, Targets: toTargets(in.ID)})
	advance(t, c, time.Minute)
	letIn := func() LetIn { return plane.applied[lb.ID].Backends[0].LetIn }
	assert.Empty(t, letIn(), "it is in no firewall")

	web := must.First(c.Firewalls.Create(t.Context(), p, api.FirewallCreate{Name: new("web"), InstanceIDs: &[]string{in.ID}}))(t)
	assert.Equal(t, nothing, letIn())
	update := func(u api.FirewallUpdate) (Firewall, error) { return c.Firewalls.Update(t.Context(), p, web.ID, u) }
	requireOK(t)(update(api.FirewallUpdate{Rules: &api.FirewallRules{{Protocol: api.FirewallTCP, FirstPort: 80, LastPort: 90}}}))
	assert.Equal(t, LetIn("nothing,tcp 80-90"), letIn())
	requireOK(t)(c.Firewalls.Create(t.Context(), p, api.FirewallCreate{
		InstanceIDs: &[]string{in.ID}, Rules: &api.FirewallRules{{Protocol: api.FirewallUDP, FirstPort: 53, LastPort: 53}},
	}))
	assert.Equal(t, LetIn("nothing,tcp 80-90,udp 53-53"), letIn())
	before := must.Do(c.Firewalls.Get(t.Context(), p, web.ID))(t)
	same := must.Do(update(api.FirewallUpdate{InstanceIDs: &[]string{in.ID}}))(t)
	assert.Equal(t, before, same, "a change of nothing")
	requireOK(t)(update(api.FirewallUpdate{InstanceIDs: &[]string{}}))
	assert.Equal(t, LetIn("nothing,udp 53-53"), letIn())
	requireOK(t)(update(api.FirewallUpdate{InstanceIDs: &[]string{in.ID}}))
	require.NoError(t, c.Firewalls.Delete(t.Context(), p, web.ID))
	assert.Equal(t, LetIn("nothing,udp 53-53"), letIn())
}
