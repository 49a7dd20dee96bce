// Package agent is the lab's background process. It boots a machine, that is a node, for each
// instance of the cluster that runs in the cloud, unless the instance's tag ccmlab-machine is
// "none". When the instance stops, the machine is halted. When it terminates, what the machine
// left is deleted, too. Where pods reach each other by the cloud's routes, the agent gives these
// to the machines. It also records the timeline.
//
// It does not know what kind of cluster the machines belong to: see cluster.Machines. Begin with
// Agent.Run and, for the timeline, Recorder.
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

	"k8s.io/apimachinery/pkg/util/wait"

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

// bootBound is how long a machine may take to boot or to halt. A container
// that joins a cluster on a busy computer takes a minute.
const bootBound = 5 * time.Minute

// stepBound is how long sweeping, or connecting all machines, may take. No other machine begins to
// boot or halt meanwhile.
const stepBound = 30 * time.Second

// IsMachine tells whether a machine boots for an instance with these tags.
func IsMachine(tags api.Tags) bool { return tags[contract.TagMachine] != contract.NoMachine }

// What the timeline says of a machine that ended though nobody had halted it.
const (
	MachineSubject = "machine/" // followed by its name
	MachineEnded   = "ended"
)

type cloud interface {
	ListInstances(context.Context, client.InstanceFilter) ([]api.Instance, error)
	ListRoutes(context.Context, client.RouteFilter) ([]api.Route, error)
	ListInstanceTypes(context.Context) ([]api.InstanceSize, error)
	Follow(ctx context.Context, after int64, fn func(api.Event) error, onBreak func(error), filter ...client.EventFilter) error
}

// providerIDLookup gives the provider ID of the Node with this name. It is "" if there is no
// such Node or the Node has none yet.
type providerIDLookup func(ctx context.Context, name string) (providerID string, err error)

// Agent keeps machines in step with instances.
type Agent struct {
	cloud            cloud
	machines         cluster.Machines
	lookupProviderID providerIDLookup
	tag              string // key=value that marks the cluster's instances and routes
	log              *slog.Logger
	// PodRanges, if it is set before Run, gives the pods' ranges by Node where the cluster needs routes between them
	// and its CCM makes none: machines get them from the lab then. Elsewhere it gives nil.
	PodRanges func(context.Context) (map[string]string, error)
	// KubeletProviderIDs, if it is set before Run, gives the template of what kubelets get as --provider-id from
	// now on; "" is for none.
	KubeletProviderIDs func() (string, error)
	// OnChange, if it is set before Run, is called when machines boot, halt and end.
	OnChange func(...timeline.Change)
	// OnCloudStream, if it is set before Run, is told that the stream of the cloud's events is open (nil) or broken.
	OnCloudStream func(error)

	seq int64 // of the newest event received

	mu        sync.Mutex
	instances map[string]api.Instance // by ID, newest version
	routes    map[string]api.Route    // by ID, newest version
	sizes     map[api.InstanceType]cluster.Size
	listedAt  time.Time // when instances and routes were last listed completely
	running   map[cluster.Machine]cluster.Running
	// IDs of instances that have gone down since their machine's boot began
	wentDown map[string]bool
	busy     map[string]bool // names of machines that are booting, halting or waiting to
	// before the next boot, of machines that ended soon after the last one
	delays    map[cluster.Machine]time.Duration
	connected map[cluster.Machine]cluster.Network // what each machine was last given
	wake      chan struct{}
}

// New makes an agent for the instances that carry the tag.
func New(c cloud, m cluster.Machines, lookup providerIDLookup, tag string, log *slog.Logger) *Agent {
	return &Agent{
		cloud: c, machines: m, lookupProviderID: lookup, tag: tag, log: log, wake: make(chan struct{}, 1),
		wentDown: map[string]bool{}, busy: map[string]bool{}, delays: map[cluster.Machine]time.Duration{},
		connected: map[cluster.Machine]cluster.Network{},
		OnChange:  func(...timeline.Change) {}, OnCloudStream: func(error) {},
		PodRanges: func(context.Context) (map[string]string, error) { return nil, nil },

		KubeletProviderIDs: func() (string, error) { return "", nil },
	}
}

// Run works until ctx ends. It calls onEvent with each event of the cloud.
func (a *Agent) Run(ctx context.Context, onEvent func(api.Event)) error {
	if wait.PollUntilContextCancel(ctx, restartDelay, true, func(ctx context.Context) (_ bool, err error) {
		if a.running, err = a.machines.Machines(ctx); err != nil {
			a.log.Error("looking for machines; trying again", "error", err)
		}
		return err == nil, nil
	}) != nil {
		return nil
	}
	for m, r := range maps.Clone(a.running) { // One that ends is deleted.
		go a.watchMachine(ctx, m, r)
	}
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { a.reconcileMachines(ctx, &work) })
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := a.followCloud(ctx, onEvent)
		if client.HasCode(err, api.EventsExpired) {
			a.seq = client.FromOldest
		}
		if err != nil && ctx.Err() == nil {
			a.OnCloudStream(err)
			a.log.Warn("the cloud cannot be followed; trying again", "error", err)
		}
	}, restartDelay)
	return nil
}

