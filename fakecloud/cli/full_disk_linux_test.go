package cli_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// onSmallDisk has a process run with a file system of 4 MiB at dir, which it alone sees. Root itself needs no user
// namespace, which may be forbidden.
func onSmallDisk(dir string) func(*exec.Cmd) {
	return func(c *exec.Cmd) {
		c.Args = append([]string{"sh", "-c", `mount -t tmpfs -o size=4m none "$0" && exec "$@"`, dir}, c.Args...)
		c.Path = "/bin/sh"
		c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if os.Getuid() != 0 {
			c.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
			c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
			c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
		}
	}
}

func TestAFullDiskStopsChangesAlone(t *testing.T) {
	dir, disk := t.TempDir(), t.TempDir()
	probe := exec.Command("/bin/true")
	if onSmallDisk(disk)(probe); probe.Run() != nil {
		t.Skip("this machine lets us mount nothing, not even in a namespace")
	}
	p := startChangedServe(t, onSmallDisk(disk), dir, "--data", filepath.Join(disk, "cloud.db"))
	ctx, c := t.Context(), p.client
	seen := fmt.Sprintf("/proc/%d/root%s", p.cmd.Process.Pid, disk)
	snapshots := filepath.Join(seen, "cloud.db.snapshots")

	acknowledged := map[string]bool{}
	create := func() error {
		in, err := c.CreateInstance(ctx, api.InstanceCreate{})
		if err == nil {
			acknowledged[in.ID] = true
		}
		return err
	}
	require.NoError(t, create())
	filler := must.Do(os.Create(filepath.Join(seen, "filler")))(t)
	_, err := io.Copy(filler, zeros{})
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, filler.Close())

	requireFull := func(err error) {
		t.Helper()
		var refused *client.Error
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, http.StatusServiceUnavailable, refused.Problem.Status)
		assert.Equal(t, api.Unavailable, refused.Problem.Code)
		assert.Contains(t, refused.Problem.Detail, "disk")
		assert.Equal(t, 5*time.Second, refused.RetryAfter)
	}
	for len(acknowledged) < 1000 { // Some may fit into what is allocated.
		if err = create(); err != nil {
			break
		}
	}
	requireFull(err)
	_, err = c.CreateSnapshot(ctx, "full")
	requireFull(err)
	files, err := os.ReadDir(snapshots)
	require.True(t, err == nil || errors.Is(err, os.ErrNotExist), err)
	assert.Empty(t, files, "half a snapshot")
	for id := range acknowledged {
		must.Do(c.GetInstance(ctx, id))(t)
	}

	require.NoError(t, os.Remove(filler.Name()))
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		for id := range acknowledged {
			in := must.Do(c.GetInstance(ctx, id))(t)
			require.Equal(t, api.InstanceRunning, in.State)
		}
	}, testTimeout, 20*time.Millisecond)
	require.NoError(t, create())
	must.Do(c.CreateSnapshot(ctx, "room"))(t)
	must.Do(c.ListAudit(ctx, client.AuditFilter{}, 1))(t)
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
