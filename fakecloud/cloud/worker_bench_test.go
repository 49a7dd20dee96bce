package cloud

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func BenchmarkDueInstances(b *testing.B) {
	benchmarkDue(b, func(c *Cloud, p Project, i int) error {
		_, _, err := c.CreateInstance(b.Context(), p, api.InstanceCreate{Name: fmt.Sprint("i-", i)})
		return err
	})
}

func BenchmarkDueBalancers(b *testing.B) {
	benchmarkDue(b, func(c *Cloud, p Project, i int) error {
		_, _, err := c.CreateLoadBalancer(b.Context(), p, api.LoadBalancerCreate{
			Name: fmt.Sprint("lb-", i), Listeners: []Listener{{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 30080}},
		})
		return err
	})
}

// benchmarkDue has b.N of what create makes fall due at one time, on a disk.
func benchmarkDue(b *testing.B, create func(c *Cloud, p Project, i int) error) {
	ctx := b.Context()
	s := must.Do(store.Open(ctx, filepath.Join(b.TempDir(), "cloud.db")))(b)
	defer func() { require.NoError(b, s.Close()) }()
	clock := clockwork.NewFakeClockAt(epoch)
	c := must.Do(New(Config{Store: s, DataPlane: newFakePlane(), Profile: Profiles[1], Clock: clock}))(b)
	p := must.Do(c.EnsureProject(ctx, "default", nil))(b)
	requireOK(b)(c.SetQuotas(ctx, p.ID, map[Quota]int64{QuotaInstances: MaxQuota, QuotaLoadBalancers: MaxQuota}))
	var creating errgroup.Group
	creating.SetLimit(64)
	for i := range b.N {
		creating.Go(func() error { return create(c, p, i) })
	}
	require.NoError(b, creating.Wait())
	clock.Advance(time.Minute)
	b.ResetTimer()
	requireOK(b)(c.runDueTransitions(ctx))
}

// BenchmarkTerminatedTargets terminates 4 targets of 100 balancers with 500 targets
// each. It reports how long the longest write took, for which others waited.
func BenchmarkTerminatedTargets(b *testing.B) {
	const balancers, targets, terminated = 100, 500, 4
	ctx := b.Context()
	s := must.Do(store.Open(ctx, filepath.Join(b.TempDir(), "cloud.db")))(b)
	defer func() { require.NoError(b, s.Close()) }()
	clock := clockwork.NewFakeClockAt(epoch)
	c := must.Do(New(Config{Store: s, DataPlane: newFakePlane(), Profile: Profiles[1], Clock: clock}))(b)
	p := must.Do(c.EnsureProject(ctx, "default", nil))(b)
	ids := make([]string, targets)
	for i := range ids {
		in := must.First(c.CreateInstance(ctx, p, api.InstanceCreate{Name: fmt.Sprint("i-", i)}))(b)
		ids[i] = in.ID
	}
	var creating errgroup.Group
	creating.SetLimit(64)
	for i := range balancers {
		creating.Go(func() error {
			_, _, err := c.CreateLoadBalancer(ctx, p, api.LoadBalancerCreate{
				Name: fmt.Sprint("lb-", i), Listeners: []Listener{{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 30080}}, Targets: toTargets(ids...),
			})
			return err
		})
	}
	require.NoError(b, creating.Wait())
	clock.Advance(time.Minute)
	requireOK(b)(c.runDueTransitions(ctx))
	for b.Loop() {
		for _, id := range ids[:terminated] {
			requireOK(b)(c.TerminateInstance(ctx, p, id))
		}
		clock.Advance(time.Minute)
		done := make(chan error, 1)
		go func() {
			_, err := c.runDueTransitions(ctx)
			done <- err
		}()
		var longest time.Duration
		for ended := false; !ended; {
			select {
			case err := <-done:
				require.NoError(b, err)
				ended = true
			default:
			}
			start := time.Now()
			require.NoError(b, s.Write(ctx, func(*store.Tx) error { return nil }))
			longest = max(longest, time.Since(start))
		}
		b.ReportMetric(longest.Seconds(), "longest-wait-s")
		ids = ids[terminated:]
	}
	require.NoError(b, s.Read(ctx, func(tx *store.Tx) error {
		bytes, err := tx.EventBytes(ctx, p.ID)
		b.ReportMetric(float64(bytes), "event-bytes")
		return err
	}))
}
