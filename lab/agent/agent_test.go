package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster/embedded"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

const bound = 20 * time.Second

// fakeCloud replays what it is told.
type fakeCloud struct {
	listed []api.Instance
	events chan api.Event
}

func (c *fakeCloud) ListInstances(context.Context, client.InstanceFilter) ([]api.Instance, error) {
	return c.listed, nil
}

func (c *fakeCloud) Follow(ctx context.Context, _ int64, fn func(api.Event) error, _ func(error)) error {
	for {
		select {
		case ev := <-c.events:
			if err := fn(ev); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sleepers boots real processes that sleep.
type sleepers struct {
	host process.Host
	mu   sync.Mutex
	last map[string]*process.Process
}

func (s *sleepers) Boot(m embedded.Machine) (*process.Process, error) {
	p, err := s.host.Start(process.Spec{Component: m.Name, Path: "/bin/sleep", Args: []string{"1000"}, LogFile: filepath.Join(s.host.Lab, m.Name+".log")})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last[m.Name] = p
	return p, err
}

func (s *sleepers) Machines() (map[embedded.Machine]*process.Process, error) {
	return map[embedded.Machine]*process.Process{}, nil
}

func (s *sleepers) pid(name string) int {
	running, err := s.host.Running()
	if err != nil || running[name] == nil {
		return 0
	}
	return running[name].PID
}

func inst(id, name string, version int64, state api.InstanceState) api.Instance {
	return api.Instance{ID: id, Name: name, Version: version, State: state, Tags: api.Tags{"cluster": "lab"},
		Addresses: []api.Address{{Type: api.AddressInternal, IP: "127.0.0.9"}}}
}

func TestInstancesAreMachines(t *testing.T) {
	cloud := &fakeCloud{listed: []api.Instance{inst("i-1", "one", 2, api.InstanceRunning)}, events: make(chan api.Event)}
	s := &sleepers{host: process.Host{Lab: t.TempDir()}, last: map[string]*process.Process{}}
	var mu sync.Mutex
	nodeObjects := map[string]string{}
	providerID := func(_ context.Context, name string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		return nodeObjects[name], nil
	}
	setNode := func(name, id string) {
		mu.Lock()
		defer mu.Unlock()
		nodeObjects[name] = id
	}
	a := New(cloud, s, providerID, "cluster=lab", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Run(ctx, func(api.Event) {}) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
		running, err := s.host.Running()
		assert.NoError(t, err)
		for _, p := range running {
			assert.NoError(t, process.Stop(context.Background(), 0, p))
		}
	})
	seq := int64(0)
	send := func(i api.Instance) {
		seq++
		cloud.events <- api.Event{Seq: seq, Time: time.Now(), Instance: &i, ID: i.ID}
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		require.Eventually(t, ok, bound, 10*time.Millisecond, what)
	}

	until("the listed instance to run", func() bool { return s.pid("one") != 0 })

	send(inst("i-1", "one", 1, api.InstanceStopped)) // Older than the list: history.
	purged := inst("i-0", "zero", 1, api.InstanceRunning)
	cloud.events <- api.Event{Time: time.Now().Add(-time.Hour), Instance: &purged}
	foreign := inst("i-9", "nine", 1, api.InstanceRunning)
	foreign.Tags = api.Tags{"cluster": "other"}
	send(foreign)
	send(inst("i-2", "two", 1, api.InstancePending))
	send(inst("i-2", "two", 2, api.InstanceRunning))
	until("a new instance to run", func() bool { return s.pid("two") != 0 })
	assert.NotZero(t, s.pid("one"), "an old event stops nothing")
	assert.Zero(t, s.pid("nine"), "another cluster's instance is no machine of ours")
	assert.Zero(t, s.pid("zero"), "nor is one that is only history")

	send(inst("i-2", "two", 3, api.InstanceStopped))
	until("a stopped instance to end", func() bool { return s.pid("two") == 0 })
	send(inst("i-2", "two", 4, api.InstanceRunning))
	until("a started one to run again", func() bool { return s.pid("two") != 0 })

	crashed := s.pid("two")
	s.mu.Lock()
	require.NoError(t, s.last["two"].Signal(syscall.SIGKILL))
	s.mu.Unlock()
	until("a crashed one to be booted again", func() bool { p := s.pid("two"); return p != 0 && p != crashed })

	send(inst("i-1", "one", 3, api.InstanceTerminated))
	until("a terminated one to end", func() bool { return s.pid("one") == 0 })

	setNode("one", "fakecloud://i-1")
	send(inst("i-3", "one", 1, api.InstanceRunning))
	send(inst("i-4", "four", 1, api.InstanceRunning))
	until("another machine to run", func() bool { return s.pid("four") != 0 })
	assert.Zero(t, s.pid("one"), "it waits while the old machine's Node is there")
	setNode("one", "")
	until("the new machine to run", func() bool { return s.pid("one") != 0 })
}

// An agent that comes back while the cloud is away stops nothing.
func TestNothingIsStoppedBeforeTheFirstList(t *testing.T) {
	a := New(nil, nil, nil, "cluster=lab", slog.New(slog.DiscardHandler))
	a.running = map[embedded.Machine]*process.Process{{ID: "i-1", Name: "one"}: {}}
	boot, halt := a.plan()
	assert.Empty(t, boot)
	assert.Empty(t, halt)
}

// After a restart the recorder goes on where the file ends.
func TestRecorderDoesNotRepeatItself(t *testing.T) {
	log := timeline.Log{File: filepath.Join(t.TempDir(), "timeline.jsonl"), Start: time.Now()}
	event := func(seq int64) api.Event {
		i := inst("i-1", fmt.Sprint("n", seq), 1, api.InstanceRunning)
		from, to := "pending", "running"
		return api.Event{Seq: seq, Time: time.Now().Add(-time.Minute), Type: api.EventUpdated, Name: i.Name, ID: i.ID, Instance: &i, From: &from, To: &to}
	}
	first, err := NewRecorder(log, "tag", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	old := event(1)
	first.Event(old)
	second, err := NewRecorder(log, "tag", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	second.Event(old)
	second.Event(event(2))
	entries, err := log.Read()
	require.NoError(t, err)
	require.Len(t, entries, 2)
	assert.Equal(t, "instance/n1", entries[0].Subject)
	assert.Equal(t, "instance/n2", entries[1].Subject)
}
