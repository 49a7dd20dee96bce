package guard

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/ring"
)

// memoryConfigMaps has the one ConfigMap of the guard, and refuses to write an older version, as the API server does
// and client-go's fake does not.
type memoryConfigMaps struct {
	typedcorev1.ConfigMapInterface
	mu                   sync.Mutex
	stored               corev1.ConfigMap // without a version there is none
	getError, writeError error
	saves                int
}

var configMapResource = schema.GroupResource{Resource: "configmaps"}

// fail has every request refused, until it is called with nil.
func (m *memoryConfigMaps) fail(err error) { m.getError, m.writeError = err, err }

func (m *memoryConfigMaps) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.ConfigMap, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.getError == nil && m.stored.ResourceVersion == "" {
		return nil, apierrors.NewNotFound(configMapResource, name)
	}
	return m.stored.DeepCopy(), m.getError
}

func (m *memoryConfigMaps) Create(
	ctx context.Context, c *corev1.ConfigMap, _ metav1.CreateOptions,
) (*corev1.ConfigMap, error) {
	return m.Update(ctx, c, metav1.UpdateOptions{})
}

func (m *memoryConfigMaps) Update(
	_ context.Context, c *corev1.ConfigMap, _ metav1.UpdateOptions,
) (*corev1.ConfigMap, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.writeError != nil:
		return &corev1.ConfigMap{}, m.writeError
	case c.ResourceVersion != m.stored.ResourceVersion:
		return &corev1.ConfigMap{}, apierrors.NewConflict(configMapResource, c.Name, nil)
	}
	m.store(*c.DeepCopy())
	return m.stored.DeepCopy(), nil
}

func (m *memoryConfigMaps) store(c corev1.ConfigMap) {
	m.saves++
	c.ResourceVersion = strconv.Itoa(m.saves)
	m.stored = c
}

// confirm does what kubectl annotate does.
func (m *memoryConfigMaps) confirm(number string) {
	m.stored.Annotations = map[string]string{"raise": number}
	m.store(m.stored)
}

// told are the Events on the ConfigMap, and the notices about candidates.
type told struct {
	ring.Events
	events []string
}

func (e *told) WarnOnce(_ ring.Object, _, reason, _, message string) { e.Note(nil, reason, message) }
func (e *told) Note(_ ring.Object, reason, message string) {
	e.events = append(e.events, reason+": "+message)
}

// context is one whose notices are told.
func (e *told) context() context.Context {
	return core.WithNotices(context.Background(), func(n core.Notice) { e.Note(nil, n.Reason, n.Message) })
}

// oneThird is the default: 0.33 of all, or one, within an hour, and half an hour's hold.
var oneThird = config.Default().MassDeletion

// herd are Nodes of which some are reported gone in every round.
type herd struct {
	t      require.TestingT
	b      *Budget
	clock  *clocktesting.FakePassiveClock
	there  sets.Set[types.UID]
	gone   sets.Set[types.UID]
	ready  bool
	record *memoryConfigMaps
	told   *told
}

func newHerd(t require.TestingT, size int) *herd {
	h := &herd{
		t: t, clock: clocktesting.NewFakePassiveClock(time.Unix(0, 0)), there: sets.New[types.UID](),
		gone: sets.New[types.UID](), record: &memoryConfigMaps{}, told: &told{},
	}
	for n := range size {
		h.there.Insert(uid(n))
	}
	h.restart()
	return h
}

func uid(n int) types.UID { return types.UID(fmt.Sprintf("%04d", n)) }

// restart has another process lead, which knows what the record has.
func (h *herd) restart() { h.b = h.newBudget("nodes") }

func (h *herd) newBudget(key string) *Budget {
	b := New(Kind{Key: key, Confirmation: "raise", One: "Node", Many: "Nodes", Finding: "were reported gone"},
		oneThird, h.told)
	b.clock = h.clock
	b.configMaps = h.record
	b.Watch(h.there.Clone, func() bool { return true })
	return b
}

// end has the cloud say that these are gone, or are there after all.
func (h *herd) end(from, to int, gone bool) {
	for n := from; n < to; n++ {
		if h.gone.Delete(uid(n)); gone {
			h.gone.Insert(uid(n))
		}
	}
}

// round asks about each Node as upstream does, and returns how many went.
func (h *herd) round() (went int) {
	for _, id := range sets.List(h.there) {
		if h.ask(id) {
			went++
		}
	}
	h.b.refresh(context.Background())
	return went
}

