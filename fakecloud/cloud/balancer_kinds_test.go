package cloud

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// onlyProxies is a data plane without network balancers.
type onlyProxies struct{ *fakePlane }

func (onlyProxies) CanForward(kind LoadBalancerKind) error {
	if kind == NetworkBalancer {
		return errors.New("no packets pass here")
	}
	return nil
}

func TestNetworkBalancersHaveNotWhatProxiesHave(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	listener := Listener{Protocol: TCP, Port: 80, TargetPort: 80}
	spec := func(change func(*LoadBalancerSpec)) LoadBalancerSpec {
		s := LoadBalancerSpec{Name: "web", Kind: NetworkBalancer, Listeners: []Listener{listener}}
		change(&s)
		return s
	}
	for field, change := range map[string]func(*LoadBalancerSpec){
		"kind":                        func(s *LoadBalancerSpec) { s.Kind = "fast" },
		"algorithm":                   func(s *LoadBalancerSpec) { s.Algorithm = LeastConnections },
		"idleTimeoutSeconds":          func(s *LoadBalancerSpec) { s.IdleTimeout = time.Minute },
		"listeners.0.protocol":        func(s *LoadBalancerSpec) { s.Listeners[0].Protocol = HTTP },
		"listeners.0.targetPort":      func(s *LoadBalancerSpec) { s.Listeners[0].TargetPort = 30080 },
		"listeners.0.proxyProtocol":   func(s *LoadBalancerSpec) { s.Listeners[0].ProxyProtocol = ProxyV2 },
		"listeners.0.connectionLimit": func(s *LoadBalancerSpec) { s.Listeners[0].ConnectionLimit = 1 },
	} {
		s := spec(change)
		requireRefusedAt(t, InvalidRequest, field)(c.CreateLoadBalancer(t.Context(), p, s))
		listener = Listener{Protocol: TCP, Port: 80, TargetPort: 80}
	}
	lb := createBalancer(t, c, p, spec(func(*LoadBalancerSpec) {}))
	assert.Equal(t, FlowHash, lb.Algorithm, "the kind's default")
	advance(t, c, time.Minute)
	assert.Equal(t, NetworkBalancer, plane.applied[lb.ID].Kind)

	proxied := updateBalancer(t, c, p, lb.ID, LoadBalancerUpdate{Kind: orNil(ProxyBalancer)})
	assert.Equal(t, RoundRobin, proxied.Algorithm)
	assert.Equal(t, lb.Address, proxied.Address)
	requireRefusedAt(t, InvalidRequest, "algorithm")(
		c.UpdateLoadBalancer(t.Context(), p, lb.ID, LoadBalancerUpdate{Algorithm: orNil(FlowHash)}),
	)
	advance(t, c, time.Minute)
	assert.Equal(t, ProxyBalancer, plane.applied[lb.ID].Kind)
}

func TestKindsThatTheDataPlaneLacksAreRefused(t *testing.T) {
	c, p := newCloud(t, func(cfg *Config) { cfg.DataPlane = onlyProxies{newFakePlane()} })
	requireRefusedAt(t, InvalidRequest, "kind")(
		c.CreateLoadBalancer(t.Context(), p, LoadBalancerSpec{Name: "web", Kind: NetworkBalancer}),
	)
	lb, _ := newBalancer(t, c, p)
	_, _, err := c.UpdateLoadBalancer(t.Context(), p, lb.ID, LoadBalancerUpdate{Kind: orNil(NetworkBalancer)})
	require.ErrorContains(t, err, "no packets pass here")
}
