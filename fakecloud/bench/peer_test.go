package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAddRatio(t *testing.T) {
	r := report{Rows: []row{{Name: "get", Values: map[string]float64{"perSecond": 300}}}}
	line := row{Values: map[string]float64{"perSecond": 100}, Measured: "100/s"}
	addRatio(&line, &r, "get")
	assert.Equal(t, "100/s; fakecloud does 3.00 times that", line.Measured)
	addRatio(&line, &r, "create") // It was not measured.
	assert.Equal(t, "100/s; fakecloud does 3.00 times that", line.Measured)
}

// If the peer is not available, a row says why.
func TestPeerUnavailable(t *testing.T) {
	b := bench{dir: t.TempDir(), peer: t.TempDir(), size: quickSize}
	rows := b.measurePeer(t.Context(), &report{})
	require.Len(t, rows, 1)
	assert.Equal(t, "could not be measured", rows[0].Measured)
	assert.Contains(t, rows[0].Note, "it cannot be built")
}