// followCloud lists instances and routes, and then follows the cloud's events, from the last one
// received on. Events that are older than the list change nothing: see applyEvent.
func (a *Agent) followCloud(ctx context.Context, onEvent func(api.Event)) error {
	if err := a.listCloud(ctx); err != nil {
		return err
	}
	return a.cloud.Follow(ctx, a.seq, func(ev api.Event) error {
		a.seq = ev.Seq
		onEvent(ev)
		a.applyEvent(ev)
		return nil
	}, func(err error) {
		a.OnCloudStream(err)
		if err != nil {
			a.log.Info("the cloud's event stream broke; resuming", "error", err)
		}
	})
}

// listCloud replaces all that is known of the cloud: an instance that is not listed is gone.
func (a *Agent) listCloud(ctx context.Context) error {
	began := time.Now()
	listed, err := a.cloud.ListInstances(ctx, client.InstanceFilter{Tags: []string{a.tag}})
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
	a.instances, a.routes, a.listedAt = map[string]api.Instance{}, map[string]api.Route{}, began
	a.sizes = map[api.InstanceType]cluster.Size{}
	for _, t := range types {
		a.sizes[t.Name] = cluster.Size{CPUs: t.Vcpus, MemoryMiB: t.MemoryMiB}
	}
	for _, i := range listed {
		if a.isManaged(i.Tags) {
			a.instances[i.ID] = i
		}
	}
	for _, r := range routes {
		a.routes[r.ID] = r
	}
	clear(a.connected) // So that each machine is given its network again.
	a.TriggerReconcile()
	return nil
}

// isManaged tells whether an instance or route with these tags belongs to the cluster, and is
// not said to be no machine.
func (a *Agent) isManaged(tags api.Tags) bool {
	key, value, _ := strings.Cut(a.tag, "=")
	return tags[key] == value && IsMachine(tags)
}

// applyEvent stores the version of an instance or a route that the event has, if it is newer than
// the known one. Events from before the list change nothing for an instance or route that
// was not listed any more.
func (a *Agent) applyEvent(ev api.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case ev.Instance != nil && a.isManaged(ev.Instance.Tags):
		i := *ev.Instance
		known, ok := a.instances[i.ID]
		if ok && known.Version >= i.Version || !ok && ev.Time.Before(a.listedAt) {
			return
		}
		a.instances[i.ID] = i
		// The instance may have finished a reboot before its machine is compared again.
		if _, allowed := shouldRun(i); !allowed {
			a.wentDown[i.ID] = true
		}
	case ev.Route != nil && a.isManaged(ev.Route.Tags):
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
	a.TriggerReconcile()
}

// reconcileMachines compares the machines that run with those that should, whenever either
// changes. Machines boot and halt beside each other; none waits for another.
func (a *Agent) reconcileMachines(ctx context.Context, work *sync.WaitGroup) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		}
		boot, halt, keep := a.planMachines()
		for m, r := range halt {
			work.Go(func() { a.haltMachine(ctx, m, r) })
		}
		for _, m := range boot {
			work.Go(func() { a.bootMachine(ctx, m) })
		}
		if keep != nil {
			a.sweepMachines(ctx, keep)
		}
		a.connectMachines(ctx)
	}
}

// rebooting is the state reason of an instance that is pending because it reboots.
const rebooting = "rebooting"

// shouldRun tells whether an instance's machine must run (wanted), and whether one that runs may
// go on (allowed). What is wanted is always allowed.
func shouldRun(i api.Instance) (wanted, allowed bool) {
	switch i.State {
	case api.InstanceRunning:
		return true, true
	case api.InstancePending: // The machine may have been there before its instance.
		return false, i.StateReason == "" || i.StateReason != rebooting
	default:
		return false, false
	}
}

// planMachines gives the machines to boot and to halt, which are busy from now on, and the IDs of
// the instances whose machines keep their data. keep is nil before the first list.
func (a *Agent) planMachines() (boot []cluster.Machine, halt map[cluster.Machine]cluster.Running, keep map[string]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.instances == nil {
		return nil, nil, nil // Nothing is known before the first list: nothing may be stopped.
	}
	want, may := map[cluster.Machine]bool{}, map[cluster.Machine]bool{}
	keep = map[string]bool{}
	for _, i := range a.instances {
		keep[i.ID] = i.State != api.InstanceTerminated
		if len(i.Addresses) == 0 {
			continue
		}
		m := cluster.MachineOf(i)
		wanted, allowed := shouldRun(i)
		may[m] = allowed && !a.wentDown[i.ID]
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
			delete(a.wentDown, m.ID)
		}
	}
	return boot, halt, keep
}

