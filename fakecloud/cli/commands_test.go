package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// allCommands are all commands except those that cobra adds.
func allCommands(t *testing.T) (all []*cobra.Command) {
	t.Helper()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		all = append(all, cmd)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk((&app{}).rootCommand())
	require.Greater(t, len(all), 60)
	return all
}

// commandArgs are the words of the command after "fakecloud".
func commandArgs(cmd *cobra.Command) []string { return strings.Fields(cmd.CommandPath())[1:] }

// runCommand runs a command line in this process.
func runCommand(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// unreachableCloud sets an environment in which no cloud answers.
func unreachableCloud(t *testing.T) {
	t.Helper()
	t.Setenv("FAKECLOUD_URL", "http://127.0.0.1:1")
	t.Setenv("FAKECLOUD_TOKEN_FILE", filepath.Join(t.TempDir(), "token"))
	t.Setenv("XDG_STATE_HOME", t.TempDir())
}

var update = flag.Bool("update", false, "write the golden files anew")

// What a command's help says changes on purpose only.
func TestHelpIsAsItWas(t *testing.T) {
	for _, name := range []string{"FAKECLOUD_URL", "FAKECLOUD_TOKEN_FILE", "FAKECLOUD_CA_FILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("XDG_STATE_HOME", "/state")
	var all strings.Builder
	for _, cmd := range allCommands(t) {
		if cmd.HasParent() {
			cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { f.Hidden = true }) // The root's help has them.
		}
		cmd.SetOut(&all)
		all.WriteString("=== " + cmd.CommandPath() + "\n")
		require.NoError(t, cmd.Help())
	}
	const file = "testdata/help.txt"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(all.String()), 0o644))
	}
	want := must.Do(os.ReadFile(file))(t)
	assert.Equal(t, string(want), all.String(), "if it gets better: go test ./fakecloud/cli -run TestHelpIsAsItWas -update")
}

func TestEveryCommandHasHelp(t *testing.T) {
	unreachableCloud(t)
	for _, cmd := range allCommands(t) {
		at := cmd.CommandPath()
		assert.NotEmpty(t, cmd.Short, at)
		assert.False(t, strings.HasSuffix(cmd.Short, "."), "%s: %s", at, cmd.Short)
		assert.Contains(t, cmd.Example, at, "an example of %s", at)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { assert.NotEmpty(t, f.Usage, "%s --%s", at, f.Name) })
		code, help, errs := runCommand(t, append(commandArgs(cmd), "--help")...)
		assert.Equal(t, exitOK, code, "%s: %s", at, errs)
		assert.Contains(t, help, "Usage:", at)
		assert.Contains(t, help, cmd.Example, at)
		assert.Empty(t, errs, at)
	}
}

// The commands and flags that examples use exist.
func TestExamplesUseExistingCommands(t *testing.T) {
	root := (&app{}).rootCommand()
	for _, of := range allCommands(t) {
		for line := range strings.Lines(of.Example) {
			words := strings.Fields(line)
			if len(words) == 0 || words[0] != "fakecloud" {
				continue
			}
			cmd, _, err := root.Find(words[1:])
			require.NoError(t, err, line)
			assert.True(t, cmd == root || cmd.Runnable(), line)
			for _, word := range words {
				if word == "|" || word == "#" {
					break
				}
				name, is := strings.CutPrefix(word, "--")
				name, _, _ = strings.Cut(name, "=")
				if is && name != "" {
					assert.True(t, cmd.Flag(name) != nil || cmd.InheritedFlags().
						Lookup(name) != nil, "%s: --%s in %q", of.CommandPath(), name, line)
				}
			}
		}
	}
}

// Completion offers values, never fails, and prints nothing else.
func TestEveryCommandIsCompleted(t *testing.T) {
	unreachableCloud(t)
	for _, cmd := range allCommands(t) {
		at := cmd.CommandPath()
		code, out, _ := runCommand(t, append(append([]string{cobra.ShellCompRequestCmd}, commandArgs(cmd)...), "")...)
		assert.Equal(t, exitOK, code, at)
		assert.Regexp(t, `(?m)^:\d+$`, out, at)
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				assert.Contains(t, out, sub.Name()+"\t"+sub.Short, at)
			}
		}
		if cmd.Flag("output") == nil {
			continue
		}
		code, out, _ = runCommand(
			t, append(append([]string{cobra.ShellCompRequestCmd}, commandArgs(cmd)...), "--output", "")...,
		)
		assert.Equal(t, exitOK, code, at)
		assert.Equal(t, "table\nwide\njson\nyaml\n:4\n", out, at)
		code, _, _ = runCommand(t, append(commandArgs(cmd), "-o", "xml")...)
		assert.Equal(t, exitUsage, code, at)
	}
}