func (h *herd) ask(id types.UID) (went bool) {
	if !h.gone.Has(id) {
		h.b.RecordExists(id)
		return false
	}
	if h.b.CheckHeld(id) != nil ||
		h.b.Admit(h.told.context(), Candidate{UID: id, Why: "it is gone", InUse: h.ready}) != nil {
		return false
	}
	h.there.Delete(id)
	return true
}

// roundsFor makes a round every five seconds, and returns how many went.
func (h *herd) roundsFor(d time.Duration) (went int) {
	for until := h.clock.Now().Add(d); h.clock.Now().Before(until); went += h.round() {
		h.wait(5 * time.Second)
	}
	return went
}

func (h *herd) wait(d time.Duration) { h.clock.SetTime(h.clock.Now().Add(d)) }

// requireStopped requires so of the budget, and of what the metrics say, though nobody asks the guard.
func (h *herd) requireStopped(stopped bool, held int) {
	h.b.refresh(context.Background())
	require.Equal(h.t, stopped, h.b.isHolding())
	require.Len(h.t, h.b.held, held, "held")
	gauge, err := testutil.GetGaugeMetricValue(holds.WithLabelValues("Node"))
	require.NoError(h.t, err)
	require.EqualValues(h.t, held, gauge)
	gauge, err = testutil.GetGaugeMetricValue(active.WithLabelValues("Node"))
	require.NoError(h.t, err)
	require.Equal(h.t, stopped, gauge == 1)
}

func TestShare(t *testing.T) {
	for name, tc := range map[string]struct{ size, ended, went int }{
		"just a third":      {1000, 330, 330},
		"more than a third": {1000, 400, 330},
		"all":               {1000, 1000, 330},
		"the only one":      {1, 1, 1},
		"one of three":      {3, 1, 1},
		"all of three":      {3, 3, 1},
		"all of five":       {5, 5, 2},
	} {
		t.Run(name, func(t *testing.T) {
			trips.Reset()
			h := newHerd(t, tc.size)
			h.end(0, tc.ended, true)
			assert.Equal(t, tc.went, h.round())
			held := tc.ended - tc.went
			h.requireStopped(held > 0, held)
			if held == 0 {
				assert.Empty(t, h.told.events)
				return
			}
			require.Len(t, h.told.events, held+1, "one Event on each that is held, and one on the ConfigMap")
			assert.Contains(t, h.told.events[0], fmt.Sprintf("MassDeletionStopped: Mass deletion stopped (trip 1): "+
				"more than %d of %d Nodes were reported gone within 1h0m0s. No more are deleted for 30m0s.", tc.went, tc.size))
			assert.Contains(t, h.told.events[1], "MassDeletionHeld: Node is not deleted: it is gone, but too many")
			assert.Contains(t, h.told.events[1], "kubectl -n kube-system annotate --overwrite configmap "+
				"fakecloud-mass-deletion-guard raise=1.")
			stopped, err := testutil.GetCounterMetricValue(trips.WithLabelValues("Node"))
			require.NoError(t, err)
			assert.Equal(t, 1., stopped)
			h.there.Clear()
			h.wait(oneThird.Hold.Duration)
			h.requireStopped(false, 0)
		})
	}
}

// A Node that is Ready contradicts the cloud: half of the budget goes, and nothing of the window after.
func TestReadyNodesGoMoreRarely(t *testing.T) {
	h := newHerd(t, 100)
	h.ready = true
	h.end(0, 20, true)
	assert.Equal(t, 17, h.round())
	h.requireStopped(false, 0)
	h.ready = false
	assert.Equal(t, 3, h.round(), "their kubelets agree")
	h.end(20, 100, true)
	assert.Equal(t, 13, h.round())
	h.requireStopped(true, 67)
	h.ready = true
	assert.Zero(t, h.roundsFor(5*oneThird.Hold.Duration))
	h.record.confirm(strconv.Itoa(h.b.now.Number))
	assert.Equal(t, 67, h.roundsFor(2*time.Minute))
}

// One whose deletion fails costs its budget once, and the others get their turn.
func TestUndeletable(t *testing.T) {
	h := newHerd(t, 30)
	for range 4 {
		for n := range 30 {
			_ = h.b.Admit(t.Context(), Candidate{UID: uid(n)})
		}
		h.b.refresh(t.Context())
		h.wait(oneThird.Hold.Duration)
	}
	assert.Len(t, h.b.allowed, 30)
	h.b.RecordExists(uid(0))
	h.there.Delete(uid(1))
	h.b.refresh(t.Context())
	assert.Len(t, h.b.allowed, 28)
}

