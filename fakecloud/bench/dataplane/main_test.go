package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestMain starts the backends for all tests, at this process's own addresses.
func TestMain(m *testing.M) {
	if err := startBackends(backendAddresses()); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestRefusedFlags(t *testing.T) {
	var b bench
	assert.ErrorContains(t, b.run(t.Context(), "", []string{"speed"}, "table"), `no figure "speed"`)
	assert.ErrorContains(t, b.run(t.Context(), "", []string{"udp"}, "yaml"), "choose table or json")
	b.peers = []string{"squid"}
	assert.ErrorContains(t, b.run(t.Context(), "", []string{"throughput"}, "json"), `no "squid"`)
	b.peers, b.binary = nil, "no-such-program"
	assert.ErrorContains(t, b.run(t.Context(), t.TempDir(), []string{"udp"}, "table"), "make build")
}
