package cloud

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// epoch is fixed, so that seeded IDs repeat.
var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// fakePlane forwards nothing and refuses blocked ports, unless the balancer has
// them already.
type fakePlane struct {
	broken      error // what everything ends with
	blocked     map[int]bool
	applied     map[string]Forwarding
	health      []api.TargetHealth
	sick        map[string]bool // by balancer
	unknown     map[string]bool // those of whose targets nothing is known
	changed     func(id string)
	onCondition func() // when somebody wants to know a condition; may be nil
}

func newFakePlane() *fakePlane {
	return &fakePlane{
		blocked: map[int]bool{}, applied: map[string]Forwarding{}, sick: map[string]bool{}, unknown: map[string]bool{},
	}
}

func (p *fakePlane) Apply(f Forwarding) error {
	if p.broken != nil {
		return p.broken
	}
	for _, l := range f.Listeners {
		has := slices.ContainsFunc(p.applied[f.ID].Listeners, func(h Listener) bool { return h.Port == l.Port })
		if p.blocked[l.Port] && !has {
			return fmt.Errorf("port %d is blocked", l.Port)
		}
	}
	p.applied[f.ID] = f
	return nil
}
func (p *fakePlane) CanForward(LoadBalancerKind) error  { return nil }
func (p *fakePlane) Remove(id string)                   { delete(p.applied, id) }
func (p *fakePlane) Stats(string) api.LoadBalancerStats { return api.LoadBalancerStats{} }
func (p *fakePlane) Health(string) []api.TargetHealth   { return p.health }
func (p *fakePlane) Notify(changed func(string))        { p.changed = changed }
func (p *fakePlane) Condition(id string) (string, bool) {
	if p.onCondition != nil {
		p.onCondition()
	}
	switch f, inForce := p.applied[id]; {
	case !inForce || p.unknown[id] && len(f.AllBackends()) > 0:
		return "", false
	case p.sick[id]:
		return "all are sick", true
	case len(f.AllBackends()) == 0:
		return fmt.Sprintf("none of %d targets runs", f.Targets), true
	}
	return "", true
}

// makeUnknown makes a balancer's condition unknown, and ask known again.
func (p *fakePlane) makeUnknown(id string) { p.unknown[id] = true }

func (p *fakePlane) makeKnown(id string) {
	delete(p.unknown, id)
	p.changed(id)
}

// toggleSick makes a balancer's targets sick, or well again.
func (p *fakePlane) toggleSick(id string) {
	p.sick[id] = !p.sick[id]
	p.changed(id)
}

// modelInstance and modelBalancer are all the model knows.
type modelInstance struct {
	name, zone, state, address string
	due                        time.Time
	held                       bool // it is stuck
}

type modelBalancer struct {
	state   string
	port    int // 0: it has no listener
	bound   int // the port that is open, or 0
	targets []api.Target
	own     []api.Target // the listener's; nil: it has the balancer's
	due     time.Time
	held    bool
	reason  string    // why it is in error
	since   time.Time // when its version became what it is, in error
}

// modelFaults are rules on all there is, as they stand just now.
type modelFaults struct {
	stuck, fail, crash bool
	lost               string // the zone that has an outage
	sweeps             []FaultSweep
}

func (f *modelFaults) Stuck(Subject, time.Time, func(func())) bool          { return f.stuck }
func (f *modelFaults) Fail(Subject, time.Time, func(func())) (string, bool) { return "no disk", f.fail }
func (f *modelFaults) Crash(Subject, time.Time, string, func(func())) bool  { return f.crash }
func (f *modelFaults) Sweeps(time.Time) (due []FaultSweep, _ time.Time)     { return f.sweeps, time.Time{} }
func (f *modelFaults) Swept(FaultSweep, int)                                { f.sweeps = nil }
func (f *modelFaults) Suspend(string) ([]string, func(bool))                { return nil, func(bool) {} }
func (f *modelFaults) Outage(_, zone string, _ time.Time) (string, bool) {
	return outageID, zone == f.lost
}

type modelRoute struct{ name, destination, instance string }

