package ccm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// oneThird has the configuration's default share and hold: a zone of three may go at once, and
// of a tiny cluster one Node.
var oneThird = massDeletion{Share: 0.33, Minimum: 1, Window: 30 * time.Second, Hold: 30 * time.Minute}

// guardRecord is what guards of several processes remember, as the ConfigMap in a cluster is.
type guardRecord struct {
	mu        sync.Mutex
	text      string
	revision  int
	confirmed int
	refusal   error // of every request, unless nil
	saves     int
}

func (r *guardRecord) confirm(trip int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revision++
	r.confirmed = trip
}

// memoryStore is one process's way to a guardRecord.
type memoryStore struct {
	record   *guardRecord
	revision int
	text     string
}

func newMemoryStore() *memoryStore { return &memoryStore{record: &guardRecord{}} }

func (s *memoryStore) load(context.Context) (state guardState, err error) {
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	if s.record.refusal != nil {
		return state, s.record.refusal
	}
	s.revision, s.text = s.record.revision, s.record.text
	if s.text != "" {
		err = json.Unmarshal([]byte(s.text), &state)
	}
	return state, err
}

func (s *memoryStore) save(_ context.Context, state guardState) error {
	text, err := json.Marshal(state)
	if err != nil {
		return err
	}
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	switch {
	case s.record.refusal != nil:
		return s.record.refusal
	case s.revision != s.record.revision:
		return errGuardStateChanged
	}
	s.record.saves++
	s.record.revision++
	s.record.text = string(text)
	s.revision, s.text = s.record.revision, s.record.text
	return nil
}

func (s *memoryStore) confirmedTrip(context.Context) (int, error) {
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	switch {
	case s.record.refusal != nil:
		return 0, s.record.refusal
	case s.text != s.record.text:
		return 0, errGuardStateChanged
	}
	s.revision = s.record.revision
	return s.record.confirmed, nil
}

func (s *memoryStore) object() object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: contract.GuardConfigMap, UID: "guard"}}
}

// herd is a cluster of Nodes that are not Ready, so that upstream asks about
// each in every round and deletes those that are gone.
type herd struct {
	t     require.TestingT
	i     *instances
	clock *clocktesting.FakePassiveClock
	nodes cache.Indexer
	said  *record.FakeRecorder
	store *guardRecord

	mu    sync.Mutex
	ended map[string]bool // instances that the cloud says are gone
	asked []string        // about which instances the cloud was asked
}

func newHerd(t *testing.T, tt require.TestingT, size int) *herd {
	h := &herd{
		t: tt, clock: clocktesting.NewFakePassiveClock(time.Unix(0, 0)), ended: map[string]bool{},
		nodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), said: record.NewFakeRecorder(10 * size),
	}
	h.i = newInstances(&fakeAPI{t: t, project: ours, getInstance: func(id string) (*api.Instance, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.asked = append(h.asked, id)
		if h.ended[id] {
			return nil, problem(404, api.NotFound, ourProject)
		}
		i := instance(api.InstanceRunning)
		i.ID = id
		return &i, nil
	}})
	h.i.explain.setRecorder(h.said)
	h.store = &guardRecord{}
	h.restart()
	for n := range size {
		id := h.id(n)
		joined := node("fakecloud://" + id)
		joined.Name, joined.UID = "node-"+id, types.UID(id)
		require.NoError(tt, h.nodes.Add(joined))
	}
	return h
}

func (h *herd) id(n int) string { return fmt.Sprintf("i-%04d", n) }

// end has the cloud say that these instances are gone, or are there after all.
func (h *herd) end(from, to int, gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n := from; n < to; n++ {
		h.ended[h.id(n)] = gone
	}
}