// While Nodes are held, the cloud is asked about them rarely; those that are there after all stay.
func TestCloudRecovers(t *testing.T) {
	h := newHerd(t, 100)
	h.end(0, 40, true)
	require.Equal(t, 33, h.round())
	held := sets.List(h.there)[0]
	require.Error(t, h.b.CheckHeld(held))
	h.wait(time.Minute)
	require.NoError(t, h.b.CheckHeld(held))
	h.end(0, 40, false)
	assert.Zero(t, h.round())
	h.requireStopped(true, 0)
	h.end(40, 50, true)
	h.wait(oneThird.Hold.Duration - time.Minute - time.Second)
	assert.Zero(t, h.round())
	h.wait(time.Second)
	assert.Equal(t, 10, h.roundsFor(time.Minute), "the next window has a budget of its own")
	assert.Equal(t, 2, h.b.now.Number)
}

func TestConfirmation(t *testing.T) {
	h := newHerd(t, 30)
	h.end(0, 20, true)
	h.round()
	for _, wrong := range []string{"0", "2", "-1", "yes"} {
		h.record.confirm(wrong)
		h.requireStopped(true, 10)
		assert.Zero(t, h.round(), "confirmed is %s", wrong)
	}
	h.record.confirm("1")
	h.record.writeError = errors.New("timeout")
	h.requireStopped(true, 10) // Nothing counts that is not saved.
	h.record.fail(nil)
	h.requireStopped(false, 10)
	assert.Contains(t, h.told.events[len(h.told.events)-1], "MassDeletionConfirmed: Trip 1 was confirmed: 10 Nodes")
	h.restart()
	h.end(19, 20, false)
	assert.Equal(t, 9, h.round(), "all of which the cloud says it again")
	h.wait(oneThird.Hold.Duration)
	h.end(20, 30, true)
	assert.Equal(t, 4, h.round())
	h.requireStopped(true, 6)
	assert.Equal(t, 2, h.b.now.Number, "another window, whose budget nobody has raised")
	assert.False(t, h.b.now.Strict, "as the one before was confirmed")
}

// Before a Node goes the record has it. While that cannot be read or written none goes.
func TestNothingGoesThatCannotBeRecorded(t *testing.T) {
	h := newHerd(t, 30)
	h.end(0, 2, true)
	h.record.fail(apierrors.NewConflict(configMapResource, "guard", nil))
	assert.Zero(t, h.round())
	assert.Empty(t, h.told.events, "somebody else has written: nothing is wrong")
	h.record.fail(apierrors.NewForbidden(configMapResource, "guard", nil))
	assert.Zero(t, h.round())
	assert.Contains(t, h.told.events[0], "MassDeletionGuardFailed: Node is not deleted, although it is gone: the mass-")
	h.record.fail(nil)
	assert.Equal(t, 2, h.round())
	for _, request := range []*error{&h.record.getError, &h.record.writeError} {
		*request = errors.New("timeout")
		h.end(2, 4, true)
		assert.Zero(t, h.round(), "also when it could be read and written before")
		assert.Equal(t, 2, h.b.now.Spent, "what failed does not count")
		*request = nil
	}
	assert.Equal(t, 2, h.round())
	assert.Equal(t, 4, h.record.saves, "one for each Node")
	h.end(4, 30, true)
	h.record.writeError = errors.New("timeout")
	assert.Zero(t, h.round())
	h.requireStopped(false, 0)
	h.record.fail(nil)

	h.restart()
	h.b.synced = func() bool { return false }
	assert.Zero(t, h.round(), "nobody knows how many Nodes there are")

	h.record.stored.Data["nodes"] = "{"
	h.restart()
	require.ErrorContains(t, h.b.Admit(t.Context(), Candidate{UID: uid(4)}), "delete it to start with an empty record")
	h.record.stored = corev1.ConfigMap{}
	assert.Equal(t, 9, h.round())
}