// world runs the cloud and its model side by side.
type world struct {
	t     *rapid.T
	dir   string
	clock *clockwork.FakeClock
	plane *fakePlane
	store *store.Store
	cloud *Cloud
	proj  Project
	opens int64

	faults modelFaults

	modelState
	snapshot   *modelState       // nil: none is saved
	restoredAt time.Time         // when it last was
	told       map[string]string // the states that the events go on from
}

// modelState is what is stored, and comes back with a snapshot.
type modelState struct {
	instances map[string]*modelInstance
	balancers map[string]*modelBalancer
	routes    map[string]modelRoute
	networks  map[string]api.NetworkCreate
	keys      map[string]modelKey
	lost      string // the zone that has an outage
	taken     []string
}

func (w *world) open() {
	ctx := w.t.Context()
	w.opens++
	w.store = must.Do(store.Open(ctx, filepath.Join(w.dir, "cloud.db")))(w.t)
	profile := must.Do(ProfileNamed("fast"))(w.t)
	w.cloud = must.Do(New(Config{
		Store: w.store, DataPlane: w.plane, Profile: profile, Clock: w.clock,
		InstanceCIDR: modelNetwork, Retention: 3 * time.Second,
		Seed:        w.opens, // Repeatable, and no ID twice though the clock stands still.
		SnapshotDir: filepath.Join(w.dir, "snapshots"),
	}))(w.t)
	w.proj = must.Do(w.cloud.EnsureProject(ctx, "default", nil))(w.t)
	w.cloud.SetFaults(&w.faults)
}

// reopen is a crash: the sockets and all memory are gone.
func (w *world) reopen() {
	require.NoError(w.t, w.store.Close())
	w.plane.applied = map[string]Forwarding{}
	w.open()
	require.NoError(w.t, w.cloud.restoreBalancers(w.t.Context()))
	w.buildAll()
}

func (w *world) buildAll() {
	for _, b := range w.balancers {
		b.bound = 0
		switch b.state {
		case "active", "updating", "error":
			w.build(b, true)
		}
	}
}

func (w *world) build(b *modelBalancer, early bool) {
	fails := w.faults.fail && b.state != "active"
	stuck := w.faults.stuck && (b.state == "provisioning" || b.state == "updating")
	if stuck && !b.due.IsZero() && !b.due.After(w.clock.Now()) {
		b.due, b.held = time.Time{}, true
	}
	switch {
	case stuck && early && !fails && !w.plane.blocked[b.port]:
		b.bound = b.port // As before, and as unfinished.
	case stuck:
	case fails || w.plane.blocked[b.port] && b.bound != b.port:
		now, reason := w.clock.Now(), "blocked"
		if fails {
			reason = "no disk"
		}
		if b.state != "error" || b.reason != reason {
			b.state, b.reason, b.since = "error", reason, now
		}
		b.due = now.Add(min(max(now.Sub(b.since), 2*time.Second), time.Minute))
	default:
		b.state, b.bound, b.due = "active", b.port, time.Time{}
	}
}

// settle makes everything happen that is due.
func (w *world) settle() {
	for {
		next := must.Do(w.cloud.runDueTransitions(w.t.Context()))(w.t)
		if next.IsZero() || next.After(w.clock.Now()) {
			break
		}
	}
	w.checkConditions()
	now := w.clock.Now()
	due := func(t time.Time) bool { return !t.IsZero() && !t.After(now) }
	for again := true; again; {
		again = false
		for id, in := range w.instances {
			if due(in.due) {
				again = true
				w.elapse(id, in, now)
			}
		}
		for id, b := range w.balancers {
			if !due(b.due) {
				continue
			}
			again = true
			switch {
			case b.state != "deleting":
				w.build(b, false)
			case w.faults.stuck:
				b.due, b.held = time.Time{}, true
			default:
				delete(w.balancers, id)
			}
		}
	}
}

// lift turns a fault on or off; what was stuck is looked at again.
func (w *world) lift(t *rapid.T) {
	which := rapid.SampledFrom([]*bool{&w.faults.stuck, &w.faults.stuck, &w.faults.fail, &w.faults.crash}).
		Draw(t, "fault")
	if *which = !*which; *which {
		return
	}
	require.NoError(t, w.cloud.LiftFaults(t.Context(), []string{"f-1"}))
	w.release()
}

