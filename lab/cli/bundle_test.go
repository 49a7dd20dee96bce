package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestArgsWithoutBundle(t *testing.T) {
	for line, want := range map[string]string{
		"lesson --bundle b.tar.gz start taint":  "lesson start taint",
		"lesson start --bundle=b.tar.gz taint":  "lesson start taint",
		"--bundle b.tar.gz lesson -q list":      "lesson -q list",
		"lesson verify taint --name a --bundle": "lesson verify taint --name a",
		"lesson text -- --bundle":               "lesson text -- --bundle",
	} {
		assert.Equal(t, want, strings.Join(argsWithoutBundle(strings.Fields(line)), " "), line)
	}
}

// A bundle that cannot be opened fails every lesson command before it does anything.
func TestLessonFailsWithoutItsBundle(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("CCMLAB_HOME", t.TempDir())
	missing := filepath.Join(t.TempDir(), "missing.tar.gz")
	for _, line := range []string{"list", "start taint", "text taint", "stop", "verify"} {
		out, stderr, code := runCommandLine(
			t.Context(), append([]string{"lesson", "--bundle", missing}, strings.Fields(line)...)...,
		)
		assert.Equal(t, exitFailed, code, line)
		assert.Contains(t, stderr, missing, line)
		assert.Empty(t, out, line)
	}
	_, stderr, code := runCommandLine(t.Context(), "lesson", "list", "--bundle", missing, "-q", "-v")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, stderr, "--quiet and --verbose")
	out, _, code := runCommandLine(t.Context(), "__complete", "lesson", "start", "--bun")
	require.Zero(t, code)
	assert.Contains(t, out, "--bundle")
}
