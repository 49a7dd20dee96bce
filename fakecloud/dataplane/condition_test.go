package dataplane_test

import (
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

func TestABalancerSaysWhyItCannotServe(t *testing.T) {
	const refused = ": clients are refused (tcp connections are reset, udp datagrams dropped)"
	const sick = "no target is healthy" + refused + "; the balancer's health says why of each"
	p, port := newPlane(t), freePort(t)
	told := make(chan string, 100)
	p.Notify(func(id string) { told <- id })
	condition := func() string { return p.Condition("lb-1") }
	becomes := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool { return condition() == want }, patience, time.Millisecond)
		assert.Equal(t, "lb-1", <-told)
		assert.Empty(t, told, "it is told once")
	}
	assert.Empty(t, condition(), "it is not in force")

	target := backend(t, two, 0, says("two"))
	f := forwarding(target, nil, port)
	require.NoError(t, p.Apply(f))
	becomes("it has no targets" + refused)
	requireReset(t, four, port)
	f.Targets = 2
	require.NoError(t, p.Apply(f))
	becomes("no target runs" + refused)
	requireReset(t, four, port)
	require.NoError(t, p.Apply(f))
	assert.Empty(t, told, "nothing has changed")

	onTwo := newWellness(t, two, 0)
	onThree := newWellness(t, three, onTwo.port)
	f = forwarding(target, []string{two, three}, port)
	require.NoError(t, p.Apply(f))
	becomes("")
	f.HealthCheck = overHTTP(onTwo.port)
	require.NoError(t, p.Apply(f))
	awaitHealth(t, p, 0, cloud.Healthy)
	awaitHealth(t, p, 1, cloud.Healthy)
	onThree.status.Store(http.StatusServiceUnavailable)
	awaitHealth(t, p, 1, cloud.Unhealthy)
	assert.Empty(t, condition(), "one is enough")
	onTwo.status.Store(http.StatusServiceUnavailable)
	becomes(sick)
	requireReset(t, four, port)
	onTwo.status.Store(http.StatusOK)
	becomes("")
	assert.Equal(t, "two", who(t, four, port))

	onTwo.status.Store(http.StatusServiceUnavailable)
	becomes(sick)
	f.HealthCheck = nil
	require.NoError(t, p.Apply(f))
	becomes("") // What is unknown is sent traffic.
	p.Remove("lb-1")
	assert.Empty(t, condition())
	assert.Empty(t, told)
}

func TestNoneListensNowhereAndSaysSo(t *testing.T) {
	port := freePort(t)
	f := forwarding(1, []string{two, three}, port)
	f.HealthCheck = overHTTP(1)
	var n dataplane.None
	n.Notify(func(string) { t.Error("nothing changes by itself") })
	assert.Empty(t, n.Condition("lb-1"))
	require.NoError(t, n.Apply(f))
	_, err := dialFrom(t, two, port)
	require.Error(t, err)
	assert.Equal(t, "control plane only: nothing listens on "+front.String()+" (fakecloud runs with --load-balancer-mode none)", n.Condition("lb-1"))
	f.Address6 = netip.MustParseAddr("fd00::1")
	f.Backends = f.Backends[1:]
	require.NoError(t, n.Apply(f))
	assert.Contains(t, n.Condition("lb-1"), "nothing listens on "+front.String()+" or fd00::1 (")
	assert.Equal(t, []cloud.TargetHealth{{Target: "i-" + three, Health: cloud.Unknown, Reason: "nothing is checked: fakecloud runs with --load-balancer-mode none"}}, n.Health("lb-1"))
	assert.Zero(t, n.Stats("lb-1"))
	n.Remove("lb-1")
	n.Remove("lb-1")
	assert.Empty(t, n.Condition("lb-1"))
	assert.Empty(t, n.Health("lb-1"))
	n.Close()
}

func TestNoneIsForManyAtOnce(t *testing.T) {
	var n dataplane.None
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				assert.NoError(t, n.Apply(forwarding(1, []string{two}, 80)))
				_, _ = n.Condition("lb-1"), n.Health("lb-1")
				n.Remove("lb-1")
			}
		})
	}
	all.Wait()
	assert.Empty(t, n.Condition("lb-1"))
}
