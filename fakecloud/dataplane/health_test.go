package dataplane_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/internal/testcerts"
)

// healthEndpoint answers HTTP health checks with a status that a test can change.
type healthEndpoint struct {
	port           int
	status, checks atomic.Int64
}

func newHealthEndpoint(t *testing.T, host string, port int) *healthEndpoint {
	t.Helper()
	w := &healthEndpoint{}
	w.status.Store(http.StatusOK)
	l := listen(t, host, port)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(
		rw http.ResponseWriter,
		r *http.Request,
	) {
		w.checks.Add(1)
		if r.URL.Path != "/healthz" || r.Host != l.Addr().String() || !r.Close {
			http.Error(rw, "not as agreed", http.StatusBadRequest)
			return
		}
		rw.Header().Set("Location", "/elsewhere")
		rw.WriteHeader(int(w.status.Load()))
	})}}
	s.Start()
	t.Cleanup(s.Close)
	w.port = l.Addr().(*net.TCPAddr).Port
	return w
}

func httpCheck(port int) *cloud.HealthCheck {
	return &cloud.HealthCheck{
		Protocol: api.HealthCheckHTTP, Port: port, Path: "/healthz",
		IntervalSeconds: seconds(300 * time.Millisecond), TimeoutSeconds: seconds(300 * time.Millisecond), HealthyThreshold: 2, UnhealthyThreshold: 3,
	}
}

// awaitHealth waits until target i has the health want.
func awaitHealth(t *testing.T, p *dataplane.Plane, i int, want api.TargetHealthState) api.TargetHealth {
	t.Helper()
	await(t, func() bool { return p.Health("lb-1")[i].Health == want })
	return p.Health("lb-1")[i]
}

func TestUnhealthyTargetsGetNoTraffic(t *testing.T) {
	p, port, f := newPair(t)
	udp := udpBackend(t, two, "two", 0)
	udpBackend(t, three, "three", portOf(udp))
	onTwo := newHealthEndpoint(t, two, 0)
	onThree := newHealthEndpoint(t, three, onTwo.port)
	f.Listeners = append(f.Listeners, cloud.Listener{Protocol: api.ProtocolUDP, Port: port, TargetPort: portOf(udp)})
	require.NoError(t, p.Apply(f))
	for _, h := range p.Health("lb-1") {
		assert.Equal(t, api.TargetUnknown, h.Health)
		assert.Equal(t, "there is no health check", h.Reason)
	}

	f.HealthCheck, f.Affinity = httpCheck(onTwo.port), time.Hour
	require.NoError(t, p.Apply(f))
	awaitHealth(t, p, 0, api.TargetHealthy)
	awaitHealth(t, p, 1, api.TargetHealthy)
	client := udpClient(t, four, port)
	first := greetingFrom(t, four, port)
	assert.Equal(t, first, sendAndReadName(t, client, "hello"), "a client's target is the same on all ports")
	sick, other := onTwo, "three"
	if first == "three" {
		sick, other = onThree, "two"
	}
	sick.status.Store(http.StatusServiceUnavailable)
	await(t, func() bool { return greetingFrom(t, four, port) == other })
	await(t, func() bool { return sendAndReadName(t, client, "hello") == other }, "datagrams leave their session's target when it falls ill")

	onTwo.status.Store(http.StatusFound)
	onThree.status.Store(http.StatusServiceUnavailable)
	assert.Equal(t, "i-"+two, awaitHealth(t, p, 0, api.TargetUnhealthy).InstanceID)
	awaitHealth(t, p, 1, api.TargetUnhealthy)
	require.Eventually(t, func() bool {
		h := p.Health("lb-1")
		return h[0].Reason == "HTTP 302 Found from "+net.JoinHostPort(two, strconv.Itoa(onTwo.port)) &&
			h[1].Reason == "HTTP 503 Service Unavailable from "+net.JoinHostPort(three, strconv.Itoa(onTwo.port))
	}, testTimeout, time.Millisecond)
	failed := listenerStats(p).FailedConnections
	requireReset(t, four, port)
	await(t, func() bool { return listenerStats(p).FailedConnections == failed+1 })

	f.HealthCheck = nil
	require.NoError(t, p.Apply(f))
	assert.Equal(t, api.TargetUnknown, p.Health("lb-1")[0].Health)
	greetingFrom(t, four, port)
	asks := onTwo.checks.Load()
	p.Remove("lb-1")
	assert.Empty(t, p.Health("lb-1"))
	assert.LessOrEqual(t, onTwo.checks.Load(), asks+1, "at most one that was under way")
}

