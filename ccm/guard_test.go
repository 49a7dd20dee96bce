package ccm

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/component-base/metrics/legacyregistry"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// oneThird is the configuration's default: a zone of three may go at once, and
// any number in a tiny cluster.
var oneThird = massDeletion{Share: 0.33, Minimum: 5, Window: 30 * time.Second, Hold: 30 * time.Second}

// herd is a cluster of Nodes that are not Ready, so that upstream asks about
// each in every round and deletes those that are gone.
type herd struct {
	t     require.TestingT
	i     *instances
	clock *clocktesting.FakePassiveClock
	nodes cache.Indexer
	said  *record.FakeRecorder

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
	h.i.guard = newDeletionGuard(oneThird, h.clock, h.i.explain)
	h.i.guard.nodes = corelisters.NewNodeLister(h.nodes)
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

// requireState: whether the guard is active, and how many it holds.
func (h *herd) requireState(active bool, held int) {
	a, n := h.i.guard.activeAndHeld()
	require.Equal(h.t, active, a, "active")
	require.Equal(h.t, held, n, "held")
}

func TestMassDeletionGuard(t *testing.T) {
	for name, tc := range map[string]struct{ size, ended, went, held int }{
		"none of many":            {1000, 0, 0, 0},
		"a tenth of many":         {1000, 100, 100, 0},
		"just a third":            {1000, 330, 330, 0},
		"more than a third":       {1000, 400, 330, 70},
		"all":                     {1000, 1000, 330, 670},
		"all of a tiny cluster":   {3, 3, 3, 0},
		"half of a small cluster": {10, 5, 5, 0},
		"most of a small cluster": {10, 6, 5, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHerd(t, t, tc.size)
			h.end(0, tc.ended, true)
			went, asked := h.round()
			assert.Equal(t, tc.went, went)
			assert.Equal(t, tc.size, asked)
			h.requireState(tc.held > 0, tc.held)
			assert.Len(t, h.said.Events, tc.held, "one Event on each that is held")
			if tc.held > 0 {
				assert.Contains(
					t, <-h.said.Events,
					"Warning MassDeletionHeld Node is not deleted yet: the cloud has no instance i-0",
				)
			}
			assert.Len(t, h.all(), tc.size-tc.went)
		})
	}
}

// While Nodes are held, asking about them costs the cloud nothing, and when it
// turns out that their instances are there, they stay, and the guard closes.
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
	assert.Len(t, h.said.Events, 70, "not one more at a retry")
	h.end(0, 400, false)
	h.after(5 * time.Second)
	went, asked := h.round()
	assert.Zero(t, went)
	assert.Equal(t, 670, asked)
	h.requireState(false, 0)
	assert.Len(t, h.all(), 670)

	h.end(400, 500, true)
	went, _ = h.round()
	assert.Equal(t, 100, went, "and afterwards Nodes go as ever")
}

// A mass end that is real goes through: each is asked about again, and they go
// one by one.
func TestARealMassEndGoesThroughSlowly(t *testing.T) {
	h := newHerd(t, t, 100)
	h.end(0, 60, true)
	went, _ := h.round()
	require.Equal(t, 33, went)
	h.requireState(true, 27)
	h.after(29 * time.Second)
	went, _ = h.round()
	require.Zero(t, went, "before the time of holding is over")
	for left := 26; left >= 0; left-- {
		h.after(time.Second)
		went, asked := h.round()
		require.Equal(t, 1, went)
		require.Equal(t, 41, asked, "one held Node a second, and the forty that are there")
		went, asked = h.round()
		require.Zero(t, went, "not two in a second")
		require.Equal(t, 40, asked)
		h.requireState(true, left)
	}
	h.after(30 * time.Second)
	h.requireState(false, 0)
	assert.Len(t, h.all(), 40)
}

// The error of a held Node says when to come again.
func TestHeldUntil(t *testing.T) {
	h := newHerd(t, t, 10)
	h.end(0, 7, true)
	h.round()
	h.requireState(true, 2)
	h.after(12 * time.Second)
	var held *cloudproviderapi.RetryError
	for _, n := range h.all() {
		there, err := h.i.InstanceExists(t.Context(), n)
		if n.UID > "i-0006" || err == nil {
			continue
		}
		require.False(t, there)
		require.ErrorAs(t, err, &held)
		assert.Equal(t, 18*time.Second, held.RetryAfter())
		assert.ErrorContains(t, err, "of 6 other nodes' within 30s")
	}
	require.NotNil(t, held)
}

// A Node that nobody asks about any more, as it is Ready again or was deleted
// by a person, does not keep the guard from closing; nor does a doubtful answer
// let one go.
func TestHeldNodesThatNobodyAsksAbout(t *testing.T) {
	h := newHerd(t, t, 20)
	h.end(0, 16, true)
	h.round()
	h.requireState(true, 10)
	h.after(60 * time.Second)
	h.requireState(true, 10)
	h.after(time.Second)
	h.requireState(false, 0)
}

// The guard ends with what it was for: instances that end now and then, as they
// do in a cluster that scales, neither keep it nor are held by it.
func TestOrdinaryChurnEndsTheGuard(t *testing.T) {
	h := newHerd(t, t, 1000)
	h.end(0, 400, true)
	h.round()
	h.requireState(true, 70)
	next := 400
	for began := h.clock.Now(); h.clock.Now().Sub(began) < 2*time.Hour; h.after(5 * time.Second) {
		since := h.clock.Now().Sub(began)
		more := next < 530 && since%(55*time.Second) == 0
		if more {
			h.end(next, next+1, true)
			next++
		}
		before := len(h.all())
		h.round()
		_, held := h.i.guard.activeAndHeld()
		require.LessOrEqual(t, held, 71, "%v", since)
		if since < 7*time.Minute { // Seventy that were held go one a look, which is every 5 s.
			continue
		}
		h.requireState(false, 0)
		if more {
			require.Len(t, h.all(), before-1, "at once, after %v", since)
		}
		require.LessOrEqual(t, len(h.i.guard.letGo), 1, "%v", since)
	}
	assert.Equal(t, 530, next)
	assert.Len(t, h.all(), 470)
	assert.Equal(t, 1, h.i.guard.trips)
}