// setIdle ends the time in which a machine is busy, which planMachines began.
func (a *Agent) setIdle(m cluster.Machine) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.busy, m.Name)
	a.TriggerReconcile()
}

func (a *Agent) haltMachine(ctx context.Context, m cluster.Machine, r cluster.Running) {
	a.log.Info("stopping machine", "name", m.Name)
	bounded, cancel := context.WithTimeout(ctx, bootBound)
	defer cancel()
	err := a.machines.Halt(bounded, m, r)
	if err == nil {
		err = r.Wait(bounded)
	}
	if err != nil {
		a.log.Error("stopping machine; trying again", "name", m.Name, "error", err)
		a.retryLater(ctx, func() { a.setIdle(m) })
		return
	}
	a.recordMachineEnd(m, r, 0)
	a.setIdle(m)
}

// checkNameIsFree is an error while there is a Node object of an earlier machine with the same
// name. A new machine waits until the CCM has removed it: its kubelet would take that Node for
// its own, and a Node's provider ID can never be changed.
func (a *Agent) checkNameIsFree(ctx context.Context, m cluster.Machine) error {
	if booted, err := a.machines.Booted(ctx, m); err != nil || booted {
		return err
	}
	have, err := a.lookupProviderID(ctx, m.Name)
	if err != nil || have == "" {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !cluster.IsProviderIDOf(have, a.instances[m.ID]) {
		return fmt.Errorf("its name's Node is still that of %s", have)
	}
	return nil
}

func (a *Agent) bootMachine(ctx context.Context, m cluster.Machine) {
	if err := a.checkNameIsFree(ctx, m); err != nil {
		a.log.Info("machine waits", "name", m.Name, "id", m.ID, "for", err)
		a.retryLater(ctx, func() { a.setIdle(m) })
		return
	}
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, bootBound)
	defer cancel()
	r, err := a.boot(bounded, m)
	if err != nil {
		a.log.Error("booting machine; trying again", "name", m.Name, "error", err)
		a.retryLater(ctx, func() { a.setIdle(m) })
		return
	}
	a.log.Info("booted machine", "name", m.Name, "address", m.Address, "seconds", time.Since(began).Seconds())
	a.reportChange(m, "booted", "for instance "+m.ID+" at "+m.Address, false)
	a.mu.Lock()
	a.running[m] = r
	delete(a.connected, m)
	a.mu.Unlock()
	a.setIdle(m) // Before the machine is watched: its end makes it busy again.
	go a.watchMachine(ctx, m, r)
}

// boot starts a machine of the size that its instance's type has.
func (a *Agent) boot(ctx context.Context, m cluster.Machine) (cluster.Running, error) {
	a.mu.Lock()
	instance := a.instances[m.ID]
	size := a.sizes[instance.Type]
	a.mu.Unlock()
	template, err := a.KubeletProviderIDs()
	if err != nil {
		return nil, err
	}
	providerID, err := cluster.KubeletProviderID(template, m, instance.Identities)
	if err != nil {
		return nil, err
	}
	return a.machines.Boot(ctx, m, size, providerID)
}

// watchMachine waits for the end of a machine. A machine that should run is booted again, as a
// cloud's watchdog would, after a delay in which it is busy.
func (a *Agent) watchMachine(ctx context.Context, m cluster.Machine, r cluster.Running) {
	began := time.Now()
	if err := r.Wait(ctx); err != nil {
		if !errors.Is(err, context.Canceled) {
			a.log.Error("watching machine", "name", m.Name, "error", err)
		}
		return
	}
	if rest := a.recordMachineEnd(m, r, time.Since(began)); rest > 0 {
		a.log.Info("machine ended", "name", m.Name, "again after", rest)
		a.runAfter(ctx, rest, func() { a.setIdle(m) })
	}
}

// recordMachineEnd forgets a machine that has ended at this age. Unless it was halted, the
// machine is busy from now on, and must rest for the time that is returned.
func (a *Agent) recordMachineEnd(m cluster.Machine, r cluster.Running, age time.Duration) (rest time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running[m] != r {
		return 0
	}
	delete(a.running, m)
	delete(a.connected, m)
	previous := a.delays[m]
	delete(a.delays, m)
	if a.busy[m.Name] {
		a.reportChange(m, "halted", "", false)
		return 0
	}
	a.reportChange(m, MachineEnded, "nobody had halted it", true)
	a.busy[m.Name] = true
	if age >= shortLife {
		return restartDelay
	}
	a.delays[m] = max(restartDelay, min(2*previous, maxDelay))
	return a.delays[m]
}

