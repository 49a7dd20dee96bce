package cloud

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3" // The driver.
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func TestASnapshotMovesAVirtualClockForward(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	ahead, _ := newVirtual(t, ctx, openStore(t, store.Memory), newFakePlane(), Profiles[1])
	ahead.snapshots.dir = dir
	requireOK(t)(ahead.Advance(ctx, by(time.Hour)))
	requireOK(t)(ahead.SaveSnapshot(ctx, "ahead"))

	s := openStore(t, store.Memory)
	c, _ := newVirtual(t, ctx, s, newFakePlane(), Profiles[1])
	c.snapshots.dir = dir
	requireOK(t)(c.RestoreSnapshot(ctx, "ahead"))
	now, _ := c.Now()
	assert.Equal(t, epoch.Add(time.Hour), now)
	v, err := StartVirtualTime(ctx, s, epoch)
	require.NoError(t, err)
	assert.Equal(t, now, v.clock.Now(), "it is stored")
}

// When a snapshot was saved, it tells by the virtual clock, wherever its file has
// been since.
func TestSnapshotsAreDatedByTheCloudsClock(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	c, _ := newVirtual(t, ctx, openStore(t, filepath.Join(t.TempDir(), "cloud.db")), newFakePlane(), Profiles[1])
	c.snapshots.dir = dir
	real, _ := newCloud(t, func(cfg *Config) { cfg.SnapshotDir = dir })
	written := time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)
	dated := func(name string, want time.Time) {
		t.Helper()
		require.NoError(t, os.Chtimes(filepath.Join(dir, name+".db"), time.Time{}, written))
		s, err := c.GetSnapshot(ctx, name)
		require.NoError(t, err)
		assert.Equal(t, want, s.CreatedAt, name)
		assert.Equal(t, written, s.FileTime, name)
	}
	for i, name := range []string{"early", "late"} {
		requireOK(t)(c.Advance(ctx, by(10*time.Minute)))
		s, err := c.SaveSnapshot(ctx, name)
		require.NoError(t, err)
		now, _ := c.Now()
		assert.Equal(t, epoch.Add(time.Duration(i+1)*10*time.Minute), now)
		assert.Equal(t, now, s.CreatedAt)
		assert.WithinDuration(t, time.Now(), s.FileTime, time.Minute)
	}
	dated("early", epoch.Add(10*time.Minute))
	dated("late", epoch.Add(20*time.Minute))

	// Under the real clock the file's time is the cloud's, of data that was under
	// a virtual one, too.
	advance(t, real, time.Hour)
	requireOK(t)(real.RestoreSnapshot(ctx, "early"))
	s, err := real.SaveSnapshot(ctx, "real")
	require.NoError(t, err)
	assert.Equal(t, s.FileTime, s.CreatedAt)
	dated("real", written)

	// What does not tell is still listed: of a release without virtual clocks, and
	// damaged.
	saveOfRelease(t, dir, "00003")
	dated("00003", written)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bad.db"), []byte("nonsense, for certain"), 0o600))
	dated("bad", written)
	all, err := c.ListSnapshots(ctx)
	require.NoError(t, err)
	assert.Len(t, all, 5)
	assert.Equal(t, epoch.Add(10*time.Minute), all[2].CreatedAt, all[2].Name)
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	assert.Len(t, left, 5, "they are only read")
}