func (h *herd) all() []*corev1.Node {
	all, err := h.i.guard.nodes.List(labels.Everything())
	require.NoError(h.t, err)
	slices.SortFunc(all, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// round is one of upstream's MonitorNodes, and gives what went, and what the
// cloud was asked.
func (h *herd) round() (went, asked int) {
	h.asked = nil
	for _, n := range h.all() {
		if ended, err := h.i.mayDeleteNode(context.Background(), n); ended && assert.NoError(h.t, err) {
			require.NoError(h.t, h.nodes.Delete(n))
			went++
		}
	}
	return went, len(h.asked)
}

func (h *herd) after(d time.Duration) { h.clock.SetTime(h.clock.Now().Add(d)) }

// A Node that has registered anew does not go because the one before it may.
func TestReplacedNodeStays(t *testing.T) {
	h := newHerd(t, t, 3)
	h.end(0, 1, true)
	before := h.all()[0]
	after := before.DeepCopy()
	after.UID, after.Spec.ProviderID = "another", ""
	require.NoError(t, h.nodes.Update(after))
	gone, err := h.i.InstanceExists(t.Context(), before)
	require.ErrorContains(t, err, "node node-i-0000 has registered anew")
	assert.False(t, gone)
	require.NoError(t, h.nodes.Update(before))
	went, _ := h.round()
	assert.Equal(t, 1, went, "the one that it was")
}

// restart has another process lead, which knows what the store has.
func (h *herd) restart() {
	h.i.explain = newExplainer()
	h.i.explain.setRecorder(h.said)
	h.i.guard = newDeletionGuard(oneThird, h.clock, h.i.explain)
	h.i.guard.nodes = corelisters.NewNodeLister(h.nodes)
	h.i.guard.store = &memoryStore{record: h.store}
	h.i.guard.setSynced(func() bool { return true })
}

// requireState: whether the guard is active, and how many it holds.
func (h *herd) requireState(active bool, held int) {
	h.i.guard.refresh(context.Background())
	require.Equal(h.t, active, h.i.guard.active, "active")
	require.Len(h.t, h.i.guard.held, held, "held")
}

// roundsFor makes a round every five seconds, and gives how many went.
func (h *herd) roundsFor(d time.Duration) (went int) {
	for until := h.clock.Now().Add(d); h.clock.Now().Before(until); {
		h.after(min(5*time.Second, until.Sub(h.clock.Now())))
		n, _ := h.round()
		went += n
		h.i.guard.refresh(context.Background())
	}
	return went
}

func TestMassDeletionGuard(t *testing.T) {
	for name, tc := range map[string]struct{ size, ended, went, held int }{
		"none of many":            {1000, 0, 0, 0},
		"a tenth of many":         {1000, 100, 100, 0},
		"just a third":            {1000, 330, 330, 0},
		"more than a third":       {1000, 400, 330, 70},
		"all":                     {1000, 1000, 330, 670},
		"the only one":            {1, 1, 1, 0},
		"both of two":             {2, 2, 1, 1},
		"one of three":            {3, 1, 1, 0},
		"all of three":            {3, 3, 1, 2},
		"two of five":             {5, 2, 2, 0},
		"all of five":             {5, 5, 2, 3},
		"a zone of a small one":   {6, 2, 2, 0},
		"half of a small cluster": {10, 5, 4, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHerd(t, t, tc.size)
			h.end(0, tc.ended, true)
			went, asked := h.round()
			assert.Equal(t, tc.went, went)
			assert.Equal(t, tc.size, asked)
			h.requireState(tc.held > 0, tc.held)
			assert.Len(t, h.all(), tc.size-tc.went)
			if tc.held == 0 {
				assert.Empty(t, h.said.Events)
				return
			}
			require.Len(t, h.said.Events, tc.held+1, "one Event on each that is held, and one on the ConfigMap")
			assert.Contains(t, <-h.said.Events, fmt.Sprintf(
				"Warning MassDeletionStopped The cloud says that the instances of %d of %d Nodes are gone",
				tc.went+1, tc.size))
			held := <-h.said.Events
			assert.Contains(t, held, "Warning MassDeletionHeld Node is not deleted: the cloud has no instance i-0")
			assert.Contains(t, held, "kubectl -n kube-system annotate --overwrite configmap "+
				"fakecloud-mass-deletion-guard fakecloud.ccmlab.io/confirm-mass-deletion=1.")
		})
	}
}

// While Nodes are held, the cloud is asked about them rarely, and when it turns out that their
// instances are there, they stay, and the guard ends.
func TestTheCloudRecovers(t *testing.T) {
	h := newHerd(t, t, 1000)
	h.end(0, 400, true)
	h.round()
	h.requireState(true, 70)
	for range 5 {
		h.after(5 * time.Second)
		went, asked := h.round()
		assert.Zero(t, went)
		assert.Equal(t, 600, asked, "none about the held ones")
	}
	h.requireState(true, 70)
	assert.Len(t, h.said.Events, 71, "not one more at a retry")
	h.end(0, 400, false)
	h.after(time.Minute)
	went, asked := h.round()
	assert.Zero(t, went)
	assert.Equal(t, 670, asked)
	h.requireState(false, 0)
	assert.Len(t, h.all(), 670)

	h.end(400, 500, true)
	went, _ = h.round()
	assert.Equal(t, 100, went, "and afterwards Nodes go as ever")
}

// A mass end that nobody confirms stops, until the cloud has said the same for the time of
// holding. Then the Nodes go one by one.
func TestAMassEndStopsForTheTimeOfHolding(t *testing.T) {
	h := newHerd(t, t, 30)
	h.end(0, 20, true)
	went, _ := h.round()
	require.Equal(t, 10, went)
	assert.Zero(t, h.roundsFor(oneThird.Hold-5*time.Second))
	h.requireState(true, 10)
	h.after(5 * time.Second)
	for left := 9; left >= 0; left-- {
		went, _ := h.round()
		require.Equal(t, 1, went)
		went, _ = h.round()
		require.Zero(t, went, "not two in a second")
		h.restart()
		went, _ = h.round()
		require.Zero(t, went, "nor after a restart")
		h.after(time.Second)
	}
	h.requireState(false, 0)
	assert.Len(t, h.all(), 10)
}

// What the cloud does not say without interruption does not count.
func TestInterruptionsBeginTheTimeAnew(t *testing.T) {
	for name, interrupt := range map[string]func(h *herd){
		"the cloud fails": func(h *herd) {
			f := h.i.api.(*fakeAPI)
			right := f.getInstance
			f.getInstance = failsWith(problem(404, api.NotFound, "p-other"))
			h.roundsFor(time.Minute)
			f.getInstance = right
		},
		"nobody asks":          func(h *herd) { h.after(10 * time.Minute) },
		"the instance is back": func(h *herd) { h.end(0, 5, false); h.roundsFor(time.Minute); h.end(0, 5, true) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHerd(t, t, 10)
			h.end(0, 5, true)
			went, _ := h.round()
			require.Equal(t, 4, went)
			require.Zero(t, h.roundsFor(oneThird.Hold-2*time.Minute))
			h.requireState(true, 1)
			interrupt(h)
			if name == "the instance is back" {
				assert.Equal(t, 1, h.roundsFor(time.Minute), "as the only one")
				return
			}
			assert.Zero(t, h.roundsFor(oneThird.Hold-time.Minute))
			assert.Equal(t, 1, h.roundsFor(2*time.Minute+time.Second))
		})
	}
}