func (w *world) release() {
	for _, in := range w.instances {
		if in.held {
			in.due, in.held = w.clock.Now(), false
		}
	}
	for _, b := range w.balancers {
		if b.held {
			b.due, b.held = w.clock.Now(), false
		}
	}
}

func (w *world) elapse(id string, in *modelInstance, now time.Time) {
	in.due = time.Time{}
	if w.faults.stuck && in.state != "terminated" {
		in.held = true
		return
	}
	switch in.state {
	case "pending":
		in.state = "running"
		if w.faults.fail || w.faults.crash {
			in.state = "error"
		}
	case "stopping":
		in.state = "stopped"
	case "terminating":
		in.state, in.address, in.due = "terminated", "", now.Add(3*time.Second)
		for _, b := range w.balancers {
			isGone := func(t api.Target) bool { return t.InstanceID == id }
			if slices.ContainsFunc(slices.Concat(b.targets, b.own), isGone) {
				b.targets, b.own = slices.DeleteFunc(b.targets, isGone), slices.DeleteFunc(b.own, isGone)
				b.since = now
			}
		}
	case "terminated":
		delete(w.instances, id)
	}
}

// check compares the two.
func (w *world) check() {
	ctx := w.t.Context()
	instances := must.First(w.cloud.ListInstances(ctx, w.proj, Filter{Limit: 500}))(w.t)
	require.Len(w.t, instances, len(w.instances))
	for _, in := range instances {
		m := w.instances[in.ID]
		require.NotNil(w.t, m, in.ID)
		address := ""
		if in.Address.IsValid() {
			address = in.Address.String()
		}
		require.Equal(w.t, *m, modelInstance{in.Name, in.Zone, string(in.State), address, m.due, m.held})
	}
	balancers := must.First(w.cloud.ListLoadBalancers(ctx, w.proj, Filter{Limit: 500}))(w.t)
	require.Len(w.t, balancers, len(w.balancers))
	for _, lb := range balancers {
		m := w.balancers[lb.ID]
		require.NotNil(w.t, m, lb.ID)
		require.Equal(w.t, m.state, string(lb.State))
		require.Equal(w.t, m.targets, lb.Targets)
		require.Len(w.t, lb.Listeners, min(m.port, 1))
		for _, l := range lb.Listeners {
			require.Equal(w.t, m.own, l.Targets)
		}
		if m.state != "active" { // Those may be told a little later.
			require.Equal(w.t, m.state == "error", lb.StateReason != "")
		}
		w.checkForwarding(lb)
	}
	for id := range w.plane.applied {
		require.Contains(w.t, w.balancers, id, "a balancer that is gone forwards")
	}
	w.checkUsage()
	w.checkNetworks()
	w.checkOperations()
	routes := must.First(w.cloud.Routes.List(ctx, w.proj, Filter{Limit: 500}))(w.t)
	require.Len(w.t, routes, len(w.routes))
	for _, r := range routes {
		require.Equal(w.t, w.routes[r.ID], modelRoute{r.Name, r.Destination, r.InstanceID})
		require.Equal(w.t, w.routeState(r.ID), fmt.Sprintf("%s %s", r.State, r.StateReason))
	}
}

// checkUsage wants what is counted as it changes to be what is there.
func (w *world) checkUsage() {
	want := map[Quota]int64{
		QuotaLoadBalancers: int64(len(w.balancers)), QuotaRoutes: int64(len(w.routes)),
		QuotaNetworks: int64(1 + len(w.networks)),
	}
	live := map[string]int64{}
	for id, in := range w.instances {
		if in.state != "terminated" {
			want[QuotaInstances]++
		}
		if in.state != "terminated" && in.state != "terminating" {
			got := must.Do(w.cloud.GetInstance(w.t.Context(), w.proj, id))(w.t)
			live[got.Zone]++
		}
	}
	quotas := must.Do(w.cloud.ProjectQuotas(w.t.Context(), w.proj.ID))(w.t)
	for _, q := range quotas {
		require.Equal(w.t, want[q.Quota], q.Used, q.Quota)
	}
	require.NoError(w.t, w.store.Read(w.t.Context(), func(tx *store.Tx) error {
		rows, err := tx.LiveInstancesPerZone(w.t.Context(), w.proj.ID)
		for _, row := range rows {
			require.Equal(w.t, live[row.Zone], row.Live, row.Zone)
		}
		return err
	}))
}

