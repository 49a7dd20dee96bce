package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

func TestPrintedReport(t *testing.T) {
	yes, no := true, false
	r := report{
		Machine: machine.Machine{Cores: 2, CPU: "some", Kernel: "linux 6", Go: "go1", FileSystem: "tmpfs"},
		Size:    fullSize,
		Server:  &server{Validation: true},
		Rows: []row{
			{Figure: "get one", Measured: "9,000/s", Target: "≥ 8,000/s", Holds: &yes},
			{Figure: "create", Measured: "1/s", Target: "≥ 1,500/s", Holds: &no, Note: "3 calls failed"},
			{Figure: "peer", Measured: "2/s"},
		},
	}
	var out strings.Builder
	require.NoError(t, r.print(&out, "table"))
	for _, want := range []string{
		"2 cores (some), linux 6, go1", "tmpfs keeps nothing", "audit absent", "10,000 instances", "validation on",
	} {
		assert.Contains(t, out.String(), want)
	}
	lines := strings.Split(out.String(), "\n")
	assert.Contains(t, lines, "get one   9,000/s    ≥ 8,000/s   ✓")
	assert.Contains(t, lines, "create    1/s        ≥ 1,500/s   ✗")
	assert.Contains(t, lines, "peer      2/s        -           -")
	assert.Contains(t, lines, "create: 3 calls failed")
	out.Reset()
	require.NoError(t, r.print(&out, "json"))
	assert.Contains(t, out.String(), `"holds": false`)
}
