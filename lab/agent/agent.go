// Package agent is the lab's background process. It makes instances machines:
// each instance of the cluster that runs in the cloud has a node, unless its
// tag ccmlab-machine is "none"; one that stops loses it, one that terminates
// loses it for good. Where pods reach each other by the cloud's routes, it gives
// the machines those. And it records the timeline.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// restartDelay keeps a machine that dies at once from being booted again in a
// tight loop. One that dies within shortLife of its boot waits twice as long the
// next time, up to maxDelay.
const (
	restartDelay = time.Second
	maxDelay     = 30 * time.Second
	shortLife    = 10 * time.Second
)

// bootBound is how long a machine may take to boot or to halt; a container
// that joins a cluster on a busy computer takes a minute.
const bootBound = 5 * time.Minute

// stepBound is how long all of them together may take to be swept or
// connected: others wait for that.
const stepBound = 30 * time.Second

// IsMachine tells whether a machine boots for an instance with these tags.
func IsMachine(tags api.Tags) bool { return tags[contract.TagMachine] != contract.NoMachine }

// What the timeline tells of a machine that ended though nobody had halted it.
const (
	MachineSubject = "machine/" // and its name
	MachineEnded   = "ended"
)

type cloud interface {
	ListInstances(context.Context, client.InstanceFilter) ([]api.Instance, error)
	ListRoutes(context.Context, client.RouteFilter) ([]api.Route, error)
	ListInstanceTypes(context.Context) ([]api.InstanceSize, error)
	Follow(ctx context.Context, after int64, fn func(api.Event) error, onBreak func(error), filter ...client.EventFilter) error
}

// nodes tells the provider ID of the Node object of a name, "" if there is no
// such Node or it has none yet.
type nodes func(ctx context.Context, name string) (providerID string, err error)

// Agent keeps machines in step with instances.
type Agent struct {
	cloud    cloud
	machines cluster.Machines
	nodes    nodes
	tag      string // key=value that marks the cluster's instances and routes
	log      *slog.Logger
	// Tell, if it is set before Run, is told of machines that boot, halt and end.
	Tell func(...timeline.Change)

	seq int64 // of the newest event seen

	mu       sync.Mutex
	known    map[string]api.Instance // by ID, newest version
	routes   map[string]api.Route    // by ID, newest version
	sizes    map[api.InstanceType]cluster.Size
	listedAt time.Time // when known and routes were last complete lists
	running  map[cluster.Machine]cluster.Running
	down     map[string]bool                   // IDs of instances that went down since their machine's boot began
	busy     map[string]bool                   // names of machines that are booting, halting or waiting to
	delays   map[cluster.Machine]time.Duration // of those that ended soon after their boot
	routed   map[cluster.Machine][]cluster.Route
	wake     chan struct{}
}

// New makes an agent for the instances that carry the tag.
func New(c cloud, m cluster.Machines, n nodes, tag string, log *slog.Logger) *Agent {
	return &Agent{
		cloud: c, machines: m, nodes: n, tag: tag, log: log, wake: make(chan struct{}, 1),
		down: map[string]bool{}, busy: map[string]bool{}, delays: map[cluster.Machine]time.Duration{}, routed: map[cluster.Machine][]cluster.Route{},
		Tell: func(...timeline.Change) {},
	}
}

// Run works until ctx ends. onEvent is told of each event of the cloud.
func (a *Agent) Run(ctx context.Context, onEvent func(api.Event)) error {
	adopted, err := a.machines.Machines(ctx)
	for ; err != nil; adopted, err = a.machines.Machines(ctx) {
		a.log.Error("looking for machines; trying again", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(restartDelay):
		}
	}
	a.running = adopted
	for m, r := range adopted {
		go a.reap(ctx, m, r)
	}
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { a.converge(ctx, &work) })
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
		a.note(ev)
		return nil
	}, func(err error) {
		if err != nil {
			a.log.Info("the cloud's event stream broke; resuming", "error", err)
		}
	})
}

