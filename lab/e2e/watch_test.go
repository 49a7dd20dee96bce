package e2e

// `lab watch`, `lab logs` and `lab console` over the real binaries: a stream is read while
// things happen, and has them in the order of cause and effect.

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/status"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

func TestWatchAndLogs(t *testing.T) {
	f := newFixture(t)
	f.lab("up")
	t.Run("a stream tells causes before effects", func(t *testing.T) { f.in(t).watchTells() })
	t.Run("the picture follows, and is a page", func(t *testing.T) { f.in(t).consoleShows() })
	t.Run("the words of a dead agent, and of a stopped lab", func(t *testing.T) { f.in(t).watchOfTheDead() })
	t.Run("logs are followed until the lab goes down", func(t *testing.T) { f.in(t).logsUntilDown() })
}

// consoleShows tries the lab's page: its scene, the page that the agent serves, and a recording.
func (f *fixture) consoleShows() {
	isIn := func(id, state string) func(context.Context) error {
		return func(context.Context) error {
			var things []scene.Object
			if err := json.Unmarshal([]byte(f.lab("console", "-o", "json")), &things); err != nil {
				return err
			}
			for _, t := range things {
				if t.ID == id && t.State == state {
					return nil
				}
			}
			return errNotYet
		}
	}
	for id, state := range map[string]string{
		"node/node-1": "Ready", "instance/node-1": "running", "service/web": "has an address", "component/ccm": "runs",
	} {
		f.await(id+" "+state, isIn(id, state))
	}
	f.lab("ccm", "stop")
	f.await("a CCM that does not run", isIn("component/ccm", "does not run"))
	f.lab("ccm", "start")
	f.await("a CCM that runs again", isIn("component/ccm", "runs"))

	jar, err := cookiejar.New(nil)
	require.NoError(f.t, err)
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, strings.TrimSpace(f.lab("console")), nil)
	require.NoError(f.t, err)
	resp, err := (&http.Client{Jar: jar}).Do(req)
	require.NoError(f.t, err)
	require.NoError(f.t, resp.Body.Close())
	assert.Equal(f.t, http.StatusOK, resp.StatusCode)

	file := filepath.Join(f.t.TempDir(), "lab.html")
	f.lab("record", "-o", file)
	page, err := os.ReadFile(file)
	require.NoError(f.t, err)
	assert.Contains(f.t, string(page), "node/node-1")
}

// stream is a command that runs, and what it has printed.
type stream struct {
	f      *fixture
	cmd    *exec.Cmd
	read   chan struct{} // closed when all is read
	stderr bytes.Buffer
	mu     sync.Mutex
	lines  []string
}

func (f *fixture) stream(args ...string) *stream {
	f.t.Helper()
	s := &stream{f: f, cmd: f.command("lab", args...), read: make(chan struct{})}
	out, err := s.cmd.StdoutPipe()
	require.NoError(f.t, err)
	s.cmd.Stderr = &s.stderr
	require.NoError(f.t, s.cmd.Start())
	go s.scan(out)
	return s
}

func (s *stream) scan(out io.Reader) {
	defer close(s.read)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s.mu.Lock()
		s.lines = append(s.lines, lines.Text())
		s.mu.Unlock()
	}
}

func (s *stream) printed() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.lines...)
}

// ended is how the command ended, once it has.
func (s *stream) ended() error {
	s.f.t.Helper()
	select {
	case <-s.read:
	case <-time.After(bound):
		s.f.t.Fatalf("waited for the end of %v", s.cmd.Args)
	}
	return s.cmd.Wait()
}

func (s *stream) entries() []timeline.Entry {
	s.f.t.Helper()
	var all []timeline.Entry
	for _, line := range s.printed() {
		var e timeline.Entry
		require.NoError(s.f.t, json.Unmarshal([]byte(line), &e), line)
		all = append(all, e)
	}
	return all
}

// expect awaits entries in this order, others between them or not. Each is given
// as "source subject what [caller]".
func (s *stream) expect(want ...string) []timeline.Entry {
	s.f.t.Helper()
	var found []timeline.Entry
	deadline := time.Now().Add(bound)
	for ; time.Now().Before(deadline); <-time.After(100 * time.Millisecond) {
		found = nil
		for _, e := range s.entries() {
			if len(found) < len(want) && strings.TrimSpace(
				fmt.Sprintf("%s %s %s %s", e.Source, e.Subject, e.What, e.Caller),
			) == want[len(found)] {
				found = append(found, e)
			}
		}
		if len(found) == len(want) {
			return found
		}
	}
	s.f.t.Fatalf(
		"waited for %q; the stream is\n%s\n%s", want[len(found)], strings.Join(s.printed(), "\n"), s.stderr.String(),
	)
	return nil
}

