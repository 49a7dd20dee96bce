package build

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const root = "../.."

func readFile(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	require.NoError(t, err)
	return string(data)
}

// latestRelease is the first version among the headings of the changelog. Beside its tag, a
// release's version is in three places: the changelog, the reusable workflow and the example that
// calls it.
func latestRelease(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^## \[(v[0-9]\S*)\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$`).
		FindStringSubmatch(readFile(t, "CHANGELOG.md"))
	require.NotNil(t, m, "CHANGELOG.md has no heading like \"## [v1.2.3] - 2026-01-02\"")
	require.Equal(t, m[1], toSemanticVersion(m[1]))
	return m[1]
}

func TestWorkflowBelongsToLatestRelease(t *testing.T) {
	var workflow struct {
		On struct {
			WorkflowCall struct {
				Inputs map[string]struct{ Default any }
			} `json:"workflow_call"`
		}
	}
	// YAML 1.1 takes a bare `on` for a boolean.
	text := strings.Replace(readFile(t, ".github", "workflows", "conformance.yml"), "\non:", "\n\"on\":", 1)
	require.NoError(t, yaml.Unmarshal([]byte(text), &workflow))
	assert.Equal(t, latestRelease(t), workflow.On.WorkflowCall.Inputs["ref"].Default)
	assert.Contains(t, readFile(t, "lab", "conformance", "ci", "caller.yml"),
		"uses: ccmlab/ccmlab/.github/workflows/conformance.yml@"+latestRelease(t)+"\n")
}

// Actions are pinned by commit because a tag of another repository can be moved.
func TestActionsArePinnedByCommit(t *testing.T) {
	workflows, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.y*ml"))
	require.NoError(t, err)
	require.NotEmpty(t, workflows)
	uses := regexp.MustCompile(`(?m)^[ -]*uses: *(.*)$`)
	pinned := regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	for _, file := range append(workflows, filepath.Join(root, "lab", "conformance", "ci", "caller.yml")) {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range uses.FindAllStringSubmatch(string(data), -1) {
			if !strings.HasPrefix(m[1], "ccmlab/ccmlab/") && !strings.HasPrefix(m[1], "./") {
				assert.Regexp(t, pinned, m[1], "%s: want a commit, and its version as a comment", file)
			}
		}
	}
}
