// Package e2e tests whole labs, as their users have them: the real binaries, a real
// control plane, real TCP. Each test has a lab of its own, in its own folder, slot and
// ports, and takes it down whatever happens. Begin with fixture, which all of them use;
// a file is named for its subject.
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/status"
)

// bound is generous: a machine that builds beside the tests is slow.
const bound = 6 * time.Minute

// fetchBound is for one question and its answer.
const fetchBound = 20 * time.Second

var labNumber atomic.Int32

// fixture is one lab and the means to look at it from outside.
type fixture struct {
	t    *testing.T
	name string
	home string
	bin  string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	return newLab(t)
}

func newLab(t *testing.T) *fixture {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(bin, "lab")); err != nil {
		t.Fatalf("%v: the integration tests run the real binaries; `make test` builds them first", err)
	}
	// Not t.TempDir(): with the test's name in it, it is too long for the
	// kubelet's sockets.
	home, err := os.MkdirTemp("", "lab")
	require.NoError(t, err)
	f := &fixture{t: t, name: fmt.Sprintf("test-%d-%d", os.Getpid(), labNumber.Add(1)), home: home, bin: bin}
	t.Cleanup(func() {
		if t.Failed() {
			f.printLogs()
		}
		out, err := f.try("down")
		assert.NoError(t, err, out)
		assert.NoError(t, os.Remove(home), "down leaves nothing in it")
	})
	return f
}

// in is the same lab, seen by a part of the test.
func (f *fixture) in(t *testing.T) *fixture {
	part := *f
	part.t = t
	return &part
}

func (f *fixture) printLogs() {
	for _, name := range f.logNames() {
		out, _ := f.try("logs", name, "--tail", "40")
		f.t.Logf("--- %s\n%s", name, out)
	}
	out, _ := f.try("watch", "--follow=false")
	f.t.Logf("--- timeline\n%s", out)
}

// logNames are those that have a log; none when there is no lab any more.
func (f *fixture) logNames() []string {
	out, err := f.command("lab", "logs").Output()
	if err != nil {
		return nil
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	return names
}

func (f *fixture) command(program string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	f.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(f.bin, program), args...)
	// The environment of a shell that speaks to some other lab: nothing of it
	// may reach this one's components.
	cmd.Env = append(os.Environ(), "CCMLAB_HOME="+f.home, "LAB_NAME="+f.name,
		"FAKECLOUD_URL=http://127.0.0.1:1", "FAKECLOUD_TOKEN_FILE=/does/not/exist", "FAKECLOUD_PROJECT=other",
		"KUBECONFIG=/does/not/exist")
	return cmd
}

func (f *fixture) try(args ...string) (string, error) {
	out, err := f.command("lab", args...).CombinedOutput()
	return string(out), err
}

func (f *fixture) lab(args ...string) string {
	f.t.Helper()
	out, err := f.try(args...)
	require.NoError(f.t, err, "lab %s\n%s", strings.Join(args, " "), out)
	return out
}

func (f *fixture) status() status.Status {
	f.t.Helper()
	st, err := f.tryStatus()
	require.NoError(f.t, err)
	return st
}

func (f *fixture) tryStatus() (status.Status, error) {
	var st status.Status
	cmd := f.command("lab", "status", "-o", "json")
	out, err := cmd.Output()
	if err != nil {
		return st, fmt.Errorf("lab status: %w\n%s", err, out)
	}
	return st, json.Unmarshal(out, &st)
}

// cloud runs the fakecloud CLI with the environment that `lab env` prints.
func (f *fixture) cloud(args ...string) string {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	f.t.Cleanup(cancel)
	cmd := exec.CommandContext(
		ctx, "bash", "-c", `eval "$("$0" env)" && exec fakecloud "$@"`, filepath.Join(f.bin, "lab"),
	)
	cmd.Args = append(cmd.Args, args...)
	cmd.Env = append(os.Environ(), "CCMLAB_HOME="+f.home, "LAB_NAME="+f.name)
	out, err := cmd.CombinedOutput()
	require.NoError(f.t, err, "fakecloud %s\n%s", strings.Join(args, " "), out)
	return string(out)
}

func (f *fixture) dir(elem ...string) string {
	return filepath.Join(append([]string{f.home, f.name}, elem...)...)
}

func (f *fixture) kube(user string) *kubernetes.Clientset {
	f.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", f.dir("kubeconfig", user+".yaml"))
	require.NoError(f.t, err)
	cs, err := kubernetes.NewForConfig(cfg)
	require.NoError(f.t, err)
	return cs
}

func (f *fixture) api() *client.Client {
	f.t.Helper()
	st := f.status()
	ca := f.dir("cloud", "ca.crt")
	if st.Cluster == cluster.KindKind {
		ca = f.dir("pki", "ca.crt")
	}
	c, err := client.New(client.Config{
		URL: st.CloudURL, TokenFile: f.dir("cloud", "operator.token"), CAFile: ca, UserAgent: "test",
	})
	require.NoError(f.t, err)
	return c
}

// eventually awaits a condition on the lab's status.
func (f *fixture) eventually(what string, ok func(status.Status) bool) {
	f.t.Helper()
	var last status.Status
	var err error
	for deadline := time.Now().Add(bound); time.Now().Before(deadline); <-time.After(200 * time.Millisecond) {
		if last, err = f.tryStatus(); err == nil && ok(last) {
			return
		}
	}
	data, _ := json.MarshalIndent(last, "", "  ")
	f.t.Fatalf("waited for %s; the status is\n%s\n%v", what, data, err)
}

// await awaits whatever try looks at.
func (f *fixture) await(what string, try func(context.Context) error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), bound)
	defer cancel()
	require.NoError(f.t, cluster.Poll(ctx, what, try))
}

func nodeNamed(st status.Status, name string) *status.Node {
	if i := slices.IndexFunc(st.Nodes, func(n status.Node) bool { return n.Name == name }); i >= 0 {
		return &st.Nodes[i]
	}
	return nil
}

// ask fetches the demo's page over a connection of its own.
func ask(t *testing.T, st status.Status) (pod string, err error) {
	t.Helper()
	require.NotEmpty(t, st.Services)
	return fetch(fmt.Sprintf("http://%s:%d/", st.Services[0].Address, st.Services[0].Port))
}

func fetch(url string) (string, error) {
	c := http.Client{Timeout: fetchBound, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(body)), err
}
