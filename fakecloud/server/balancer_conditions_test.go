package server_test

import (
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// awaitCondition waits until an active balancer's reason begins so; "" is none.
func (r *rig) awaitCondition(t *testing.T, id, want string) api.LoadBalancer {
	t.Helper()
	var lb *api.LoadBalancer
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		lb, err = r.GetLoadBalancer(t.Context(), id)
		if assert.NoError(c, err) && assert.Equal(c, api.LoadBalancerActive, lb.State) {
			begins, _, _ := strings.Cut(valueOrZero(lb.StateReason, ""), ":")
			assert.Equal(c, want, begins)
		}
	}, patience, 2*time.Millisecond)
	return *lb
}

func TestABalancerWithoutHealthyTargetSaysSo(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := r.runInstance(t, api.InstanceCreate{})
	target := must(net.Listen("tcp4", in.Addresses[0].IP+":0"))(t)
	var status atomic.Int64
	status.Store(http.StatusOK)
	web := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(int(status.Load()))
		}),
		ReadHeaderTimeout: patience,
	}
	go func() { _ = web.Serve(target) }()
	t.Cleanup(func() { _ = web.Close() })
	at := target.Addr().(*net.TCPAddr).Port
	lb := r.createBalancer(t, api.LoadBalancerCreate{
		Name: "web", Listeners: []api.Listener{{Protocol: "tcp", Port: freePort(t, "127.0.0.1"), TargetPort: at}},
		Targets: &[]api.Target{{InstanceID: in.ID}},
		HealthCheck: &api.HealthCheck{
			Protocol: api.HealthCheckHTTP, Port: at, IntervalSeconds: 1, TimeoutSeconds: 1, HealthyThreshold: 1,
			UnhealthyThreshold: 1,
		},
	})
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		health, err := r.LoadBalancerHealth(ctx, lb.ID)
		if assert.NoError(c, err) && assert.Len(c, health.Targets, 1) {
			assert.Equal(c, api.TargetHealthy, health.Targets[0].Health)
		}
	}, patience, 2*time.Millisecond)
	assert.Nil(t, r.awaitBalancer(t, lb.ID, api.LoadBalancerActive).StateReason)
	status.Store(http.StatusServiceUnavailable)
	sick := r.awaitCondition(t, lb.ID, "no target is healthy")
	status.Store(http.StatusOK)
	assert.Greater(t, r.awaitCondition(t, lb.ID, "").Version, sick.Version)
	requireOK(t)(r.StopInstance(ctx, in.ID))
	r.awaitCondition(t, lb.ID, "no target runs")
	requireOK(t)(r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{Targets: &[]api.Target{}}))
	last := r.awaitCondition(t, lb.ID, "it has no targets")

	var told []string
	require.NoError(t, r.Watch(ctx, client.FromOldest, false, func(ev api.Event) error {
		if ev.ID == lb.ID && valueOrZero(ev.From, "") == "active" && valueOrZero(ev.To, "") == "active" {
			assert.Equal(t, api.EventUpdated, ev.Type)
			begins, _, _ := strings.Cut(valueOrZero(ev.Reason, ""), ":")
			assert.Equal(t, ev.Reason, ev.LoadBalancer.StateReason)
			told = append(told, begins)
		}
		return nil
	}))
	assert.Subset(t, told, []string{"no target is healthy", "", "no target runs"})
	assert.Equal(t, last, r.awaitBalancer(t, lb.ID, api.LoadBalancerActive), "then all is quiet")
}
