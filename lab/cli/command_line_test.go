package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/release"
)

// runCommandLine runs a command line in this process. It returns what it printed and
// its exit code.
func runCommandLine(ctx context.Context, args ...string) (stdout, stderr string, code int) {
	cmd := newRoot()
	var out, errs bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	code = exitCode(ctx, &errs, cmd.ExecuteContext(ctx))
	return out.String(), errs.String(), code
}

// Every command has a help text with an example, and so has every flag.
func TestEveryCommandExplainsItself(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if cmd.Hidden || cmd.Name() == "help" {
			return
		}
		path := cmd.CommandPath()
		assert.NotEmpty(t, cmd.Short, path)
		assert.False(t, strings.HasSuffix(cmd.Short, "."), path)
		assert.Contains(t, cmd.Example, "lab ", path)
		for line := range strings.Lines(cmd.Example) {
			assert.True(t, strings.HasPrefix(line, "  "), "%s: %q is not indented as the others are", path, line)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { assert.NotEmpty(t, f.Usage, "%s --%s", path, f.Name) })
	}
	walk(newRoot())
	help, _, code := runCommandLine(t.Context(), "--help")
	assert.Zero(t, code)
	for _, want := range []string{
		"Exit codes: 0 done; 1 ", "130 interrupted", "LAB_NAME", "CCMLAB_HOME", "NO_COLOR", "lab doctor",
	} {
		assert.Contains(t, help, want)
	}
}

// A wrong command line ends with exit code 2. The message names the wrong word and
// offers a similar one.
func TestWrongCommandLines(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	for line, want := range map[string]string{
		"staus":                    "did you mean status?",
		"ccm sart":                 "did you mean start?",
		"frobnicate":               "`lab` has no command \"frobnicate\"\n",
		"up --nmea x":              "did you mean --name?",
		"up --frobnicate":          "unknown flag: --frobnicate\n",
		"up -x":                    "unknown shorthand flag: 'x'",
		"up extra":                 "`lab up` takes no arguments, and was given [\"extra\"]",
		"up --nodes many":          "lab: --nodes \"many\": want a whole number\n",
		"up --step-timeout soon":   "lab: --step-timeout \"soon\": want a duration, such as 30s or 10m\n",
		"watch --follow=perhaps":   "lab: --follow \"perhaps\": want true or false\n",
		"up --nodes 0":             "--nodes 0: want 1 to 100",
		"up --profile fats":        "--profile \"fats\": want one of instant, fast, realistic; did you mean fast?",
		"up --cluster kin":         "did you mean kind?",
		"up --step-timeout -1s":    "--step-timeout -1s: want a positive duration",
		"status -o jsn":            "lab: --output \"jsn\": want one of table, json, yaml; did you mean json?\n",
		"status --name Bad_Name":   "lab name \"Bad_Name\"",
		"-q -v status":             "--quiet and --verbose",
		"completion bash extra":    "takes no arguments",
		"completion bahs":          "did you mean bash?",
		"doctor --cluster kidn":    "did you mean kind?",
		"bundle":                   "lab: `lab bundle` wants FILE, and was given nothing\n",
		"compare one":              "lab: compare which two labs?",
		"explain":                  "explain what? want node/NAME or service/[NAMESPACE/]NAME",
		"up --kubeconfig x":        "--kubeconfig is for --cluster external",
		"up --pod-network kindnet": "--node-image and --pod-network are for --cluster kind",
	} {
		t.Run(line, func(t *testing.T) {
			stdout, stderr, code := runCommandLine(t.Context(), strings.Fields(line)...)
			assert.Equal(t, exitUsage, code, stderr)
			assert.Contains(t, stderr, want)
			assert.Contains(t, stderr, "--help` explain")
			assert.Empty(t, stdout)
		})
	}
}

func TestExitCodes(t *testing.T) {
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	failed := errors.New("it failed")
	assert.Equal(t, 0, exitCode(t.Context(), io.Discard, nil))
	assert.Equal(t, 0, exitCode(interrupted, io.Discard, nil), "one that Ctrl-C is the way to end")
	assert.Equal(t, 1, exitCode(t.Context(), io.Discard, failed))
	assert.Equal(t, 2, exitCode(t.Context(), io.Discard, errors.Join(clikit.Usagef("wrong"), failed)))
	assert.Equal(t, 130, exitCode(interrupted, io.Discard, failed))
	var said bytes.Buffer
	assert.Equal(t, 1, exitCode(t.Context(), &said, silentError{failed}))
	assert.Empty(t, said.String(), "it has said everything")
	assert.Equal(t, 1, exitCode(t.Context(), &said, failed))
	assert.Equal(t, "lab: it failed\n", said.String())
}