func TestListenersHaveChecksOfTheirOwn(t *testing.T) {
	p, one, other, free := newPlane(t), freePort(t), freePort(t), freePort(t)
	target := startTarget(t, two, 0, greetAndEcho("two"))
	startTarget(t, three, target, greetAndEcho("three"))
	onTwo := newHealthEndpoint(t, two, 0)
	onThree := newHealthEndpoint(t, three, onTwo.port)
	f := forwarding(target, []string{two, three}, one, other, free)
	f.HealthCheck = hourlyCheck(target)
	f.Listeners[0].HealthCheck = *httpCheck(onTwo.port)
	f.Listeners[2].HealthCheck = cloud.HealthCheck{Protocol: api.HealthCheckNone}
	require.NoError(t, p.Apply(f))
	awaitHealth(t, p, 0, api.TargetHealthy)
	awaitHealth(t, p, 1, api.TargetHealthy)
	onTwo.status.Store(http.StatusServiceUnavailable)
	sick := awaitHealth(t, p, 0, api.TargetUnhealthy)
	assert.Equal(t, []api.ListenerHealth{
		{Protocol: api.ProtocolTCP, Port: one, Health: api.TargetUnhealthy, Reason: sick.Reason},
		{Protocol: api.ProtocolTCP, Port: other, Health: api.TargetHealthy},
		{Protocol: api.ProtocolTCP, Port: free, Health: api.TargetUnknown, Reason: "there is no health check"},
	}, sick.Listeners)
	assert.Contains(t, sick.Reason, "503", "overall it is what the worst check says")
	for range 4 {
		assert.Equal(t, "three", greetingFrom(t, four, one))
	}
	for _, port := range []int{other, free} {
		assert.NotEqual(t, greetingFrom(t, four, port), greetingFrom(t, four, port), "these go on to send to both")
	}
	onThree.status.Store(http.StatusServiceUnavailable)
	awaitHealth(t, p, 1, api.TargetUnhealthy)
	requireReset(t, four, one)
	greetingFrom(t, four, other)
	reason, known := p.Condition("lb-1")
	assert.True(t, known)
	assert.Contains(t, reason, "no target is healthy for tcp port "+strconv.Itoa(one)+": there clients are refused")
	f.Listeners[0].HealthCheck = cloud.HealthCheck{}
	require.NoError(t, p.Apply(f))
	reason, _ = p.Condition("lb-1")
	assert.Empty(t, reason, "the balancer's own check was made for another listener already, and is shared")
	f.Listeners = f.Listeners[:2]
	require.NoError(t, p.Apply(f))
	assert.Nil(t, p.Health("lb-1")[0].Listeners, "no listener has one of its own")
}

func TestHealthKeptAcrossUnrelatedChanges(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := startTarget(t, two, 0, greetAndEcho("two"))
	f := forwarding(target, []string{two}, port)
	f.HealthCheck = hourlyCheck(target)
	require.NoError(t, p.Apply(f))
	before := awaitHealth(t, p, 0, api.TargetHealthy) // The first check is made at once, and decides.
	assert.Empty(t, before.Reason)

	again := *f.HealthCheck
	f.HealthCheck = &again
	f.Backends = append(f.Backends, forwarding(0, []string{four}).Backends...) // Nothing listens there.
	require.NoError(t, p.Apply(f))
	assert.Equal(t, before, p.Health("lb-1")[0])
	assert.Equal(
		t, "connection refused by "+net.JoinHostPort(four, strconv.Itoa(target)),
		awaitHealth(t, p, 1, api.TargetUnhealthy).Reason,
	)

	other := again
	other.Port = freePort(t)
	f.HealthCheck = &other
	require.NoError(t, p.Apply(f))
	after := awaitHealth(t, p, 0, api.TargetUnhealthy)
	assert.True(t, after.Since.After(*before.Since))
	assert.Contains(t, after.Reason, "connection refused")
}

