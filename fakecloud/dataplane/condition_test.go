package dataplane_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

func TestConditionReason(t *testing.T) {
	const refused = ": clients are refused (tcp connections are reset, udp datagrams dropped)"
	const sick = "no target is healthy" + refused + "; the balancer's health says why of each"
	p, port := newPlane(t), freePort(t)
	told := make(chan string, 100)
	p.Notify(func(id string) { told <- id })
	condition := func() string {
		reason, known := p.Condition("lb-1")
		if !known {
			return "not known"
		}
		return reason
	}
	becomes := func(want string) {
		t.Helper()
		await(t, func() bool { return condition() == want })
		assert.Equal(t, "lb-1", <-told)
		assert.Empty(t, told, "it is told once")
	}
	assert.Equal(t, "not known", condition(), "it is not in force")

	target := startTarget(t, two, 0, greetAndEcho("two"))
	f := forwarding(target, nil, port)
	require.NoError(t, p.Apply(f))
	becomes("it has no targets" + refused)
	requireReset(t, four, port)
	listeners := f.Listeners
	f.Listeners = nil
	require.NoError(t, p.Apply(f))
	becomes("")
	_, err := dialFrom(t, four, port)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "nobody listens")
	f.Listeners = listeners
	require.NoError(t, p.Apply(f))
	becomes("it has no targets" + refused)
	f.Targets = 2
	require.NoError(t, p.Apply(f))
	becomes("no target runs" + refused)
	requireReset(t, four, port)
	require.NoError(t, p.Apply(f))
	assert.Empty(t, told, "nothing has changed")

	onTwo := newHealthEndpoint(t, two, 0)
	onThree := newHealthEndpoint(t, three, onTwo.port)
	f = forwarding(target, []string{two, three}, port)
	require.NoError(t, p.Apply(f))
	becomes("")
	f.HealthCheck = httpCheck(onTwo.port)
	f.HealthCheck.IntervalSeconds, f.HealthCheck.TimeoutSeconds = seconds(2*time.Second), seconds(2*time.Second) // The first check decides alone.
	f.HealthCheck.HealthyThreshold, f.HealthCheck.UnhealthyThreshold = 1, 1
	require.NoError(t, p.Apply(f))
	becomes("") // It was unknown for a moment.
	awaitHealth(t, p, 0, api.TargetHealthy)
	awaitHealth(t, p, 1, api.TargetHealthy)
	onThree.status.Store(http.StatusServiceUnavailable)
	awaitHealth(t, p, 1, api.TargetUnhealthy)
	assert.Empty(t, condition(), "one is enough")
	onTwo.status.Store(http.StatusServiceUnavailable)
	becomes(sick)
	requireReset(t, four, port)
	onTwo.status.Store(http.StatusOK)
	becomes("")
	assert.Equal(t, "two", greetingFrom(t, four, port))

	onTwo.status.Store(http.StatusServiceUnavailable)
	becomes(sick)
	f.HealthCheck = nil
	require.NoError(t, p.Apply(f))
	becomes("") // Targets of unknown health get traffic.
	p.Remove("lb-1")
	assert.Equal(t, "not known", condition())
	assert.Empty(t, told)
}

// startBlockingTarget starts a target that answers a check when a status is sent to answer.
func startBlockingTarget(t *testing.T, host string, port int) (at int, answer chan<- int) {
	t.Helper()
	l := listen(t, host, port)
	answers := make(chan int)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(
		w http.ResponseWriter,
		r *http.Request,
	) {
		select {
		case status := <-answers:
			w.WriteHeader(status)
		case <-r.Context().Done():
		}
	})}}
	s.Start()
	t.Cleanup(s.Close)
	return l.Addr().(*net.TCPAddr).Port, answers
}

