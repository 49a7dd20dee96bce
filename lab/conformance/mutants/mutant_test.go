package mutants

import (
	"encoding/json"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
)

const root = "../../.."

// Every mutant fits the product and the suite as they are now.
func TestDeclarations(t *testing.T) {
	known, features := map[string]bool{}, map[string]bool{}
	for _, test := range profiles.All() {
		known[test.ID], features[string(test.Capability)] = true, true
		for _, f := range test.Needs {
			features[string(f)] = true
		}
	}
	mutants, err := Choose()
	require.NoError(t, err)
	rings, err := Rings()
	require.NoError(t, err)
	require.NotEmpty(t, mutants)
	require.NotEmpty(t, rings)
	for _, m := range slices.Concat(mutants, rings) {
		t.Run(m.Name, func(t *testing.T) {
			assert.NotEmpty(t, m.Wrong)
			assert.NotEmpty(t, m.Edits)
			assert.Equal(t, m.Ring == Core, len(m.CaughtBy) == 0)
			changed, err := m.Sources(root)
			require.NoError(t, err)
			for file, source := range changed {
				_, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
				assert.NoError(t, err)
			}
			for _, id := range m.CaughtBy {
				assert.True(t, known[id], "there is no test %s", id)
				assert.NotContains(t, m.AlsoFails, id)
			}
			for id, why := range m.AlsoFails {
				assert.True(t, known[id] || matchesAny(t, id, known), "there is no test %s", id)
				assert.NotEmpty(t, why, id)
			}
			for feature, why := range m.Unsupported {
				assert.True(t, features[feature], "no test needs %s", feature)
				assert.NotEmpty(t, why, feature)
			}
		})
	}
}

func matchesAny(t *testing.T, pattern string, ids map[string]bool) bool {
	for id := range ids {
		matched, err := path.Match(pattern, id)
		require.NoError(t, err)
		if matched {
			return true
		}
	}
	return false
}

func TestChoose(t *testing.T) {
	mutants, err := Choose("leaks-on-delete")
	require.NoError(t, err)
	require.Len(t, mutants, 1)
	assert.Equal(t, "leaks-on-delete", mutants[0].Name)
	_, err = Choose("leaks")
	assert.ErrorContains(t, err, "leaks-on-delete")
}

// An edit that does not meet exactly one place is an error, not a guess.
func TestOverlay(t *testing.T) {
	for name, tc := range map[string]struct {
		edits   []Edit
		want    string
		wantErr string
	}{
		"once":                {edits: []Edit{{"a.go", "one", "1"}}, want: "1 two two"},
		"one after the other": {edits: []Edit{{"a.go", "one", "three"}, {"a.go", "three ", ""}}, want: "two two"},
		"missing":             {edits: []Edit{{"a.go", "three", "3"}}, wantErr: "0 times"},
		"twice":               {edits: []Edit{{"a.go", "two", "2"}}, wantErr: "2 times"},
		"gone by an edit": {
			edits: []Edit{{"a.go", "one", "1"}, {"a.go", "one", "1"}}, wantErr: "the product has moved on",
		},
		"no such file": {edits: []Edit{{"b.go", "one", "1"}}, wantErr: "b.go"},
	} {
		t.Run(name, func(t *testing.T) {
			root, dir := t.TempDir(), t.TempDir()
			source := filepath.Join(root, "a.go")
			require.NoError(t, os.WriteFile(source, []byte("one two two"), 0o600))
			file, err := Mutant{Name: "m", Edits: tc.edits}.writeOverlay(root, dir)
			if tc.wantErr != "" {
				require.ErrorContains(t, err, tc.wantErr)
				return
			}
			require.NoError(t, err)
			var overlay struct{ Replace map[string]string }
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(data, &overlay))
			require.Len(t, overlay.Replace, 1)
			changed, err := os.ReadFile(overlay.Replace[source])
			require.NoError(t, err)
			assert.Equal(t, tc.want, string(changed))
		})
	}
}
