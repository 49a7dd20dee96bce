package server_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// countingPlane forwards nothing, and counts what it is told to have.
type countingPlane struct {
	dataplane.None
	mu     sync.Mutex
	stats  map[string]api.LoadBalancerStats
	health map[string][]api.TargetHealth
	asked  map[string]int // how often for stats
}

func newCountingPlane() *countingPlane {
	return &countingPlane{
		stats: map[string]api.LoadBalancerStats{}, health: map[string][]api.TargetHealth{}, asked: map[string]int{},
	}
}

func (p *countingPlane) Stats(id string) api.LoadBalancerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[id]++
	return p.stats[id]
}

func (p *countingPlane) Health(id string) []api.TargetHealth {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.health[id]
}

func (p *countingPlane) set(id string, stats api.LoadBalancerStats, health ...api.TargetHealth) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats[id], p.health[id] = stats, health
}

// newCountedBalancer is a balancer of two listeners and three targets, one of which does
// not run, and what its plane says of it.
func newCountedBalancer(t *testing.T, r *rig, p *countingPlane) (lb api.LoadBalancer, targets []string) {
	t.Helper()
	var given []api.Target
	for range 3 {
		in := r.runInstance(t, api.InstanceCreate{})
		targets, given = append(targets, in.ID), append(given, api.Target{InstanceID: in.ID})
	}
	r.stopInstance(t, targets[2])
	made := r.createBalancer(t, api.LoadBalancerCreate{Name: "web", Targets: given, Listeners: []api.Listener{
		{Protocol: "tcp", Port: 8080, TargetPort: 80}, {Protocol: "udp", Port: 53, TargetPort: 53},
	}})
	p.set(made.ID, api.LoadBalancerStats{
		Listeners: []api.ListenerStats{
			{
				Protocol: api.ProtocolUDP, Port: 53, Connections: 9,
				BytesIn: 90, BytesOut: 900,
			},
			{
				Protocol: api.ProtocolTCP, Port: 8080, Connections: 1, ActiveConnections: 2, FailedConnections: 3,
				BrokenConnections: 4, RefusedConnections: 5, BytesIn: 6, BytesOut: 7,
			},
		},
		Targets: []api.TargetStats{{
			InstanceID: targets[1], Connections: 11, ActiveConnections: 12, FailedConnections: 13, BrokenConnections: 14,
			BytesIn: 15, BytesOut: 16,
		}},
	},
		api.TargetHealth{InstanceID: targets[0], Health: api.TargetHealthy, Since: new(at(1)), History: []api.HealthChange{
			{Health: api.TargetHealthy, At: at(1)}, {Health: api.TargetUnknown, Reason: "not checked yet", At: at(0)},
		}},
		api.TargetHealth{InstanceID: targets[1], Health: api.TargetUnknown, Reason: "not checked yet", Since: new(at(0))})
	return r.awaitBalancer(t, made.ID, api.LoadBalancerActive), targets
}

func at(s int) time.Time { return time.Date(2026, 1, 2, 3, 4, s, 0, time.UTC) }

func countingRig(t *testing.T) (*rig, *countingPlane) {
	t.Helper()
	p := newCountingPlane()
	return newRigWith(t, func(cfg *fakecloud.Config) { cfg.DataPlane = p }), p
}

func TestStatsAndHealthAreThePlanes(t *testing.T) {
	r, p := countingRig(t)
	lb, targets := newCountedBalancer(t, r, p)
	stats := must.Do(r.LoadBalancerStats(t.Context(), lb.ID))(t)
	assert.Equal(t, &api.LoadBalancerStats{
		Listeners: []api.ListenerStats{
			{
				Protocol: "tcp", Port: 8080, Connections: 1, ActiveConnections: 2, FailedConnections: 3,
				BrokenConnections: 4, RefusedConnections: 5, BytesIn: 6, BytesOut: 7,
			},
			{Protocol: "udp", Port: 53, Connections: 9, BytesIn: 90, BytesOut: 900},
		},
		Targets: []api.TargetStats{
			{InstanceID: targets[0]},
			{
				InstanceID: targets[1], Connections: 11, ActiveConnections: 12, FailedConnections: 13,
				BrokenConnections: 14, BytesIn: 15, BytesOut: 16,
			},
			{InstanceID: targets[2]},
		},
	}, stats)

	health := must.Do(r.LoadBalancerHealth(t.Context(), lb.ID))(t)
	assert.Equal(t, []api.TargetHealth{
		{InstanceID: targets[0], Health: api.TargetHealthy, Since: new(at(1)), History: []api.HealthChange{
			{Health: api.TargetHealthy, At: at(1)},
			{Health: api.TargetUnknown, Reason: "not checked yet", At: at(0)},
		}},
		{
			InstanceID: targets[1], Health: api.TargetUnknown, Reason: "not checked yet", Since: new(at(0)),
			History: []api.HealthChange{},
		},
		{
			InstanceID: targets[2], Health: api.TargetUnhealthy, Reason: "instance is stopped",
			History: []api.HealthChange{},
		},
	}, health.Targets)
}

