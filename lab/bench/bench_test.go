package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/testbed"
)

func TestFormatRatio(t *testing.T) {
	ours := value{Seconds: 5, Taken: taken{Calls: 8}}
	for want, l := range map[string]line{
		"-":              {Ours: ours},
		"30.0× / 250×":   {Ours: ours, Peer: &value{Seconds: 150, Taken: taken{Calls: 2000}}},
		"≥ 60.0× / 250×": {Ours: ours, Peer: &value{Seconds: 300, Left: 10, Taken: taken{Calls: 2000}}},
	} {
		assert.Equal(t, want, l.formatRatio())
	}
	l := line{Ours: value{Seconds: 60, Left: 1}, Peer: &value{Seconds: 150}}
	assert.Equal(t, "", l.formatRatio(), "what was not reached is no ratio")
}

func TestWrongArguments(t *testing.T) {
	for want, b := range map[string]bench{
		"-nodes 4001":       {nodes: maxNodes + 1, rows: "init"},
		`no row "routes"`:   {nodes: 1, rows: "init,routes"},
		"no-such-directory": {nodes: 1, rows: "init", bin: "no-such-directory"},
	} {
		_, err := b.measureAll(t.Context(), "table")
		assert.ErrorContains(t, err, want)
	}
	b := bench{nodes: 1, rows: "init"}
	_, err := b.measureAll(t.Context(), "xml")
	assert.ErrorContains(t, err, "-o")
}

// Both rows are measured with a few Nodes, and printed in both formats. What the figures say is not judged here.
func TestFewNodes(t *testing.T) {
	b := bench{
		bin: filepath.Join("..", "..", "bin"), rows: "init,steady", nodes: 6, steady: time.Second, bound: 2 * time.Minute,
	}
	if err := testbed.Check(b.bedOptions()); err != nil {
		t.Skipf("a control plane is needed: %v", err)
	}
	r, err := b.measureAll(t.Context(), "json")
	require.NoError(t, err)
	require.Len(t, r.Lines, 2)
	for _, v := range []value{r.Lines[0].Ours, *r.Lines[0].Peer, r.Lines[1].Ours} {
		assert.Zero(t, v.Left)
		assert.Positive(t, v.Seconds)
		assert.Positive(t, v.Memory)
	}
	assert.Positive(t, r.Lines[0].Ours.Taken.Calls)
	assert.Nil(t, r.Lines[0].Holds, "the aim is for a thousand Nodes")

	var asJSON, asTable bytes.Buffer
	require.NoError(t, r.writeTo(&asJSON, "json"))
	var again report
	require.NoError(t, json.Unmarshal(asJSON.Bytes(), &again))
	assert.Equal(t, r, again)
	require.NoError(t, r.writeTo(&asTable, "table"))
	assert.Contains(t, asTable.String(), "6 tainted Nodes: last taint lifted")
}
