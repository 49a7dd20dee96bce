package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

const testTimeout = 20 * time.Second

// binDir is the folder in which buildBinary builds.
var binDir string

var buildBinary = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(binDir, "fakecloud")
	out, err := exec.Command("go", "build", "-o", binary, "github.com/ccmlab/ccmlab/cmd/fakecloud").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building fakecloud: %w\n%s", err, out)
	}
	return binary, nil
})

func TestMain(m *testing.M) {
	var err error
	if binDir, err = os.MkdirTemp("", "fakecloud-bin-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(binDir)
	os.Exit(code)
}

// process is a running `fakecloud serve`.
type process struct {
	cmd    *exec.Cmd
	url    string
	token  string
	client *client.Client
	exited chan error
}

// instanceCIDR holds the instances' addresses. Nothing listens there. Those of balancers differ in
// each test process.
const instanceCIDR = "127.90.0.0/16"

func balancerCIDR() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.0/24", 128+(pid>>8)%120, byte(pid))
}

var readyLine = regexp.MustCompile(`^fakecloud is ready at (https?://\S+);`)

func startServe(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	return startChangedServe(t, func(*exec.Cmd) {}, dir, args...)
}

// startChangedServe starts a process that change has prepared.
func startChangedServe(t *testing.T, change func(*exec.Cmd), dir string, args ...string) *process {
	t.Helper()
	binary := must.Do(buildBinary())(t)
	p := &process{token: filepath.Join(dir, "private", "token"), exited: make(chan error, 1)}
	p.cmd = exec.Command(binary, append([]string{
		"serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(dir, "cloud.db"), "--token",
		"operator:admin=" + p.token,
		"--instance-cidr", instanceCIDR, "--load-balancer-cidr", balancerCIDR(),
	}, args...)...)
	change(p.cmd)
	stderr := must.Do(p.cmd.StderrPipe())(t)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { p.kill() })
	ready := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			if m := readyLine.FindStringSubmatch(lines.Text()); m != nil {
				ready <- m[1]
			}
		}
		p.exited <- p.cmd.Wait()
		close(p.exited)
	}()
	select {
	case p.url = <-ready:
	case err := <-p.exited:
		t.Fatalf("serve ended: %v", err)
	case <-time.After(testTimeout):
		t.Fatal("serve did not get ready")
	}
	p.client = must.Do(client.New(client.Config{URL: p.url, TokenFile: p.token}))(t)
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // It may have ended already.
	for range p.exited {     // How it ended does not matter.
	}
}

// run runs a command against the process.
func (p *process) run(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	binary := must.Do(buildBinary())(t)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "FAKECLOUD_URL="+p.url, "FAKECLOUD_TOKEN_FILE="+p.token)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// commandRunners return two functions that run commands against the process. The command of ok
// must succeed, and ok returns what it prints; that of fails must fail with a code and a
// text.
func (p *process) commandRunners(t *testing.T) (ok func(args ...string) string, fails func(code int, says string, args ...string)) {
	ok = func(args ...string) string {
		t.Helper()
		out, errs, code := p.run(t, args...)
		require.Zero(t, code, errs)
		return out
	}
	return ok, func(code int, says string, args ...string) {
		t.Helper()
		_, errs, got := p.run(t, args...)
		assert.Equal(t, code, got, args)
		assert.Contains(t, errs, says)
		assert.True(t, strings.HasPrefix(errs, "fakecloud: "), errs)
	}
}