// routeState follows from the instance, which may be gone.
func (w *world) routeState(id string) string {
	switch in := w.instances[w.routes[id].instance]; {
	case in == nil:
		return "blackhole instance is gone"
	case in.state == "running":
		return "active "
	default:
		return "blackhole instance is " + in.state
	}
}

// checkForwarding wants an active balancer to forward to all its running
// targets and nowhere else.
func (w *world) checkForwarding(lb LoadBalancer) {
	f, forwards := w.plane.applied[lb.ID]
	switch lb.State {
	case api.LoadBalancerActive:
		require.True(w.t, forwards)
		require.Equal(w.t, lb.Listeners, f.Listeners)
		require.Equal(w.t, w.running(w.balancers[lb.ID].targets), f.Backends)
		for _, l := range lb.Listeners {
			own := w.balancers[lb.ID].own
			if own == nil {
				own = w.balancers[lb.ID].targets
			}
			require.Equal(w.t, w.running(own), f.BackendsOf(l))
		}
	case api.LoadBalancerProvisioning, api.LoadBalancerDeleting:
		require.False(w.t, forwards, "forwards while %s", lb.State)
	}
}

// running are the targets that run, as an address always does.
func (w *world) running(targets []api.Target) []Backend {
	running := []Backend{}
	for _, t := range targets {
		b := Backend{Target: t.Name(), Weight: t.Weight, Drain: t.Drain, Backup: t.Backup}
		switch in := w.instances[t.InstanceID]; {
		case t.IP != "":
			b.Address = netip.MustParseAddr(t.IP)
		case in.state != "running":
			continue
		default:
			b.Address = netip.MustParseAddr(in.address)
		}
		running = append(running, b)
	}
	return running
}

// checkConditions wants each active balancer's reason to be its condition,
// unless the balancer changed a moment ago, or did so before a snapshot was
// restored: that brings an older time of change back, and the pause goes on.
func (w *world) checkConditions() {
	balancers := must.First(w.cloud.ListLoadBalancers(w.t.Context(), w.proj, Filter{Limit: 500}))(w.t)
	for _, lb := range balancers {
		if lb.State == api.LoadBalancerActive && w.clock.Since(lb.UpdatedAt) >= conditionPause &&
			w.clock.Since(w.restoredAt) >= conditionPause {
			if reason, known := w.plane.Condition(lb.ID); known {
				require.Equal(w.t, reason, lb.StateReason)
			}
		}
	}
}

// checkEvents wants the log to tell each resource's life without a gap.
func (w *world) checkEvents() {
	last := maps.Clone(w.told)
	var cursor, seq int64 = Oldest, 0
	for {
		events, next, err := w.cloud.Events(w.t.Context(), w.proj, cursor)
		require.NoError(w.t, err)
		for _, e := range events {
			require.Greater(w.t, e.Seq, seq)
			seq = e.Seq
			require.Equal(w.t, last[e.ID], e.From, "event %d of %s", e.Seq, e.ID)
			last[e.ID] = e.To
		}
		cursor = next
		if len(events) == 0 {
			break
		}
	}
	for id, in := range w.instances {
		require.Equal(w.t, in.state, last[id])
	}
	for id, b := range w.balancers {
		require.Equal(w.t, b.state, last[id])
	}
	for id := range w.routes {
		state, _, _ := strings.Cut(w.routeState(id), " ")
		require.Equal(w.t, state, last[id])
	}
}

func (w *world) lowestFree() string {
	for n := 1; n <= 6; n++ {
		a := fmt.Sprintf("127.50.0.%d", n)
		if !slices.ContainsFunc(slices.Collect(maps.Values(w.instances)), func(in *modelInstance) bool {
			return in.address == a
		}) {
			return a
		}
	}
	return ""
}

var instanceNames = rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g"})

