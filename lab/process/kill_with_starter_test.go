package process_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
)

// envStarter names a folder. The test's own program, started with it, starts a process with
// KillWithStarter there.
const envStarter = "PROCESS_TEST_STARTER"

// A starter that is killed cannot stop its processes; the kernel kills them.
func TestKillWithStarter(t *testing.T) {
	if dir := os.Getenv(envStarter); dir != "" {
		start(t, process.Host{Lab: dir, KillWithStarter: true}, "tied", "exec sleep 1000")
		_, _ = os.Stdout.WriteString("started\n")
		select {} // Until it is killed.
	}
	host := process.Host{Lab: t.TempDir()}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	starter := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$")
	starter.Env = append(os.Environ(), envStarter+"="+host.Lab)
	out, err := starter.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, starter.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	assert.NoError(t, err)
	assert.Equal(t, "started\n", line)
	running, err := host.Running()
	assert.NoError(t, err)
	assert.Contains(t, running, "tied")

	require.NoError(t, starter.Process.Kill())
	require.Error(t, starter.Wait())
	require.NoError(t, cluster.Poll(ctx, "the tied process to end", func(context.Context) error {
		if running, err := host.Running(); err != nil || len(running) > 0 {
			return errors.Join(err, errors.New("it runs"))
		}
		return nil
	}))
}
