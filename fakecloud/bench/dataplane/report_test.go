package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPrintedReport(t *testing.T) {
	yes := true
	r := report{Size: fullSize, Peers: map[string]string{haproxy: "2.6"}, Notes: []string{"few files"}, Rows: []row{{
		Name: "udp", Figure: "datagrams", Shown: map[string]string{fakecloud: "9/s", nginx: "10/s"},
		Ratios: map[string]float64{nginx: 0.9}, Aim: "≥ 0.7×", Holds: &yes, Notes: []string{"cores: all"},
	}}}
	var out strings.Builder
	require.NoError(t, r.print(&out, "table"))
	for _, want := range []string{
		"peer     haproxy: version 2.6", "note     few files", "udp: cores: all", "10,000 idle connections",
	} {
		assert.Contains(t, out.String(), want)
	}
	assert.Contains(
		t, strings.Split(out.String(), "\n"),
		"datagrams   9/s         -         -                     10/s    0.90×   ≥ 0.7×   ✓",
	)
	out.Reset()
	require.NoError(t, r.print(&out, "json"))
	assert.Contains(t, out.String(), `"holds": true`)
}
