package scene

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func TestTargets(t *testing.T) {
	lb := OfBalancer(api.LoadBalancer{Metadata: api.Metadata{Name: "lb"}, Targets: []api.Target{{InstanceID: "i-1"}, {InstanceID: "i-2"}}})
	health := []api.TargetHealth{
		{InstanceID: "i-1", Health: api.TargetHealthy},
		{InstanceID: "i-2", Health: api.TargetUnhealthy, Reason: "instance is stopped"},
	}
	stats := []api.TargetStats{{InstanceID: "i-1", ActiveConnections: 3, BytesIn: 100, BytesOut: 900}}
	earlier := lb
	bytes := lb.SetTargets(health, stats, nil, 0)
	assert.Equal(t, []Link{
		{To: "cloud:i-1", Level: LevelOK, State: "healthy", Connections: 3},
		{To: "cloud:i-2", Level: LevelBad, State: "instance is stopped"},
	}, lb.Links)
	assert.Empty(t, earlier.Links[0].State, "the earlier state is as it was")
	stats[0].BytesOut += 500
	lb.SetTargets(health, stats, bytes, 2)
	assert.EqualValues(t, 250, lb.Links[0].BytesPerSecond)

	next := OfBalancer(api.LoadBalancer{Metadata: api.Metadata{Name: "lb"}, Targets: []api.Target{{InstanceID: "i-2"}, {InstanceID: "i-3"}}})
	next.KeepTargets(lb)
	assert.Equal(t, []Link{{To: "cloud:i-2", Level: LevelBad, State: "instance is stopped"}, {To: "cloud:i-3"}}, next.Links)
}

// memory is a Store.
type memory struct{ Scene }

func (m memory) Get(id string) (t Object, ok bool) { t, ok = m.Scene[id]; return t, ok }

func (m memory) Add(c Change) error { m.Apply(c); return nil }

// fakeCloud answers for one balancer, and for faults.
type fakeCloud struct {
	bytes  int64
	faults []api.Fault
	err    error
}

func (f *fakeCloud) ListLoadBalancers(context.Context, client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	return []api.LoadBalancer{{Metadata: api.Metadata{ID: "lb-1", Name: "web"}}}, f.err
}

func (f *fakeCloud) LoadBalancerHealth(context.Context, string) (*api.LoadBalancerHealth, error) {
	return &api.LoadBalancerHealth{Targets: []api.TargetHealth{{InstanceID: "i-1", Health: api.TargetHealthy}}}, nil
}

func (f *fakeCloud) LoadBalancerStats(context.Context, string) (*api.LoadBalancerStats, error) {
	return &api.LoadBalancerStats{Targets: []api.TargetStats{{InstanceID: "i-1", BytesOut: f.bytes}}}, nil
}

func (f *fakeCloud) ListFaults(context.Context) ([]api.Fault, error) { return f.faults, f.err }

// The targets of a balancer that the events have told of get health and traffic, which stay while the
// cloud does not answer.
func TestTrafficIsFollowed(t *testing.T) {
	store := memory{Scene{}}
	f, cloud := NewFollower(store, 0, time.Time{}), &fakeCloud{bytes: 1000}
	require.NoError(t, f.Poll(t.Context(), cloud), "of a balancer that is not known yet")
	lb := api.LoadBalancer{Metadata: api.Metadata{ID: "lb-1", Name: "web"}, Targets: []api.Target{{InstanceID: "i-1"}}}
	require.NoError(t, f.Event(api.Event{Seq: 1, Type: api.EventCreated, LoadBalancer: &lb}))
	require.NoError(t, f.Poll(t.Context(), cloud))
	cloud.bytes = 1 << 30
	require.NoError(t, f.Poll(t.Context(), cloud))
	cloud.err = errors.New("the cloud is away")
	require.ErrorIs(t, f.Poll(t.Context(), cloud), cloud.err)
	link := store.Scene["balancer/web"].Links[0]
	assert.Equal(t, LevelOK, link.Level)
	assert.Positive(t, link.BytesPerSecond)
}

// Faults are in the picture while they are in force.
func TestFaultsAreFollowed(t *testing.T) {
	store := memory{Scene{}}
	f, cloud := NewFollower(store, 0, time.Time{}), &fakeCloud{
		faults: []api.Fault{{ID: "f-1", Effect: api.FaultEffect{Status: 503}, Match: api.FaultMatch{Token: "ccm"}}},
	}
	require.NoError(t, f.Poll(t.Context(), cloud))
	assert.Equal(t, "status=503", store.Scene["fault/f-1"].Name)
	assert.Contains(t, store.Scene["fault/f-1"].Facts, Fact{"applies to", "token=ccm"})
	cloud.faults[0].Spent = true
	require.NoError(t, f.Poll(t.Context(), cloud))
	assert.Empty(t, store.Scene)
}

// A certificate is marked from 14 days before it expires on, which no event tells.
func TestCertificatesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory{Scene{}}
		f := NewFollower(store, 0, time.Time{})
		shop := api.Certificate{
			Metadata: api.Metadata{ID: "cert-1", Name: "shop"}, NotAfter: time.Now().Add(expirySoon + time.Hour),
			DomainNames: []string{"shop.example.com"},
		}
		require.NoError(t, f.Event(api.Event{Seq: 1, Time: time.Now(), Type: api.EventCreated, Certificate: &shop}))
		requireState := func(state string, level Level) {
			t.Helper()
			require.NoError(t, f.Poll(t.Context(), &fakeCloud{}))
			is := store.Scene["certificate/shop"]
			require.Equal(t, []any{state, level}, []any{is.State, is.Level})
			require.Contains(t, is.Facts, Fact{"expires", shop.NotAfter.UTC().Format(time.RFC3339)})
		}
		requireState("valid", LevelOK)
		time.Sleep(time.Hour)
		requireState("expires soon", LevelBad)
		time.Sleep(expirySoon)
		requireState("expired", LevelBad)
	})
}

// A source that has not answered for a while is in the scene with since when, and with what is unknown meanwhile. An
// answer beside a broken stream proves nothing.
func TestSourcesThatDoNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory{Scene{}}
		s := NewSource(store, "cloud", time.Time{}, KindInstance)
		require.NoError(t, s.Observe(nil))
		answered := time.Now()
		time.Sleep(silenceBound - 1)
		require.NoError(t, s.Observe(syscall.ECONNREFUSED))
		assert.Empty(t, store.Scene, "it may be a moment's")
		time.Sleep(time.Nanosecond)
		require.NoError(t, s.Observe(syscall.ECONNREFUSED))
		cloud := store.Scene["source/cloud"]
		assert.Equal(t, "connection refused", cloud.Reason)
		assert.Equal(t, &Unknown{answered, []Kind{KindInstance}}, cloud.Unknown)
		s.SetStream("events", errors.New("broken"))
		require.NoError(t, s.Observe(nil))
		assert.Equal(t, "broken", store.Scene["source/cloud"].Reason)
		again := NewSource(store, "cloud", answered.Add(time.Second), KindInstance)
		time.Sleep(silenceBound)
		require.NoError(t, again.MarkUnasked())
		assert.Equal(t, answered, store.Scene["source/cloud"].Unknown.Since, "as the process before has seen it")
		s.SetStream("events", nil)
		require.NoError(t, s.Observe(nil))
		assert.Empty(t, store.Scene)
	})
}
