package process_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/process"
)

const bound = 20 * time.Second

func start(t *testing.T, host process.Host, component, script string) *process.Process {
	t.Helper()
	p, err := host.Start(process.Spec{
		Component: component, Path: "/bin/sh", Args: []string{"-c", script},
		LogFile: filepath.Join(host.Lab, "logs", component+".log"),
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, process.Stop(context.Background(), 0, p)) })
	return p
}

func TestFoundByMarksAndStopped(t *testing.T) {
	host := process.Host{Lab: t.TempDir()}
	other := process.Host{Lab: t.TempDir()}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	a := start(t, host, "a", "exec sleep 1000")
	start(t, other, "a", "exec sleep 1000")

	running, err := host.Running()
	require.NoError(t, err)
	require.Len(t, running, 1, "another lab's process is not ours")
	assert.Equal(t, a.PID, running["a"].PID)

	require.NoError(t, process.Stop(ctx, bound, running["a"]))
	assert.False(t, a.Alive())
	assert.False(t, running["a"].Alive())
	running, err = host.Running()
	require.NoError(t, err)
	assert.Empty(t, running)
	running, err = other.Running()
	require.NoError(t, err)
	assert.Len(t, running, 1, "and was left alone")
}

// A process that ignores SIGTERM is killed after the grace time.
func TestStopKills(t *testing.T) {
	host := process.Host{Lab: t.TempDir()}
	ready := filepath.Join(host.Lab, "ready")
	p := start(t, host, "deaf", "trap '' TERM; touch "+ready+"; while :; do sleep 1000; done")
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	require.NoError(t, p.Await(ctx, "the trap to be set", func(context.Context) error {
		_, err := os.Stat(ready)
		return err
	}))
	require.NoError(t, process.Stop(ctx, 50*time.Millisecond, p))
	assert.False(t, p.Alive())
	// Its child, which has the marks too, is for Running to find.
	running, err := host.Running()
	require.NoError(t, err)
	for _, orphan := range running {
		require.NoError(t, process.Stop(ctx, 0, orphan))
	}
}

// A process found in /proc whose PID now belongs to somebody else is left alone.
func TestStrangerIsNeverSignalled(t *testing.T) {
	host := process.Host{Lab: t.TempDir()}
	start(t, host, "a", "exec sleep 1000")
	running, err := host.Running()
	require.NoError(t, err)
	stranger := *running["a"]
	stranger.PID = os.Getpid() // The start time no longer fits.
	require.NoError(t, stranger.Signal(syscall.SIGKILL))
	assert.False(t, stranger.Alive())
}

// Variables that are given to a component cannot override its marks. From the shell's
// environment it gets what tunes Go programs, and not what configures another lab.
func TestEnvironment(t *testing.T) {
	host := process.Host{Lab: t.TempDir()}
	t.Setenv("FAKECLOUD_URL", "http://another.lab")
	t.Setenv("GOGC", "50")
	log := filepath.Join(host.Lab, "env.log")
	p, err := host.Start(process.Spec{
		Component: "a", Path: "/bin/sh",
		Args: []string{"-c", `echo "$GREETING $GOGC $CCMLAB_COMPONENT ${FAKECLOUD_URL-none}"; exit 3`},
		Env:  []string{"GREETING=hello there", "CCMLAB_COMPONENT=b"}, LogFile: log,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	require.NoError(t, p.Wait(ctx))
	require.ErrorContains(t, p.Exit(), "exit status 3")
	lines, err := process.Tail(log, 1)
	require.NoError(t, err)
	assert.Equal(t, []string{"hello there 50 a none"}, lines)
}

// A command line gives the same environment when it is typed into a shell that has another.
func TestCommandLine(t *testing.T) {
	host := process.Host{Lab: t.TempDir()}
	t.Setenv("FAKECLOUD_URL", "http://another.lab")
	line := host.CommandLine(process.Spec{
		Component: "a", Path: "/bin/sh",
		Args: []string{"-c", `echo "$GREETING $CCMLAB_COMPONENT $CCMLAB_STATE ${FAKECLOUD_URL-none}"`},
		Env:  []string{"GREETING=hello there"},
	})
	output, err := exec.CommandContext(t.Context(), line[0], line[1:]...).Output()
	require.NoError(t, err)
	assert.Equal(t, "hello there a "+host.Lab+" none\n", string(output))
}

func TestAwaitReportsEarlyExit(t *testing.T) {
	host := process.Host{Lab: t.TempDir()}
	p := start(t, host, "broken", "echo the reason; exit 3")
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	err := p.Await(ctx, "it to be ready", func(context.Context) error { return errors.New("not yet") })
	require.ErrorContains(t, err, "broken ended at its start (exit status 3)")
	assert.ErrorContains(t, err, "the reason")
	assert.ErrorContains(t, err, "broken.log")
}

func TestAwaitReportsWhatItWaitedFor(t *testing.T) {
	host := process.Host{Lab: t.TempDir()}
	p := start(t, host, "slow", "echo still working; exec sleep 1000")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, errors.New("gave up after 200ms"))
	defer cancel()
	err := p.Await(ctx, "slow to answer", func(context.Context) error { return errors.New("connection refused") })
	for _, want := range []string{
		"waited for slow to answer", "gave up after 200ms", "connection refused", "slow.log",
	} {
		assert.ErrorContains(t, err, want)
	}
}

func TestUnmarkedChildIsNoComponent(t *testing.T) {
	host := process.Host{Lab: t.TempDir()}
	t.Setenv("CCMLAB_STATE", host.Lab)
	t.Setenv("CCMLAB_COMPONENT", "agent")
	for _, marked := range []bool{false, true} {
		child := exec.CommandContext(t.Context(), "sleep", "60")
		if !marked {
			child.Env = process.Unmarked()
		}
		require.NoError(t, child.Start())
		running, err := host.Running()
		require.NoError(t, err)
		assert.Equal(t, marked, running["agent"] != nil)
		require.NoError(t, child.Process.Kill())
		assert.Error(t, child.Wait())
	}
}

// A process is found also amid execve, when it has no environment for a moment.
func TestFoundDuringExec(t *testing.T) {
	host := process.Host{Lab: t.TempDir()}
	script := filepath.Join(host.Lab, "again")
	require.NoError(t, os.WriteFile(script, []byte(`exec /bin/sh "$0"`), 0o600))
	p := start(t, host, "restless", "exec /bin/sh "+script)
	for range 200 {
		running, err := host.Running()
		require.NoError(t, err)
		require.Contains(t, running, "restless")
		require.Equal(t, p.PID, running["restless"].PID)
	}
}