// What a predecessor spent counts, until the window is over. A leader that was replaced and does not know it lets
// nothing go by what it remembers.
func TestRestarts(t *testing.T) {
	for pause, want := range map[time.Duration]int{0: 2, time.Hour - time.Minute: 2, time.Hour: 8} {
		h := newHerd(t, 30)
		h.end(0, 8, true)
		require.Equal(t, 8, h.round())
		former := h.b
		h.restart()
		h.wait(pause)
		h.end(8, 20, true)
		assert.Equal(t, want, h.round(), "after %s", pause)
		var held *cloudproviderapi.RetryError
		require.ErrorAs(t, former.Admit(t.Context(), Candidate{UID: "next", Why: "gone"}), &held)
		assert.Equal(t, heldRetry, held.RetryAfter())
		h.restart()
		h.requireStopped(true, 0)
		assert.Zero(t, h.round())
		h.requireStopped(true, 12-want)
	}
}

// Two budgets share the ConfigMap. What a person confirmed of a release that had other records is of none of ours.
func TestRecord(t *testing.T) {
	h := newHerd(t, 30)
	h.record.stored = corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "guard"}, Data: map[string]string{
		"nodes": `{"savedAt":"2026-01-02T03:04:05Z","trip":3,"since":"2026-01-02T03:04:05Z","confirmed":true,` +
			`"spent":[{"at":"2026-01-02T03:04:05Z","count":2}]}`,
	}}
	h.record.confirm("3")
	require.NoError(t, h.newBudget("orphans").Admit(t.Context(), Candidate{UID: "lb-1"}))
	h.end(0, 30, true)
	assert.Equal(t, 10, h.round())
	h.requireStopped(true, 20)
	assert.Contains(t, h.record.stored.Data["nodes"], `{"trip":4,`)
	assert.Contains(t, h.record.stored.Data["nodes"], `"deleted":10`)
	assert.Contains(t, h.record.stored.Data["orphans"], `"deleted":1`)
}

// However many ask at once, and however many processes take themselves for the leader, no more than the share goes.
func TestManyAskAtOnce(t *testing.T) {
	h := newHerd(t, 300)
	var all sync.WaitGroup
	var mu sync.Mutex
	went := sets.New[string]()
	for leader, b := range []*Budget{h.b, h.b, h.newBudget("nodes")} {
		for _, id := range sets.List(h.there) {
			all.Go(func() {
				if b.Admit(context.Background(), Candidate{UID: id}) == nil {
					mu.Lock()
					defer mu.Unlock()
					went.Insert(fmt.Sprint(leader/2, id))
				}
			})
		}
	}
	all.Wait()
	require.NoError(t, h.b.load(t.Context()))
	assert.Equal(t, h.b.now.Spent, went.Len())
	assert.LessOrEqual(t, went.Len(), 99)
}

// Whatever ends and comes back, whenever it is asked about, however often the CCM restarts and the record
// fails: in no window goes more than its budget unless a person has raised it, and in the end all that are
// gone have gone.
func TestBudgetProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, 40).Draw(rt, "size")
		h := newHerd(rt, size)
		went := map[int]int{} // by window
		round := func() {
			for _, id := range sets.List(h.there) {
				if h.ask(id) {
					require.NoError(rt, h.record.writeError)
					went[h.b.now.Number]++
					most := maxDeletions(oneThird, h.b.now.Known)
					require.True(rt, h.b.now.Raised || went[h.b.now.Number] <= most, "%d of %d", went, most)
				}
			}
			h.b.refresh(context.Background())
		}
		some := func(rt *rapid.T, gone bool) {
			n := rapid.IntRange(0, size-1).Draw(rt, "n")
			h.end(n, min(size, n+8), gone)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"end":     func(rt *rapid.T) { some(rt, true) },
			"back":    func(rt *rapid.T) { some(rt, false) },
			"ready":   func(rt *rapid.T) { h.ready = rapid.Bool().Draw(rt, "ready") },
			"wait":    func(rt *rapid.T) { h.wait(time.Duration(rapid.IntRange(1, 30).Draw(rt, "m")) * time.Minute) },
			"round":   func(*rapid.T) { round() },
			"restart": func(*rapid.T) { h.restart() },
			"crowded": func(*rapid.T) { h.record.fail(errors.New("timeout")) },
			"mended":  func(*rapid.T) { h.record.fail(nil) },
			"confirm": func(*rapid.T) {
				if h.record.saves > 0 && h.b.now.Stopped {
					h.record.confirm(strconv.Itoa(h.b.now.Number))
				}
			},
		})
		h.record.fail(nil)
		h.ready = false
		for range 4 * size {
			h.wait(oneThird.Hold.Duration)
			round()
		}
		require.Empty(rt, h.there.Intersection(h.gone))
	})
}
