package cli

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
)

// completionsFor are the completions that the shell gets, and last the directive.
func completionsFor(t *testing.T, args ...string) []string {
	t.Helper()
	code, out, _ := runCommand(t, append([]string{cobra.ShellCompNoDescRequestCmd}, args...)...)
	assert.Equal(t, exitOK, code, args)
	return strings.Fields(out)
}

func TestFileCompletion(t *testing.T) {
	unreachableCloud(t)
	t.Chdir(t.TempDir())
	const noFiles, files = ":4", ":0"
	for _, cmd := range allCommands(t) {
		if !cmd.Runnable() || cmd.Name() == "help" || cmd.Parent() != nil && cmd.Parent().Name() == "completion" {
			continue
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.NoOptDefVal != "" || f.Name == "help" {
				return
			}
			got := completionsFor(t, append(commandArgs(cmd), "--"+f.Name, "")...)
			ofFile := slices.Contains(fileFlags, f.Name) && (f.Name != "token" || cmd.Name() == "serve")
			want := map[bool]string{true: files, false: noFiles}[ofFile]
			assert.Equal(t, want, got[len(got)-1], "%s --%s", cmd.CommandPath(), f.Name)
		})
	}
	for _, args := range [][]string{{"quotas", "get", ""}, {"instances", "list", ""}, {"clock", "get", ""}} {
		assert.Equal(t, []string{noFiles}, completionsFor(t, args...))
	}
	assert.Equal(t, files, completionsFor(t, "restore", "")[0], filepath.Join("restore", "FILE"))
}

func TestFlagValueCompletion(t *testing.T) {
	unreachableCloud(t)
	for offered, args := range map[string][]string{
		"network":       {"events", "--resource", ""},
		"address":       {"events", "--resource", ""},
		"terminated":    {"instances", "list", "--state", ""},
		"provisioning":  {"load-balancers", "list", "--state", ""},
		"stopInstance":  {"operations", "list", "--type", ""},
		"superseded":    {"operations", "list", "--state", ""},
		"source-hash":   {"load-balancers", "create", "--algorithm", ""},
		"listInstances": {"audit", "list", "--operation", ""},
	} {
		assert.Contains(t, completionsFor(t, args...), offered)
	}
}
