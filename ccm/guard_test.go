package ccm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/ccm/doubt"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

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
			h.requireTrip(tc.held > 0, tc.held)
			assert.Len(t, h.all(), tc.size-tc.went)
			if tc.held == 0 {
				assert.Empty(t, h.events.Events)
				return
			}
			require.Len(t, h.events.Events, tc.held+1, "one Event on each that is held, and one on the ConfigMap")
			assert.Contains(t, <-h.events.Events, fmt.Sprintf("Warning MassDeletionStopped Mass deletion "+
				"stopped (trip 1): %d of %d Nodes were reported gone within 1h0m0s.", tc.went+1, tc.size))
			held := <-h.events.Events
			assert.Contains(t, held, "Warning MassDeletionHeld Node is not deleted: the cloud has no instance i-0")
			assert.Contains(t, held, "kubectl -n kube-system annotate --overwrite configmap "+
				"fakecloud-mass-deletion-guard fakecloud.ccmlab.io/confirm-mass-deletion=1.")
		})
	}
}

// However slowly a cloud says that all instances are gone, no more than the share goes.
func TestSlowCloudLosesNoMore(t *testing.T) {
	for latency, size := range map[time.Duration]int{400 * time.Millisecond: 5000, time.Second: 5000, 3 * time.Second: 1000} {
		t.Run(fmt.Sprint(latency), func(t *testing.T) {
			h := newHerd(t, t, size)
			h.latency = latency
			h.end(0, size, true)
			went, _ := h.round()
			assert.Equal(t, size*33/100, went)
		})
	}
}

// A Node that is Ready contradicts the cloud: half of the share goes, and no hold lets it go.
func TestReadyNodesGoMoreRarely(t *testing.T) {
	h := newHerd(t, t, 100)
	setReady := func(status corev1.ConditionStatus) {
		h.changeAll(func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		})
	}
	setReady(corev1.ConditionTrue)
	h.end(0, 20, true)
	went, _ := h.round()
	assert.Equal(t, 17, went)
	h.requireTrip(false, 0)
	assert.Zero(t, h.roundsFor(oneThird.Hold))
	setReady(corev1.ConditionFalse)
	went, _ = h.round()
	assert.Equal(t, 3, went, "their kubelets agree")
	h.end(20, 100, true)
	went, _ = h.round()
	assert.Equal(t, 13, went)
	h.requireTrip(true, 67)
	setReady(corev1.ConditionTrue)
	assert.Zero(t, h.roundsFor(oneThird.Hold+time.Minute))
	h.record.confirm("1")
	assert.Equal(t, 67, h.roundsFor(time.Minute))
}

// A Node that somebody removes, the autoscaler or a person, costs no budget and is not held.
func TestNodesThatAreBeingRemovedGo(t *testing.T) {
	for name, remove := range map[string]func(n *corev1.Node){
		"deleted":    func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
		"autoscaler": func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: taintToBeDeleted}} },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHerd(t, t, 10)
			h.changeAll(remove)
			h.end(0, 10, true)
			went, _ := h.round()
			assert.Equal(t, 10, went)
			h.requireTrip(false, 0)
			assert.Zero(t, h.record.saves)
		})
	}
}

// A Node that has registered anew does not go because the one before it may.
func TestReplacedNodeStays(t *testing.T) {
	h := newHerd(t, t, 3)
	h.end(0, 1, true)
	before := h.all()[0]
	after := before.DeepCopy()
	after.UID, after.Spec.ProviderID = "another", ""
	require.NoError(t, h.nodes.Update(after))
	gone, err := h.i.InstanceExists(t.Context(), before)
	require.ErrorContains(t, err, "node node-i-0000 has registered again since")
	assert.False(t, gone)
	require.NoError(t, h.nodes.Update(before))
	went, _ := h.round()
	assert.Equal(t, 1, went, "the one that it was")
}

