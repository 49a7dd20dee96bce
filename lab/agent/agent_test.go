package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

const bound = 20 * time.Second

// fakeCloud lists and replays what a test puts into it.
type fakeCloud struct {
	listed []api.Instance
	routes []api.Route
	events chan api.Event
}

func (c *fakeCloud) ListInstances(context.Context, client.InstanceFilter) ([]api.Instance, error) {
	return c.listed, nil
}

func (c *fakeCloud) ListRoutes(context.Context, client.RouteFilter) ([]api.Route, error) {
	return c.routes, nil
}

func (c *fakeCloud) ListInstanceTypes(context.Context) ([]api.InstanceSize, error) {
	return []api.InstanceSize{
		{Name: api.InstanceTypeSmall, Vcpus: 2, MemoryMiB: 4096},
		{Name: api.InstanceTypeLarge, Vcpus: 8, MemoryMiB: 16384},
	}, nil
}

func (c *fakeCloud) Follow(
	ctx context.Context,
	_ int64,
	fn func(api.Event) error,
	_ func(error),
	_ ...client.EventFilter,
) error {
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

// sleepMachines boots machines that are processes which sleep.
type sleepMachines struct {
	host process.Host
	mu   sync.Mutex
	last map[string]*process.Process

	sizes    map[string][]cluster.Size // of each boot
	ids      map[string][]string       // provider IDs, likewise
	kept     map[string]bool
	networks map[string]cluster.Network
}

func newSleepMachines(t *testing.T) *sleepMachines {
	t.Helper()
	return &sleepMachines{
		host: process.Host{Lab: t.TempDir()}, last: map[string]*process.Process{}, sizes: map[string][]cluster.Size{},
		ids:      map[string][]string{},
		networks: map[string]cluster.Network{},
	}
}

func (s *sleepMachines) Boot(_ context.Context, m cluster.Machine, size cluster.Size, id string) (cluster.Running, error) {
	p, err := s.host.Start(process.Spec{
		Component: m.Name, Path: "/bin/sleep", Args: []string{"1000"},
		LogFile: filepath.Join(s.host.Lab, m.Name+".log"),
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last[m.Name] = p
	s.sizes[m.Name] = append(s.sizes[m.Name], size)
	s.ids[m.Name] = append(s.ids[m.Name], id)
	return p, err
}

func (s *sleepMachines) Halt(ctx context.Context, _ cluster.Machine, r cluster.Running) error {
	return process.Stop(ctx, time.Second, r.(*process.Process))
}

func (s *sleepMachines) Machines(context.Context) (map[cluster.Machine]cluster.Running, error) {
	return map[cluster.Machine]cluster.Running{}, nil
}

func (s *sleepMachines) Booted(context.Context, cluster.Machine) (bool, error) { return false, nil }

func (s *sleepMachines) Present(context.Context) ([]cluster.Machine, error) { return nil, nil }
func (s *sleepMachines) Adopt(cluster.Machine) error                        { return nil }

func (s *sleepMachines) Sweep(_ context.Context, keep map[string]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = keep
	return nil
}

func (s *sleepMachines) Connect(_ context.Context, m cluster.Machine, n cluster.Network) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.networks[m.Name] = n
	return nil
}

func (s *sleepMachines) keeps(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[id]
}

func (s *sleepMachines) routesOf(name string) []cluster.Route {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.networks[name].Routes
}

func (s *sleepMachines) pid(name string) int {
	running, err := s.host.Running()
	if err != nil || running[name] == nil {
		return 0
	}
	return running[name].PID
}

func newInstance(id, name string, version int64, state api.InstanceState) api.Instance {
	return api.Instance{ID: id, Name: name, Version: version, State: state, Tags: api.Tags{"cluster": "lab"},
		Addresses: []api.Address{{Type: api.AddressInternal, IP: "127.0.0.9"}}}
}

// newAgent is an agent in whose cluster no Node has a provider ID.
func newAgent(c cloud, m cluster.Machines) *Agent {
	none := func(context.Context, string) (string, error) { return "", nil }
	return New(c, m, none, "cluster=lab", slog.New(slog.DiscardHandler))
}

// runAgent runs the agent until the test ends, and then stops the machines that it booted.
func runAgent(t *testing.T, a *Agent, s *sleepMachines) {
	t.Helper()
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
}

func TestMachinesFollowInstances(t *testing.T) {
	listedStandIn, standIn := newInstance(
		"i-7", "seven", 1, api.InstanceRunning,
	), newInstance("i-8", "eight", 1, api.InstanceRunning)
	listedStandIn.Tags["ccmlab-machine"], standIn.Tags["ccmlab-machine"] = "none", "none"
	cloud := &fakeCloud{
		listed: []api.Instance{listedStandIn, newInstance("i-1", "one", 2, api.InstanceRunning)},
		events: make(chan api.Event),
	}
	s := newSleepMachines(t)
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
	runAgent(t, a, s)
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

	send(newInstance("i-1", "one", 1, api.InstanceStopped)) // Older than the list: history.
	purged := newInstance("i-0", "zero", 1, api.InstanceRunning)
	cloud.events <- api.Event{Time: time.Now().Add(-time.Hour), Instance: &purged}
	foreign := newInstance("i-9", "nine", 1, api.InstanceRunning)
	foreign.Tags = api.Tags{"cluster": "other"}
	send(foreign)
	send(standIn)
	send(newInstance("i-2", "two", 1, api.InstancePending))
	send(newInstance("i-2", "two", 2, api.InstanceRunning))
	until("a new instance to run", func() bool { return s.pid("two") != 0 })
	assert.NotZero(t, s.pid("one"), "an old event stops nothing")
	assert.Zero(t, s.pid("nine"), "another cluster's instance is no machine of ours")
	assert.Zero(t, s.pid("seven")+s.pid("eight"), "nor is one that is said to be none, listed or new")
	assert.Zero(t, s.pid("zero"), "nor is one that is only history")

	send(newInstance("i-2", "two", 3, api.InstanceStopped))
	until("a stopped instance to end", func() bool { return s.pid("two") == 0 })
	send(newInstance("i-2", "two", 4, api.InstanceRunning))
	until("a started one to run again", func() bool { return s.pid("two") != 0 })

	send(newInstance("i-2", "two", 5, api.InstanceError))
	until("one in error to end", func() bool { return s.pid("two") == 0 })
	assert.True(t, s.keeps("i-2"), "it is not gone for good")
	send(newInstance("i-2", "two", 6, api.InstancePending))
	send(newInstance("i-2", "two", 7, api.InstanceRunning))
	until("a recovered one to run", func() bool { return s.pid("two") != 0 })
	reboot, reason := newInstance("i-2", "two", 8, api.InstancePending), "rebooting"
	reboot.StateReason = reason
	send(reboot)
	until("one that reboots to go down", func() bool { return s.pid("two") == 0 })
	send(newInstance("i-2", "two", 9, api.InstanceRunning))
	until("and to come up", func() bool { return s.pid("two") != 0 })
	for version := int64(10); version < 20; version += 2 {
		up := s.pid("two")
		reboot.Version = version
		send(reboot)
		send(newInstance("i-2", "two", version+1, api.InstanceRunning))
		until("one to reboot whose cloud is through with it at once", func() bool {
			p := s.pid("two")
			return p != 0 && p != up
		})
	}

	running, err := s.host.Running()
	require.NoError(t, err)
	crashed := running["two"]
	require.NoError(t, crashed.Signal(syscall.SIGKILL))
	until("a crashed one to be booted again", func() bool { p := s.pid("two"); return p != 0 && p != crashed.PID })

	send(newInstance("i-1", "one", 3, api.InstanceTerminated))
	until("a terminated one to end", func() bool { return s.pid("one") == 0 })
	until("and to be swept away", func() bool { return !s.keeps("i-1") && s.keeps("i-2") })

	setNode("one", "fakecloud://i-1")
	send(newInstance("i-3", "one", 1, api.InstanceRunning))
	send(newInstance("i-4", "four", 1, api.InstanceRunning))
	until("another machine to run", func() bool { return s.pid("four") != 0 })
	assert.Zero(t, s.pid("one"), "it waits while the old machine's Node is there")
	setNode("one", "")
	until("the new machine to run", func() bool { return s.pid("one") != 0 })
}

// Machines get the cloud's routes to the others, without those to a stopped machine, and the addresses that are
// attached to them.
func TestMachineNetworks(t *testing.T) {
	one, two := newInstance("i-1", "one", 1, api.InstanceRunning), newInstance("i-2", "two", 1, api.InstanceRunning)
	two.Addresses = []api.Address{{Type: api.AddressInternal, IP: "127.0.0.10"}}
	route := func(id, destination, hop string, version int64, state api.RouteState) api.Route {
		return api.Route{
			Metadata:    api.Metadata{ID: id, Version: version, Tags: api.Tags{"cluster": "lab"}},
			Destination: destination, InstanceID: hop, State: state,
		}
	}
	cloud := &fakeCloud{
		listed: []api.Instance{one, two}, routes: []api.Route{route("r-1", "10.0.1.0/24", "i-1", 1, api.RouteActive)},
		events: make(chan api.Event),
	}
	s := newSleepMachines(t)
	runAgent(t, newAgent(cloud, s), s)
	until := func(what string, want []cluster.Route, of string) {
		t.Helper()
		require.Eventually(
			t, func() bool { return assert.ObjectsAreEqual(want, s.routesOf(of)) }, bound, 10*time.Millisecond, what,
		)
	}
	seq := int64(0)
	send := func(kind api.EventType, r api.Route) {
		seq++
		cloud.events <- api.Event{Seq: seq, Time: time.Now(), Type: kind, Route: &r, ID: r.ID}
	}
	toOne, toTwo := cluster.Route{Destination: "10.0.1.0/24", Via: "127.0.0.9"}, cluster.Route{
		Destination: "10.0.2.0/24", Via: "127.0.0.10",
	}

	until("the listed route", []cluster.Route{toOne}, "two")
	until("none to itself", []cluster.Route{}, "one")
	send(api.EventCreated, route("r-2", "10.0.2.0/24", "i-2", 1, api.RouteActive))
	until("a new route", []cluster.Route{toTwo}, "one")
	send(api.EventUpdated, route("r-1", "10.0.1.0/24", "i-1", 2, api.RouteBlackhole))
	until("a blackhole to be taken away", []cluster.Route{}, "two")
	send(api.EventUpdated, route("r-1", "10.0.1.0/24", "i-1", 1, api.RouteActive)) // History.
	send(api.EventDeleted, route("r-2", "10.0.2.0/24", "i-2", 1, api.RouteActive))
	until("a deleted one to be taken away", []cluster.Route{}, "one")
	assert.Empty(t, s.routesOf("two"), "history brings nothing back")

	two.Version++
	two.Addresses = append(two.Addresses, api.Address{Type: api.AddressExternal, IP: "127.0.64.1"})
	cloud.events <- api.Event{Seq: seq + 1, Time: time.Now(), Instance: &two, ID: two.ID}
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Equal(s.networks["two"].Addresses, []string{"127.0.64.1"})
	}, bound, 10*time.Millisecond, "an address that is attached to it")
}

