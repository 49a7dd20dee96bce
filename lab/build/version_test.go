package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
		"github.com/ccmlab/ccmlab/lab/cli.release=v1.2.3", "github.com/ccmlab/ccmlab/fakecloud/cli.release=v1.2.3",
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