// While Nodes are held, the cloud is asked about them rarely, and when it turns out that their
// instances are there, they stay, and the trip is over.
func TestCloudRecovers(t *testing.T) {
	h := newHerd(t, t, 1000)
	h.end(0, 400, true)
	h.round()
	h.requireTrip(true, 70)
	for range 5 {
		h.after(5 * time.Second)
		went, asked := h.round()
		assert.Zero(t, went)
		assert.Equal(t, 600, asked, "none about the held ones")
	}
	h.requireTrip(true, 70)
	assert.Len(t, h.events.Events, 71, "not one more at a retry")
	h.end(0, 400, false)
	h.after(time.Minute)
	went, asked := h.round()
	assert.Zero(t, went)
	assert.Equal(t, 670, asked)
	h.requireTrip(true, 0)
	h.after(quietTime)
	h.requireTrip(false, 0)
	assert.Len(t, h.all(), 670)
	h.after(oneThird.Window)
	h.end(400, 500, true)
	went, _ = h.round()
	assert.Equal(t, 100, went, "and afterwards Nodes go as ever")
}

// A mass end that nobody confirms stops, until the hold is over. Then the Nodes go one by one.
func TestUnconfirmedNodesGoAfterTheHold(t *testing.T) {
	h := newHerd(t, t, 30)
	h.end(0, 20, true)
	went, _ := h.round()
	require.Equal(t, 10, went)
	assert.Zero(t, h.roundsFor(oneThird.Hold-5*time.Second))
	h.requireTrip(true, 10)
	h.after(5 * time.Second)
	h.round() // It is the turn of one, and in a minute the others are asked about again.
	for range 9 {
		h.after(time.Second)
		went, asked := h.round()
		require.Equal(t, 1, went)
		require.Equal(t, 11, asked, "about one that is held, and those that are there")
		went, _ = h.round()
		require.Zero(t, went, "not two in a second")
	}
	h.after(quietTime)
	h.requireTrip(false, 0)
	assert.Len(t, h.all(), 10)
}

// Only an answer that contradicts begins the hold anew: neither an error nor silence does.
func TestContradictionsBeginTheHoldAnew(t *testing.T) {
	fails := func(h *herd, err error) {
		f := h.i.api.(*doubt.Cloud).Source.(*fakeAPI)
		right := f.getInstance
		f.getInstance = failsWith(err)
		h.roundsFor(time.Minute + 5*time.Second)
		f.getInstance = right
	}
	for name, tc := range map[string]struct {
		happens func(h *herd)
		anew    bool
	}{
		"the cloud fails":        {happens: func(h *herd) { fails(h, errors.New("503")) }},
		"nobody asks":            {happens: func(h *herd) { h.after(time.Minute) }},
		"the CCM restarts":       {happens: (*herd).restart},
		"another project's word": {happens: func(h *herd) { fails(h, problem(404, api.NotFound, "p-other")) }, anew: true},
		"one of them is back": {happens: func(h *herd) {
			h.end(9, 10, false)
			h.roundsFor(time.Minute + 5*time.Second)
			h.end(9, 10, true)
		}, anew: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHerd(t, t, 10)
			h.end(0, 10, true)
			went, _ := h.round()
			require.Equal(t, 4, went)
			require.Zero(t, h.roundsFor(oneThird.Hold-2*time.Minute))
			tc.happens(h)
			went = h.roundsFor(3 * time.Minute)
			if !tc.anew {
				assert.Equal(t, 6, went)
				return
			}
			assert.Zero(t, went)
			assert.Zero(t, h.roundsFor(oneThird.Hold-5*time.Minute))
			assert.Equal(t, 6, h.roundsFor(5*time.Minute))
		})
	}
}

// A person confirms the trip that is named, and the Nodes that are held go at once. A later mass
// end trips the guard anew.
func TestConfirmation(t *testing.T) {
	for name, restart := range map[string]func(h *herd){
		"one process":          func(*herd) {},
		"a restart in between": (*herd).restart,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHerd(t, t, 30)
			h.end(0, 20, true)
			h.round()
			h.requireTrip(true, 10)
			for _, wrong := range []string{"0", "2", "-1", "yes"} {
				h.record.confirm(wrong)
				h.requireTrip(true, 10)
				went, _ := h.round()
				assert.Zero(t, went, "confirmed is %s", wrong)
			}
			h.record.confirm("1")
			h.i.guard.refresh(t.Context())
			restart(h)
			h.i.guard.refresh(t.Context())
			h.end(19, 20, false)
			went, _ := h.round()
			assert.Equal(t, 9, went, "all of which the cloud says it again")
			h.after(quietTime)
			h.requireTrip(false, 0)
			assert.Len(t, h.all(), 11)

			h.end(20, 30, true)
			went, _ = h.round()
			assert.Equal(t, 4, went)
			h.requireTrip(true, 6)
			assert.Equal(t, 2, h.i.guard.state.Trip, "another trip, which is not confirmed")
		})
	}
}

