package cloud

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// modelAddress is a reserved address; modelHolder is who may hold some.
type modelAddress struct{ name, ip, holder string }

type modelHolder struct {
	own string    // a balancer's address, if it is no reserved one
	id  string    // of the reserved one that a balancer was created with
	end time.Time // when it gives its addresses back; zero while it lives
}

// estate runs the cloud and its model side by side.
type estate struct {
	t     *rapid.T
	file  string
	clock *clockwork.FakeClock
	store *store.Store
	plane *fakePlane
	cloud *Cloud
	proj  Project
	opens int64

	addresses            map[string]*modelAddress
	instances, balancers map[string]*modelHolder
	versions             map[string]int64 // of every address there ever was
}

func (e *estate) open() {
	e.opens++
	e.store = must.Do(store.Open(e.t.Context(), e.file))(e.t)
	profile := must.Do(ProfileNamed("fast"))(e.t)
	e.plane = newFakePlane()
	e.cloud = must.Do(New(Config{
		Store: e.store, DataPlane: e.plane, Profile: profile, Clock: e.clock,
		LoadBalancerCIDR: netip.MustParsePrefix("127.60.0.0/29"), Retention: time.Second, Seed: e.opens,
	}))(e.t)
	e.proj = must.Do(e.cloud.EnsureProject(e.t.Context(), "default", nil))(e.t)
	require.NoError(e.t, e.cloud.restoreBalancers(e.t.Context()))
}

// settle makes everything happen that is due.
func (e *estate) settle() {
	for {
		next := must.Do(e.cloud.runDueTransitions(e.t.Context()))(e.t)
		if next.IsZero() || next.After(e.clock.Now()) {
			break
		}
	}
	for _, holders := range []map[string]*modelHolder{e.instances, e.balancers} {
		for id, h := range holders {
			if h.end.IsZero() || h.end.After(e.clock.Now()) {
				continue
			}
			for a, m := range e.addresses {
				if m.holder == id {
					m.holder = ""
					e.versions[a]++
				}
			}
			h.own = ""
		}
	}
}

// ended tells that a holder is gone, or as good as.
func (e *estate) ended(h *modelHolder) bool { return !h.end.IsZero() && !h.end.After(e.clock.Now()) }

func (e *estate) taken(with func(*modelAddress) bool) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(e.addresses)), with)
}

func (e *estate) used(ip string) bool {
	return e.taken(func(m *modelAddress) bool { return m.ip == ip }) ||
		slices.ContainsFunc(slices.Collect(maps.Values(e.balancers)), func(h *modelHolder) bool { return h.own == ip })
}

func (e *estate) lowest() string {
	for n := 1; n <= 6; n++ {
		if ip := fmt.Sprintf("127.60.0.%d", n); !e.used(ip) {
			return ip
		}
	}
	return ""
}

var addressNames = []string{"a", "b", "c", "d", "e"}

func (e *estate) reserve(t *rapid.T) {
	m := modelAddress{name: rapid.SampledFrom(addressNames).Draw(t, "name")}
	want := rapid.SampledFrom(
		[]string{"", "", "127.60.0.0", "127.60.0.1", "127.60.0.3", "127.60.0.6", "127.60.0.7", "10.0.0.1"},
	).Draw(t, "ip")
	a, _, err := e.cloud.Addresses.Create(t.Context(), e.proj, api.ReservedAddressCreate{Name: &m.name, IP: &want})
	if m.ip = want; want == "" {
		m.ip = e.lowest()
	}
	switch {
	case e.taken(func(o *modelAddress) bool { return o.name == m.name }):
		requireCode(t, NameTaken, err)
	case want == "127.60.0.0" || want == "127.60.0.7" || want == "10.0.0.1":
		requireCode(t, InvalidRequest, err)
	case m.ip == "":
		requireCode(t, AddressPoolExhausted, err)
	case e.used(m.ip):
		requireCode(t, AddressInUse, err)
	default:
		require.NoError(t, err)
		e.addresses[a.ID], e.versions[a.ID] = &m, 1
	}
}

func (e *estate) rename(t *rapid.T) {
	id := drawKey(t, e.addresses)
	name := rapid.SampledFrom(addressNames).Draw(t, "name")
	_, err := e.cloud.Addresses.Update(t.Context(), e.proj, id, api.ResourceUpdate{Name: &name})
	m := e.addresses[id]
	switch {
	case m.name == name:
		require.NoError(t, err)
	case e.taken(func(o *modelAddress) bool { return o.name == name }):
		requireCode(t, NameTaken, err)
	default:
		require.NoError(t, err)
		m.name = name
		e.versions[id]++
	}
}

func (e *estate) attach(t *rapid.T) {
	e.attachTo(t, api.ResourceInstance, e.instances, UnknownInstance)
}

func (e *estate) attachToBalancer(t *rapid.T) {
	e.attachTo(t, api.ResourceLoadBalancer, e.balancers, InvalidRequest)
}

