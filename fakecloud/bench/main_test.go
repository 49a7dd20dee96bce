package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

func TestRefusedFlags(t *testing.T) {
	b := bench{Options: &harness.Options{Figures: rowNames(), Rows: "speed", Output: "table"}}
	_, err := b.run(t.Context(), "")
	assert.ErrorContains(t, err, `no figure "speed"`)
	b.Rows, b.binary = "get", "no-such-program"
	temp := t.TempDir()
	_, err = b.run(t.Context(), temp)
	assert.ErrorContains(t, err, "no-such-program")
	assert.Contains(t, b.dir, temp)
	assert.NoDirExists(t, b.dir)
}
