package agent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/cluster"
)

// A machine has the size that its instance's type says, whether the instance was listed or is
// new, and keeps it whenever it is booted again.
func TestMachineSize(t *testing.T) {
	typed := func(id, name string, version int64, state api.InstanceState, kind api.InstanceType) api.Instance {
		i := newInstance(id, name, version, state)
		i.Type = kind
		return i
	}
	cloud := &fakeCloud{
		listed: []api.Instance{typed("i-1", "one", 1, api.InstanceRunning, api.InstanceTypeSmall)},
		events: make(chan api.Event),
	}
	s := newSleepMachines(t)
	a := New(
		cloud, s, func(context.Context, string) (string, error) { return "", nil }, "cluster=lab",
		slog.New(slog.DiscardHandler),
	)
	runAgent(t, a, s)
	seq := int64(0)
	send := func(version int64, state api.InstanceState) {
		seq++
		i := typed("i-2", "two", version, state, api.InstanceTypeLarge)
		cloud.events <- api.Event{Seq: seq, Time: time.Now(), Instance: &i, ID: i.ID}
	}
	booted := func(name string, want ...cluster.Size) {
		t.Helper()
		require.Eventually(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.last[name] != nil && len(s.sizes[name]) == len(want)
		}, bound, 10*time.Millisecond)
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Equal(t, want, s.sizes[name])
	}
	large := cluster.Size{CPUs: 8, MemoryMiB: 16384}

	booted("one", cluster.Size{CPUs: 2, MemoryMiB: 4096})
	send(1, api.InstanceRunning)
	booted("two", large)
	send(2, api.InstanceStopped)
	require.Eventually(t, func() bool { return s.pid("two") == 0 }, bound, 10*time.Millisecond)
	send(3, api.InstanceRunning)
	booted("two", large, large)
}
