package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

// classroomCommand runs `lab classroom` with args in a home folder of its own.
func classroomCommand(t *testing.T, args ...string) error {
	t.Helper()
	t.Setenv("CCMLAB_HOME", t.TempDir())
	root := newRoot()
	root.SetArgs(append([]string{"classroom"}, args...))
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	return root.ExecuteContext(t.Context())
}

func TestClassroomCommandLine(t *testing.T) {
	short := filepath.Join(t.TempDir(), "short")
	require.NoError(t, os.WriteFile(short, []byte("seven77\n"), 0o600))
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"up", "--seat", "seat-3", "--seats", "2"}, "--seat and --seats: want one of them"},
		{[]string{"up", "--seat", "Seat"}, "such as seat-3"},
		{[]string{"up", "--password-file", short}, "7 characters; 8 are the least"},
		{[]string{"up", "--password-file", "does-not-exist", "--seat", "seat-3"}, "no such file"},
		{[]string{"up", "--password-file", t.TempDir()}, "say with --seat which seat's it is"},
		{[]string{"up", "--seat-instances", "2"}, "want 5 or more"},
		{[]string{"cards"}, "want SEATs, or --all"},
		{[]string{"page"}, "whose seats? want --from URL"},
		{[]string{"page", "--from", "seat-3:8400"}, "want the URL of a classroom's page"},
		{[]string{"page", "--from-service", "seat"}, "want HOST:PORT"},
	} {
		err := classroomCommand(t, c.args...)
		require.ErrorContains(t, err, c.says)
		assert.ErrorAs(t, err, &clikit.UsageError{}, "%q is a mistake in the command line", c.args)
	}
}

func TestPasswordFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte(" of the Secret\r\n"), 0o600))
	for of, want := range map[string]string{file: " of the Secret", filepath.Dir(file): "", "": ""} {
		got, err := (&classroomUpFlags{passwordFile: of}).readPassword()
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
}

func TestShortages(t *testing.T) {
	const gigabyte = 1 << 30
	assert.Empty(t, shortages(20, 7*gigabyte, 20, 2), "a class of twenty, a lab each, on two cores")
	assert.Empty(t, shortages(40, 14*gigabyte, 40, 4), "two labs each, on four")
	assert.Equal(t, []string{
		"20 labs take about 6.8 GB of memory, and 6.0 GB are free: some may be killed. Fewer seats, or more memory.",
	}, shortages(20, 6*gigabyte, 20, 2))
	assert.Equal(t, []string{
		"40 labs at rest use about 3.4 of 2 cores: they are slow, and some may not come up. Fewer seats, or more cores.",
	}, shortages(2, 7*gigabyte, 40, 2), "38 of them run already")
}

// The pods in the manifests run this program with flags that it knows.
func TestClassroomManifestsUseKnownFlags(t *testing.T) {
	for _, file := range []string{"seat", "page"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "manifests", "classroom", "base", file+".yaml"))
		require.NoError(t, err)
		workload, _, _ := bytes.Cut(data, []byte("\n---\n"))
		var d appsv1.Deployment // The fields read here are the same in a StatefulSet.
		require.NoError(t, yaml.Unmarshal(workload, &d))
		c := d.Spec.Template.Spec.Containers[0]
		cmd, flags, err := newRoot().Find(c.Args)
		require.NoError(t, err)
		require.NoError(t, cmd.ParseFlags(flags))
		assert.Empty(t, cmd.Flags().Args())
		assert.Equal(t, "0.0.0.0", cmd.Flag("listen").Value.String())
		for _, p := range c.Ports {
			assert.Contains(t, cmd.Flags().
				FlagUsages(), fmt.Sprintf("(default %d", p.ContainerPort), "what is not said is so: %s", p.Name)
		}
	}
}
