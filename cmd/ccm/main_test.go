// These tests run the program as a process, from its command line to its endpoints.
// The process is the test's own binary, which runs main if runAsCCMEnv is set.

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
)

const runAsCCMEnv = "CCM_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runAsCCMEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func ccmCommand(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), runAsCCMEnv+"=1")
	return cmd
}

// runToEnd runs ccm and returns what it printed.
func runToEnd(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := ccmCommand(ctx, t, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(t, err, &exit)
		code = exit.ExitCode()
	}
	return out.String(), errs.String(), code
}

func TestVersion(t *testing.T) {
	stdout, _, code := runToEnd(t, "--version")
	assert.Zero(t, code)
	assert.Regexp(
		t,
		`^ccm v\d+\.\d+\.\d+\S*\ncommit: +\S+\nGo: +go1\.\S+\nKubernetes libraries: v\d+\.\d+\S*\nKubernetes supported: 1\.\d+`,
		stdout,
	)

	stdout, _, code = runToEnd(t, "--version=raw")
	assert.Zero(t, code)
	assert.Contains(t, stdout, "version.Info{", "upstream's")
}

func TestHelp(t *testing.T) {
	stdout, _, code := runToEnd(t, "--help")
	assert.Zero(t, code)
	for _, want := range []string{
		"ccm is the cloud controller manager for fakecloud", "Examples:", "Exit codes:", "Usage:\n  ccm ",
		"(default 30)", // of --concurrent-node-syncs
		"cloud-node-controller, cloud-node-lifecycle-controller,",
	} {
		assert.Contains(t, stdout, want)
	}
}

func TestWrongCommandLines(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"unknown flag":       {[]string{"--no-such-flag"}, "unknown flag: --no-such-flag; ccm --help shows all flags"},
		"value of no kind":   {[]string{"--concurrent-node-syncs=many"}, "ccm --help shows all flags"},
		"an argument":        {[]string{"start"}, `"ccm" does not take any arguments`},
		"unknown controller": {[]string{"--controllers=nodes"}, `"nodes" is not in the list of known controllers`},
		"no kubeconfig":      {[]string{"--kubeconfig=/does/not/exist"}, "/does/not/exist"},
	} {
		t.Run(name, func(t *testing.T) {
			_, stderr, code := runToEnd(t, tc.args...)
			assert.Equal(t, 1, code)
			assert.Contains(t, stderr, tc.want)
			assert.NotContains(t, stderr, "Usage:", "a hundred flags say nothing about this one")
		})
	}
}

// startAPIServer serves as much of Kubernetes' API as a CCM needs to start on an empty
// cluster.
func startAPIServer(t *testing.T) (kubeconfig string) {
	t.Helper()
	done := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Get("watch") != "":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-done:
			case <-r.Context().Done():
			}
			return
		case r.URL.Path == "/version":
			answer = map[string]string{"major": "1", "minor": "20", "gitVersion": "v1.20.0"}
		case r.URL.Path == "/healthz":
			_, _ = io.WriteString(w, "ok")
			return
		case r.URL.Path == "/api/v1/nodes":
			answer = map[string]any{
				"kind": "NodeList", "apiVersion": "v1", "metadata": map[string]string{"resourceVersion": "1"},
				"items": []any{},
			}
		case r.URL.Path == "/api/v1/services":
			answer = map[string]any{
				"kind": "ServiceList", "apiVersion": "v1", "metadata": map[string]string{"resourceVersion": "1"},
				"items": []any{},
			}
		default:
			w.WriteHeader(http.StatusNotFound)
			answer = map[string]any{
				"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
			}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(func() { close(done); server.Close() })
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: %q}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a, user: {}}]
current-context: a
`, server.URL), 0o600))
	return file
}

// lockedBuffer is a process's output, which can be read while the process writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// ccmAddress is one from which nobody connects: a port of 127.0.0.1 that is free now may be a client's a moment later.
const ccmAddress = "127.0.0.2"

// freePort is a port of ccmAddress.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ccmAddress, "0"))
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return port
}

// startCCM runs ccm until the test ends. get reads one of its endpoints.
func startCCM(t *testing.T, args ...string) (get func(path string) (int, string), said *lockedBuffer) {
	t.Helper()
	port := freePort(t)
	cmd := ccmCommand(context.Background(), t, append([]string{
		"--kubeconfig=" + startAPIServer(t), "--leader-elect=false", "--bind-address=" + ccmAddress,
		"--secure-port=" + port,
		"--authorization-always-allow-paths=/healthz,/metrics,/configz,/livez",
	}, args...)...)
	said = &lockedBuffer{}
	cloud := cloudtest.Start(t)
	cmd.Env = append(
		cmd.Env, "FAKECLOUD_URL="+cloud.URL, "FAKECLOUD_TOKEN_FILE="+cloud.TokenFile,
		"FAKECLOUD_PROJECT="+cloudtest.ProjectName,
	)
	cmd.Stdout, cmd.Stderr = said, said
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // It signs for itself.
	}}
	return func(path string) (int, string) {
		resp, err := client.Get("https://" + net.JoinHostPort(ccmAddress, port) + path)
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body) + fmt.Sprint(errors.Join(err))
	}, said
}

func TestEndpoints(t *testing.T) {
	get, said := startCCM(t)
	require.Eventually(t, func() bool {
		_, body := get("/healthz?verbose")
		return strings.Contains(body, "service-lb-controller ok")
	}, time.Minute, 100*time.Millisecond, "%s", said)
	for _, want := range []string{
		// The project is asked for beside what makes the controllers healthy.
		`fakecloud_ccm_cloud_requests_total{code="200",controller="unknown",operation="get-project"} 1`,
		"fakecloud_ccm_cloud_request_duration_seconds_bucket{operation=\"get-project\"", "kubernetes_build_info{",
		"rest_client_requests_total",
	} {
		assert.Eventually(t, func() bool {
			code, body := get("/metrics")
			return code == http.StatusOK && strings.Contains(body, want)
		}, time.Minute, 50*time.Millisecond, "%s\n%s", want, said)
	}
	code, body := get("/configz")
	require.Equal(t, http.StatusOK, code)
	for _, want := range []string{
		`"ConcurrentNodeSyncs":30`, `"ConcurrentServiceSyncs":20`, `"NodeStatusUpdateFrequency":"1m0s"`, `"qps":500`,
		`"burst":2000`,
	} {
		assert.Contains(t, body, want)
	}
	code, _ = get("/livez")
	assert.Equal(t, http.StatusNotFound, code, "upstream has none: /healthz is for both probes")
	assert.Eventually(
		t, func() bool { return strings.Contains(said.String(), "the cluster runs Kubernetes v1.20.0") }, time.Minute,
		50*time.Millisecond,
	)
}

// Controllers are switched off by name and by alias; flags change our defaults.
func TestControllersAndDefaultsCanBeChanged(t *testing.T) {
	get, said := startCCM(
		t, "--controllers=*,-service,-cloud-node-lifecycle-controller", "--concurrent-node-syncs=3", "--kube-api-qps=7",
	)
	require.Eventually(t, func() bool {
		_, body := get("/healthz?verbose")
		return strings.Contains(body, "cloud-node-controller ok")
	}, time.Minute, 100*time.Millisecond, "%s", said)
	_, body := get("/healthz?verbose")
	assert.NotContains(t, body, "service-lb-controller")
	assert.NotContains(t, body, "cloud-node-lifecycle-controller")
	_, body = get("/configz")
	assert.Contains(t, body, `"ConcurrentNodeSyncs":3,`)
	assert.Contains(t, body, `"qps":7,`)
}
