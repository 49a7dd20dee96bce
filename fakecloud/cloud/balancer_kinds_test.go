package cloud

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// onlyProxies is a data plane without network balancers.
type onlyProxies struct{ *fakePlane }

func (onlyProxies) CanForward(kind LoadBalancerKind) error {
	if kind == api.KindNetwork {
		return errors.New("no packets pass here")
	}
	return nil
}

func TestNetworkBalancersHaveNotWhatProxiesHave(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	listener := Listener{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 80}
	spec := func(change func(*api.LoadBalancerCreate)) api.LoadBalancerCreate {
		s := api.LoadBalancerCreate{Name: "web", Kind: api.KindNetwork, Listeners: []Listener{listener}}
		change(&s)
		return s
	}
	for field, change := range map[string]func(*api.LoadBalancerCreate){
		"kind":                        func(s *api.LoadBalancerCreate) { s.Kind = "fast" },
		"algorithm":                   func(s *api.LoadBalancerCreate) { s.Algorithm = api.AlgorithmLeastConnections },
		"idleTimeoutSeconds":          func(s *api.LoadBalancerCreate) { s.IdleTimeoutSeconds = 60 },
		"listeners.0.protocol":        func(s *api.LoadBalancerCreate) { s.Listeners[0].Protocol = api.ProtocolHTTP },
		"listeners.0.targetPort":      func(s *api.LoadBalancerCreate) { s.Listeners[0].TargetPort = 30080 },
		"listeners.0.proxyProtocol":   func(s *api.LoadBalancerCreate) { s.Listeners[0].ProxyProtocol = api.ProxyProtocolV2 },
		"listeners.0.connectionLimit": func(s *api.LoadBalancerCreate) { s.Listeners[0].ConnectionLimit = 1 },
	} {
		s := spec(change)
		requireRefusedAt(t, InvalidRequest, field)(c.CreateLoadBalancer(t.Context(), p, s))
		listener = Listener{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 80}
	}
	lb := createBalancer(t, c, p, spec(func(*api.LoadBalancerCreate) {}))
	assert.Equal(t, api.AlgorithmFlowHash, lb.Algorithm, "the kind's default")
	advance(t, c, time.Minute)
	assert.Equal(t, api.KindNetwork, plane.applied[lb.ID].Kind)

	proxied := updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{Kind: orNil(api.KindProxy)})
	assert.Equal(t, api.AlgorithmRoundRobin, proxied.Algorithm)
	assert.Equal(t, lb.Address, proxied.Address)
	requireRefusedAt(t, InvalidRequest, "algorithm")(
		c.UpdateLoadBalancer(t.Context(), p, lb.ID, api.LoadBalancerUpdate{Algorithm: orNil(api.AlgorithmFlowHash)}),
	)
	advance(t, c, time.Minute)
	assert.Equal(t, api.KindProxy, plane.applied[lb.ID].Kind)
}

func TestKindsThatTheDataPlaneLacksAreRefused(t *testing.T) {
	c, p := newCloud(t, func(cfg *Config) { cfg.DataPlane = onlyProxies{newFakePlane()} })
	requireRefusedAt(t, InvalidRequest, "kind")(
		c.CreateLoadBalancer(t.Context(), p, api.LoadBalancerCreate{Name: "web", Kind: api.KindNetwork}),
	)
	lb, _ := newBalancer(t, c, p)
	_, _, err := c.UpdateLoadBalancer(t.Context(), p, lb.ID, api.LoadBalancerUpdate{Kind: orNil(api.KindNetwork)})
	require.ErrorContains(t, err, "no packets pass here")
}
