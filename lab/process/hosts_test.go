package process_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/process"
)

// Whoever may make no mount namespace is told so; that is tested where they may not.
func TestHostsFile(t *testing.T) {
	host := process.Host{Lab: t.TempDir()}
	hosts, log := filepath.Join(host.Lab, "hosts"), filepath.Join(host.Lab, "names.log")
	require.NoError(t, os.WriteFile(hosts, []byte("127.30.64.7 web.example\n"), 0o600))
	spec := process.Spec{
		Component: "names", Path: "/bin/sh", Args: []string{"-c", "cat /etc/hosts; echo $0 $1; exec sleep 1000", "one", "two"},
		HostsFile: hosts, LogFile: log,
	}
	if err := process.CheckHostsFile(); err != nil {
		require.ErrorContains(t, err, "namespace")
		return
	}
	p, err := host.Start(spec)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, process.Stop(context.Background(), 0, p)) })
	require.Eventually(t, func() bool {
		said, err := os.ReadFile(log)
		return err == nil && string(said) == "127.30.64.7 web.example\none two\n"
	}, bound, time.Millisecond)
	running, err := host.Running()
	require.NoError(t, err)
	require.Contains(t, running, "names", "it is found by its marks")
	assert.Equal(t, p.PID, running["names"].PID)
	ours, err := os.ReadFile("/etc/hosts")
	require.NoError(t, err)
	assert.NotContains(t, string(ours), "web.example", "nobody else sees it")
}