func TestWhoWaitsLearnsOfASnapshot(t *testing.T) {
	ctx := t.Context()
	c, p := newCloud(t, func(cfg *Config) { cfg.SnapshotDir = t.TempDir() })
	create := func(ctx context.Context) (Outcome, error) {
		_, outcome, err := c.CreateInstance(ctx, p, InstanceSpec{})
		return outcome, err
	}
	kept := runForOperation(t, c, p, create)
	_, err := c.SaveSnapshot(ctx, "then")
	require.NoError(t, err)
	lost := runForOperation(t, c, p, create)
	ended := make(chan error, 2)
	var of [2]Operation
	for i, op := range []Operation{kept, lost} {
		go func() {
			var err error
			of[i], err = c.AwaitOperation(ctx, p, op.ID, nil)
			ended <- err
		}()
	}
	require.Eventually(t, func() bool {
		return c.Waiting(kept.ID) == 1 &&
			c.Waiting(lost.ID) == 1
	}, 10*time.Second, time.Millisecond)

	requireOK(t)(c.RestoreSnapshot(ctx, "then"))
	requireCode(t, NotFound, <-ended)
	require.Eventually(
		t, func() bool { return c.Waiting(kept.ID) == 1 }, 10*time.Second, time.Millisecond,
		"it runs in the snapshot, too",
	)
	advance(t, c, time.Second)
	require.NoError(t, <-ended)
	assert.Equal(t, OperationDone, of[0].State)
}

// What one key made after the snapshot, it makes again; what it made before is
// there.
func TestIdempotencyKeysAreThoseOfTheSnapshot(t *testing.T) {
	c, p := newCloud(t, func(cfg *Config) { cfg.SnapshotDir = t.TempDir() })
	create := func(key string) string {
		ctx := WithRequest(t.Context(), Request{Key: key, Fingerprint: []byte("same")})
		in, _, err := c.CreateInstance(ctx, p, InstanceSpec{})
		require.NoError(t, err)
		return in.ID
	}
	before := create("before")
	requireOK(t)(c.SaveSnapshot(t.Context(), "then"))
	after := create("after")
	requireOK(t)(c.RestoreSnapshot(t.Context(), "then"))
	assert.Equal(t, before, create("before"))
	assert.NotEqual(t, after, create("after"))
	all, _, err := c.ListInstances(t.Context(), p, Filter{Limit: 10})
	require.NoError(t, err)
	assert.Len(t, all, 2)
}

// A file that an earlier release wrote is a snapshot like any other. The dumps of
// later ones have rows that no cloud would write.
func TestSnapshotsOfEarlierReleasesAreRestored(t *testing.T) {
	for _, name := range []string{"00001", "00002", "00003"} {
		t.Run(name, func(t *testing.T) {
			dir, plane := t.TempDir(), newFakePlane()
			saveOfRelease(t, dir, name)
			c, p := newCloud(t, func(cfg *Config) { cfg.SnapshotDir, cfg.DataPlane = dir, plane })
			newInstance(t, c, p, InstanceSpec{})
			requireOK(t)(c.RestoreSnapshot(t.Context(), name))
			p, err := c.EnsureProject(t.Context(), "default", nil)
			require.NoError(t, err)
			advance(t, c, time.Minute)
			all, _, err := c.ListInstances(t.Context(), p, Filter{Limit: 10, States: []string{"running", "stopped"}})
			require.NoError(t, err)
			assert.Len(t, all, 2)
			requireSound(t, c, p, plane)
		})
	}
}

// saveOfRelease makes a snapshot of the schema of that number, and names it so.
func saveOfRelease(t *testing.T, dir, number string) {
	t.Helper()
	statements, err := os.ReadFile(filepath.Join("../store/testdata", number+".sql"))
	require.NoError(t, err)
	file, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, number+".db"))
	require.NoError(t, err)
	_, err = file.Exec(string(statements))
	require.NoError(t, errors.Join(err, file.Close()))
}

