package cli

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The summary offers a second lab whose name differs from this lab's.
func TestSummaryWithoutProvider(t *testing.T) {
	for name, other := range map[string]string{"lab": "full", "full": "other"} {
		var said string
		printSummaryWithoutProvider(
			func(format string, args ...any) { said += fmt.Sprintf(format+"\n", args...) }, "bin/lab", name,
		)
		assert.Contains(t, said, "bin/lab up --name "+other+" ")
		assert.Contains(t, said, "bin/lab compare "+name+" "+other+"\n")
	}
}