func TestBalancersHaveMetrics(t *testing.T) {
	r, p := countingRig(t)
	lb, targets := newCountedBalancer(t, r, p)
	name := func(metric, labels string, rest ...string) string {
		var more string
		for _, l := range rest {
			more += "," + l
		}
		if labels != "" {
			labels += ","
		}
		return fmt.Sprintf("fakecloud_load_balancer_%s{%sload_balancer=%s%s}", metric, labels, lb.ID, more)
	}
	port, project := "port=8080,project="+lb.Project+",protocol=tcp", "project="+lb.Project
	one, other := "target="+targets[0], "target="+targets[1]
	want := map[string]float64{
		name("info", "kind=proxy", "name=web", project):             1,
		name("connections_total", "", port):                         1,
		name("active_connections", "", port):                        2,
		name("failed_connections_total", "", port):                  3,
		name("broken_connections_total", "", port):                  4,
		name("refused_connections_total", "", port):                 5,
		name("bytes_total", "direction=in", port):                   6,
		name("bytes_total", "direction=out", port):                  7,
		name("targets", "health=healthy", project):                  1,
		name("targets", "health=unknown", project):                  1,
		name("targets", "health=unhealthy", project):                1,
		name("target_connections_total", "", project, one):          0,
		name("target_connections_total", "", project, other):        11,
		name("target_active_connections", "", project, other):       12,
		name("target_failed_connections_total", "", project, other): 13,
		name("target_broken_connections_total", "", project, other): 14,
		name("target_bytes_total", "direction=in", project, other):  15,
		name("target_bytes_total", "direction=out", project, other): 16,
		"fakecloud_load_balancer_left_out{of=listeners}":            0,
		"fakecloud_load_balancer_left_out{of=targets}":              0,
	}
	got := samples(t, r.url)
	for name, v := range want {
		found, ok := got[name]
		assert.True(t, ok, name)
		assert.Equal(t, v, found, name)
	}
	assert.EqualValues(t, 9, got[name("connections_total", "", "port=53,"+project+",protocol=udp")])

	requireOK(t)(r.DeleteLoadBalancer(t.Context(), lb.ID))
	r.srv.SetCountsAge(0)
	for name := range samples(t, r.url) {
		assert.NotContains(t, name, lb.ID, "what forwards no more has no series")
	}
}

// Who is elsewhere learns what projects have with an admin's token only.
func TestBalancersMetricsAreNotForEverybody(t *testing.T) {
	r, p := countingRig(t)
	lb, _ := newCountedBalancer(t, r, p)
	viewer := must.Do(r.CreateToken(t.Context(), r.project.ID, api.TokenCreate{Name: "looks", Role: api.RoleViewer}))(t)
	for _, c := range []struct {
		from, secret string
		sees         bool
	}{
		{"127.0.0.1:4000", "", true}, {"[::1]:4000", "", true}, {"[::ffff:127.0.0.1]:4000", "", true},
		{"10.0.0.7:4000", "", false}, {"10.0.0.7:4000", "nonsense", false}, {"10.0.0.7:4000", viewer.Secret, false},
		{"10.0.0.7:4000", secret, true}, {"nowhere", "", false},
	} {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
		req.RemoteAddr, req.Host = c.from, "localhost"
		if c.secret != "" {
			req.Header.Set("Authorization", "Bearer "+c.secret)
		}
		answer := httptest.NewRecorder()
		r.srv.ServeHTTP(answer, req)
		assert.Equal(t, http.StatusOK, answer.Code, "%+v", c)
		assert.Contains(t, answer.Body.String(), "fakecloud_requests_total")
		assert.Equal(t, c.sees, strings.Contains(answer.Body.String(), lb.ID), "%+v", c)
	}
}