func (f *fixture) annotated(name string, port int32, annotations map[string]string) {
	f.t.Helper()
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Name: name, Annotations: annotations,
	}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"},
		Ports: []corev1.ServicePort{{Port: port, TargetPort: intstr.FromInt32(8080)}},
	}}
	_, err := f.kube("operator").CoreV1().Services("default").Create(f.t.Context(), svc, metav1.CreateOptions{})
	require.NoError(f.t, err)
}

func (f *fixture) watchTells() {
	s := f.stream("watch", "-o", "json")
	defer func() { _ = s.cmd.Process.Kill() }()
	s.expect("lab component/fakecloud started", "cluster service/web first-answer") // What was before comes first.

	f.cloud("instances", "create", "node-4")
	s.expect("call instance/node-4 createInstance operator", "cloud instance/node-4 pending", "cloud instance/node-4 running",
		"lab machine/node-4 booted", "cluster node/node-4 registered", "cluster node/node-4 initialized")
	s.expect("cluster node/node-4 registered", "cluster node/node-4 ready")
	f.cloud("instances", "stop", "node-4")
	s.expect(
		"call instance/node-4 stopInstance operator", "lab machine/node-4 halted", "cluster node/node-4 not-ready",
		"cluster node/node-4 shutdown-taint",
	)

	f.annotated("wrong", 8090, map[string]string{"fakecloud.ccmlab.io/algorithm": "best"})
	wrong := s.expect("cluster service/wrong created", "event service/wrong SyncLoadBalancerFailed service-controller")
	assert.True(f.t, wrong[1].Failed)
	assert.Contains(f.t, wrong[1].Detail, "algorithm")

	f.cloud(
		"faults", "create", "--token", "ccm", "--operation", "createLoadBalancer", "--status", "503", "--times", "2",
	)
	f.annotated("second", 8091, nil)
	told := s.expect("cluster service/second created", "call cloud/load-balancers createLoadBalancer ccm", "event service/second SyncLoadBalancerFailed service-controller",
		"cluster service/second address")
	require.NotNil(f.t, told[1].Call)
	assert.Equal(f.t, 503, told[1].Call.Status)
	assert.True(f.t, told[1].Failed)
	assert.NotEmpty(f.t, told[1].Call.Fault)
	id := f.balancerOf("second")
	second := s.expect("cluster service/second created", "call "+id+" createLoadBalancer ccm", "cloud "+id+
		" requested", "cloud "+id+" provisioned",
		"cluster service/second address")
	// Two watches tell of the address and of the Event: either may be first.
	s.expect("cloud "+id+" provisioned", "event service/second EnsuredLoadBalancer service-controller")
	assert.Less(f.t, second[1].Call.Status, 300)

	f.cloudRestarts(s)
	require.NoError(f.t, s.cmd.Process.Signal(syscall.SIGINT))
	require.NoError(f.t, s.ended(), "Ctrl-C is no failure")
	s.checkWhole()

	text := f.lab("watch", "--follow=false", "--only", "call", "--caller", "ccm", "--failed", "--calls", "all")
	assert.Contains(f.t, text, "POST /v1/load-balancers → 503")
	for line := range strings.Lines(text) {
		assert.Regexp(f.t, `^ *\d+\.\d\d call +\S+ +ccm `, line)
	}
}

// balancerOf is the subject of a Service's balancer.
func (f *fixture) balancerOf(service string) string {
	f.t.Helper()
	f.eventually("the balancer of "+service, func(st status.Status) bool { return balancerID(st, service) != "" })
	lb, err := f.api().GetLoadBalancer(f.t.Context(), balancerID(f.status(), service))
	require.NoError(f.t, err)
	return "balancer/" + lb.Name
}

func balancerID(st status.Status, service string) string {
	for _, s := range st.Services {
		if s.Name == service {
			return s.BalancerID
		}
	}
	return ""
}

// cloudRestarts kills the cloud under a watch, which goes on, and loses nothing.
func (f *fixture) cloudRestarts(s *stream) {
	f.t.Helper()
	running, err := process.Host{Lab: f.dir()}.Running()
	require.NoError(f.t, err)
	require.NotNil(f.t, running["fakecloud"])
	require.NoError(f.t, running["fakecloud"].Signal(syscall.SIGKILL))
	s.expect("lab component/fakecloud started", "lab component/fakecloud ended")
	f.lab("up")
	f.cloud("instances", "start", "node-4")
	// Three have to find out that the cloud is back: the agent, which looks for its
	// process once a second and follows its events, and the watch, which asks for its
	// calls. Who is first is nobody's promise.
	s.expect("lab component/fakecloud ended", "lab component/fakecloud started")
	s.expect("call instance/node-4 startInstance operator")
	s.expect(
		"lab component/fakecloud ended", "cloud instance/node-4 running", "lab machine/node-4 booted",
		"cluster node/node-4 shutdown-taint-lifted",
	)
}

