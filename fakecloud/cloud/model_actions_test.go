package cloud

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// outageID is the rule's.
const outageID = "f-outage"

// modelKey is what an idempotency key was used for.
type modelKey struct{ name, instance, operation string }

// createOnce creates with a key that may have been used, before a crash perhaps.
func (w *world) createOnce(t *rapid.T) {
	r := Request{Key: rapid.SampledFrom([]string{"k1", "k2", "k3", "k4"}).Draw(t, "key")}
	name := instanceNames.Draw(t, "name")
	r.Fingerprint = []byte(name)
	taken := slices.ContainsFunc(slices.Collect(maps.Values(w.instances)), func(in *modelInstance) bool {
		return in.name == name && in.state != "terminated"
	})
	in, outcome, err := w.cloud.CreateInstance(WithRequest(t.Context(), r), w.proj, api.InstanceCreate{Name: name})
	first, used := w.keys[r.Key]
	require.Equal(t, used && first.name == name, outcome.Replayed)
	switch {
	case outcome.Replayed:
		require.NoError(t, err)
		require.Equal(t, first, modelKey{name, in.ID, outcome.Operation})
		require.Equal(t, api.InstancePending, in.State, "it is told what the first was")
	case used:
		requireCode(t, IdempotencyKeyReused, err)
	case taken:
		requireCode(t, NameTaken, err)
	case w.lowestFree() == "":
		requireCode(t, AddressPoolExhausted, err)
	default:
		require.NoError(t, err)
		require.NotEmpty(t, outcome.Operation)
		w.instances[in.ID] = w.newInstance(name, in)
		w.keys[r.Key] = modelKey{name, in.ID, outcome.Operation}
	}
}

// ifMatch changes an instance if it is at a version. A refusal leaves it alone.
func (w *world) ifMatch(t *rapid.T) {
	id := drawKey(t, w.instances)
	before := must.Do(w.cloud.GetInstance(t.Context(), w.proj, id))(t)
	version := before.Version + rapid.Int64Range(-1, 1).Draw(t, "too high by")
	ctx := WithRequest(t.Context(), Request{IfMatch: &version})
	tags := api.Tags{"drawn": w.cloud.random.letters(8)}
	after, err := w.cloud.UpdateInstance(ctx, w.proj, id, api.ResourceUpdate{Tags: &tags})
	switch {
	case version != before.Version:
		requireCode(t, PreconditionFailed, err)
		requireRefused(t, PreconditionFailed)(w.cloud.TerminateInstance(ctx, w.proj, id))
		after = must.Do(w.cloud.GetInstance(t.Context(), w.proj, id))(t)
		require.Equal(t, before, after)
	case w.instances[id].state == "terminated":
		requireCode(t, WrongState, err)
	default:
		require.NoError(t, err)
		require.Equal(t, before.Version+1, after.Version)
	}
}

// outage begins one, or ends the one there is: what it took starts again, unless
// it has been dealt with, and what is stuck is looked at again.
func (w *world) outage(t *rapid.T) {
	if w.lost != "" {
		w.lost, w.faults.lost = "", ""
		require.NoError(t, w.cloud.LiftFaults(t.Context(), []string{outageID}))
		for _, id := range w.taken {
			if in := w.instances[id]; in != nil && in.state == "error" {
				in.state, in.due = "pending", w.clock.Now().Add(300*time.Millisecond)
			}
		}
		w.taken = nil
		w.release()
		return
	}
	w.lost = rapid.SampledFrom(w.cloud.cfg.Zones).Draw(t, "zone")
	require.NoError(t, w.cloud.SaveFault(
		t.Context(), StoredFault{ID: outageID, Project: w.proj.ID, Spec: []byte("{}"), CreatedAt: w.clock.Now()},
	))
	w.faults.lost = w.lost
	w.faults.sweeps = []FaultSweep{{Rule: outageID, Project: w.proj.ID, To: FaultBegun, Zone: w.lost}}
	require.NoError(t, w.cloud.SweepFaults(t.Context()))
	for id, in := range w.instances {
		if in.zone == w.lost && (in.state == "pending" || in.state == "running") {
			in.state, in.due, in.held = "error", time.Time{}, false
			w.taken = append(w.taken, id)
		}
	}
}