// What many balancers have is cut, and said to be; looking again soon asks the
// data plane nothing.
func TestBalancersMetricsAreBounded(t *testing.T) {
	r, p := countingRig(t)
	first, _ := newCountedBalancer(t, r, p)
	var later []api.LoadBalancer
	for _, targets := range [][]api.Target{first.Targets, {}} {
		lb := r.createBalancer(t, api.LoadBalancerCreate{
			Name: fmt.Sprintf("b%d", len(later)), Listeners: oneListener, Targets: targets,
		})
		later = append(later, r.awaitBalancer(t, lb.ID, api.LoadBalancerActive))
	}
	r.srv.SetMaxCounted(3)
	r.srv.SetCountsAge(time.Hour)
	got := samples(t, r.url)
	assert.EqualValues(t, 1, got["fakecloud_load_balancer_left_out{of=listeners}"], "2+1 fit, the third's do not")
	assert.EqualValues(t, 3, got["fakecloud_load_balancer_left_out{of=targets}"])
	seen := func(metric, id string) (n int) {
		for name := range got {
			if strings.HasPrefix(name, "fakecloud_load_balancer_"+metric+"{") &&
				strings.Contains(name, "load_balancer="+id) {
				n++
			}
		}
		return n
	}
	assert.Equal(t, 2, seen("connections_total", first.ID))
	assert.Equal(t, 1, seen("connections_total", later[0].ID))
	assert.Equal(t, 0, seen("connections_total", later[1].ID))
	assert.Equal(t, 3, seen("target_connections_total", first.ID))
	assert.Equal(t, 0, seen("target_connections_total", later[0].ID))
	assert.Equal(t, 0, seen("targets", later[0].ID), "nor is their health asked for")
	assert.Equal(t, 3, seen("targets", later[1].ID), "what fits after what does not is shown")

	p.set(first.ID, api.LoadBalancerStats{})
	name := fmt.Sprintf(
		"fakecloud_load_balancer_connections_total{load_balancer=%s,port=8080,project=%s,protocol=tcp}", first.ID,
		first.Project,
	)
	require.Contains(t, got, name)
	assert.Equal(t, got[name], samples(t, r.url)[name])
	p.mu.Lock()
	defer p.mu.Unlock()
	assert.Equal(t, 1, p.asked[first.ID])
}

// With the real data plane: what clients sent is counted, by listener and by
// target, while the connection is still open, and stays counted when the target is
// stopped.
func TestTrafficIsCountedAsItFlows(t *testing.T) {
	r := newRig(t)
	target := must.Do(net.Listen("tcp4", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = target.Close() })
	go func() {
		for c, err := target.Accept(); err == nil; c, err = target.Accept() {
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	in := r.runInstance(t, api.InstanceCreate{Address: "127.0.0.1"})
	port := freePort(t)
	lb := r.createBalancer(t, api.LoadBalancerCreate{
		Name: "web", Targets: []api.Target{{InstanceID: in.ID}},
		Listeners: []api.Listener{{Protocol: "tcp", Port: port, TargetPort: target.Addr().(*net.TCPAddr).Port}},
	})
	r.awaitBalancer(t, lb.ID, api.LoadBalancerActive)
	c := must.Do(net.DialTimeout("tcp4", fmt.Sprintf("%s:%d", lb.Address, port), patience))(t)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	requireOK(t)(io.WriteString(c, "hello"))
	requireOK(t)(io.ReadFull(c, make([]byte, 5)))

	listener := api.ListenerStats{
		Protocol: "tcp", Port: port, Connections: 1, ActiveConnections: 1, BytesIn: 5, BytesOut: 5,
	}
	of := api.TargetStats{InstanceID: in.ID, Connections: 1, ActiveConnections: 1, BytesIn: 5, BytesOut: 5}
	awaitStats := func() {
		t.Helper()
		want := &api.LoadBalancerStats{Listeners: []api.ListenerStats{listener}, Targets: []api.TargetStats{of}}
		await(t, r.LoadBalancerStats, lb.ID, func(c *assert.CollectT, got *api.LoadBalancerStats) {
			assert.Equal(c, want, got)
		})
	}
	awaitStats()
	require.NoError(t, c.Close())
	listener.ActiveConnections, of.ActiveConnections = 0, 0
	awaitStats()

	r.stopInstance(t, in.ID)
	awaitStats() // Counters that went back would be rates later on.
	requireOK(t)(r.UpdateLoadBalancer(t.Context(), lb.ID, api.LoadBalancerUpdate{Tags: &api.Tags{"a": "b"}}))
	r.awaitBalancer(t, lb.ID, api.LoadBalancerActive)
	awaitStats()
}
