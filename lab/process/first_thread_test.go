//go:build linux

package process_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
)

// envHeadless names a socket. The test's own program, started with it, listens there and ends
// its first thread, as a program does that exits while other threads have not ended yet.
const envHeadless = "PROCESS_TEST_HEADLESS"

func init() { // On the first thread, as no test is.
	socket := os.Getenv(envHeadless)
	if socket == "" {
		return
	}
	listens := make(chan error)
	go func() {
		l, err := net.Listen("unix", socket)
		listens <- err
		for err == nil {
			_, err = l.Accept()
		}
	}()
	if <-listens == nil {
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
	}
	os.Exit(1)
}

// A process holds its ports until the last of its threads has ended.
func TestAliveWithoutItsFirstThread(t *testing.T) {
	host := process.Host{Lab: t.TempDir()}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	socket := filepath.Join(host.Lab, "socket")
	started, err := host.Start(process.Spec{
		Component: "headless", Path: os.Args[0], Env: []string{envHeadless + "=" + socket},
		LogFile: filepath.Join(host.Lab, "log"),
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, process.Stop(context.Background(), 0, started)) })
	require.NoError(t, cluster.Poll(ctx, "its first thread to end", func(context.Context) error {
		if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", started.PID)); err == nil {
			return errors.New("it has not")
		}
		return nil
	}))

	assert.True(t, started.Alive())
	running, err := host.Running()
	require.NoError(t, err)
	require.Contains(t, running, "headless")
	found := running["headless"] // As another command sees it, which is not its parent.
	ended, stop := context.WithCancel(ctx)
	stop()
	require.ErrorIs(t, found.Wait(ended), context.Canceled)
	require.NoError(t, process.Stop(ctx, 0, found))
	_, err = net.Dial("unix", socket)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, started.Wait(ctx))
	assert.False(t, found.Alive())
}