func TestSilentTargetIsUnhealthy(t *testing.T) {
	p := newPlane(t)
	l, err := net.Listen("tcp4", two+":0") // The kernel accepts; nobody answers.
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	f := forwarding(1, []string{two}, freePort(t))
	f.HealthCheck = httpCheck(l.Addr().(*net.TCPAddr).Port)
	require.NoError(t, p.Apply(f))
	assert.Equal(t, "no answer from "+l.Addr().String()+" within 300ms", awaitHealth(t, p, 0, api.TargetUnhealthy).Reason)
}

func TestHealthCheckOddSettings(t *testing.T) {
	p := newPlane(t)
	for _, odd := range []cloud.HealthCheck{
		{TimeoutSeconds: -1}, {Protocol: "icmp", Port: -1, IntervalSeconds: -1, TimeoutSeconds: -1, HealthyThreshold: -1},
		{Protocol: api.HealthCheckHTTP, Port: 1 << 20, Path: "%zz \x00", TimeoutSeconds: 3600},
	} {
		f := forwarding(1, []string{two}, freePort(t))
		f.HealthCheck = &odd
		require.NoError(t, p.Apply(f))
		assert.NotEmpty(t, awaitHealth(t, p, 0, api.TargetUnhealthy).Reason)
	}
}

func TestHealthCheckExpectedStatusCodes(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	well := newHealthEndpoint(t, two, 0)
	f := forwarding(well.port, []string{two}, port)
	f.HealthCheck = httpCheck(well.port)
	f.HealthCheck.ExpectedCodes = "204,300-399"
	require.NoError(t, p.Apply(f))
	awaitHealth(t, p, 0, api.TargetUnhealthy)
	await(t, func() bool { return strings.Contains(p.Health("lb-1")[0].Reason, "200") })
	well.status.Store(http.StatusFound) // A redirect is not followed.
	awaitHealth(t, p, 0, api.TargetHealthy)
	well.status.Store(http.StatusServiceUnavailable)
	awaitHealth(t, p, 0, api.TargetUnhealthy)
	well.status.Store(http.StatusNoContent)
	awaitHealth(t, p, 0, api.TargetHealthy)
}

func TestHealthChecksOfHTTPS(t *testing.T) {
	certificate, key := testcerts.For(t, "shop.example")
	l := tls.NewListener(listen(t, two, 0), &tls.Config{
		Certificates: []tls.Certificate{must.Do(tls.X509KeyPair([]byte(certificate), []byte(key)))(t)},
	})
	var far atomic.Bool
	s := &http.Server{ReadHeaderTimeout: testTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if far.Load() {
			_, _ = w.Write(make([]byte, 64<<10))
		}
		_, _ = io.WriteString(w, "host "+r.Host+" name "+r.TLS.ServerName)
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	p, port := newPlane(t), l.Addr().(*net.TCPAddr).Port
	f := forwarding(port, []string{two}, freePort(t))
	f.HealthCheck = httpCheck(port)
	f.HealthCheck.Protocol, f.HealthCheck.Host = api.HealthCheckHTTPS, "shop.example:444"
	f.HealthCheck.Response = "host shop.example:444 name shop.example"
	require.NoError(t, p.Apply(f))
	awaitHealth(t, p, 0, api.TargetHealthy)
	far.Store(true)
	sick := awaitHealth(t, p, 0, api.TargetUnhealthy)
	assert.Contains(t, sick.Reason, `does not contain "host shop.example:444`)
}
