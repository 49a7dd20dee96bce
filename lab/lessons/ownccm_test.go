package lessons

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const lastStep = 7

func TestStepsOfASource(t *testing.T) {
	const text = "a\n// step 1\nb\n// step 3\nc\n// end\n// before\n// d\n// end\ne\n"
	for step, want := range map[int]string{0: "a\nd\ne\n", 1: "a\nb\ne\n", 2: "a\nb\ne\n", 3: "a\nb\nc\ne\n"} {
		got, err := textUpToStep(text, step)
		require.NoError(t, err)
		assert.Equal(t, want, got, step)
	}
	for _, wrong := range []string{"// end\n", "// before\n", "// step 1\na\n"} {
		_, err := textUpToStep(wrong, 1)
		require.Error(t, err, wrong)
	}
}

// Each step is Go, has more than the last, and leaves nothing unwritten but what comes
// later. That it compiles, `lab lesson verify` sees.
func TestStepsOfTheCCM(t *testing.T) {
	unwritten := map[string]bool{}
	for step := range lastStep + 1 {
		files, err := sourcesUpToStep(step)
		require.NoError(t, err)
		require.Len(t, files, 5)
		left := 0
		for name, data := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, data, parser.SkipObjectResolution)
			require.NoError(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				if i, ok := n.(*ast.Ident); ok && i.Name == "errNotWritten" {
					left++
				}
				return true
			})
			assert.NotRegexp(t, `(?m)^\s*// (step \d|before|end)$`, string(data))
			unwritten[string(data)] = true
		}
		if step == lastStep {
			assert.Zero(t, left)
		}
	}
	assert.Len(
		t, unwritten, 2+3+4+3+2,
		"main changes in step 7, provider in 6 and 7, routes in 6, instances in 1, 2 and 5, balancers in 3 and 4",
	)
}

// A test of the suite that waits for changed addresses waits for this, and upstream's
// default is five minutes.
func TestALearnersCCMLooksOften(t *testing.T) {
	assert.Contains(t, ownCCMArgs, "--node-status-update-frequency=10s")
}

func TestWhatIsThereIsKept(t *testing.T) {
	folder := filepath.Join(t.TempDir(), ownCCMDir)
	kept, err := moveAside(folder)
	require.NoError(t, err)
	assert.Empty(t, kept)
	for _, want := range []string{".1", ".2"} {
		require.NoError(t, writeFiles(folder, map[string][]byte{"a.go": []byte(want)}))
		kept, err = moveAside(folder)
		require.NoError(t, err)
		assert.Equal(t, folder+want, kept)
		data, err := os.ReadFile(filepath.Join(kept, "a.go"))
		require.NoError(t, err)
		assert.Equal(t, want, string(data))
	}
	_, err = hashSources(folder)
	require.ErrorContains(t, err, "lab lesson reset")
	require.NoError(t, writeFiles(folder, map[string][]byte{"a.go": []byte("x"), "go.mod": []byte("module m")}))
	one, err := hashSources(folder)
	require.NoError(t, err)
	require.NoError(t, writeFiles(folder, map[string][]byte{"a.go": []byte("y")}))
	other, err := hashSources(folder)
	require.NoError(t, err)
	assert.NotEqual(t, one, other)
	assert.Len(t, strings.TrimSpace(one), 64)
}
