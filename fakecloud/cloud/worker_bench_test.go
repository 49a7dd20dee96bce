package cloud

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func BenchmarkDueInstances(b *testing.B) {
	benchmarkDue(b, func(c *Cloud, p Project, i int) error {
		_, _, err := c.CreateInstance(b.Context(), p, InstanceSpec{Name: fmt.Sprint("i-", i)})
		return err
	})
}

func BenchmarkDueBalancers(b *testing.B) {
	benchmarkDue(b, func(c *Cloud, p Project, i int) error {
		_, _, err := c.CreateLoadBalancer(b.Context(), p, LoadBalancerSpec{
			Name: fmt.Sprint("lb-", i), Listeners: []Listener{{Protocol: TCP, Port: 80, TargetPort: 30080}},
		})
		return err
	})
}

// benchmarkDue has b.N of what create makes fall due at one time, on a disk.
func benchmarkDue(b *testing.B, create func(c *Cloud, p Project, i int) error) {
	ctx := b.Context()
	s, err := store.Open(ctx, filepath.Join(b.TempDir(), "cloud.db"))
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close()) }()
	clock := clockwork.NewFakeClockAt(epoch)
	c, err := New(Config{Store: s, DataPlane: newFakePlane(), Profile: Profiles[1], Clock: clock})
	require.NoError(b, err)
	p, err := c.EnsureProject(ctx, "default", nil)
	require.NoError(b, err)
	_, err = c.SetQuotas(ctx, p.ID, map[Quota]int64{QuotaInstances: MaxQuota, QuotaLoadBalancers: MaxQuota})
	require.NoError(b, err)
	var creating errgroup.Group
	creating.SetLimit(64)
	for i := range b.N {
		creating.Go(func() error { return create(c, p, i) })
	}
	require.NoError(b, creating.Wait())
	clock.Advance(time.Minute)
	b.ResetTimer()
	_, err = c.runDueTransitions(ctx)
	require.NoError(b, err)
}
