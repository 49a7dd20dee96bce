package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRefusedFlags(t *testing.T) {
	var b bench
	assert.ErrorContains(t, b.run(t.Context(), "", []string{"speed"}, "table"), "no figure \"speed\"")
	assert.ErrorContains(t, b.run(t.Context(), "", []string{"get"}, "yaml"), "choose table or json")
	b.binary = "no-such-program"
	temp := t.TempDir()
	assert.ErrorContains(t, b.run(t.Context(), temp, []string{"get"}, "table"), "no-such-program")
	assert.Contains(t, b.dir, temp)
	assert.NoDirExists(t, b.dir)
}
