package cli_test

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

func TestServeControlPlaneOnly(t *testing.T) {
	p := startServe(t, t.TempDir(), "--load-balancer-mode", "none", "--profile", "instant")
	in := must(p.client.CreateInstance(t.Context(), api.InstanceCreate{}))(t)
	lb := must(p.client.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Name: "web", Listeners: []api.Listener{{Protocol: "tcp", Port: 20080, TargetPort: 80}},
		Targets:     &[]api.Target{{InstanceID: in.ID}},
		HealthCheck: &api.HealthCheck{Protocol: api.HealthCheckTCP, Port: 80},
	}))(t)
	says := fmt.Sprintf(
		"control plane only: nothing listens on %s (fakecloud runs with --load-balancer-mode none)", lb.Address,
	)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		now, err := p.client.GetLoadBalancer(t.Context(), lb.ID)
		if assert.NoError(c, err) {
			assert.Equal(c, api.LoadBalancerActive, now.State)
			assert.Equal(c, &says, now.StateReason)
		}
		in, err := p.client.GetInstance(t.Context(), in.ID)
		if assert.NoError(c, err) {
			assert.Equal(c, api.InstanceRunning, in.State)
		}
	}, testTimeout, 2*time.Millisecond)
	ok, _ := p.commandRunners(t)
	assert.Contains(t, ok("load-balancers", "list"), says)
	reason := "nothing is checked: fakecloud runs with --load-balancer-mode none"
	require.EventuallyWithT(t, func(c *assert.CollectT) { // The balancer gets the instance a little later.
		health, err := p.client.LoadBalancerHealth(t.Context(), lb.ID)
		if assert.NoError(c, err) {
			assert.Equal(c, []api.TargetHealth{
				{InstanceID: in.ID, Health: api.TargetUnknown, Reason: &reason, History: []api.HealthChange{}},
			}, health.Targets)
		}
	}, testTimeout, 2*time.Millisecond)
	stats := must(p.client.LoadBalancerStats(t.Context(), lb.ID))(t)
	require.Len(t, stats.Listeners, 1)
	assert.Zero(t, stats.Listeners[0].Connections)
	// Nothing listens there, so the test can.
	l := must(net.Listen("tcp4", net.JoinHostPort(lb.Address, "20080")))(t)
	require.NoError(t, l.Close())
}

// As in a container with nothing but the program: no HOME, and no folder for temporary files.
func TestServeNeedsNoHome(t *testing.T) {
	p := startServeWithEnv(t, []string{"TMPDIR=/nonexistent"}, t.TempDir())
	_, err := p.client.CreateInstance(t.Context(), api.InstanceCreate{})
	require.NoError(t, err)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-p.exited)
}

func TestServeTLS(t *testing.T) {
	dir := t.TempDir()
	borrowed := httptest.NewTLSServer(nil) // For its certificate.
	borrowed.Close()
	key := must(x509.MarshalPKCS8PrivateKey(borrowed.TLS.Certificates[0].PrivateKey))(t)
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
