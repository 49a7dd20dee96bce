package cli_test

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/cli"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// startInProcessCloud runs a cloud in this process, and points commands to it.
func startInProcessCloud(t *testing.T) {
	t.Helper()
	c := cloudtest.Start(t, func(cfg *fakecloud.Config) {
		cfg.Cloud.SnapshotDir = t.TempDir()
		cfg.Cloud.TargetRanges = []netip.Prefix{netip.MustParsePrefix("127.31.0.0/24")} // Of the README.
	})
	t.Setenv("FAKECLOUD_URL", c.URL)
	t.Setenv("FAKECLOUD_TOKEN_FILE", c.TokenFile)
}

// runInProcess runs a command that ends with a code, and returns what it says.
func runInProcess(t *testing.T, code int, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var out, errs bytes.Buffer
	require.Equal(t, code, cli.Run(ctx, args, &out, &errs), "%s\n%s%s", args, out.String(), errs.String())
	return out.String() + errs.String()
}

var (
	nameValue = regexp.MustCompile(`"[^"]*"|\S+`)
	idPattern = regexp.MustCompile(`\bf-[0-9a-z]{26}\b`)
	fenced    = regexp.MustCompile("(?s)```sh\n(.*?)```")
)

func TestCookbook(t *testing.T) {
	text := must.Do(os.ReadFile(filepath.Join("..", "faults", "COOKBOOK.md")))(t)
	startInProcessCloud(t)
	commands, last := 0, ""
	run := func(line string) {
		words := nameValue.FindAllString(line, -1)
		require.Equal(t, "fakecloud", words[0], line)
		for i := range words {
			words[i] = strings.Trim(words[i], `"`)
			if words[i] == "$ID" { // Of the output before.
				words[i] = last
			}
		}
		if id := idPattern.FindString(runInProcess(t, 0, words[1:]...)); id != "" {
			last = id
		}
		commands++
	}
	for _, recipe := range strings.Split(string(text), "\n## ") {
		for _, block := range fenced.FindAllStringSubmatch(recipe, -1) {
			for line := range strings.Lines(block[1]) {
				run(strings.TrimSpace(line))
			}
		}
		run("fakecloud faults delete --all")
	}
	assert.Greater(t, commands, 40)
}

// The commands in the cloud's README work, except those that run a cloud or do not end.
func TestReadme(t *testing.T) {
	text := must.Do(os.ReadFile(filepath.Join("..", "README.md")))(t)
	startInProcessCloud(t)
	t.Chdir(t.TempDir())
	_, manifest, found := strings.Cut(string(text), "`cloud.yaml`:\n\n")
	require.True(t, found)
	manifest, _, _ = strings.Cut(manifest, "\n\n")
	require.NoError(t, os.WriteFile("cloud.yaml", []byte(manifest), 0o600))
	writeKeyPair(t, "key.pem", "key.pub.pem")
	commands := 0
	for line := range strings.Lines(string(text)) {
		line, ok := strings.CutPrefix(line, "    bin/fakecloud ")
		if !ok {
			continue
		}
		line, _, _ = strings.Cut(line, "   # ")
		line, _, _ = strings.Cut(line, "    # ")
		args := strings.Fields(line)
		if args[0] == "serve" || slices.Contains(args, "--follow") || slices.Contains(args, "--watch") {
			continue
		}
		runInProcess(t, 0, args...)
		commands++
	}
	assert.Greater(t, commands, 9)
	runInProcess(t, 0, "faults", "delete", "--all")
	runInProcess(t, 0, "apply", "-f", "cloud.yaml", "--wait")
}

func TestFlagsOfFaults(t *testing.T) {
	startInProcessCloud(t)
	assert.Contains(t, runInProcess(t, 0, "__complete", "faults", "create", "--zone-outage", ""), "nebula-1b\n")
	assert.Contains(t, runInProcess(t, 2, "faults", "create", "--drop", "--until", "soon"), "2026-01-02T15:04:05Z")
	assert.Contains(t, runInProcess(t, 2, "faults", "create", "--drop", "--burst", "3"), "--throttle")
	assert.Contains(t, runInProcess(t, 2, "faults", "create", "--crash", "--partial-list", "3"), "--partial-list and --crash")
}