func TestConditionUnknownUntilChecked(t *testing.T) {
	p, told := newPlane(t), make(chan string, 100)
	p.Notify(func(id string) { told <- id })
	condition := func() (is struct {
		reason string
		known  bool
	}) {
		is.reason, is.known = p.Condition("lb-1")
		return is
	}
	at, onTwo := startBlockingTarget(t, two, 0)
	_, onThree := startBlockingTarget(t, three, at)
	t.Cleanup(p.Close) // Before the targets, whose servers wait for their clients.
	f := forwarding(at, []string{two, three}, freePort(t))
	check := cloud.HealthCheck{
		Protocol: api.HealthCheckHTTP, Port: at, Path: "/", IntervalSeconds: seconds(2 * testTimeout), TimeoutSeconds: seconds(2 * testTimeout),
		HealthyThreshold: 1, UnhealthyThreshold: 1,
	}
	f.HealthCheck = &check
	unknown := func() {
		t.Helper()
		is := condition()
		assert.False(t, is.known)
		assert.Empty(t, is.reason)
		assert.Empty(t, told, "what is not known is not told")
	}

	require.NoError(t, p.Apply(f))
	unknown()
	onTwo <- http.StatusServiceUnavailable
	awaitHealth(t, p, 0, api.TargetUnhealthy)
	unknown() // The other target may still turn out healthy.
	onThree <- http.StatusServiceUnavailable
	awaitHealth(t, p, 1, api.TargetUnhealthy)
	assert.Equal(t, "lb-1", <-told)
	sick := condition()
	assert.True(t, sick.known)
	assert.Contains(t, sick.reason, "no target is healthy")

	check.Path = "/else"
	require.NoError(t, p.Apply(f))
	unknown()
	onThree <- http.StatusOK
	awaitHealth(t, p, 1, api.TargetHealthy)
	assert.Equal(t, "lb-1", <-told, "it was not known if it serves")
	assert.True(t, condition().known, "whatever the other one answers")
	assert.Empty(t, condition().reason)
	onTwo <- http.StatusServiceUnavailable
	awaitHealth(t, p, 0, api.TargetUnhealthy)

	f.Backends = nil
	require.NoError(t, p.Apply(f))
	assert.Equal(t, "lb-1", <-told)
	assert.True(t, condition().known, "there is nobody to ask")
	assert.Empty(t, told)
}

func assertUnknown(t *testing.T, n *dataplane.None) {
	t.Helper()
	reason, known := n.Condition("lb-1")
	assert.Empty(t, reason)
	assert.False(t, known)
}

func TestNoneListensNowhere(t *testing.T) {
	port := freePort(t)
	f := forwarding(1, []string{two, three}, port)
	f.HealthCheck = httpCheck(1)
	var n dataplane.None
	n.Notify(func(string) { t.Error("nothing changes by itself") })
	assertUnknown(t, &n)
	require.NoError(t, n.Apply(f))
	_, err := dialFrom(t, two, port)
	require.Error(t, err)
	reason, known := n.Condition("lb-1")
	assert.True(t, known, "nobody is asked")
	assert.Equal(
		t, "control plane only: nothing listens on "+front.String()+" (fakecloud runs with --load-balancer-mode none)",
		reason,
	)
	f.Addresses = append(f.Addresses[:1:1], netip.MustParseAddr("fd00::1"))
	f.Backends = f.Backends[1:]
	require.NoError(t, n.Apply(f))
	reason, _ = n.Condition("lb-1")
	assert.Contains(t, reason, "nothing listens on "+front.String()+" or fd00::1 (")
	assert.Equal(t, []api.TargetHealth{{
		InstanceID: "i-" + three, Health: api.TargetUnknown,
		Reason: "nothing is checked: fakecloud runs with --load-balancer-mode none",
	}}, n.Health("lb-1"))
	assert.Zero(t, n.Stats("lb-1"))
	n.Remove("lb-1")
	n.Remove("lb-1")
	assertUnknown(t, &n)
	assert.Empty(t, n.Health("lb-1"))
	n.Close()
}

func TestNoneConcurrentUse(t *testing.T) {
	var n dataplane.None
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				assert.NoError(t, n.Apply(forwarding(1, []string{two}, 80)))
				_, _ = n.Condition("lb-1")
				_ = n.Health("lb-1")
				n.Remove("lb-1")
			}
		})
	}
	all.Wait()
	assertUnknown(t, &n)
}
