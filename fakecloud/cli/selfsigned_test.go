package cli_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func TestServeSelfSigned(t *testing.T) {
	dir := t.TempDir()
	read := func(name string) string {
		t.Helper()
		content := must(os.ReadFile(filepath.Join(dir, name)))(t)
		return string(content)
	}
	run := func(args ...string) {
		t.Helper()
		p := startServe(t, dir, append([]string{"--tls-self-signed"}, args...)...)
		require.Regexp(t, "^https://", p.url)
		c := must(client.New(client.Config{URL: p.url, TokenFile: p.token, CAFile: filepath.Join(dir, "ca.crt")}))(t)
		_, err := c.ListZones(t.Context())
		require.NoError(t, err)
		_, errs, code := p.run(t, "zones", "list")
		assert.Equal(t, 1, code)
		assert.Contains(t, errs, "set FAKECLOUD_CA_FILE")
		assert.Contains(t, errs, "ca.crt")
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, <-p.exited)
	}
	run()
	for name, mode := range map[string]os.FileMode{
		"ca.crt": 0o644, "ca.key": 0o600, "server.crt": 0o644, "server.key": 0o600,
	} {
		info := must(os.Stat(filepath.Join(dir, name)))(t)
		assert.Equal(t, mode, info.Mode().Perm(), name)
	}
	ca, server := read("ca.crt"), read("server.crt")
	run()
	assert.Equal(t, server, read("server.crt"), "reused")
	run("--tls-san", "cloud.example")
	assert.NotEqual(t, server, read("server.crt"), "for other names")
	assert.Equal(t, ca, read("ca.crt"))
	require.NoError(t, os.Remove(filepath.Join(dir, "ca.key")))
	run()
	assert.NotEqual(t, ca, read("ca.crt"))
}