func (e *estate) attachTo(t *rapid.T, kind Resource, holders map[string]*modelHolder, ended Code) {
	id, holder := drawKey(t, e.addresses), drawKey(t, holders)
	to := api.AddressAttach{InstanceID: holder}
	if kind == api.ResourceLoadBalancer {
		to = api.AddressAttach{LoadBalancerID: holder}
	}
	_, err := e.cloud.AttachAddress(t.Context(), e.proj, id, to)
	m, h := e.addresses[id], holders[holder]
	switch {
	case e.ended(h):
		requireCode(t, ended, err)
	case m.holder == holder && (h.end.IsZero() || kind == api.ResourceLoadBalancer):
		require.NoError(t, err)
	case !h.end.IsZero():
		requireCode(t, WrongState, err)
	case m.holder != "":
		requireCode(t, InUse, err)
	default:
		require.NoError(t, err)
		m.holder = holder
		e.versions[id]++
	}
}

func (e *estate) detach(t *rapid.T) {
	id := drawKey(t, e.addresses)
	_, err := e.cloud.DetachAddress(t.Context(), e.proj, id)
	m := e.addresses[id]
	switch lb := e.balancers[m.holder]; {
	case lb != nil && lb.id == id:
		requireCode(t, InUse, err)
	default:
		require.NoError(t, err)
		if m.holder != "" {
			m.holder = ""
			e.versions[id]++
		}
	}
}

func (e *estate) release(t *rapid.T) {
	id := drawKey(t, e.addresses)
	err := e.cloud.Addresses.Delete(t.Context(), e.proj, id)
	if e.addresses[id].holder != "" {
		requireCode(t, InUse, err)
		return
	}
	require.NoError(t, err)
	delete(e.addresses, id)
	e.versions[id]++
}

func (e *estate) createBalancer(t *rapid.T) {
	spec := api.LoadBalancerCreate{Name: "lb-" + e.cloud.random.letters(8), Listeners: oneListener}
	var m *modelAddress
	if len(e.addresses) > 0 && rapid.Bool().Draw(t, "reserved") {
		spec.AddressID = drawKey(t, e.addresses)
		m = e.addresses[spec.AddressID]
	}
	id := spec.AddressID
	if m != nil && rapid.Bool().Draw(t, "by IP") {
		spec.AddressID, spec.Address = "", m.ip
	}
	own := e.lowest()
	lb, _, err := e.cloud.CreateLoadBalancer(t.Context(), e.proj, spec)
	switch {
	case m != nil && m.holder != "":
		requireCode(t, AddressInUse, err)
	case m != nil:
		require.NoError(t, err)
		require.Equal(t, m.ip, lb.Address)
		require.Equal(t, id, lb.AddressID)
		e.balancers[lb.ID] = &modelHolder{id: id}
		m.holder = lb.ID
		e.versions[id]++
	case own == "":
		requireCode(t, AddressPoolExhausted, err)
	default:
		require.NoError(t, err)
		require.Equal(t, own, lb.Address)
		require.Empty(t, lb.AddressID)
		e.balancers[lb.ID] = &modelHolder{own: own}
	}
}

func (e *estate) deleteBalancer(t *rapid.T) {
	id := drawKey(t, e.balancers)
	_, _, err := e.cloud.DeleteLoadBalancer(t.Context(), e.proj, id)
	switch m := e.balancers[id]; {
	case e.ended(m):
		requireCode(t, NotFound, err)
	default:
		require.NoError(t, err)
		if m.end.IsZero() {
			m.end = e.clock.Now().Add(100 * time.Millisecond)
		}
	}
}

func (e *estate) createInstance(t *rapid.T) {
	in := must.First(e.cloud.CreateInstance(t.Context(), e.proj, api.InstanceCreate{}))(t)
	e.instances[in.ID] = &modelHolder{}
}

func (e *estate) terminate(t *rapid.T) {
	id := drawKey(t, e.instances)
	if e.ended(e.instances[id]) {
		t.Skip("it has ended")
	}
	requireOK(t)(e.cloud.TerminateInstance(t.Context(), e.proj, id))
	if m := e.instances[id]; m.end.IsZero() {
		m.end = e.clock.Now().Add(200 * time.Millisecond)
	}
}

func (e *estate) stopOrStart(t *rapid.T) {
	id := drawKey(t, e.instances)
	_, _, stopped := e.cloud.StopInstance(t.Context(), e.proj, id)
	if stopped != nil { // Whatever state it is in: the states have a model of their own.
		_, _, _ = e.cloud.StartInstance(t.Context(), e.proj, id)
	}
}

