// Package agent is the lab's background process. It makes instances machines:
// each instance of the cluster that runs in the cloud has a node process, one
// that stops loses it, one that terminates loses it for good. And it records
// the timeline.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster/embedded"
	"github.com/ccmlab/ccmlab/lab/process"
)

// restartDelay keeps a node process that dies at once from being restarted in
// a tight loop.
const restartDelay = time.Second

// stopGrace is how long a machine has to shut down before it is cut off.
const stopGrace = 3 * time.Second

type cloud interface {
	ListInstances(context.Context, client.InstanceFilter) ([]api.Instance, error)
	Follow(ctx context.Context, after int64, fn func(api.Event) error, onBreak func(error)) error
}

type machines interface {
	Boot(embedded.Machine) (*process.Process, error)
	Machines() (map[embedded.Machine]*process.Process, error)
}

// nodes tells the provider ID of the Node object of a name, "" if there is no
// such Node or it has none yet.
type nodes func(ctx context.Context, name string) (providerID string, err error)

// Agent keeps machines in step with instances.
type Agent struct {
	cloud    cloud
	machines machines
	nodes    nodes
	tag      string // key=value that marks the cluster's instances
	log      *slog.Logger

	seq int64 // of the newest event seen

	mu       sync.Mutex
	known    map[string]api.Instance // by ID, newest version
	listedAt time.Time               // when known was last a complete list
	running  map[embedded.Machine]*process.Process
	wake     chan struct{}
}

// New makes an agent for the instances that carry the tag.
func New(c cloud, m machines, n nodes, tag string, log *slog.Logger) *Agent {
	return &Agent{cloud: c, machines: m, nodes: n, tag: tag, log: log, wake: make(chan struct{}, 1)}
}

// Run works until ctx ends. onEvent is told of each event of the cloud.
func (a *Agent) Run(ctx context.Context, onEvent func(api.Event)) error {
	adopted, err := a.machines.Machines()
	if err != nil {
		return err
	}
	a.running = adopted
	for m, p := range adopted {
		go a.reap(ctx, m, p)
	}
	go a.converge(ctx)
	for ctx.Err() == nil {
		err := a.follow(ctx, onEvent)
		if client.HasCode(err, api.EventsExpired) {
			a.seq = client.FromOldest
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("the cloud cannot be followed; trying again", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(restartDelay):
			}
		}
	}
	return nil
}

// follow lists what there is, and then follows the events from where it was.
// Those that are older than the list change nothing: see note.
func (a *Agent) follow(ctx context.Context, onEvent func(api.Event)) error {
	if err := a.relist(ctx); err != nil {
		return err
	}
	return a.cloud.Follow(ctx, a.seq, func(ev api.Event) error {
		a.seq = ev.Seq
		onEvent(ev)
		if ev.Instance != nil && a.ours(*ev.Instance) {
			a.note(ev)
		}
		return nil
	}, func(err error) { a.log.Info("the cloud's event stream broke; resuming", "error", err) })
}

// relist replaces what is known: an instance that is on no list is gone.
func (a *Agent) relist(ctx context.Context) error {
	began := time.Now()
	list, err := a.cloud.ListInstances(ctx, client.InstanceFilter{Tags: []string{a.tag}})
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known, a.listedAt = map[string]api.Instance{}, began
	for _, instance := range list {
		a.known[instance.ID] = instance
	}
	a.poke()
	return nil
}

func (a *Agent) ours(i api.Instance) bool {
	key, value, _ := strings.Cut(a.tag, "=")
	return i.Tags[key] == value
}

// note takes in an instance's newest version. An older one, as history holds,
// changes nothing; nor does the history of one that the list no longer had.
func (a *Agent) note(ev api.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := *ev.Instance
	known, ok := a.known[i.ID]
	if ok && known.Version >= i.Version || !ok && ev.Time.Before(a.listedAt) {
		return
	}
	a.known[i.ID] = i
	a.poke()
}

func (a *Agent) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// converge compares what runs with what should, whenever either changes.
func (a *Agent) converge(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		}
		boot, halt := a.plan()
		var wg sync.WaitGroup
		for m, p := range halt {
			wg.Go(func() {
				a.log.Info("stopping machine", "name", m.Name, "pid", p.PID)
				if err := process.Stop(ctx, stopGrace, p); err != nil {
					a.log.Error("stopping machine", "name", m.Name, "error", err)
				}
			})
		}
		wg.Wait()
		for _, m := range boot {
			a.boot(ctx, m)
		}
	}
}

// plan names the machines to boot and the processes to stop.
func (a *Agent) plan() (boot []embedded.Machine, halt map[embedded.Machine]*process.Process) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil {
		return nil, nil // Nothing is known before the first list; nothing is stopped for that.
	}
	want := map[embedded.Machine]bool{}
	for _, i := range a.known {
		if i.State == api.InstanceRunning && len(i.Addresses) > 0 {
			want[embedded.Machine{ID: i.ID, Name: i.Name, Address: i.Addresses[0].IP}] = true
		}
	}
	halt = map[embedded.Machine]*process.Process{}
	for m, p := range a.running {
		if !want[m] {
			halt[m] = p
		}
	}
	for m := range want {
		if a.running[m] == nil {
			boot = append(boot, m)
		}
	}
	return boot, halt
}

// boot starts a machine's node. As long as the Node object of an earlier
// machine of that name is there, it waits for the CCM to remove it: a kubelet
// would take it for its own, and its provider ID can never be changed.
func (a *Agent) boot(ctx context.Context, m embedded.Machine) {
	if have, err := a.nodes(ctx, m.Name); err != nil || (have != "" && have != m.ProviderID()) {
		a.log.Info("machine waits for the Node of its name to go", "name", m.Name, "id", m.ID, "node", have, "error", err)
		a.wakeAfter(ctx, restartDelay)
		return
	}
	p, err := a.machines.Boot(m)
	if err != nil {
		a.log.Error("booting machine; trying again", "name", m.Name, "error", err)
		a.wakeAfter(ctx, restartDelay)
		return
	}
	a.log.Info("booted machine", "name", m.Name, "address", m.Address, "pid", p.PID)
	a.mu.Lock()
	a.running[m] = p
	a.mu.Unlock()
	go a.reap(ctx, m, p)
}

// reap notices the end of a machine's process. One that should run is booted
// again, as a cloud's watchdog would.
func (a *Agent) reap(ctx context.Context, m embedded.Machine, p *process.Process) {
	if err := p.Wait(ctx); err != nil {
		if !errors.Is(err, context.Canceled) {
			a.log.Error("watching machine", "name", m.Name, "error", err)
		}
		return
	}
	a.log.Info("machine ended", "name", m.Name, "pid", p.PID)
	a.mu.Lock()
	if a.running[m] == p {
		delete(a.running, m)
	}
	a.mu.Unlock()
	a.wakeAfter(ctx, restartDelay)
}

func (a *Agent) wakeAfter(ctx context.Context, d time.Duration) {
	go func() {
		select {
		case <-ctx.Done():
		case <-time.After(d):
			a.poke()
		}
	}()
}