// Those that are held when the guard ends have their time, and go slowly.
func TestHeldNodesOutliveTheGuard(t *testing.T) {
	h := newHerd(t, t, 100)
	h.end(0, 40, true)
	h.round()
	h.requireState(true, 7)
	h.after(29 * time.Second)
	h.requireState(true, 7)
	h.after(time.Second)
	h.requireState(false, 7)
	for left := 6; left >= 0; left-- {
		went, _ := h.round()
		require.Equal(t, 1, went)
		h.requireState(false, left)
		h.after(time.Second)
	}
	h.end(40, 60, true)
	went, _ := h.round()
	assert.Equal(t, 15, went, "those that went slowly count, too")
	h.requireState(true, 5)

	h = newHerd(t, t, 100)
	h.end(0, 40, true)
	h.round()
	h.after(30 * time.Second)
	h.requireState(false, 7)
	h.end(40, 60, true)
	went, _ = h.round()
	assert.Equal(t, 1+15, went, "and those that are still held")
	h.requireState(true, 6+5)
}

func TestADoubtfulAnswerLetsNoneGo(t *testing.T) {
	h := newHerd(t, t, 10)
	h.end(0, 6, true)
	h.round()
	h.after(time.Minute)
	f := h.i.api.(*fakeAPI)
	right := f.getInstance
	f.getInstance = failsWith(problem(404, api.NotFound, "p-other"))
	went, _ := h.round()
	assert.Zero(t, went)
	h.requireState(false, 1)
	f.getInstance = right
	went, _ = h.round()
	assert.Equal(t, 1, went)
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

// Whatever ends and comes back, and whenever it is asked about: no Node goes
// whose instance is there; held ones go one a second, after the time of holding;
// in no window go more than the share, beside those; and in the end all that are
// gone have gone, and the guard is closed.
func TestGuardProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, 40).Draw(rt, "size")
		h := newHerd(t, rt, size)
		limits := h.i.guard.limits
		firstFound := map[types.UID]time.Time{}
		var went, slow []time.Time
		ask := func(n *corev1.Node) {
			now := h.clock.Now()
			_, held := h.i.guard.held[n.UID]
			ended, err := h.i.mayDeleteNode(context.Background(), n)
			there := !h.ended[string(n.UID)]
			require.False(rt, there && ended, "%s is there", n.UID)
			if there {
				if err == nil {
					delete(firstFound, n.UID)
				}
				return // A held one is not asked about all the time.
			}
			require.NotEqual(rt, ended, err != nil, "one or the other")
			if _, stillHeld := h.i.guard.held[n.UID]; stillHeld && !held {
				firstFound[n.UID] = now
			}
			if err != nil {
				return
			}
			require.NoError(rt, h.nodes.Delete(n))
			if !held {
				went = append(went, now)
				return
			}
			require.GreaterOrEqual(rt, now.Sub(firstFound[n.UID]), limits.Hold)
			if len(slow) > 0 {
				require.GreaterOrEqual(rt, now.Sub(slow[len(slow)-1]), releaseInterval)
			}
			slow = append(slow, now)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"end":  func(rt *rapid.T) { n := rapid.IntRange(0, size-1).Draw(rt, "n"); h.end(n, min(size, n+8), true) },
			"back": func(rt *rapid.T) { n := rapid.IntRange(0, size-1).Draw(rt, "n"); h.end(n, min(size, n+8), false) },
			"wait": func(rt *rapid.T) { h.after(time.Duration(rapid.IntRange(1, 20).Draw(rt, "s")) * time.Second) },
			"round": func(*rapid.T) {
				for _, n := range h.all() {
					ask(n)
				}
			},
			"": func(rt *rapid.T) {
				recent := 0
				for _, at := range went {
					if h.clock.Now().Sub(at) < limits.Window {
						recent++
					}
				}
				require.LessOrEqual(rt, float64(recent), max(float64(limits.Minimum), limits.Share*float64(size)))
			},
		})
		for range size + 70 {
			h.after(time.Second)
			for _, n := range h.all() {
				ask(n)
			}
		}
		for _, n := range h.all() {
			require.False(rt, h.ended[string(n.UID)], "%s is gone and its Node is not", n.UID)
		}
		h.after(limits.Window)
		h.requireState(false, 0)
	})
}

func TestGuardMetrics(t *testing.T) {
	value := func(name string) float64 {
		families, err := legacyregistry.DefaultGatherer.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "fakecloud_ccm_mass_deletion_guard_"+name {
				return f.Metric[0].GetGauge().GetValue() + f.Metric[0].GetCounter().GetValue()
			}
		}
		require.Fail(t, "no such metric", name)
		return 0
	}
	h := newHerd(t, t, 10)
	before := guardInUse.Swap(h.i.guard)
	defer guardInUse.Store(before)
	trips := value("trips_total")
	assert.Zero(t, value("active"))
	h.end(0, 9, true)
	h.round()
	assert.EqualValues(t, 1, value("active"))
	assert.EqualValues(t, 4, value("held_nodes"))
	assert.EqualValues(t, trips+1, value("trips_total"))
	h.after(5 * time.Minute)
	assert.Zero(t, value("held_nodes"))
	assert.Zero(t, value("active"), "though nobody calls the guard any more")
}
