package dataplane_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestFirewallsKeepConnectionsFromTargets(t *testing.T) {
	p, open, f := newPair(t)
	target, shut := f.Listeners[0].TargetPort, freePort(t)
	f.Listeners = append(f.Listeners, cloud.Listener{Protocol: api.ProtocolTCP, Port: shut, TargetPort: target + 1})
	admit := func(ports ...cloud.LetIn) {
		t.Helper()
		for i, letIn := range ports {
			f.Backends[i].LetIn = letIn
		}
		require.NoError(t, p.Apply(f))
	}
	toTarget := cloud.LetIn(fmt.Sprintf("nothing,tcp %d-%d", target, target))

	admit("nothing", toTarget)
	for range 3 {
		assert.Equal(t, "three", greetingFrom(t, four, open), "the other lets nothing in")
	}
	requireReset(t, four, shut)
	reason, known := p.Condition("lb-1")
	assert.True(t, known)
	assert.Contains(t, reason, "no target is healthy for tcp port "+strconv.Itoa(shut))

	admit(toTarget, "nothing")
	c, name := dialAndReadName(t, four, open)
	assert.Equal(t, "two", name)
	admit("nothing", "nothing")
	requireEcho(t, c, "what was let in goes on")

	f.HealthCheck = &cloud.HealthCheck{
		Protocol: api.HealthCheckTCP, Port: target, IntervalSeconds: seconds(10 * time.Millisecond), TimeoutSeconds: seconds(time.Second),
		HealthyThreshold: 1, UnhealthyThreshold: 1,
	}
	admit("nothing", toTarget)
	await(t, func() bool {
		health := p.Health("lb-1")
		return health[0].Health == api.TargetUnhealthy && health[1].Health == api.TargetHealthy &&
			health[0].Reason == "no firewall of the instance lets anything in to tcp port "+strconv.Itoa(target)
	})
}