// What the cloud says while the guard cannot read its record interrupts the time of a Node that
// the record says is held.
func TestGuardInterruptionBeforeLoad(t *testing.T) {
	for name, interrupt := range map[string]func(h *herd){
		"the cloud fails": func(h *herd) {
			f := h.i.api.(*fakeAPI)
			right := f.getInstance
			f.getInstance = failsWith(problem(404, api.NotFound, "p-other"))
			h.round()
			f.getInstance = right
		},
		"the instance is back": func(h *herd) { h.end(0, 5, false); h.round(); h.end(0, 5, true) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHerd(t, t, 10)
			h.end(0, 5, true)
			h.round()
			require.Zero(t, h.roundsFor(oneThird.Hold-time.Minute))
			h.restart()
			h.store.refusal = errors.New("timeout")
			interrupt(h)
			h.store.refusal = nil
			h.requireState(true, 1)
			h.restart() // The interruption is in the store by now.
			assert.Zero(t, h.roundsFor(oneThird.Hold-time.Minute))
			assert.Equal(t, 1, h.roundsFor(2*time.Minute))
			h.requireState(false, 0)
		})
	}
}

// A person confirms the trip that is named, and the Nodes that are held go at once. A later
// mass end trips the guard anew.
func TestConfirmation(t *testing.T) {
	h := newHerd(t, t, 30)
	h.end(0, 20, true)
	h.round()
	h.requireState(true, 10)
	for _, wrong := range []int{0, 2, -1} {
		h.store.confirm(wrong)
		h.requireState(true, 10)
		went, _ := h.round()
		assert.Zero(t, went, "confirmed is %d", wrong)
	}
	h.store.confirm(1)
	h.requireState(false, 10)
	h.end(19, 20, false)
	went, _ := h.round()
	assert.Equal(t, 9, went, "all of which the cloud says it again")
	h.requireState(false, 0)
	assert.Len(t, h.all(), 11)

	h.end(20, 30, true)
	went, _ = h.round()
	assert.Equal(t, 4, went)
	h.requireState(true, 6)
	assert.Equal(t, 2, h.i.guard.trip, "another trip, which is not confirmed")
}