// newInstance is the model of one that was just made.
func (w *world) newInstance(name string, in Instance) *modelInstance {
	require.NotEqual(w.t, w.lost, in.Zone)
	return &modelInstance{name, in.Zone, "pending", in.Address.String(), w.clock.Now().
		Add(300 * time.Millisecond), false}
}

func (w *world) createInstance(t *rapid.T) {
	name := instanceNames.Draw(t, "name")
	taken := slices.ContainsFunc(slices.Collect(maps.Values(w.instances)), func(in *modelInstance) bool {
		return in.name == name && in.state != "terminated"
	})
	in, _, err := w.cloud.CreateInstance(t.Context(), w.proj, api.InstanceCreate{Name: name})
	switch address := w.lowestFree(); {
	case taken:
		requireCode(t, NameTaken, err)
	case address == "":
		requireCode(t, AddressPoolExhausted, err)
	default:
		require.NoError(t, err)
		require.Equal(t, address, in.Address.String())
		w.instances[in.ID] = w.newInstance(name, in)
	}
}

func requireCode(t require.TestingT, want Code, err error) {
	var refused *Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, want, refused.Code)
	require.NotEmpty(t, refused.Message)
}

// requireRefused wants a call, whose last result is an error, to be refused with a code.
func requireRefused(t require.TestingT, want Code) func(results ...any) {
	return func(results ...any) {
		err, _ := results[len(results)-1].(error)
		requireCode(t, want, err)
	}
}

// requireOK wants a call to succeed whose other results the test does not look at.
func requireOK(t require.TestingT) func(results ...any) {
	return func(results ...any) { require.Nil(t, results[len(results)-1]) }
}

func (w *world) actOnInstance(t *rapid.T) {
	id := drawKey(t, w.instances)
	action := rapid.SampledFrom([]Action{Start, Stop, Reboot, Crash, Terminate}).Draw(t, "action")
	_, _, err := w.cloud.actOnInstance(t.Context(), w.proj, id, action)
	m := w.instances[id]
	to, wait, ok := "", time.Duration(0), true
	switch fmt.Sprint(action, " ", m.state) {
	case "start pending", "start running", "stop stopping", "stop stopped", "terminate terminating",
		"terminate terminated", "reboot pending":
	case "crash pending", "crash running":
		to = "error"
	case "start stopped", "start error", "reboot running":
		to, wait = "pending", 300*time.Millisecond
	case "stop running", "stop error":
		to, wait = "stopping", 200*time.Millisecond
	case "terminate pending", "terminate running", "terminate stopping", "terminate stopped", "terminate error":
		to, wait = "terminating", 200*time.Millisecond
	default:
		ok = false
	}
	switch {
	case !ok:
		requireCode(t, WrongState, err)
		return
	case action == Start && to != "" && m.zone == w.lost:
		requireCode(t, ZoneUnavailable, err)
		return
	}
	require.NoError(t, err)
	if to != "" {
		m.state, m.due, m.held = to, w.clock.Now().Add(wait), false
	}
	if to == "error" { // It lasts.
		m.due = time.Time{}
	}
}

func (w *world) renameInstance(t *rapid.T) {
	id := drawKey(t, w.instances)
	name := instanceNames.Draw(t, "name")
	m, taken := w.instances[id], false
	for other, in := range w.instances {
		taken = taken || other != id && in.name == name && in.state != "terminated"
	}
	before := must.Do(w.cloud.GetInstance(t.Context(), w.proj, id))(t)
	in, err := w.cloud.UpdateInstance(t.Context(), w.proj, id, api.ResourceUpdate{Name: &name})
	switch {
	case m.state == "terminated":
		requireCode(t, WrongState, err)
	case m.name == name:
		require.NoError(t, err)
		require.Equal(t, before, in, "a change of nothing")
	case taken:
		requireCode(t, NameTaken, err)
	default:
		require.NoError(t, err)
		require.Equal(t, before.Version+1, in.Version)
		m.name = name
	}
}

func drawKey[V any](t *rapid.T, m map[string]V) string {
	if len(m) == 0 {
		t.Skip("nothing there")
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(m))).Draw(t, "id")
}

