package process

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPaused(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p := &Process{PID: cmd.Process.Pid}
	assert.False(t, p.Paused())
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(t, p.Paused, 20*time.Second, time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	require.Eventually(t, func() bool { return !p.Paused() }, 20*time.Second, time.Millisecond)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	assert.False(t, p.Paused(), "there is none")
}

func TestBelongsToUser(t *testing.T) {
	assert.True(t, (&Process{PID: os.Getpid()}).BelongsToUser())
	const none = 1 << 30 // Above every kernel's limit of process IDs.
	assert.False(t, (&Process{PID: none}).BelongsToUser())
	if os.Getuid() != 0 {
		assert.False(t, (&Process{PID: 1}).BelongsToUser(), "it is root's")
	}
}