// A confirmation that was noticed survives a restart, and one that was not is noticed then.
func TestConfirmationAcrossARestart(t *testing.T) {
	for _, noticed := range []bool{true, false} {
		h := newHerd(t, t, 10)
		h.end(0, 10, true)
		h.round()
		h.requireState(true, 6)
		h.store.confirm(1)
		if noticed {
			h.requireState(false, 6)
		}
		h.restart()
		h.requireState(false, 6)
		went, _ := h.round()
		assert.Equal(t, 6, went, "noticed before: %t", noticed)
	}
}

// A restart, however often, lets no further Node go, and does not begin the time of holding
// anew; but the time in which nobody asked does not count.
func TestRestarts(t *testing.T) {
	h := newHerd(t, t, 30)
	h.end(0, 30, true)
	went, _ := h.round()
	require.Equal(t, 10, went)
	for range 10 {
		h.roundsFor(time.Minute)
		h.i.guard.refresh(t.Context())
		h.restart()
		h.after(time.Hour)
		went, _ := h.round()
		require.Zero(t, went)
		h.requireState(true, 20)
		assert.Equal(t, 1, h.i.guard.trip)
	}
	assert.Zero(t, h.roundsFor(15*time.Minute))
	assert.Positive(t, h.roundsFor(10*time.Minute), "thirty minutes in all, less half a minute a restart")
}

// What a predecessor let go counts, and counts no more when the window is over.
func TestRestartBeforeATrip(t *testing.T) {
	h := newHerd(t, t, 30)
	h.end(0, 8, true)
	went, _ := h.round()
	require.Equal(t, 8, went)
	h.restart()
	h.end(8, 20, true)
	went, _ = h.round()
	assert.Equal(t, 2, went, "ten of thirty within the window")
	h.requireState(true, 10)

	h = newHerd(t, t, 30)
	h.end(0, 8, true)
	h.round()
	h.restart()
	h.after(31 * time.Second)
	h.end(8, 15, true)
	went, _ = h.round()
	assert.Equal(t, 7, went, "of 22")
}

// Before a Node goes the store has it. While the store cannot be used none goes.
func TestNothingGoesThatCannotBeRecorded(t *testing.T) {
	h := newHerd(t, t, 30)
	h.store.refusal = errors.New("forbidden")
	h.end(0, 2, true)
	for range 3 {
		went, _ := h.round()
		assert.Zero(t, went)
		h.after(time.Minute)
	}
	require.Len(t, h.said.Events, 2, "one Event on each")
	assert.Contains(t, <-h.said.Events,
		"Warning MassDeletionGuardFailed Node is not deleted, though its instance is gone")
	h.store.refusal = nil
	went, _ := h.round()
	assert.Equal(t, 2, went)

	h.store.refusal = errors.New("timeout")
	h.end(2, 4, true)
	went, _ = h.round()
	assert.Zero(t, went, "also when it could be read before")
	h.store.refusal = nil
	went, _ = h.round()
	assert.Equal(t, 2, went)
	assert.Equal(t, 4, h.store.saves, "one for each Node")
}

// A leader that was replaced and does not know it lets nothing go by what it remembers.
func TestTwoLeaders(t *testing.T) {
	h := newHerd(t, t, 30)
	h.end(0, 1, true)
	h.round()
	former := h.i.guard
	h.restart()
	h.end(1, 20, true)
	went, _ := h.round()
	require.Equal(t, 9, went)
	next := h.all()[0]
	require.ErrorIs(t, former.admitDeletion(t.Context(), next, "gone"), errGuardStateChanged)
	require.Error(t, former.admitDeletion(t.Context(), next, "gone"), "it has read what the other wrote")
	assert.True(t, former.active)
}

// The error of a held Node says when to come again: soon, as it may be confirmed.
func TestHeldUntil(t *testing.T) {
	h := newHerd(t, t, 10)
	h.end(0, 7, true)
	h.round()
	var held *cloudproviderapi.RetryError
	_, err := h.i.InstanceExists(t.Context(), h.all()[0])
	require.ErrorAs(t, err, &held)
	assert.Equal(t, 10*time.Second, held.RetryAfter())
	assert.ErrorContains(t, err, "of 6 other nodes' (trip 1 of the mass-deletion guard)")
	h.after(55 * time.Second)
	_, err = h.i.InstanceExists(t.Context(), h.all()[0])
	require.ErrorAs(t, err, &held)
	assert.Equal(t, 5*time.Second, held.RetryAfter(), "until the cloud is asked again")
}