// Where no CCM makes routes, machines get those to the pods of the others' Nodes, as these get their ranges.
func TestMachinesGetRoutesFromTheLab(t *testing.T) {
	one, two := newInstance("i-1", "one", 1, api.InstanceRunning), newInstance("i-2", "two", 1, api.InstanceRunning)
	two.Addresses = []api.Address{{Type: api.AddressInternal, IP: "127.0.0.10"}}
	s := newSleepMachines(t)
	a := newAgent(&fakeCloud{listed: []api.Instance{one, two}, events: make(chan api.Event)}, s)
	asked := 0
	a.PodRanges = func(context.Context) (map[string]string, error) {
		if asked++; asked < 3 {
			return map[string]string{"one": "10.0.1.0/24", "two": ""}, nil
		}
		return map[string]string{"one": "10.0.1.0/24", "two": "10.0.2.0/24"}, nil
	}
	runAgent(t, a, s)
	for of, want := range map[string]cluster.Route{
		"two": {Destination: "10.0.1.0/24", Via: "127.0.0.9"}, "one": {Destination: "10.0.2.0/24", Via: "127.0.0.10"},
	} {
		require.Eventually(t, func() bool { return slices.Equal(s.routesOf(of), []cluster.Route{want}) },
			bound, 10*time.Millisecond, of)
	}
}