// A rule that held something in the snapshot may be gone by now.
func TestWhatASnapshotHoldsIsLookedAtAgain(t *testing.T) {
	c, p := newCloud(t, func(cfg *Config) { cfg.SnapshotDir = t.TempDir() })
	rules := &modelFaults{stuck: true}
	c.SetFaults(rules)
	lb, in := newBalancer(t, c, p)
	advance(t, c, time.Minute)
	requireOK(t)(c.SaveSnapshot(t.Context(), "then"))
	requireOK(t)(c.RestoreSnapshot(t.Context(), "then"))
	advance(t, c, time.Minute)
	require.Equal(t, LoadBalancerProvisioning, balancerState(t, c, p, lb.ID), "it is still there")
	rules.stuck = false
	requireOK(t)(c.RestoreSnapshot(t.Context(), "then"))
	advance(t, c, time.Minute)
	assert.Equal(t, LoadBalancerActive, balancerState(t, c, p, lb.ID))
	got := getInstance(t, c, p, in.ID)
	assert.Equal(t, InstanceRunning, got.State)
}

// What could not be loaded is found out before anything is replaced.
func TestASnapshotOfNonsenseChangesNothing(t *testing.T) {
	dir := t.TempDir()
	c, p := newCloud(t, func(cfg *Config) { cfg.SnapshotDir = dir })
	in := newInstance(t, c, p, InstanceSpec{})
	requireOK(t)(c.SaveSnapshot(t.Context(), "bad"))
	file, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "bad.db"))
	require.NoError(t, err)
	_, err = file.Exec("UPDATE resources SET address = 'nowhere' WHERE kind = 'instance'")
	require.NoError(t, errors.Join(err, file.Close()))
	requireRefused(t, SnapshotUnusable)(c.RestoreSnapshot(t.Context(), "bad"))
	got := getInstance(t, c, p, in.ID)
	assert.Equal(t, in.Address, got.Address)
}