// A restart, however often, lets no further Node go, and does not begin the hold anew; but the time
// in which nobody asked does not count.
func TestRestarts(t *testing.T) {
	h := newHerd(t, t, 30)
	h.end(0, 30, true)
	went, _ := h.round()
	require.Equal(t, 10, went)
	for range 10 {
		h.roundsFor(time.Minute)
		h.restart()
		h.after(time.Hour)
		went, _ := h.round()
		require.Zero(t, went)
		h.requireTrip(true, 20)
		assert.Equal(t, 1, h.i.guard.state.Trip)
	}
	assert.Zero(t, h.roundsFor(15*time.Minute))
	assert.Positive(t, h.roundsFor(10*time.Minute), "thirty minutes in all, less half a minute a restart")
}

// What a predecessor let go counts, and counts no more when the window is over.
func TestRestartBeforeATrip(t *testing.T) {
	for name, tc := range map[string]struct {
		pause      time.Duration
		went, held int
	}{
		"at once":               {went: 2, held: 10},
		"within the window":     {pause: oneThird.Window - time.Minute, went: 2, held: 10},
		"when that is over":     {pause: oneThird.Window + time.Minute, went: 8, held: 4},
		"after it was all over": {pause: 10 * oneThird.Window, went: 8, held: 4},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHerd(t, t, 30)
			h.end(0, 8, true)
			went, _ := h.round()
			require.Equal(t, 8, went)
			h.restart()
			h.after(tc.pause)
			h.end(8, 20, true)
			went, _ = h.round()
			assert.Equal(t, tc.went, went)
			h.requireTrip(true, tc.held)
			assert.Less(t, len(h.record.stored.Data[nodeGuardKey]), 500)
		})
	}
}

// Before a Node goes the record has it. While that cannot be written none goes.
func TestNothingGoesThatCannotBeRecorded(t *testing.T) {
	h := newHerd(t, t, 30)
	h.record.refusal = errors.New("forbidden")
	h.end(0, 2, true)
	for range 3 {
		went, _ := h.round()
		assert.Zero(t, went)
		h.after(time.Minute)
	}
	require.Len(t, h.events.Events, 2, "one Event on each")
	assert.Contains(t, <-h.events.Events,
		"Warning MassDeletionGuardFailed Node is not deleted, although the cloud has no instance i-0000: the mass-")
	h.record.refusal = nil
	went, _ := h.round()
	assert.Equal(t, 2, went)

	h.record.refusal = errors.New("timeout")
	h.end(2, 4, true)
	went, _ = h.round()
	assert.Zero(t, went, "also when it could be read before")
	h.record.refusal = nil
	went, _ = h.round()
	assert.Equal(t, 2, went)
	assert.Equal(t, 4, h.record.saves, "one for each Node")
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
	next := candidate{uid: h.all()[0].UID, why: "gone"}
	require.ErrorIs(t, former.admit(t.Context(), next), errGuardStateChanged)
	require.Error(t, former.admit(t.Context(), next), "it has read what the other wrote")
	assert.True(t, former.state.isTripped())
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
	assert.ErrorContains(t, err, "6 other Nodes were reported gone, too (trip 1 of the mass-deletion guard)")
}

// Instances that end now and then, as they do in a cluster that scales, do not keep a trip for ever.
func TestOrdinaryChurnEndsTheTrip(t *testing.T) {
	h := newHerd(t, t, 200)
	h.end(0, 80, true)
	h.round()
	h.requireTrip(true, 14)
	next := 80
	churn := func(d time.Duration) {
		for until := h.clock.Now().Add(d); h.clock.Now().Before(until); next++ {
			h.end(next, next+1, true)
			h.roundsFor(time.Minute)
		}
	}
	churn(oneThird.Hold - time.Minute)
	assert.True(t, h.i.guard.state.isTripped())
	churn(oneThird.Hold + time.Minute)
	h.requireTrip(false, 0)
	assert.Len(t, h.all(), 200-next)
	h.end(next, next+1, true)
	went, _ := h.round()
	assert.Equal(t, 1, went, "at once")
	assert.Equal(t, 1, h.i.guard.state.Trip)
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
				if ended, err := h.i.mayDeleteNode(context.Background(), n); ended && assert.NoError(h.t, err) {
					mu.Lock()
					defer mu.Unlock()
					went[n.UID] = true
				}
			})
		}
	}
	all.Wait()
	assert.Len(t, went, 99)
	h.requireTrip(true, 300-99)
}

