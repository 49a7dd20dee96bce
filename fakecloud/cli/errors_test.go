package cli

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestBadFlagMessages(t *testing.T) {
	unreachableCloud(t)
	taken := filepath.Join(t.TempDir(), "taken")
	require.NoError(t, os.WriteFile(taken, []byte("mine"), 0o600))
	for says, args := range map[string][]string{
		"such as 30s or 10m":                      {"audit", "list", "--since", "yesterday"},
		"choose among available, in-use":          {"addresses", "list", "--state", "foo"},
		"choose among provisioning, active":       {"load-balancers", "list", "--state", "active,foo"},
		"stopping, stopped, terminating, te":      {"instances", "list", "--state", "foo"},
		"choose among running, done, failed, sup": {"operations", "list", "--state", "foo"},
		"taken exists already":                    {"tokens", "create", "ci", "--out", taken},
	} {
		code, _, errs := runCommand(t, args...)
		assert.Equal(t, exitUsage, code, args)
		assert.Contains(t, errs, says)
	}
	content := must.Do(os.ReadFile(taken))(t)
	assert.Equal(t, "mine", string(content))
}

func TestExistingFileIsNotOverwritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.db")
	write := func(text string) error {
		return writeFile(path, func(f *os.File) error { _, err := f.WriteString(text); return err })
	}
	require.NoError(t, write("one"))
	require.EqualError(t, write("two"), path+" exists already; choose another name")
	require.ErrorContains(t, writeFile(path+"2", func(*os.File) error { return errors.New("broken") }), "broken")
	left := must.Do(filepath.Glob(filepath.Join(filepath.Dir(path), "*")))(t)
	assert.Equal(t, []string{path}, left)
}

func TestErrorOfHTTPToHTTPSCloud(t *testing.T) {
	unreachableCloud(t)
	cloud := httptest.NewTLSServer(http.NotFoundHandler())
	defer cloud.Close()
	at := cloud.Listener.Addr().String()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	code, _, errs := runCommand(t, "zones", "list", "--url", "http://"+at, "--token-file", token)
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, errs, "set FAKECLOUD_URL to https://"+at)
}

func TestSelfSignedServerNames(t *testing.T) {
	for _, listen := range []string{":8470", "0.0.0.0:8470", "[::]:8470"} {
		names := must.Do((&serveOptions{listen: listen, sans: []string{"cloud.example"}}).serverNames())(t)
		assert.Subset(t, names, []string{"localhost", "127.0.0.1", "cloud.example"})
		addrs := must.Do(net.InterfaceAddrs())(t)
		for _, addr := range addrs {
			if ip := addr.(*net.IPNet).IP; !ip.IsLinkLocalUnicast() {
				assert.Contains(t, names, ip.String())
			}
		}
		assert.NotContains(t, names, "0.0.0.0")
		assert.NotContains(t, names, "::")
	}
	names := must.Do((&serveOptions{listen: "192.0.2.7:8470"}).serverNames())(t)
	assert.Equal(t, []string{"127.0.0.1", "192.0.2.7", "localhost"}, names)
}