// A held Node that a person deletes does not keep the guard from ending, nor does one that is
// Ready and that nobody asks about.
func TestHeldNodesThatAreNoMore(t *testing.T) {
	h := newHerd(t, t, 20)
	h.end(0, 16, true)
	h.round()
	h.requireState(true, 9)
	for _, n := range h.all()[:8] {
		require.NoError(t, h.nodes.Delete(n))
	}
	h.requireState(true, 1)
	ready := h.all()[0].DeepCopy()
	ready.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	require.NoError(t, h.nodes.Update(ready))
	h.after(oneThird.Hold)
	h.requireState(false, 1)
	h.after(5 * time.Minute)
	h.requireState(false, 0)
}

// The guard ends when its time is over: instances that end now and then, as they do in a
// cluster that scales, do not keep it for ever.
func TestOrdinaryChurnEndsTheGuard(t *testing.T) {
	h := newHerd(t, t, 200)
	h.end(0, 80, true)
	h.round()
	h.requireState(true, 14)
	next := 80
	churn := func(d time.Duration) {
		for until := h.clock.Now().Add(d); h.clock.Now().Before(until); next++ {
			h.end(next, next+1, true)
			h.roundsFor(2 * time.Minute)
		}
	}
	churn(oneThird.Hold - 2*time.Minute)
	assert.True(t, h.i.guard.active)
	churn(4 * time.Minute)
	assert.False(t, h.i.guard.active)
	before := len(h.all())
	h.end(next, next+1, true)
	went, _ := h.round()
	assert.Positive(t, went, "at once")
	assert.Less(t, len(h.all()), before)
	h.roundsFor(oneThird.Hold + 5*time.Minute)
	h.requireState(false, 0)
	assert.Equal(t, 1, h.i.guard.trip)
}

// Nodes that went some time ago count no more, and a cluster that shrinks at a
// steady pace does not trip for being smaller than it was.
func TestASteadyPaceDoesNotTrip(t *testing.T) {
	h := newHerd(t, t, 1000)
	for n := 0; n < 600; n += 30 {
		h.end(n, n+30, true)
		went, _ := h.round()
		require.Equal(t, 30, went)
		h.after(5 * time.Second)
	}
	h.requireState(false, 0)
	assert.Len(t, h.all(), 400)
}

// However many ask at once, no more than the share goes.
func TestManyAskAtOnce(t *testing.T) {
	h := newHerd(t, t, 300)
	h.end(0, 300, true)
	var all sync.WaitGroup
	var mu sync.Mutex
	went := map[types.UID]bool{}
	for _, n := range h.all() {
		for range 3 {
			all.Go(func() {
				if ended, err := h.i.mayDeleteNode(context.Background(), n); ended && assert.NoError(t, err) {
					mu.Lock()
					defer mu.Unlock()
					went[n.UID] = true
				}
			})
		}
	}
	all.Wait()
	assert.Len(t, went, 99)
	h.requireState(true, 300-99)
}

// What is remembered stays small, however large the cluster and the window.
func TestRecordIsBounded(t *testing.T) {
	h := newHerd(t, t, 1600)
	h.end(0, 1600, true)
	h.round()
	h.requireState(true, 1072)
	assert.Less(t, len(h.store.text), 100<<10, "bytes; a ConfigMap has 1 MiB")
	h.restart()
	h.requireState(true, maxRecordedHeld)
	went, _ := h.round()
	assert.Zero(t, went)
	h.requireState(true, 1072)
}