func (w *world) createNetwork(t *rapid.T) {
	spec := api.NetworkCreate{
		Name: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name"),
		Cidr: rapid.SampledFrom([]string{"10.8.0.0/24", "10.8.1.0/24", "10.9.0.0/24"}).Draw(t, "cidr"),
	}
	has := func(with func(api.NetworkCreate) bool) bool {
		return slices.ContainsFunc(slices.Collect(maps.Values(w.networks)), with)
	}
	n, _, err := w.cloud.Networks.Create(t.Context(), w.proj, spec)
	switch {
	case has(func(o api.NetworkCreate) bool { return o.Name == spec.Name }):
		requireCode(t, NameTaken, err)
	case has(func(o api.NetworkCreate) bool { return o.Cidr == spec.Cidr }):
		requireCode(t, NetworkConflict, err)
	default:
		require.NoError(t, err)
		w.networks[n.ID] = spec
	}
}

func (w *world) deleteNetwork(t *rapid.T) {
	id := drawKey(t, w.networks)
	require.NoError(t, w.cloud.Networks.Delete(t.Context(), w.proj, id))
	delete(w.networks, id)
}

func (w *world) checkNetworks() {
	list := must.First(w.cloud.Networks.List(w.t.Context(), w.proj, Filter{Limit: 500}))(w.t)
	require.Len(w.t, list, 1+len(w.networks))
	for _, n := range list {
		if !n.Default {
			require.Equal(w.t, w.networks[n.ID].Cidr, n.Cidr)
			require.Equal(w.t, w.networks[n.ID].Name, n.Name)
		}
	}
}

// checkOperations wants what still runs to be about something under way.
func (w *world) checkOperations() {
	running := must.First(w.cloud.ListOperations(
		w.t.Context(), w.proj, OperationFilter{States: []string{string(api.OperationRunning)}, Limit: 500},
	))(w.t)
	for _, op := range running {
		state := ""
		if in := w.instances[op.ResourceID]; in != nil {
			state = in.state
		}
		if b := w.balancers[op.ResourceID]; b != nil {
			state = b.state
		}
		at := slices.IndexFunc(OperationRules, func(r OperationRule) bool { return r.Type == op.Type })
		require.Contains(w.t, OperationRules[at].While, state, "%s of %s runs", op.Type, op.ResourceID)
	}
}

// copyState is a copy that shares nothing that changes.
func (k modelState) copyState() modelState {
	out := modelState{
		instances: map[string]*modelInstance{}, balancers: map[string]*modelBalancer{}, routes: maps.Clone(k.routes),
		networks: maps.Clone(k.networks), keys: maps.Clone(k.keys), lost: k.lost, taken: slices.Clone(k.taken),
	}
	for id, in := range k.instances {
		same := *in
		out.instances[id] = &same
	}
	for id, b := range k.balancers {
		same := *b
		same.targets, same.own = slices.Clone(b.targets), slices.Clone(b.own)
		out.balancers[id] = &same
	}
	return out
}

// saveOrRestore puts all aside, or brings back what was. It is slow, and so done
// now and then.
func (w *world) saveOrRestore(t *rapid.T) {
	switch rapid.IntRange(0, 2).Draw(t, "what") {
	case 0:
		if w.snapshot != nil {
			require.NoError(t, w.cloud.DeleteSnapshot(t.Context(), "s"))
		}
		requireOK(t)(w.cloud.SaveSnapshot(t.Context(), "s"))
		copied := w.copyState()
		w.snapshot = &copied
	case 1:
		if w.snapshot == nil {
			t.Skip("none is saved")
		}
		w.restoreSnapshot(t)
	}
}

// restoreSnapshot leaves the time, and the rules but for the outage, as they are;
// the events begin anew.
func (w *world) restoreSnapshot(t *rapid.T) {
	w.modelState = w.snapshot.copyState()
	w.faults.lost = w.lost
	require.NoError(t, w.store.Close())
	require.NoError(t, store.Restore(
		t.Context(), filepath.Join(w.dir, "cloud.db"), filepath.Join(w.dir, "snapshots", "s.db"),
	))
	w.plane.applied = map[string]Forwarding{}
	w.open()
	require.NoError(t, w.cloud.change(t.Context(), func(ctx context.Context, tx *changeTx) error {
		return releaseHeld(ctx, tx) // As faults.Open does.
	}))
	require.NoError(t, w.cloud.restoreBalancers(t.Context()))
	w.restoredAt = w.clock.Now()
	w.told = map[string]string{}
	for id, in := range w.instances {
		w.told[id] = in.state
	}
	for id, b := range w.balancers {
		w.told[id] = b.state
	}
	for id := range w.routes {
		w.told[id], _, _ = strings.Cut(w.routeState(id), " ")
	}
	w.release()
	w.buildAll()
}