func TestSnapshotsMayBeRestoredWhileTheCloudIsBusy(t *testing.T) {
	plane := newFakePlane()
	s := openStore(t, filepath.Join(t.TempDir(), "cloud.db"))
	c, err := New(Config{Store: s, DataPlane: plane, Profile: Profiles[0], SnapshotDir: t.TempDir()})
	require.NoError(t, err)
	p, err := c.EnsureProject(t.Context(), "default", nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var running, busy errgroup.Group
	running.Go(func() error { return c.Run(ctx) })
	defer func() { stop(); require.NoError(t, running.Wait()) }()
	for range 3 {
		require.NoError(t, churn(ctx, c, p))
	}
	_, err = c.SaveSnapshot(ctx, "then")
	require.NoError(t, err)

	var churned atomic.Int64
	over := make(chan struct{})
	for range 4 {
		busy.Go(func() error {
			for !isClosed(over) {
				if err := churn(ctx, c, p); err != nil {
					return err
				}
				churned.Add(1)
			}
			return nil
		})
	}
	for range 2 {
		busy.Go(func() error { return readUntil(ctx, c, p, over) })
	}
	for range 8 {
		enough := churned.Load() + 8
		require.Eventually(t, func() bool { return churned.Load() >= enough }, time.Minute, time.Millisecond)
		requireOK(t)(c.RestoreSnapshot(ctx, "then"))
	}
	close(over)
	require.NoError(t, busy.Wait())
	require.Eventually(t, func() bool {
		next, err := c.nextWakeTime(ctx)
		return err == nil && (next.IsZero() || next.After(c.now()))
	}, time.Minute, time.Millisecond)
	stop()
	require.NoError(t, running.Wait())
	requireSound(t, c, p, plane)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// churn makes an instance and a balancer that forwards to it, and ends what it
// finds of others'. That something is not there any more is no error.
func churn(ctx context.Context, c *Cloud, p Project) error {
	in, _, err := c.CreateInstance(ctx, p, InstanceSpec{})
	if err == nil {
		_, _, err = c.CreateLoadBalancer(ctx, p, LoadBalancerSpec{
			Name: "lb-" + c.random.letters(12), Listeners: oneListener,
			Targets: []string{in.ID},
		})
	}
	errs := []error{err}
	instances, _, err := c.ListInstances(ctx, p, Filter{Limit: 20})
	errs = append(errs, err)
	for i, in := range instances {
		switch i % 4 {
		case 0:
			_, _, err = c.StopInstance(ctx, p, in.ID)
		case 1:
			_, _, err = c.TerminateInstance(ctx, p, in.ID)
		default:
			continue
		}
		errs = append(errs, err)
	}
	balancers, more, err := c.ListLoadBalancers(ctx, p, Filter{Limit: 5})
	errs = append(errs, err)
	if more {
		_, _, err = c.DeleteLoadBalancer(ctx, p, balancers[0].ID)
		errs = append(errs, err)
	}
	var refused *Error
	errs = slices.DeleteFunc(errs, func(err error) bool { return errors.As(err, &refused) })
	return errors.Join(errs...)
}

// readUntil follows the events; where they cannot be resumed it goes on from the
// oldest, whose number is above all others.
func readUntil(ctx context.Context, c *Cloud, p Project, over <-chan struct{}) error {
	var last int64
	after := Oldest
	for !isClosed(over) {
		events, next, err := c.Events(ctx, p, after)
		var refused *Error
		if errors.As(err, &refused) && refused.Code == EventsExpired {
			after = Oldest
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.Seq <= last {
				return fmt.Errorf("event %d after event %d", e.Seq, last)
			}
			last = e.Seq
		}
		after = next
	}
	return nil
}

// requireSound wants what is kept beside the resources, in memory or counted, to
// be what they are. Nothing is under way.
func requireSound(t *testing.T, c *Cloud, p Project, plane *fakePlane) {
	t.Helper()
	ctx := t.Context()
	stored := newUsedAddresses(everyIPv4)
	require.NoError(t, c.store.Read(ctx, func(tx *store.Tx) error { return stored.load(ctx, tx) }))
	require.Equal(t, stored.pages, c.usedIPv4.pages)

	used := map[Quota]int64{QuotaNetworks: 1}
	for more, f := true, (Filter{Limit: 500}); more; {
		page, next, err := c.ListInstances(ctx, p, f)
		require.NoError(t, err)
		for _, in := range page {
			if f.After = in.ID; in.State != InstanceTerminated {
				used[QuotaInstances]++
			}
			require.Contains(t, []InstanceState{InstanceRunning, InstanceStopped, InstanceTerminated}, in.State)
		}
		more = next
	}
	for more, f := true, (Filter{Limit: 500}); more; {
		page, next, err := c.ListLoadBalancers(ctx, p, f)
		require.NoError(t, err)
		for _, lb := range page {
			f.After = lb.ID
			used[QuotaLoadBalancers]++
			require.Equal(t, LoadBalancerActive, lb.State)
			require.Equal(t, lb.Address, plane.applied[lb.ID].Addresses[0])
		}
		more = next
	}
	require.Len(t, plane.applied, int(used[QuotaLoadBalancers]))
	require.Len(t, c.forwarding, len(plane.applied))
	targets := map[string]map[string]bool{}
	for id, lb := range c.forwarding {
		for _, in := range lb.Targets {
			if targets[in] == nil {
				targets[in] = map[string]bool{}
			}
			targets[in][id] = true
		}
	}
	require.Equal(t, targets, c.balancersByTarget)
	quotas, err := c.ProjectQuotas(ctx, p.ID)
	require.NoError(t, err)
	for _, q := range quotas {
		if q.Quota == QuotaInstances || q.Quota == QuotaLoadBalancers {
			require.Equal(t, used[q.Quota], q.Used, q.Quota)
		}
	}
	running, _, err := c.ListOperations(ctx, p, OperationFilter{States: []string{string(OperationRunning)}, Limit: 10})
	require.NoError(t, err)
	require.Empty(t, running)
}

// What a process that was killed in the middle of a backup left is gone.
func TestPartialSnapshotsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "half.db"+store.PartialSuffix)
	require.NoError(t, os.WriteFile(left, []byte("half"), 0o600))
	newCloud(t, func(cfg *Config) { cfg.SnapshotDir = dir })
	require.NoFileExists(t, left)
}
