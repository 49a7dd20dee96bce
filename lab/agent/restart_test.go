package agent

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// shortLivedMachines boots machines that live as long as lives says, one after another.
type shortLivedMachines struct {
	*sleepMachines // For the methods that this test does not need.
	mu             sync.Mutex
	lives          []time.Duration
	booted         []time.Time
}

type lifetime chan struct{}

func (l lifetime) Wait(ctx context.Context) error {
	select {
	case <-l:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *shortLivedMachines) Boot(context.Context, cluster.Machine, cluster.Size) (cluster.Running, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := lifetime(make(chan struct{}))
	if n := len(b.booted); n < len(b.lives) {
		if b.lives[n] == 0 {
			close(l) // It has ended before the agent can watch it.
		} else {
			time.AfterFunc(b.lives[n], func() { close(l) })
		}
	}
	b.booted = append(b.booted, time.Now())
	return l, nil
}

// A machine that dies at once is booted again after a delay that grows, and each of its ends is
// reported. After a machine has lived for a while, the delay is short again.
func TestRestartBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &fakeCloud{
			listed: []api.Instance{newInstance("i-1", "one", 1, api.InstanceRunning)}, events: make(chan api.Event),
		}
		b := &shortLivedMachines{
			sleepMachines: &sleepMachines{}, lives: append(make([]time.Duration, 7), 20*time.Second, 0),
		}
		b.routes = map[string][]cluster.Route{}
		a := New(
			cloud, b, func(context.Context, string) (string, error) { return "", nil }, "cluster=lab",
			slog.New(slog.DiscardHandler),
		)
		var reported []string
		var mu sync.Mutex
		a.OnChange = func(changes ...timeline.Change) {
			mu.Lock()
			defer mu.Unlock()
			for _, c := range changes {
				reported = append(reported, c.What)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- a.Run(ctx, func(api.Event) {}) }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		var waited []time.Duration
		for i, at := range b.booted[1:] {
			waited = append(waited, at.Sub(b.booted[i])-b.lives[i])
		}
		s := time.Second
		assert.Equal(t, []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s, s, s}, waited)
		mu.Lock()
		assert.Equal(t, slices.Repeat([]string{"booted", "ended"}, 9), reported[:18])
		assert.Equal(t, []string{"booted"}, reported[18:])
		mu.Unlock()
		cancel()
		assert.NoError(t, <-done)
	})
}
