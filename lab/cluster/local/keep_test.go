package local

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/process"
)

const bound = 20 * time.Second

func TestKeeper(t *testing.T) {
	host := process.Host{Lab: t.TempDir()}
	running := func() (*process.Process, error) {
		all, err := host.Running()
		return all["ccm"], err
	}
	k := Keeper{
		Mark: filepath.Join(host.Lab, "ccm.wanted"), Running: running, Log: slog.New(slog.DiscardHandler),
		Start: func() (*process.Process, error) {
			return host.Start(process.Spec{
				Component: "ccm", Path: "/bin/sleep", Args: []string{"1000"},
				LogFile: filepath.Join(host.Lab, "ccm.log"),
			})
		},
	}
	pid := func() int {
		if p, err := running(); err == nil && p != nil {
			return p.PID
		}
		return 0
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		require.Eventually(t, ok, bound, 10*time.Millisecond, what)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		if p, _ := running(); p != nil {
			assert.NoError(t, process.Stop(context.Background(), 0, p))
		}
	})

	require.NoError(t, os.WriteFile(k.Mark, nil, 0o600))
	until("it to start once wanted", func() bool { return pid() != 0 })
	first, err := running()
	require.NoError(t, err)
	require.NoError(t, first.Signal(syscall.SIGKILL))
	until("it to start again", func() bool { p := pid(); return p != 0 && p != first.PID })

	cancel()
	require.NoError(t, <-done)
	assert.NotZero(t, pid(), "an agent that ends leaves it running")
}
