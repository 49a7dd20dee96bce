package cli_test

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http/httptest"
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

func TestServeControlPlaneOnly(t *testing.T) {
	p := startServe(t, t.TempDir(), "--load-balancer-mode", "none", "--profile", "instant")
	lb := must.Do(p.client.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Name: "web", Listeners: []api.Listener{{Protocol: "tcp", Port: 20080, TargetPort: 80}},
	}))(t)
	says := fmt.Sprintf(
		"control plane only: nothing listens on %s (fakecloud runs with --load-balancer-mode none)", lb.Address,
	)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		now, err := p.client.GetLoadBalancer(t.Context(), lb.ID)
		if assert.NoError(c, err) {
			assert.Equal(c, api.LoadBalancerActive, now.State)
			assert.Equal(c, says, now.StateReason)
		}
	}, testTimeout, 2*time.Millisecond)
	ok, _ := p.commandRunners(t)
	assert.Contains(t, ok("load-balancers", "list"), says)
	// Nothing listens there, so the test can.
	l := must.Do(net.Listen("tcp4", net.JoinHostPort(lb.Address, "20080")))(t)
	require.NoError(t, l.Close())
}

// As in a container with nothing but the program: no HOME, and no folder for temporary files.
func TestServeNeedsNoHome(t *testing.T) {
	p := startChangedServe(t, func(c *exec.Cmd) { c.Env = []string{"TMPDIR=/nonexistent"} }, t.TempDir())
	must.Do(p.client.CreateInstance(t.Context(), api.InstanceCreate{}))(t)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-p.exited)
}

func TestServeTLS(t *testing.T) {
	dir := t.TempDir()
	borrowed := httptest.NewTLSServer(nil) // For its certificate.
	borrowed.Close()
	key := must.Do(x509.MarshalPKCS8PrivateKey(borrowed.TLS.Certificates[0].PrivateKey))(t)
	certFile, keyFile := filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(
		certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: borrowed.Certificate().Raw}), 0o600,
	))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	p := startServe(t, dir, "--tls-cert", certFile, "--tls-key", keyFile)
	require.Regexp(t, "^https://", p.url)
	ok, fails := p.commandRunners(t)
	assert.Contains(t, ok("zones", "list", "--ca-file", certFile), "nebula-1a")
	fails(1, "set FAKECLOUD_CA_FILE", "zones", "list")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-p.exited)
}

// cidr6 is of addresses that no machine has, so that a balancer with one cannot listen.
const cidr6 = "2001:db8:30::/64"

func TestIPFamilyCommands(t *testing.T) {
	p := startServe(t, t.TempDir(), "--load-balancer-cidr6", cidr6)
	ok, fails := p.commandRunners(t)
	out, errs, code := p.run(
		t, "load-balancers", "create", "web", "--listener", "18086:30080", "--ip-family", "ipv4,ipv6", "--wait",
	)
	require.Equal(t, 1, code, "it cannot be built")
	assert.Regexp(t, `(?m)^web\s+error\s+127\.[0-9.]+,2001:db8:30::1\s`, out)
	assert.Regexp(t, `--load-balancer-cidr6|this machine has no IPv6`, out+errs)
	out = ok("load-balancers", "get", "web", "-o", "yaml")
	assert.Regexp(t, `(?m)^ipFamilies:\n\s*- ipv4\n\s*- ipv6$`, out)
	assert.Contains(t, out, "ipv6Address: 2001:db8:30::1\n")

	fails(1, "must be ipv4 or ipv6", "load-balancers", "create", "x", "--listener", "1:2", "--ip-family", "ipv5")
	fails(2, "unknown flag", "load-balancers", "update", "web", "--ip-family", "ipv4")
	for says, cidr := range map[string]string{
		"--load-balancer-cidr6": "fd00::", "link-local": "fe80::/64", "IPv6 unicast": "127.0.0.0/8",
	} {
		fails(
			2, says, "serve", "--listen", "127.0.0.1:0", "--data", ":memory:", "--token", "a="+t.TempDir()+"/token",
			"--load-balancer-cidr6", cidr,
		)
	}
}

func TestServeSelfSigned(t *testing.T) {
	dir := t.TempDir()
	read := func(name string) string {
		t.Helper()
		return string(must.Do(os.ReadFile(filepath.Join(dir, name)))(t))
	}
	run := func(args ...string) {
		t.Helper()
		p := startServe(t, dir, append([]string{"--tls-self-signed"}, args...)...)
		require.Regexp(t, "^https://", p.url)
		c := must.Do(client.New(client.Config{URL: p.url, TokenFile: p.token, CAFile: filepath.Join(dir, "ca.crt")}))(t)
		must.Do(c.ListZones(t.Context()))(t)
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
		info := must.Do(os.Stat(filepath.Join(dir, name)))(t)
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
