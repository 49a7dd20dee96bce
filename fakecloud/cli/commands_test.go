package cli

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// allCommands are those of the tree that are ours.
func allCommands(t *testing.T) (all []*cobra.Command) {
	t.Helper()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		all = append(all, cmd)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk((&app{}).root())
	require.Greater(t, len(all), 60)
	return all
}

// path is what comes after "fakecloud".
func path(cmd *cobra.Command) []string { return strings.Fields(cmd.CommandPath())[1:] }

// run runs a command line against no cloud.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// nowhere is an environment in which no cloud answers.
func nowhere(t *testing.T) {
	t.Helper()
	t.Setenv("FAKECLOUD_URL", "http://127.0.0.1:1")
	t.Setenv("FAKECLOUD_TOKEN_FILE", filepath.Join(t.TempDir(), "token"))
	t.Setenv("XDG_STATE_HOME", t.TempDir())
}

func TestEveryCommandExplainsItself(t *testing.T) {
	nowhere(t)
	for _, cmd := range allCommands(t) {
		at := cmd.CommandPath()
		assert.NotEmpty(t, cmd.Short, at)
		assert.False(t, strings.HasSuffix(cmd.Short, "."), "%s: %s", at, cmd.Short)
		assert.Contains(t, cmd.Example, at, "an example of %s", at)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { assert.NotEmpty(t, f.Usage, "%s --%s", at, f.Name) })
		code, help, errs := run(t, append(path(cmd), "--help")...)
		assert.Equal(t, exitOK, code, "%s: %s", at, errs)
		assert.Contains(t, help, "Usage:", at)
		assert.Contains(t, help, cmd.Example, at)
		assert.Empty(t, errs, at)
	}
}

// What the examples run is there, with the flags that they use.
func TestExamplesAreOfCommandsThatAre(t *testing.T) {
	root := (&app{}).root()
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
					assert.True(t, cmd.Flag(name) != nil || cmd.InheritedFlags().Lookup(name) != nil, "%s: --%s in %q", of.CommandPath(), name, line)
				}
			}
		}
	}
}

// Completion offers what it can, and never fails or says anything else.
func TestEveryCommandIsCompleted(t *testing.T) {
	nowhere(t)
	for _, cmd := range allCommands(t) {
		at := cmd.CommandPath()
		code, out, _ := run(t, append(append([]string{cobra.ShellCompRequestCmd}, path(cmd)...), "")...)
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
		code, out, _ = run(t, append(append([]string{cobra.ShellCompRequestCmd}, path(cmd)...), "--output", "")...)
		assert.Equal(t, exitOK, code, at)
		assert.Equal(t, "table\nwide\njson\nyaml\n:4\n", out, at)
		code, _, _ = run(t, append(path(cmd), "-o", "xml")...)
		assert.Equal(t, exitUsage, code, at)
	}
}
