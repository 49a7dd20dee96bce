package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

// TestMain starts the backends for all tests, at this process's own addresses.
func TestMain(m *testing.M) {
	addressPrefix = harness.Pool() // On loopback.
	if err := startBackends(backendAddresses()); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestRefusedFlags(t *testing.T) {
	b := bench{
		Options: &harness.Options{Figures: rowNames(), Rows: "udp", Output: "table"}, peers: []string{"squid"},
	}
	_, err := b.run(t.Context(), "")
	assert.ErrorContains(t, err, `no "squid"`)
	b.peers, b.binary = nil, "no-such-program"
	_, err = b.run(t.Context(), t.TempDir())
	assert.ErrorContains(t, err, "make build")
}
