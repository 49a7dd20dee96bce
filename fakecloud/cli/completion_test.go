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

// completed is what the shell is offered, the directive last.
func completed(t *testing.T, args ...string) []string {
	t.Helper()
	code, out, _ := run(t, append([]string{cobra.ShellCompNoDescRequestCmd}, args...)...)
	assert.Equal(t, exitOK, code, args)
	return strings.Fields(out)
}

func TestFilesAreOfferedWhereOneFits(t *testing.T) {
	nowhere(t)
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
			got := completed(t, append(path(cmd), "--"+f.Name, "")...)
			ofFile := slices.Contains(takeFiles, f.Name) && (f.Name != "token" || cmd.Name() == "serve")
			want := map[bool]string{true: files, false: noFiles}[ofFile]
			assert.Equal(t, want, got[len(got)-1], "%s --%s", cmd.CommandPath(), f.Name)
		})
	}
	for _, args := range [][]string{{"quotas", "get", ""}, {"instances", "list", ""}, {"clock", "get", ""}} {
		assert.Equal(t, []string{noFiles}, completed(t, args...))
	}
	assert.Equal(t, files, completed(t, "restore", "")[0], filepath.Join("restore", "FILE"))
}

func TestFlagsOfferTheirValues(t *testing.T) {
	nowhere(t)
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
		assert.Contains(t, completed(t, args...), offered)
	}
}
