package process_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/cluster"
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
	require.NoError(t, cluster.Poll(ctx, "the trap to be set", func(context.Context) error {
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

// A lab in a container may have another folder at the same path; its processes are not
// this lab's to end. A process whose own mounts are elsewhere still has the same folder.
func TestOfAnotherMountNamespace(t *testing.T) {
	if err := exec.Command("unshare", "--user", "--map-root-user", "--mount", "true").Run(); err != nil {
		t.Skip("no namespaces for this user: ", err)
	}
	home := t.TempDir()
	for script, want := range map[string]bool{
		`mount -t tmpfs none "$1" && mkdir "$1/lab"`: false,
		"true": true,
	} {
		dir := filepath.Join(home, "lab")
		host := process.Host{Lab: dir}
		require.NoError(t, os.MkdirAll(dir, 0o700))
		cmd := exec.CommandContext(
			t.Context(), "unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
			script+` && echo ready && exec sleep 60`, "sh", home,
		)
		cmd.Env = append(process.Unmarked(), "CCMLAB_STATE="+dir, "CCMLAB_COMPONENT=etcd")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		assert.NoError(t, err, "%s", script)
		assert.Equal(t, "ready\n", line)
		running, err := host.Running()
		assert.NoError(t, err)
		assert.Equal(t, want, running["etcd"] != nil, script)
		all, err := process.All()
		assert.NoError(t, err)
		found := false
		for _, p := range all {
			found = found || p.Lab == dir
		}
		assert.Equal(t, want, found, script)
		assert.NoError(t, cmd.Process.Kill())
		assert.Error(t, cmd.Wait())
	}
}

// The error of a program that cannot be run says which it is, why, and what to do.
func TestStartErrors(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		content string
		mode    os.FileMode
		want    string
	}{
		"wrong-kind":   {"\x7fELF, or so it says", 0o755, "is no program for this machine"},
		"no-mode":      {"#!/bin/sh\n", 0o644, "may not be executed"},
		"interpreter":  {"#!/does/not/exist\n", 0o755, "or what it needs to run"},
		"sub/missing":  {"", 0, "is missing"},
		"not-a-folder": {"#!/bin/sh\n", 0o755, ""},
	} {
		t.Run(name, func(t *testing.T) {
			host, path := process.Host{Lab: dir}, filepath.Join(dir, name)
			if tc.mode != 0 {
				require.NoError(t, os.WriteFile(path, []byte(tc.content), tc.mode))
			}
			p, err := host.Start(
				process.Spec{Component: "etcd", Path: path, LogFile: filepath.Join(dir, "logs", "etcd.log")},
			)
			if tc.want == "" {
				require.NoError(t, err)
				require.NoError(t, p.Wait(t.Context()))
				return
			}
			require.ErrorContains(t, err, "starting etcd")
			assert.ErrorContains(t, err, path)
			assert.ErrorContains(t, err, tc.want)
		})
	}
}

// A process of the same user that carries no marks, or only one, belongs to no lab:
// it is not found, so that it is never signalled.
func TestUnmarkedProcessesAreNotFound(t *testing.T) {
	dir := t.TempDir()
	for _, env := range [][]string{
		nil, {"CCMLAB_STATE=" + dir}, {"CCMLAB_COMPONENT=etcd"}, {"NOT_CCMLAB_STATE=" + dir, "CCMLAB_COMPONENT=etcd"},
		{"CCMLAB_STATE=" + dir + "-2", "CCMLAB_COMPONENT=etcd"},
	} {
		stranger := exec.CommandContext(t.Context(), "sleep", "60")
		stranger.Env = append(process.Unmarked(), env...)
		require.NoError(t, stranger.Start())
		t.Cleanup(func() {
			assert.NoError(t, stranger.Process.Kill())
			assert.Error(t, stranger.Wait())
		})
	}
	// A pid file, had anybody left one, says nothing.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "etcd.pid"), fmt.Append(nil, os.Getpid()), 0o600))
	running, err := process.Host{Lab: dir}.Running()
	require.NoError(t, err)
	assert.Empty(t, running)
}

// The hint tells an empty log from one that cannot be read.
func TestLogHint(t *testing.T) {
	file := filepath.Join(t.TempDir(), "etcd.log")
	assert.Contains(t, process.LogHint(file), "its log cannot be read")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	assert.Contains(t, process.LogHint(file), "nothing to its log, "+file)
	require.NoError(t, os.WriteFile(file, []byte("the reason\n"), 0o600))
	assert.Contains(t, process.LogHint(file), "last lines of "+file+":\n  the reason")
	log := "earlier\n{\"error\":\"no space left on device\"}\npanic: failed to create WAL\n\n" +
		strings.Repeat("main.main()\n", 50)
	require.NoError(t, os.WriteFile(file, []byte(log), 0o600))
	hint := process.LogHint(file)
	assert.Contains(
		t, hint, ":\n  {\"error\":\"no space left on device\"}\n  panic: failed to create WAL\n",
		"the reason, and not the stack's end",
	)
	assert.NotContains(t, hint, "earlier")
	assert.Less(t, strings.Count(hint, "main.main"), 8)
}