// reportChange calls OnChange with what has become of a machine.
func (a *Agent) reportChange(m cluster.Machine, what, detail string, failed bool) {
	a.OnChange(timeline.Change{
		Source: timeline.SourceLab, Subject: MachineSubject + m.Name, What: what, Detail: detail, ID: m.ID,
		Failed: failed,
	})
}

func (a *Agent) sweepMachines(ctx context.Context, keep map[string]bool) {
	bounded, cancel := context.WithTimeout(ctx, stepBound)
	defer cancel()
	if err := a.machines.Sweep(bounded, keep); err != nil {
		a.logAndRetry(ctx, "deleting what is left of machines", err)
	}
}

// connectMachines gives each running machine what the network has for it.
func (a *Agent) connectMachines(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, stepBound)
	defer cancel()
	ranges, err := a.PodRanges(bounded)
	if err != nil {
		a.logAndRetry(ctx, "looking for the pods' ranges", err)
		return
	}
	due, complete := a.machinesToConnect(ranges)
	if !complete { // A Node gets its range after it has registered.
		a.retryLater(ctx, a.TriggerReconcile)
	}
	var each sync.WaitGroup
	for m, network := range due {
		each.Go(func() {
			if err := a.machines.Connect(bounded, m, network); err != nil {
				a.logAndRetry(ctx, "network of machine "+m.Name, err)
				return
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			a.connected[m] = network
		})
	}
	each.Wait()
}

// machinesToConnect are the machines whose network differs from what it should be, with that. It is not complete
// while there are ranges, and a machine's is not known.
func (a *Agent) machinesToConnect(ranges map[string]string) (due map[cluster.Machine]cluster.Network, complete bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	due, complete = map[cluster.Machine]cluster.Network{}, true
	for m := range a.running {
		if a.busy[m.Name] {
			continue
		}
		complete = complete && (ranges == nil || ranges[m.Name] != "")
		want := cluster.Network{Addresses: attachedAddresses(a.instances[m.ID])}
		if want.Routes = a.cloudRoutes(m); ranges != nil {
			want.Routes = a.podRoutes(m, ranges)
		}
		have, ok := a.connected[m]
		if !ok || !slices.Equal(have.Routes, want.Routes) || !slices.Equal(have.Addresses, want.Addresses) {
			due[m] = want
		}
	}
	return due, complete
}

// podRoutes are routes to the pods of other machines than m. mu is held.
func (a *Agent) podRoutes(m cluster.Machine, ranges map[string]string) []cluster.Route {
	routes := []cluster.Route{}
	for other := range a.running {
		if pods := ranges[other.Name]; other != m && pods != "" {
			routes = append(routes, cluster.Route{Destination: pods, Via: other.Address})
		}
	}
	return sortRoutes(routes)
}

// cloudRoutes are the cloud's routes to other machines than m. One that is a blackhole in the cloud is left out. mu
// is held.
func (a *Agent) cloudRoutes(m cluster.Machine) []cluster.Route {
	routes := []cluster.Route{}
	for _, r := range a.routes {
		hop := a.instances[r.InstanceID]
		if r.State == api.RouteActive && hop.ID != m.ID && len(hop.Addresses) > 0 {
			routes = append(routes, cluster.Route{Destination: r.Destination, Via: hop.Addresses[0].IP})
		}
	}
	return sortRoutes(routes)
}

func sortRoutes(routes []cluster.Route) []cluster.Route {
	slices.SortFunc(routes, func(a, b cluster.Route) int { return strings.Compare(a.Destination, b.Destination) })
	return routes
}

// attachedAddresses are the addresses that are attached to an instance, beside its own.
func attachedAddresses(i api.Instance) (attached []string) {
	for _, address := range i.Addresses {
		if address.Type == api.AddressExternal {
			attached = append(attached, address.IP)
		}
	}
	return attached
}

// TriggerReconcile makes reconcileMachines compare again.
func (a *Agent) TriggerReconcile() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// logAndRetry logs a failure, and makes reconcileMachines compare again after restartDelay.
func (a *Agent) logAndRetry(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	a.log.Error(what+"; trying again", "error", err)
	a.retryLater(ctx, a.TriggerReconcile)
}

func (a *Agent) retryLater(ctx context.Context, do func()) { a.runAfter(ctx, restartDelay, do) }

func (a *Agent) runAfter(ctx context.Context, delay time.Duration, do func()) {
	go func() {
		select {
		case <-ctx.Done():
		case <-time.After(delay):
			do()
		}
	}()
}
