package hcloud_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	dialect "github.com/ccmlab/ccmlab/fakecloud/dialect/hcloud"
)

var update = flag.Bool("update", false, "write what the page lists")

// The page lists all calls and limits, and none that there are not.
func TestPageIsWhole(t *testing.T) {
	const page = "README.md"
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for name, want := range map[string]string{
		"calls": callsTable(), "limits": "- " + strings.Join(dialect.Dialect.Limits, "\n- ") + "\n",
	} {
		before, rest, begins := strings.Cut(string(text), "<!-- "+name+" -->\n")
		has, after, ends := strings.Cut(rest, "<!-- end of "+name+" -->\n")
		require.True(t, begins && ends, "the page has no place for %s", name)
		if *update {
			text = []byte(before + "<!-- " + name + " -->\n" + want + "<!-- end of " + name + " -->\n" + after)
			require.NoError(t, os.WriteFile(page, text, 0o600))
			continue
		}
		assert.Equal(t, want, has, "go test ./fakecloud/dialect/hcloud -run TestPageIsWhole -update")
	}
}

// callsTable has a row for each kind of resource: its calls, and the actions on one.
func callsTable() string {
	calls, actions := map[string][]string{}, map[string][]string{}
	for _, call := range dialect.Dialect.Calls {
		path := strings.TrimPrefix(call.Path, "/v1")
		kind, of, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		action, isAction := strings.CutPrefix(of, "{id}/actions/")
		if isAction && !strings.Contains(action, "{") {
			actions[kind] = append(actions[kind], action)
		} else {
			calls[kind] = append(calls[kind], strings.TrimSpace(call.Method+" "+of))
		}
	}
	out := "| | calls: of all, and of one or another | actions on one |\n|---|---|---|\n"
	for _, kind := range slices.Sorted(maps.Keys(calls)) {
		out += fmt.Sprintf("| `/%s` | %s | %s |\n", kind, strings.Join(calls[kind], ", "), strings.Join(actions[kind], ", "))
	}
	return out
}