// relist replaces what is known: an instance that is on no list is gone.
func (a *Agent) relist(ctx context.Context) error {
	began := time.Now()
	instances, err := a.cloud.ListInstances(ctx, client.InstanceFilter{Tags: []string{a.tag}})
	if err != nil {
		return err
	}
	routes, err := a.cloud.ListRoutes(ctx, client.RouteFilter{Tags: []string{a.tag}})
	if err != nil {
		return err
	}
	types, err := a.cloud.ListInstanceTypes(ctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known, a.routes, a.listedAt = map[string]api.Instance{}, map[string]api.Route{}, began
	a.sizes = map[api.InstanceType]cluster.Size{}
	for _, t := range types {
		a.sizes[t.Name] = cluster.Size{CPUs: t.Vcpus, MemoryMiB: t.MemoryMiB}
	}
	for _, i := range instances {
		if a.ours(i.Tags) {
			a.known[i.ID] = i
		}
	}
	for _, r := range routes {
		a.routes[r.ID] = r
	}
	clear(a.routed) // What the machines really have is seen to again.
	a.poke()
	return nil
}

func (a *Agent) ours(tags api.Tags) bool {
	key, value, _ := strings.Cut(a.tag, "=")
	return tags[key] == value && IsMachine(tags)
}

// note takes in the newest version of an instance or a route. An older one, as
// history holds, changes nothing; nor does the history of one that the list no
// longer had.
func (a *Agent) note(ev api.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case ev.Instance != nil && a.ours(ev.Instance.Tags):
		i := *ev.Instance
		known, ok := a.known[i.ID]
		if ok && known.Version >= i.Version || !ok && ev.Time.Before(a.listedAt) {
			return
		}
		a.known[i.ID] = i
		// The cloud may be through with a reboot before its machine is looked at.
		if _, allowed := runs(i); !allowed {
			a.down[i.ID] = true
		}
	case ev.Route != nil && a.ours(ev.Route.Tags):
		r := *ev.Route
		known, ok := a.routes[r.ID]
		switch {
		case ev.Time.Before(a.listedAt) && (!ok || known.Version >= r.Version):
			return
		case ev.Type == api.EventDeleted:
			delete(a.routes, r.ID)
		case ok && known.Version >= r.Version:
			return
		default:
			a.routes[r.ID] = r
		}
	default:
		return
	}
	a.poke()
}

// converge compares what runs with what should, whenever either changes. Each
// machine boots and halts in its own time; none keeps another waiting.
func (a *Agent) converge(ctx context.Context, work *sync.WaitGroup) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		}
		boot, halt, keep := a.plan()
		for m, r := range halt {
			work.Go(func() { a.halt(ctx, m, r) })
		}
		for _, m := range boot {
			work.Go(func() { a.boot(ctx, m) })
		}
		if keep != nil {
			a.sweep(ctx, keep)
		}
		a.connect(ctx)
	}
}

// rebooting is what the cloud says of an instance whose machine goes down and up
// again.
const rebooting = "rebooting"

// runs tells whether an instance is to have a machine that runs, and whether it
// may keep one, which what is wanted always may.
func runs(i api.Instance) (wanted, allowed bool) {
	switch i.State {
	case api.InstanceRunning:
		return true, true
	case api.InstancePending: // It may be a machine that was there first.
		return false, i.StateReason == nil || *i.StateReason != rebooting
	default:
		return false, false
	}
}

// plan names the machines to boot and to halt, which are busy from now on, and
// the instances that are to keep what they have.
func (a *Agent) plan() (boot []cluster.Machine, halt map[cluster.Machine]cluster.Running, keep map[string]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil {
		return nil, nil, nil // Nothing is known before the first list; nothing is stopped for that.
	}
	want, may := map[cluster.Machine]bool{}, map[cluster.Machine]bool{}
	keep = map[string]bool{}
	for _, i := range a.known {
		keep[i.ID] = i.State != api.InstanceTerminated
		if len(i.Addresses) == 0 {
			continue
		}
		m := cluster.Machine{ID: i.ID, Name: i.Name, Address: i.Addresses[0].IP}
		wanted, allowed := runs(i)
		may[m] = allowed && !a.down[i.ID]
		if wanted {
			want[m] = true
		}
	}
	maps.DeleteFunc(keep, func(_ string, kept bool) bool { return !kept })
	halt = map[cluster.Machine]cluster.Running{}
	for m, r := range a.running {
		if !may[m] && !a.busy[m.Name] {
			halt[m], a.busy[m.Name] = r, true
		}
	}
	for m := range want {
		if a.running[m] == nil && !a.busy[m.Name] {
			boot, a.busy[m.Name] = append(boot, m), true
			delete(a.down, m.ID)
		}
	}
	return boot, halt, keep
}

// idle ends what plan began.
func (a *Agent) idle(m cluster.Machine) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.busy, m.Name)
	a.poke()
}

func (a *Agent) halt(ctx context.Context, m cluster.Machine, r cluster.Running) {
	a.log.Info("stopping machine", "name", m.Name)
	bounded, cancel := context.WithTimeout(ctx, bootBound)
	defer cancel()
	err := a.machines.Halt(bounded, m, r)
	if err == nil {
		err = r.Wait(bounded)
	}
	if err != nil {
		a.log.Error("stopping machine; trying again", "name", m.Name, "error", err)
		a.later(ctx, func() { a.idle(m) })
		return
	}
	a.ended(m, r, 0)
	a.idle(m)
}

// free is an error as long as the Node object of an earlier machine of that
// name is there. A new machine waits for the CCM to remove it: a kubelet would
// take it for its own, and its provider ID can never be changed.
func (a *Agent) free(ctx context.Context, m cluster.Machine) error {
	if booted, err := a.machines.Booted(ctx, m); err != nil || booted {
		return err
	}
	have, err := a.nodes(ctx, m.Name)
	if err == nil && have != "" && have != m.ProviderID() {
		err = fmt.Errorf("its name's Node is still that of %s", have)
	}
	return err
}

