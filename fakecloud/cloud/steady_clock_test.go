package cloud

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// adjustableClock is a steadyClock whose wall clock is that many nanoseconds off from the fake clock.
func adjustableClock() (clock *steadyClock, fake *clockwork.FakeClock, off *atomic.Int64) {
	fake, off = clockwork.NewFakeClockAt(epoch), &atomic.Int64{}
	return &steadyClock{
		Clock: fake, wall: func() time.Time { return fake.Now().Add(time.Duration(off.Load())) },
		elapsed: func() time.Duration { return fake.Since(epoch) },
	}, fake, off
}

func TestTimeNeverRunsBackwards(t *testing.T) {
	clock, fake, off := adjustableClock()
	expect := func(want time.Duration) {
		t.Helper()
		assert.Equal(t, epoch.Add(want), clock.Now())
		assert.Equal(t, want, clock.Since(epoch))
		assert.Equal(t, -want, clock.Until(epoch))
	}
	expect(0)
	off.Store(int64(-time.Hour))
	fake.Advance(time.Minute)
	expect(time.Minute)
	off.Store(int64(time.Hour))
	expect(time.Hour + time.Minute)
	off.Store(0)
	fake.Advance(time.Minute)
	expect(time.Hour + 2*time.Minute)

	real := newSteadyClock()
	assert.WithinDuration(t, time.Now(), real.Now(), time.Minute)
}

func TestNothingWaitsForAClockThatWasSetBack(t *testing.T) {
	clock, fake, off := adjustableClock()
	c, p := newCloud(t, func(cfg *Config) { cfg.Clock = clock })
	in := newInstance(t, c, p, api.InstanceCreate{})
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "lb", Listeners: oneListener})
	off.Store(int64(-time.Hour))
	fake.Advance(time.Second)
	requireOK(t)(c.runDueTransitions(t.Context()))
	assert.Equal(t, api.LoadBalancerActive, balancerState(t, c, p, lb.ID))
	assert.Equal(t, api.InstanceRunning, getInstance(t, c, p, in.ID).State)
	outcome := must.Second(c.StopInstance(t.Context(), p, in.ID))(t)
	fake.Advance(time.Second)
	requireOK(t)(c.runDueTransitions(t.Context()))
	assert.Equal(t, api.OperationDone, must.Do(c.GetOperation(t.Context(), p, outcome.Operation))(t).State)
}

// The wall clock is all that a restart has.
func TestAfterARestartNothingWaitsForAClockThatWasAhead(t *testing.T) {
	before, p := newCloud(t, func(cfg *Config) { cfg.Clock = clockwork.NewFakeClockAt(epoch.Add(10 * time.Hour)) })
	gone, in := newInstance(t, before, p, api.InstanceCreate{}), newInstance(t, before, p, api.InstanceCreate{})
	held := newInstance(t, before, p, api.InstanceCreate{})
	requireOK(t)(before.TerminateInstance(t.Context(), p, gone.ID))
	advance(t, before, 250*time.Millisecond)
	require.Equal(t, api.InstanceTerminated, getInstance(t, before, p, gone.ID).State)
	require.NoError(t, before.store.Write(t.Context(), func(tx *store.Tx) error {
		row := must.Do(resourceByID[Instance](t.Context(), tx, held.ID))(t)
		due := fromMillis(heldDue)
		row.due = &due
		return saveResource(t.Context(), &changeTx{Tx: tx, now: before.now()}, api.InstancePending, &row)
	}))

	cfg := before.cfg
	cfg.Clock = clockwork.NewFakeClockAt(epoch)
	c := must.Do(New(cfg))(t)
	require.NoError(t, c.change(t.Context(), c.boundDueTimes))
	requireOK(t)(c.runDueTransitions(t.Context()))
	assert.Equal(t, api.InstanceRunning, getInstance(t, c, p, in.ID).State)
	assert.Equal(t, api.InstancePending, getInstance(t, c, p, held.ID).State)
	_, err := c.GetInstance(t.Context(), p, gone.ID)
	require.Error(t, err)

	soon := newInstance(t, c, p, api.InstanceCreate{})
	require.NoError(t, c.change(t.Context(), c.boundDueTimes))
	requireOK(t)(c.runDueTransitions(t.Context()))
	assert.Equal(t, api.InstancePending, getInstance(t, c, p, soon.ID).State, "it has waited for no time yet")
}

func TestRunBeginsWithTheDueTimes(t *testing.T) {
	before, p := newCloud(t, func(cfg *Config) { cfg.Clock = clockwork.NewFakeClockAt(epoch.Add(10 * time.Hour)) })
	in := newInstance(t, before, p, api.InstanceCreate{})
	cfg := before.cfg
	cfg.Clock = clockwork.NewFakeClockAt(epoch)
	c := must.Do(New(cfg))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	require.Eventually(t, func() bool {
		got, err := c.GetInstance(ctx, p, in.ID)
		return err == nil && got.State == api.InstanceRunning
	}, 10*time.Second, 5*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}