// Every command that needs a lab says that there is none, and how to make one.
func TestCommandsWithoutLab(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	for _, line := range []string{"status", "env", "kubeconfig", "ccm start", "watch", "logs", "logs ccm"} {
		_, stderr, code := runCommandLine(t.Context(), append(strings.Fields(line), "--name", "none")...)
		assert.Equal(t, exitFailed, code, line)
		assert.Contains(t, stderr, "no such lab: none", line)
		assert.Contains(t, stderr, "`lab up", line)
	}
	_, stderr, code := runCommandLine(t.Context(), "down", "-q", "--name", "none")
	assert.Zero(t, code, stderr)
}

func TestCompletion(t *testing.T) {
	home := t.TempDir()
	t.Setenv("CCMLAB_HOME", home)
	for _, name := range []string{"second", "first"} {
		require.NoError(t, os.MkdirAll(filepath.Join(home, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(home, name, "lab.json"), []byte(`{"name":"`+name+`"}`), 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(home, "no-lab"), 0o700))
	for line, want := range map[string][]string{
		"status --name":       {"first", "second"},
		"up --profile":        {"instant", "fast", "realistic"},
		"up --cluster":        {"embedded", "kind", "external"},
		"doctor --cluster":    {"embedded", "kind", "external"},
		"up -o":               {"table", "json", "yaml"},
		"ccm":                 {"start", "stop", "restart", "command"},
		"logs --name none":    nil,
		"up --pod-network":    {"routes", "kindnet"},
		"completion":          {"bash", "zsh", "fish", "powershell"},
		"status --name first": nil,
	} {
		out, _, _ := runCommandLine(t.Context(), append(append([]string{"__complete"}, strings.Fields(line)...), "")...)
		for _, choice := range want {
			assert.Regexp(t, `(?m)^`+choice+`(\t|$)`, out, line)
		}
		assert.NotContains(t, out, "no-lab", line)
	}
	out, _, _ := runCommandLine(t.Context(), "__complete", "watch", "--only", "cluster,call,cloud,lab,")
	assert.Equal(
		t, []string{"cluster,call,cloud,lab,event", ":4"}, strings.Fields(out),
		"one of several, and what was given is not offered again",
	)
}

// The help of bash's completion names the package that it needs.
func TestBashCompletionHelp(t *testing.T) {
	help, _, code := runCommandLine(t.Context(), "completion", "bash", "--help")
	assert.Zero(t, code)
	assert.Contains(t, help, "apt-get install\nbash-completion")
	assert.Contains(t, help, "_get_comp_words_by_ref")
}

func TestVersion(t *testing.T) {
	t.Setenv("LAB_KUBE_BIN", t.TempDir()) // Without Kubernetes its version is unknown.
	out, stderr, code := runCommandLine(t.Context(), "version", "-o", "json")
	require.Zero(t, code, stderr)
	var v versionInfo
	require.NoError(t, json.Unmarshal([]byte(out), &v))
	assert.Equal(t, release.Version(), v.Lab)
	assert.Contains(t, v.Platform, "/")
	assert.Empty(t, v.Kubernetes)
	out, _, _ = runCommandLine(t.Context(), "version")
	assert.Regexp(t, `kubernetes +-`, out)
}

// A missing argument is reported in the command's own words.
func TestMissingArguments(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"explain"}, "explain what? want node/NAME or service/[NAMESPACE/]NAME, one at a time"},
		{[]string{"explain", "node", "a", "b"}, "explain what? want node/NAME"},
		{[]string{"compare"}, "compare which two labs? want `lab compare A B`; `lab list` shows what there is"},
		{[]string{"compare", "one"}, "compare which two labs?"},
		{[]string{"compare", "one", "two", "three"}, "compare which two labs?"},
	} {
		root := newRoot()
		root.SetArgs(c.args)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		err := root.ExecuteContext(t.Context())
		require.ErrorContains(t, err, c.says)
		assert.ErrorAs(t, err, &clikit.UsageError{}, "%q is a mistake in the command line", c.args)
	}
}