// drawTargets draws some instances and addresses, and whether the cloud must refuse them.
func (w *world) drawTargets(t *rapid.T) (targets []api.Target, terminated bool) {
	targets = []api.Target{}
	for _, name := range append(slices.Sorted(maps.Keys(w.instances)), "127.50.0.1", "127.50.0.6") {
		if !rapid.Bool().Draw(t, "target") {
			continue
		}
		target := api.Target{
			InstanceID: name, Weight: rapid.SampledFrom([]int{0, 3}).Draw(t, "weight"), Drain: rapid.Bool().Draw(t, "drain"),
		}
		if in := w.instances[name]; in == nil {
			target.InstanceID, target.IP = "", name
		} else {
			terminated = terminated || in.state == "terminated"
		}
		targets = append(targets, target)
	}
	return targets, terminated
}

var modelPorts = []int{8001, 8002, 8003}

// drawBalancer draws targets and one listener or none, with targets of its own or not. The cloud must refuse terminated
// ones.
func (w *world) drawBalancer(t *rapid.T) (listeners []Listener, m modelBalancer, terminated bool) {
	m.targets, terminated = w.drawTargets(t)
	m.port = rapid.SampledFrom(append([]int{0}, modelPorts...)).Draw(t, "port")
	if m.port == 0 {
		return []Listener{}, m, terminated
	}
	if rapid.Bool().Draw(t, "own") {
		var another bool
		m.own, another = w.drawTargets(t)
		terminated = terminated || another
	}
	return []Listener{{Protocol: api.ProtocolTCP, Port: m.port, TargetPort: 30080, Targets: m.own}}, m, terminated
}

func (w *world) createBalancer(t *rapid.T) {
	listeners, m, terminated := w.drawBalancer(t)
	lb, _, err := w.cloud.CreateLoadBalancer(t.Context(), w.proj, api.LoadBalancerCreate{
		Name: "lb-" + w.cloud.random.letters(8), Listeners: listeners, Targets: slices.Clone(m.targets),
	})
	if terminated {
		requireCode(t, UnknownInstance, err)
		return
	}
	require.NoError(t, err)
	m.state, m.due = "provisioning", w.clock.Now().Add(400*time.Millisecond)
	w.balancers[lb.ID] = &m
}

func (w *world) updateBalancer(t *rapid.T) {
	id := drawKey(t, w.balancers)
	m := w.balancers[id]
	listeners, drawn, terminated := w.drawBalancer(t)
	before := must.Do(w.cloud.GetLoadBalancer(t.Context(), w.proj, id))(t)
	lb, _, err := w.cloud.UpdateLoadBalancer(
		t.Context(), w.proj, id,
		api.LoadBalancerUpdate{Listeners: &listeners, Targets: new(slices.Clone(drawn.targets))},
	)
	switch {
	case m.state == "deleting":
		requireCode(t, WrongState, err)
	case terminated:
		requireCode(t, UnknownInstance, err)
	case drawn.port == m.port && slices.Equal(drawn.targets, m.targets) && reflect.DeepEqual(drawn.own, m.own):
		require.NoError(t, err)
		require.Equal(t, before, lb, "a change of nothing")
	default:
		require.NoError(t, err)
		require.Equal(t, before.Version+1, lb.Version)
		m.port, m.targets, m.own = drawn.port, drawn.targets, drawn.own
		switch m.state {
		case "provisioning", "updating": // It is done when it would have been.
		default:
			m.state, m.held, m.due = "updating", false, w.clock.Now().Add(50*time.Millisecond)
		}
	}
}

func (w *world) deleteBalancer(t *rapid.T) {
	id := drawKey(t, w.balancers)
	requireOK(t)(w.cloud.DeleteLoadBalancer(t.Context(), w.proj, id))
	if m := w.balancers[id]; m.state != "deleting" {
		m.state, m.held, m.due = "deleting", false, w.clock.Now().Add(100*time.Millisecond)
	}
}

