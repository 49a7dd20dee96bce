package process_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/process"
)

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