// An agent that starts while the cloud does not answer stops nothing.
func TestNothingIsStoppedBeforeTheFirstList(t *testing.T) {
	a := New(nil, nil, nil, "cluster=lab", slog.New(slog.DiscardHandler))
	a.running = map[cluster.Machine]cluster.Running{{ID: "i-1", Name: "one"}: &process.Process{}}
	boot, halt, keep := a.planMachines()
	assert.Empty(t, boot)
	assert.Empty(t, halt)
	assert.Nil(t, keep, "nor is anything deleted")
}

// After a restart the recorder goes on where the timeline's file ends.
func TestRecorderDoesNotRepeatItself(t *testing.T) {
	log := timeline.Log{File: filepath.Join(t.TempDir(), "timeline.jsonl"), Start: time.Now()}
	event := func(seq int64) api.Event {
		i := newInstance("i-1", fmt.Sprint("n", seq), 1, api.InstanceRunning)
		from, to := "pending", "running"
		return api.Event{Seq: seq, Time: time.Now().
			Add(-time.Minute), Type: api.EventUpdated, Name: i.Name, ID: i.ID, Instance: &i, From: from, To: to}
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

// A machine has the size that its instance's type says, whether the instance was listed or is
// new, and keeps it whenever it is booted again.
func TestMachineSize(t *testing.T) {
	typed := func(id, name string, version int64, state api.InstanceState, kind api.InstanceType) api.Instance {
		i := newInstance(id, name, version, state)
		i.Type, i.Identities = kind, map[string]string{"hcloud": "hcloud://42"}
		return i
	}
	cloud := &fakeCloud{
		listed: []api.Instance{typed("i-1", "one", 1, api.InstanceRunning, api.InstanceTypeSmall)},
		events: make(chan api.Event),
	}
	s := newSleepMachines(t)
	a := newAgent(cloud, s)
	a.KubeletProviderIDs = func() (string, error) { return "{{.Identities.hcloud}}/{{.ID}}", nil }
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
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Equal(t, []string{"hcloud://42/i-2", "hcloud://42/i-2"}, s.ids["two"], "of each boot")
}

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

func (s *shortLivedMachines) Boot(context.Context, cluster.Machine, cluster.Size, string) (cluster.Running, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := lifetime(make(chan struct{}))
	if n := len(s.booted); n < len(s.lives) {
		if s.lives[n] == 0 {
			close(l) // It has ended before the agent can watch it.
		} else {
			time.AfterFunc(s.lives[n], func() { close(l) })
		}
	}
	s.booted = append(s.booted, time.Now())
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
		b.networks = map[string]cluster.Network{}
		a := newAgent(cloud, b)
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
