package lessons

import (
	"bufio"
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhatAScriptHasStartedIsInterruptedToo(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	// yes has begun when it is heard, and then waits for a reader. A shell that is interrupted
	// just before it becomes another program forgets that it was.
	cmd := exec.CommandContext(ctx, "bash", "-c", "(exec yes begun); true")
	interruptAll(cmd)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	interrupt()
	require.Error(t, cmd.Wait())
	assert.Eventually(
		t, func() bool { return syscall.Kill(-cmd.Process.Pid, 0) == syscall.ESRCH }, 30*time.Second,
		5*time.Millisecond, "nothing of its group runs",
	)
}
