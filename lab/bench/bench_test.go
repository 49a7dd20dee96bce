package main

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

func TestUsageSince(t *testing.T) {
	begin := time.Now()
	before := usage{
		at: begin, calls: map[string]int64{"listInstances": 2, "getInstance": 5},
		cpu: map[string]time.Duration{"ccm-1": time.Second}, busy: 10 * time.Second,
	}
	after := usage{
		at:    begin.Add(3 * time.Second),
		calls: map[string]int64{"listInstances": 4, "getInstance": 5, streamOperation: 1},
		cpu:   map[string]time.Duration{"ccm-1": 2 * time.Second, loadTool: time.Second}, busy: 14 * time.Second,
	}
	got := after.since(before)
	assert.Equal(t, usageDelta{
		Calls: 2, Streams: 1, By: map[string]int64{"listInstances": 2}, Seconds: 3,
		CPU: map[string]float64{"ccm-1": 1, loadTool: 1, "others": 2},
	}, got, "the stream is no call, and what is no process of ours is others'")
	assert.Equal(
		t,
		"calls: listInstances 2; event streams opened: 1; CPU seconds of 3.0: ccm-1 1.0, others 2.0, this benchmark 1.0",
		got.String(),
	)
}

func TestFormatting(t *testing.T) {
	for want, v := range map[string]value{
		"5.3 s, 8 calls":                   {Seconds: 5.31, Used: usageDelta{Calls: 8}},
		"5.3 s, 1,200 calls, 1.20 a route": {Seconds: 5.31, Used: usageDelta{Calls: 1200}, Each: 1000, Unit: "route"},
		"7 not within 60 s, 0 calls":       {Seconds: 60, Left: 7},
		"0.20 calls/s, 3.00 CPU s/min, 80 MiB (at most 90)": {
			Steady: true, Seconds: 60, CPU: 3, Used: usageDelta{Calls: 12}, Memory: 80 << 20, Peak: 90 << 20,
		},
	} {
		assert.Equal(t, want, v.String())
	}
	l := line{Ours: value{Seconds: 5, Used: usageDelta{Calls: 8}}}
	assert.Equal(t, "-", l.formatRatio())
	l.setPeer(value{Seconds: 150, Used: usageDelta{Calls: 2000}})
	assert.Equal(t, "30.0× / 250×", l.formatRatio())
	l.setPeer(value{Seconds: 300, Left: 10, Used: usageDelta{Calls: 2000}})
	assert.Equal(t, "≥ 60.0× / 250×", l.formatRatio(), "who was not done may have taken any time")
	l = line{Ours: value{Seconds: 60, Left: 1}}
	l.setPeer(value{Seconds: 150})
	assert.Equal(t, "-", l.formatRatio(), "what was not reached is no ratio")
}

func TestScaleTo(t *testing.T) {
	s := full
	s.scaleTo(50)
	assert.Equal(t, []int{50, 25, 5, 200}, []int{s.Nodes, s.Stop, s.Terminate, s.Services})
}

func TestPodRangesAreDisjoint(t *testing.T) {
	all := sets.New[string]()
	for i := range maxNodes {
		all.Insert(podCIDR(i))
	}
	assert.Len(t, all, maxNodes)
	assert.Equal(t, "10.128.0.0/24", podCIDR(0))
	assert.Equal(t, "10.143.159.0/24", podCIDR(maxNodes-1), "within the cluster's range")
}

func TestGoal(t *testing.T) {
	aim := func() (*goal, context.Context) {
		ctx, cancel := context.WithCancel(t.Context())
		g := (&stage{bench: &bench{}}).newGoal([]string{"a", "b"}, cancel)
		close(g.watchEnded)
		return g, ctx
	}
	t.Run("reached", func(t *testing.T) {
		g, watching := aim()
		for _, name := range []string{"a", "a", "c", "b"} {
			g.markReached(name)
		}
		last, err := g.awaitAll(t.Context(), time.Minute)
		require.NoError(t, err)
		assert.False(t, last.IsZero())
		assert.Zero(t, g.countPending())
		assert.Error(t, watching.Err(), "nobody watches any more")
	})
	t.Run("not within its bound", func(t *testing.T) {
		g, _ := aim()
		g.markReached("a")
		_, err := g.awaitAll(t.Context(), time.Nanosecond)
		require.NoError(t, err)
		assert.Equal(t, 1, g.countPending())
	})
	t.Run("the watch fails", func(t *testing.T) {
		g, _ := aim()
		g.failWith(assert.AnError)
		_, err := g.awaitAll(t.Context(), time.Minute)
		assert.ErrorIs(t, err, assert.AnError)
	})
}

func TestWrongArguments(t *testing.T) {
	b := bench{size: full, Options: &harness.Options{Figures: figureNames(), Rows: "init", Output: "table"}}
	b.size.Nodes = maxNodes + 1
	_, err := b.measureFigures(t.Context())
	assert.ErrorContains(t, err, "-nodes")
}

// Two figures are measured with a few nodes, and printed in both formats. What the figures
// say is not judged here.
func TestFewNodes(t *testing.T) {
	b := bench{
		Options: &harness.Options{Figures: figureNames(), Rows: "init,services", Output: "json", Quick: true},
		bin:     filepath.Join("..", "..", "bin"),
		size:    size{Nodes: 6, Stop: 3, Terminate: 1, Services: 2, Bound: time.Minute, PeerBound: 2 * time.Minute},
	}
	if err := testbed.Check(b.bedOptions()); err != nil {
		t.Skipf("a control plane is needed: %v", err)
	}
	r, err := b.measureFigures(t.Context())
	require.NoError(t, err)
	require.Len(t, r.Lines, 3)
	for _, l := range r.Lines {
		assert.Zero(t, l.Ours.Left, l.Name)
		assert.Positive(t, l.Ours.Seconds, l.Name)
		assert.Positive(t, l.Ours.Used.Calls, l.Name)
		assert.True(t, slices.Contains([]string{"init", "services", "services-deleted"}, l.Name))
	}
	assert.Nil(t, r.Lines[0].Holds, "the aim is for a thousand nodes")
	require.NotNil(t, r.Lines[0].Peer)
	assert.True(t, *r.Lines[2].Holds, "no balancer is left")

	var asJSON, asTable bytes.Buffer
	require.NoError(t, harness.Print(&asJSON, "json", r))
	var again report
	require.NoError(t, json.Unmarshal(asJSON.Bytes(), &again))
	assert.Equal(t, r.Lines, again.Lines)
	require.NoError(t, harness.Print(&asTable, "table", r))
	assert.Contains(t, asTable.String(), "2 Services deleted: last balancer gone")
	assert.Contains(t, asTable.String(), "6 nodes as objects")
}
