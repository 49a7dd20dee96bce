package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

func TestToSemanticVersion(t *testing.T) {
	for description, want := range map[string]string{
		"":                         noRelease,
		"0123abc":                  noRelease,
		"version-one":              noRelease,
		"v1.2":                     noRelease,
		"v1.2.3":                   "v1.2.3",
		"v1.2.3-rc.1":              "v1.2.3-rc.1",
		"v1.2.3-4-g0123abc":        "v1.2.3+4.g0123abc",
		"v1.2.3-rc.1-12-g0123abc":  "v1.2.3-rc.1+12.g0123abc",
		"v1.2.3 -X main.evil=true": noRelease,
	} {
		assert.Equal(t, want, toSemanticVersion(description), description)
	}
}

func TestStampComesFromGit(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		cmd := exec.Command("git", append([]string{
			"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false", "-c",
			"tag.gpgsign=false",
		}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_COMMITTER_DATE=2026-01-02T03:04:05+02:00")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	const pkg = "k8s.io/component-base/version."
	assert.Subset(
		t, stampOf(t.Context(), dir),
		[]string{pkg + "gitVersion=" + noRelease, pkg + "gitCommit=unknown", pkg + "gitTreeState="},
	)

	file := filepath.Join(dir, "a")
	require.NoError(t, os.WriteFile(file, []byte("a"), 0o600))
	git("init", "-q")
	git("add", "a")
	git("commit", "-qm", "a")
	git("tag", "v1.2.3")
	stamp := stampOf(t.Context(), dir)
	assert.Subset(t, stamp, []string{
		pkg + "gitVersion=v1.2.3", pkg + "gitTreeState=clean", pkg + "buildDate=2026-01-02T01:04:05Z",
		"k8s.io/client-go/pkg/version.gitVersion=v1.2.3",
		"github.com/ccmlab/ccmlab/fakecloud/release.version=v1.2.3",
	})
	assert.Equal(t, "release v1.2.3", releaseOf(t.Context(), dir))
	require.NoError(t, os.WriteFile(file, []byte("b"), 0o600))
	assert.Equal(t, "release v1.2.3 changed", releaseOf(t.Context(), dir))
	assert.Contains(t, stampOf(t.Context(), dir), pkg+"gitTreeState=dirty")
	git("commit", "-qam", "b")
	assert.Equal(t, "release ", releaseOf(t.Context(), dir))
	flags := Own(dir).stampedFlags(t.Context())
	assert.Contains(t, flags[2], "-ldflags=-s -w -extldflags=-static -X "+pkg+"gitVersion=v1.2.3+1.g")
	assert.NotContains(t, Own(dir).Flags[2], "-X", "what makes programs stale stays the same")
}

// The linker ignores a variable that does not exist.
func TestStampedVariablesExist(t *testing.T) {
	stamp := stampOf(t.Context(), root)
	assert.Contains(t, stamp[len(stamp)-1], ModulePath+"/fakecloud/release.version=")
	assert.Contains(t, readFile(t, "fakecloud", "release", "release.go"), "\nvar version string")
}

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