// Whatever ends and comes back, whenever it is asked about, however often the CCM restarts and
// the store fails: no Node goes whose instance is there; in no window go more than the share,
// beside those that were held; none of those goes before its time or without a confirmation,
// nor two in a second; and in the end all that are gone have gone, and the guard has ended.
func TestGuardProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, 40).Draw(rt, "size")
		h := newHerd(t, rt, size)
		h.said.Events = nil // Nobody reads them: once full, the channel would block the guard for ever.
		limits := oneThird
		// heldSince is since when each held Node is held, by what the test has seen. The record has
		// recordedSince: an interruption that is not in it is forgotten at a restart.
		heldSince, recordedSince := map[types.UID]time.Time{}, map[types.UID]time.Time{}
		var went []time.Time
		var slow time.Time
		ask := func(n *corev1.Node) {
			now := h.clock.Now()
			_ = h.i.guard.checkHeld(context.Background(), n) // It loads what is held.
			before, held := h.i.guard.held[n.UID]
			confirmed := held && before.confirmed
			ended, err := h.i.mayDeleteNode(context.Background(), n)
			there := !h.ended[string(n.UID)]
			require.False(rt, there && ended, "%s is there", n.UID)
			_, stillHeld := h.i.guard.held[n.UID]
			switch {
			case stillHeld && heldSince[n.UID].IsZero():
				heldSince[n.UID] = now
			case !stillHeld && (there || h.i.guard.loaded): // Until it has loaded, it seems to hold none.
				defer delete(heldSince, n.UID)
			}
			if there {
				return // A held one is not asked about all the time.
			}
			require.NotEqual(rt, ended, err != nil, "one or the other")
			if err != nil {
				return
			}
			require.NoError(rt, h.nodes.Delete(n))
			if confirmed { // That is in the store already.
				return
			}
			require.NoError(rt, h.store.refusal)
			switch {
			case !held:
				went = append(went, now)
			default:
				require.GreaterOrEqual(rt, now.Sub(heldSince[n.UID]), limits.Hold)
				require.True(rt, slow.IsZero() || now.Sub(slow) >= releaseInterval)
				slow = now
			}
		}
		refresh := func() {
			h.i.guard.refresh(context.Background())
			if h.i.guard.loaded && !h.i.guard.unsaved {
				recordedSince = maps.Clone(heldSince)
			}
		}
		round := func() {
			for _, n := range h.all() {
				ask(n)
			}
			refresh()
		}
		some := func(rt *rapid.T, gone bool) {
			n := rapid.IntRange(0, size-1).Draw(rt, "n")
			h.end(n, min(size, n+8), gone)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"end":     func(rt *rapid.T) { some(rt, true) },
			"back":    func(rt *rapid.T) { some(rt, false) },
			"wait":    func(rt *rapid.T) { h.after(time.Duration(rapid.IntRange(1, 20).Draw(rt, "s")) * time.Second) },
			"round":   func(*rapid.T) { round() },
			"restart": func(*rapid.T) { h.restart(); heldSince = maps.Clone(recordedSince) },
			"crowded": func(*rapid.T) { h.store.refusal = errors.New("timeout") },
			"mended":  func(*rapid.T) { h.store.refusal = nil },
			"confirm": func(*rapid.T) {
				h.store.refusal = nil
				refresh()
				h.store.confirm(h.i.guard.trip)
				went = nil // They were confirmed with the others.
			},
			"much later": func(*rapid.T) {
				for range 40 {
					h.after(50 * time.Second)
					round()
				}
			},
			"": func(rt *rapid.T) {
				recent := 0
				for _, at := range went {
					if h.clock.Now().Sub(at) < limits.Window {
						recent++
					}
				}
				require.True(rt, h.i.guard.isWithinLimits(recent, size), "%d of %d", recent, size)
			},
		})
		h.store.refusal = nil
		for range 80 + size {
			h.after(50 * time.Second)
			round()
		}
		for _, n := range h.all() {
			require.False(rt, h.ended[string(n.UID)], "%s is gone and its Node is not", n.UID)
		}
		h.requireState(false, 0)
	})
}

func TestGuardMetrics(t *testing.T) {
	gauge := func(m metrics.GaugeMetric) float64 {
		value, err := testutil.GetGaugeMetricValue(m)
		require.NoError(t, err)
		return value
	}
	h := newHerd(t, t, 10)
	h.end(0, 9, true)
	assert.Equal(t, 1, countIncrements(t, massDeletionTrips, func() { h.round() }))
	assert.EqualValues(t, 1, gauge(massDeletionActive))
	assert.EqualValues(t, 5, gauge(massDeletionHeld))
	massDeletionActive.Set(0)
	h.restart()
	h.i.guard.refresh(t.Context())
	assert.EqualValues(t, 1, gauge(massDeletionActive), "also of a process that has just begun")
	for _, n := range h.all() {
		require.NoError(t, h.nodes.Delete(n))
	}
	h.i.guard.refresh(t.Context())
	assert.Zero(t, gauge(massDeletionHeld))
	assert.Zero(t, gauge(massDeletionActive), "though nobody calls the guard any more")
}