func (a *Agent) boot(ctx context.Context, m cluster.Machine) {
	if err := a.free(ctx, m); err != nil {
		a.log.Info("machine waits", "name", m.Name, "id", m.ID, "for", err)
		a.later(ctx, func() { a.idle(m) })
		return
	}
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, bootBound)
	defer cancel()
	r, err := a.machines.Boot(bounded, m, a.size(m))
	if err != nil {
		a.log.Error("booting machine; trying again", "name", m.Name, "error", err)
		a.later(ctx, func() { a.idle(m) })
		return
	}
	a.log.Info("booted machine", "name", m.Name, "address", m.Address, "seconds", time.Since(began).Seconds())
	a.tell(m, "booted", "for instance "+m.ID+" at "+m.Address, false)
	a.mu.Lock()
	a.running[m] = r
	delete(a.routed, m)
	a.mu.Unlock()
	a.idle(m) // Before it is watched: its end makes it busy again.
	go a.reap(ctx, m, r)
}

// size is what the type of the machine's instance gives it.
func (a *Agent) size(m cluster.Machine) cluster.Size {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sizes[a.known[m.ID].Type]
}

// reap notices the end of a machine. One that should run is booted again, as a
// cloud's watchdog would, after a while in which nothing else is done with it.
func (a *Agent) reap(ctx context.Context, m cluster.Machine, r cluster.Running) {
	began := time.Now()
	if err := r.Wait(ctx); err != nil {
		if !errors.Is(err, context.Canceled) {
			a.log.Error("watching machine", "name", m.Name, "error", err)
		}
		return
	}
	if rest := a.ended(m, r, time.Since(began)); rest > 0 {
		a.log.Info("machine ended", "name", m.Name, "again after", rest)
		a.after(ctx, rest, func() { a.idle(m) })
	}
}

// ended takes note of a machine that has ended. One that nobody halted is busy
// resting, for as long as is said.
func (a *Agent) ended(m cluster.Machine, r cluster.Running, age time.Duration) (rest time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running[m] != r {
		return 0
	}
	delete(a.running, m)
	delete(a.routed, m)
	previous := a.delays[m]
	delete(a.delays, m)
	if a.busy[m.Name] {
		a.tell(m, "halted", "", false)
		return 0
	}
	a.tell(m, MachineEnded, "nobody had halted it", true)
	a.busy[m.Name] = true
	if age >= shortLife {
		return restartDelay
	}
	a.delays[m] = max(restartDelay, min(2*previous, maxDelay))
	return a.delays[m]
}

// tell says what has become of a machine.
func (a *Agent) tell(m cluster.Machine, what, detail string, failed bool) {
	a.Tell(timeline.Change{Source: timeline.SourceLab, Subject: MachineSubject + m.Name, What: what, Detail: detail, ID: m.ID, Failed: failed})
}

func (a *Agent) sweep(ctx context.Context, keep map[string]bool) {
	bounded, cancel := context.WithTimeout(ctx, stepBound)
	defer cancel()
	if err := a.machines.Sweep(bounded, keep); err != nil {
		a.retry(ctx, "deleting what is left of machines", err)
	}
}

// connect gives each running machine the routes to the others.
func (a *Agent) connect(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, stepBound)
	defer cancel()
	var each sync.WaitGroup
	for m, routes := range a.unrouted() {
		each.Go(func() {
			if err := a.machines.Connect(bounded, m, routes); err != nil {
				a.retry(ctx, "routes of machine "+m.Name, err)
				return
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			a.routed[m] = routes
		})
	}
	each.Wait()
}

// unrouted are the machines whose routes are not as the cloud's are now. One
// that is a blackhole in the cloud is none here.
func (a *Agent) unrouted() map[cluster.Machine][]cluster.Route {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := map[cluster.Machine][]cluster.Route{}
	for m := range a.running {
		if a.busy[m.Name] {
			continue
		}
		routes := []cluster.Route{}
		for _, r := range a.routes {
			hop := a.known[r.InstanceID]
			if r.State == api.RouteActive && hop.ID != m.ID && len(hop.Addresses) > 0 {
				routes = append(routes, cluster.Route{Destination: r.Destination, Via: hop.Addresses[0].IP})
			}
		}
		slices.SortFunc(routes, func(a, b cluster.Route) int { return strings.Compare(a.Destination, b.Destination) })
		if have, ok := a.routed[m]; !ok || !slices.Equal(have, routes) {
			due[m] = routes
		}
	}
	return due
}

func (a *Agent) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// retry tells of a failure and comes back to it.
func (a *Agent) retry(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	a.log.Error(what+"; trying again", "error", err)
	a.later(ctx, a.poke)
}

func (a *Agent) later(ctx context.Context, do func()) { a.after(ctx, restartDelay, do) }

func (a *Agent) after(ctx context.Context, delay time.Duration, do func()) {
	go func() {
		select {
		case <-ctx.Done():
		case <-time.After(delay):
			do()
		}
	}()
}
