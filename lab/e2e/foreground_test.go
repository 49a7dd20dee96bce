package e2e

// A lab that lives as long as its command: as a process here, and as a
// container's only content, which is how it comes to other systems.

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestForeground(t *testing.T) {
	f := newFixture(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	out, err := f.try("up", "--foreground", "--publish", taken.Addr().String())
	require.Error(t, err)
	assert.Contains(t, out, "address already in use")
	require.NoError(t, taken.Close())
	out, err = f.try("up", "--publish", "8080")
	require.Error(t, err)
	assert.Contains(t, out, "give --foreground too")
	assert.NoDirExists(t, f.dir(), "nothing is begun with flags that are wrong")

	published := taken.Addr().String()
	for _, tc := range []struct {
		ends syscall.Signal
		said string
		kept bool
	}{
		{syscall.SIGTERM, "Taking the lab down", false},
		{syscall.SIGHUP, "it was there before, so its state is kept", true},
	} {
		if tc.kept {
			f.lab("up", "--nodes", "1")
		}
		var said bytes.Buffer
		cmd := f.command("lab", "up", "--nodes", "1", "--foreground", "--publish", published)
		cmd.Stdout, cmd.Stderr = &said, &said
		require.NoError(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		// A connection that comes early waits in the listener's queue, or is reset.
		require.Eventually(t, func() bool {
			body, err := fetch("http://" + published)
			return err == nil && strings.HasPrefix(body, "Hello from pod web-")
		}, bound, 100*time.Millisecond)
		require.NoError(t, cmd.Process.Signal(tc.ends))
		require.NoError(t, <-ended, said.String())
		assert.Contains(t, said.String(), tc.said)
		if tc.kept {
			assert.FileExists(t, f.dir("lab.json"))
			assert.Contains(t, f.lab("list"), "stopped")
		} else {
			assert.NoDirExists(t, f.dir())
		}
		_, err = net.Dial("tcp", published)
		assert.ErrorContains(t, err, "refused")
	}
}

// An ordinary container: no capability, no new privileges, nothing to write to
// but memory, and one port published.
func TestKindNotNeededInAContainer(t *testing.T) {
	if os.Getenv("LAB_TEST_KIND") == "" {
		t.Skip("it needs Docker: `make test-kind` runs this, with LAB_TEST_KIND=1")
	}
	archive, err := filepath.Abs("../../bin/lab-image.tar")
	require.NoError(t, err)
	engine := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "docker", args...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	docker := func(args ...string) string {
		out, err := engine(args...)
		require.NoError(t, err, "docker %s\n%s", strings.Join(args, " "), out)
		return out
	}
	docker("load", "--quiet", "--input", archive)
	name := fmt.Sprintf("ccmlab-test-%d", os.Getpid())
	t.Cleanup(func() {
		out, err := exec.Command("docker", "rm", "--force", "--volumes", name).CombinedOutput()
		assert.NoError(t, err, string(out))
	})
	docker("run", "--detach", "--init", "--name", name, "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
		"--read-only", "--tmpfs", "/home/lab:size=1g", "--tmpfs", "/tmp", "--publish", "127.0.0.1::8000",
		"ccmlab/lab:dev")
	address := docker("port", name, "8000/tcp")
	answered := assert.Eventually(t, func() bool {
		body, err := fetch("http://" + address)
		return err == nil && strings.HasPrefix(body, "Hello from pod web-")
	}, bound, 200*time.Millisecond)
	require.True(t, answered, "its log:\n%s", docker("logs", name))
	assert.Contains(t, docker("exec", name, "kubectl", "get", "nodes"), "node-3")
	assert.Contains(t, docker("exec", name, "fakecloud", "instances", "list"), "running")
	assert.Contains(t, docker("exec", name, "lab", "status"), "is running")
	docker("stop", "--time", "20", name)
	assert.Equal(t, "0", docker("inspect", "--format", "{{.State.ExitCode}}", name))
	_, err = engine("exec", name, "lab", "status")
	var exit *exec.ExitError
	assert.True(t, errors.As(err, &exit), "it has ended")
}