// check compares the two, from the address's side and from the instance's.
func (e *estate) check() {
	ctx := e.t.Context()
	list := must.First(e.cloud.Addresses.List(ctx, e.proj, Filter{Limit: 500}))(e.t)
	require.Len(e.t, list, len(e.addresses))
	external := map[string][]string{} // by instance or balancer: what is attached to it
	for _, a := range list {
		require.NotNil(e.t, e.addresses[a.ID])
		require.Equal(e.t, *e.addresses[a.ID], modelAddress{a.Name, a.IP, a.holder().ID})
		require.Equal(e.t, a.holder().ID != "", a.State == api.AddressHeld)
		require.Equal(e.t, e.versions[a.ID], a.Version)
		if lb := e.balancers[a.holder().ID]; a.holder().ID != "" && (lb == nil || lb.id != a.ID) {
			external[a.holder().ID] = append(external[a.holder().ID], a.IP)
		}
	}
	instances := must.First(e.cloud.ListInstances(ctx, e.proj, Filter{Limit: 500}))(e.t)
	for _, in := range instances {
		var shown []string
		for _, ip := range in.External {
			shown = append(shown, ip.String())
		}
		require.ElementsMatch(e.t, external[in.ID], shown)
	}
	balancers := must.First(e.cloud.ListLoadBalancers(ctx, e.proj, Filter{Limit: 500}))(e.t)
	for _, lb := range balancers {
		require.ElementsMatch(e.t, external[lb.ID], lb.AttachedAddresses)
		if lb.State == api.LoadBalancerActive {
			require.ElementsMatch(e.t, lb.servingAddresses(), e.plane.applied[lb.ID].Addresses)
		}
	}
	e.checkForwarding(list, instances)
}

// checkForwarding wants each attached address, and no other, to lead to its instance while that runs.
func (e *estate) checkForwarding(addresses []ReservedAddress, instances []Instance) {
	type path struct{ from, to string }
	var want, have []path
	for _, a := range addresses {
		if a.holder().Kind != api.HolderInstance {
			continue
		}
		at := slices.IndexFunc(instances, func(in Instance) bool { return in.ID == a.holder().ID })
		p := path{from: a.IP}
		if in := instances[at]; in.State == api.InstanceRunning {
			p.to = in.Address.String()
		}
		want = append(want, p)
	}
	for _, f := range e.plane.applied {
		if f.Kind == AttachedAddress {
			p := path{from: f.Addresses[0].String()}
			for _, backend := range f.Backends {
				p.to = backend.Address.String()
			}
			have = append(have, p)
		}
	}
	require.ElementsMatch(e.t, want, have)
}

// checkEvents wants an event of every version of every address, in order.
func (e *estate) checkEvents() {
	seen := map[string]int64{}
	last := map[string]string{}
	cursor := Oldest
	for {
		events, next, err := e.cloud.Events(e.t.Context(), e.proj, cursor)
		require.NoError(e.t, err)
		if len(events) == 0 {
			break
		}
		for _, ev := range events {
			if ev.Resource != api.ResourceAddress {
				continue
			}
			seen[ev.ID]++
			require.Equal(e.t, seen[ev.ID], ev.Address.Version)
			require.Equal(e.t, last[ev.ID], ev.From)
			last[ev.ID] = ev.To
		}
		cursor = next
	}
	require.Equal(e.t, e.versions, seen)
}

func TestAddressesDoAsTheirModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir := must.Do(os.MkdirTemp("", "fakecloud-addresses-"))(t)
		e := &estate{
			t: t, file: filepath.Join(dir, "cloud.db"), clock: clockwork.NewFakeClockAt(epoch),
			versions:  map[string]int64{},
			addresses: map[string]*modelAddress{}, instances: map[string]*modelHolder{},
			balancers: map[string]*modelHolder{},
		}
		e.open()
		defer func() { require.NoError(t, errors.Join(e.store.Close(), os.RemoveAll(dir))) }()
		t.Repeat(map[string]func(*rapid.T){
			"reserve": e.reserve, "rename": e.rename, "attach": e.attach, "attach2": e.attach, "detach": e.detach,
			"release":          e.release,
			"attachToBalancer": e.attachToBalancer, "createBalancer": e.createBalancer, "deleteBalancer": e.deleteBalancer,
			"createInstance": e.createInstance, "terminate": e.terminate, "stopOrStart": e.stopOrStart,
			"advance": func(t *rapid.T) {
				e.clock.Advance(time.Duration(rapid.IntRange(1, 500).Draw(t, "ms")) * time.Millisecond)
				e.settle()
			},
			"reopen": func(*rapid.T) {
				require.NoError(e.t, e.store.Close())
				e.open()
			},
			"": func(*rapid.T) { e.check() },
		})
		e.checkEvents()
	})
}

func TestAnInstanceHoldsSoManyAddresses(t *testing.T) {
	c, p := newCloud(t, nil)
	in := newInstance(t, c, p, api.InstanceCreate{})
	attach := func() error {
		a := must.First(c.Addresses.Create(t.Context(), p, api.ReservedAddressCreate{}))(t)
		_, err := c.AttachAddress(t.Context(), p, a.ID, api.AddressAttach{InstanceID: in.ID})
		return err
	}
	for range maxAttached {
		require.NoError(t, attach())
	}
	requireCode(t, WrongState, attach())
}