// checkWhole sees that nothing was told twice.
func (s *stream) checkWhole() {
	s.f.t.Helper()
	calls, events, kubernetes := map[string]bool{}, map[int64]bool{}, map[string]bool{}
	for _, e := range s.entries() {
		if e.Call != nil {
			assert.False(s.f.t, calls[e.Call.RequestID], "%+v", e)
			calls[e.Call.RequestID] = true
			assert.True(s.f.t, e.Failed || !e.Call.Reads(), "reads are left out: %+v", e)
		}
		if e.CloudSeq != 0 {
			assert.False(s.f.t, events[e.CloudSeq], "%+v", e)
			events[e.CloudSeq] = true
		}
		if e.EventKey != "" {
			assert.False(s.f.t, kubernetes[e.EventKey], "%+v", e)
			kubernetes[e.EventKey] = true
		}
	}
	assert.Greater(s.f.t, len(calls), 5)
	assert.NotEmpty(s.f.t, kubernetes)
}

func (f *fixture) watchOfTheDead() {
	recorded := func() (words string) {
		f.t.Helper()
		var out, said bytes.Buffer
		cmd := f.command("lab", "watch", "--follow=false", "-o", "json", "--only", "cluster")
		cmd.Stdout, cmd.Stderr = &out, &said
		require.NoError(f.t, cmd.Run())
		assert.Contains(f.t, out.String(), `"subject":"service/web"`)
		return said.String()
	}
	assert.Empty(f.t, recorded())
	running, err := process.Host{Lab: f.dir()}.Running()
	require.NoError(f.t, err)
	require.NoError(f.t, running["lab-agent"].Signal(syscall.SIGKILL))
	require.NoError(f.t, running["lab-agent"].Wait(f.t.Context()))
	assert.Contains(f.t, recorded(), "the lab's agent does not run")

	s := f.stream("watch", "--since", "0s")
	f.killAll(f.t)
	require.NoError(f.t, s.ended(), "the end of a lab is no failure")
	assert.Contains(f.t, s.stderr.String(), "is stopped; this is what was recorded")
	assert.Contains(f.t, recorded(), "is stopped")
	f.lab("up")
	assert.Empty(f.t, recorded())
}

func (f *fixture) logsUntilDown() {
	all, ccm, watch := f.stream(
		"logs", "-f", "--tail", "5",
	), f.stream("logs", "ccm", "-f"), f.stream("watch", "--since", "0s")
	has := func(s *stream, text string) {
		f.t.Helper()
		f.await(fmt.Sprintf("%q of %v", text, s.cmd.Args), contains(s, text))
	}
	has(ccm, "Successfully initialized node")
	f.cloud("instances", "create", "node-5")
	has(all, "node/node-5 ") // A log that was not there when it began.
	has(ccm, "node-5")
	has(all, "ccm ")
	f.lab("ccm", "stop")
	before := len(ccm.printed())
	f.lab("ccm", "start")
	f.await("what the CCM says after its restart", longer(ccm, before))
	assert.NotContains(f.t, strings.Join(ccm.printed(), "\n"), " | ", "one log is printed as it is")

	out, err := f.try("logs", "apiserver")
	var exit *exec.ExitError
	require.ErrorAs(f.t, err, &exit)
	assert.Equal(f.t, 2, exit.ExitCode())
	assert.Contains(f.t, out, "did you mean kube-apiserver?")
	assert.Len(f.t, strings.Split(strings.TrimSpace(f.lab("logs", "node/node-1", "--tail", "3")), "\n"), 3)
	assert.Regexp(f.t, `(?m)^etcd +\| `, f.lab("logs", "etcd", "fakecloud", "--tail", "1"))
	assert.Contains(f.t, f.lab("__complete", "logs", "ccm", "node/"), "node/node-1\n")
	assert.Contains(f.t, f.lab("__complete", "watch", "--subject", "machine/"), "machine/node-5\n")
	assert.Contains(f.t, f.lab("__complete", "watch", "--caller", ""), "service-controller\n")

	f.lab("down")
	for _, s := range []*stream{all, ccm, watch} {
		require.NoError(f.t, s.ended(), "%v\n%s", s.cmd.Args, s.stderr.String())
		assert.Contains(f.t, s.stderr.String(), "went down", "%v", s.cmd.Args)
	}
	for _, line := range all.printed() {
		require.Contains(f.t, line, " | ", "whose line it is")
	}
}

var errNotYet = errors.New("not yet")

func contains(s *stream, text string) func(context.Context) error {
	return func(context.Context) error {
		if strings.Contains(strings.Join(s.printed(), "\n"), text) {
			return nil
		}
		return errNotYet
	}
}

func longer(s *stream, than int) func(context.Context) error {
	return func(context.Context) error {
		if len(s.printed()) > than {
			return nil
		}
		return errNotYet
	}
}