// Whatever ends and comes back, whenever it is asked about, however often the CCM restarts and the
// record fails: no Node goes whose instance is there; in no window go more than the share, beside
// those of a trip; none of those goes within the hold without a confirmation, nor two in a second;
// and in the end all that are gone have gone, and the trip is over.
func TestGuardProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, 40).Draw(rt, "size")
		h := newHerd(t, rt, size)
		h.events.Events = nil // Nobody reads them: once full, the channel would block the guard for ever.
		var went []time.Time
		var released time.Time
		ask := func(n *corev1.Node) {
			now, g := h.clock.Now(), h.i.guard
			gone, err := h.i.mayDeleteNode(context.Background(), n)
			require.False(rt, gone && !h.ended[string(n.UID)], "%s is there", n.UID)
			require.False(rt, gone && err != nil, "both")
			if !gone {
				return
			}
			require.NoError(rt, h.nodes.Delete(n))
			switch {
			case !g.state.isTripped():
				require.NoError(rt, h.record.refusal)
				went = append(went, now)
			case !g.state.Confirmed:
				require.GreaterOrEqual(rt, now.Sub(g.state.Since), oneThird.Hold)
				require.GreaterOrEqual(rt, now.Sub(released), releaseInterval)
				released = now
			}
		}
		round := func() {
			for _, n := range h.all() {
				ask(n)
			}
			h.i.guard.refresh(context.Background())
		}
		some := func(rt *rapid.T, gone bool) {
			n := rapid.IntRange(0, size-1).Draw(rt, "n")
			h.end(n, min(size, n+8), gone)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"end":     func(rt *rapid.T) { some(rt, true) },
			"back":    func(rt *rapid.T) { some(rt, false) },
			"wait":    func(rt *rapid.T) { h.after(time.Duration(rapid.IntRange(1, 90).Draw(rt, "s")) * time.Second) },
			"round":   func(*rapid.T) { round() },
			"restart": func(*rapid.T) { h.restart(); released = time.Time{} },
			"crowded": func(*rapid.T) { h.record.refusal = errors.New("timeout") },
			"mended":  func(*rapid.T) { h.record.refusal = nil },
			"confirm": func(*rapid.T) {
				h.record.refusal = nil
				h.i.guard.refresh(context.Background())
				if h.i.guard.state.isTripped() {
					h.record.confirm(fmt.Sprint(h.i.guard.state.Trip))
					h.i.guard.refresh(context.Background())
					went = nil // They were confirmed with the others.
				}
			},
			"": func(rt *rapid.T) {
				recent := 0
				for _, at := range went {
					if h.clock.Now().Sub(at) < oneThird.Window {
						recent++
					}
				}
				require.LessOrEqual(rt, recent, max(1, (size*33+99)/100), "of %d", size)
			},
		})
		h.record.refusal = nil
		for range 150 + 4*size {
			h.after(50 * time.Second)
			round()
		}
		for _, n := range h.all() {
			require.False(rt, h.ended[string(n.UID)], "%s is gone and its Node is not", n.UID)
		}
		h.requireTrip(false, 0)
	})
}

func TestGuardMetrics(t *testing.T) {
	gauge := func(m *metrics.GaugeVec) float64 {
		value, err := testutil.GetGaugeMetricValue(m.WithLabelValues("Node"))
		require.NoError(t, err)
		return value
	}
	h := newHerd(t, t, 10)
	h.end(0, 9, true)
	assert.Equal(t, 1, countIncrements(t, massDeletionTrips.WithLabelValues("Node"), func() { h.round() }))
	assert.EqualValues(t, 1, gauge(massDeletionActive))
	assert.EqualValues(t, 5, gauge(massDeletionHeld))
	h.restart()
	assert.Zero(t, gauge(massDeletionActive))
	h.i.guard.refresh(t.Context())
	assert.EqualValues(t, 1, gauge(massDeletionActive), "also of a process that has just begun")
	for _, n := range h.all() {
		require.NoError(t, h.nodes.Delete(n))
	}
	h.after(quietTime)
	h.i.guard.refresh(t.Context())
	assert.Zero(t, gauge(massDeletionHeld))
	assert.Zero(t, gauge(massDeletionActive), "though nobody calls the guard any more")
}
