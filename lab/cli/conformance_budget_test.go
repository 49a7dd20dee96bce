package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

func TestConformanceBudget(t *testing.T) {
	text, err := executeCommand(t, "conformance", "budget")
	require.NoError(t, err)
	assert.Contains(t, text, "150:\n  initialise: # per Node\n    node: 0.4\n")
	file := filepath.Join(t.TempDir(), "budget.yaml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(text, "node: 0.4", "node: 7", 1)), 0o600))
	f := newConformanceFlags(func(f *conformanceFlags) { f.budget = file })
	_, err = f.completeOptions(conformanceTable, nil)
	require.NoError(t, err)
	want := conformance.DefaultLimits()
	want[150][conformance.PhaseInitialize][conformance.ControllerNode] = 7
	assert.Equal(t, want, f.opts.Limits)
}

func TestPrintBudget(t *testing.T) {
	spent := func(nodes int, phase conformance.Phase, per string, each, limit float64) (rows []conformance.Spent) {
		for _, c := range conformance.Controllers {
			rows = append(
				rows, conformance.Spent{Nodes: nodes, Phase: phase, Controller: c, Per: per, Each: each, Limit: limit},
			)
		}
		return rows
	}
	r := &conformance.Report{Implementation: conformance.Identity{Name: "nebula"}, Budget: append(
		spent(150, conformance.PhaseInitialize, "Node", 0.333, 0.4),
		spent(1000, conformance.PhaseCreated, "Service", 1200, 20)...)}
	var out strings.Builder
	require.NoError(t, printReport(&out, r))
	assert.Contains(t, out.String(), `
BUDGET, calls/limit           PER      node       service    route      other
150 Nodes, initialise         Node     0.333/0.4  0.333/0.4  0.333/0.4  0.333/0.4
1000 Nodes, services-created  Service  1200/20 !  1200/20 !  1200/20 !  1200/20 !
`)
}
