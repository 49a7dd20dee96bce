package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

func TestTable(t *testing.T) {
	r := sampleReport()
	r.Command, r.Crashes = "lab conformance --ccm ./nebula-ccm", []string{"at once"}
	r.Unsupported = conformance.Unsupported{"udp": "nebula has none"}
	var figure Figure
	require.NoError(t, yaml.Unmarshal([]byte(`{"ccm": "fakecloud", "command": "make bench-ccm", "size": {"nodes": 1000},
		"lines": [{"name": "init", "ours": {"seconds": 12.34, "taken": {"calls": 4}}}, {"name": "routes"}]}`), &figure))
	var out strings.Builder
	require.NoError(t, WriteTable(&out, []*conformance.Report{r}, []Figure{figure, {CCM: "another"}}))
	for _, want := range []string{
		"| fakecloud v1 | 2026-11-21, embedded v1.36.3 | 1/2, – | – | –, 0/3 |", "## fakecloud v1\n",
		"    lab conformance --ccm ./nebula-ccm\n", "the run took 12 s.",
		"- Failed of what is required: `node-bad`, `lb-claimed`\n", "- Failed of what it does not claim: `lb-not-claimed`\n",
		"- Blocked by those: `lb-blocked`\n", "- Not asked, `udp`: nebula has none\n", "- Ended by itself, times: 1\n",
		"- 1000 Nodes initialised, its own defaults, each call 20 ms late: 12.3 s, 4 calls (`make bench-ccm`)\n",
	} {
		assert.Contains(t, out.String(), want)
	}
	assert.Equal(t, 1, strings.Count(out.String(), "Nodes initialised"))
}