// modelNetwork is where the instances are. modelDestinations are in it, around it, next to it, and elsewhere.
var (
	modelNetwork      = netip.MustParsePrefix("127.50.0.0/29")
	modelDestinations = []string{
		"10.1.0.0/24", "10.1.1.0/24", "10.1.0.0/23", "10.2.0.0/16", "10.0.0.0/8", "10.1.1.255/32",
		"127.50.0.4/30", "127.0.0.0/8", "127.50.0.8/29", "0.0.0.0/0", "255.255.255.255/32",
	}
)

func (w *world) createRoute(t *rapid.T) {
	m := modelRoute{
		name:        rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name"),
		destination: rapid.SampledFrom(modelDestinations).Draw(t, "destination"),
		instance:    drawKey(t, w.instances),
	}
	has := func(with func(modelRoute) bool) bool {
		return slices.ContainsFunc(slices.Collect(maps.Values(w.routes)), with)
	}
	want := netip.MustParsePrefix(m.destination)
	r, _, err := w.cloud.Routes.Create(
		t.Context(), w.proj, api.RouteCreate{Name: m.name, Destination: m.destination, InstanceID: m.instance},
	)
	switch {
	case has(func(o modelRoute) bool { return o.name == m.name }):
		requireCode(t, NameTaken, err)
	case w.instances[m.instance].state == "terminated":
		requireCode(t, UnknownInstance, err)
	case want.Overlaps(modelNetwork),
		has(func(o modelRoute) bool { return want.Overlaps(netip.MustParsePrefix(o.destination)) }):
		requireCode(t, RouteConflict, err)
	default:
		require.NoError(t, err)
		w.routes[r.ID] = m
	}
}

func (w *world) deleteRoute(t *rapid.T) {
	id := drawKey(t, w.routes)
	require.NoError(t, w.cloud.Routes.Delete(t.Context(), w.proj, id))
	delete(w.routes, id)
}

func TestCloudDoesAsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir := must.Do(os.MkdirTemp("", "fakecloud-model-"))(t)
		w := &world{
			t: t, dir: dir, clock: clockwork.NewFakeClockAt(epoch), plane: newFakePlane(), told: map[string]string{},
			modelState: modelState{
				instances: map[string]*modelInstance{}, balancers: map[string]*modelBalancer{},
				routes:   map[string]modelRoute{},
				networks: map[string]api.NetworkCreate{}, keys: map[string]modelKey{},
			},
		}
		w.open()
		defer func() { require.NoError(t, errors.Join(w.store.Close(), os.RemoveAll(dir))) }()
		t.Repeat(map[string]func(*rapid.T){
			"createInstance":  w.createInstance,
			"createInstance2": w.createInstance,
			"actOnInstance":   w.actOnInstance,
			"actOnInstance2":  w.actOnInstance,
			"renameInstance":  w.renameInstance,
			"createBalancer":  w.createBalancer,
			"updateBalancer":  w.updateBalancer,
			"deleteBalancer":  w.deleteBalancer,
			"createRoute":     w.createRoute,
			"deleteRoute":     w.deleteRoute,
			"advance": func(t *rapid.T) {
				w.clock.Advance(time.Duration(rapid.IntRange(1, 1500).Draw(t, "ms")) * time.Millisecond)
				w.settle()
			},
			"fault":         w.lift,
			"outage":        w.outage,
			"createOnce":    w.createOnce,
			"ifMatch":       w.ifMatch,
			"createNetwork": w.createNetwork,
			"deleteNetwork": w.deleteNetwork,
			"snapshot":      w.saveOrRestore,
			"reopen":        func(*rapid.T) { w.reopen() },
			"block": func(t *rapid.T) {
				port := rapid.SampledFrom(modelPorts).Draw(t, "port")
				w.plane.blocked[port] = !w.plane.blocked[port]
			},
			"sicken": func(t *rapid.T) { w.plane.toggleSick(drawKey(t, w.balancers)) },
			"forget": func(t *rapid.T) { w.plane.makeUnknown(drawKey(t, w.balancers)) },
			"ask":    func(t *rapid.T) { w.plane.makeKnown(drawKey(t, w.balancers)) },
			"":       func(*rapid.T) { w.check() },
		})
		w.clock.Advance(time.Minute)
		w.settle()
		w.check()
		w.checkEvents()
	})
}
