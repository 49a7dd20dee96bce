package e2e

// That `lab explain` finds causes that were really made to happen.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/lab/explain"
	"github.com/ccmlab/ccmlab/lab/process"
)

// explained runs lab explain, whose exit code must be that of its answer.
func (f *fixture) explained(what string) (x explain.Explanation, err error) {
	out, err := f.command("lab", "explain", what, "-o", "json").Output()
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	if err := json.Unmarshal(out, &x); err != nil {
		return x, fmt.Errorf("lab explain %s: code %d: %w\n%s", what, code, err, out)
	}
	if want := map[bool]int{true: 0, false: 1}[x.Serves()]; code != want {
		return x, fmt.Errorf("lab explain %s is %s and exits with %d", what, x.State, code)
	}
	return x, nil
}

// explains awaits a verdict that ends so, with this command as a next step; ""
// for none.
func (f *fixture) explains(what string, state explain.State, ending, command string) {
	f.t.Helper()
	f.await("lab explain "+what+" to say: "+ending, func(context.Context) error {
		x, err := f.explained(what)
		if err != nil {
			return err
		}
		commands := ""
		for _, s := range x.Next {
			commands += s.Command + "\n"
		}
		if x.State != state || !strings.HasSuffix(x.Verdict, ending) || !strings.Contains(commands, command) {
			return fmt.Errorf("%s: %q, because %q; next:\n%s", x.State, x.Verdict, x.Because, commands)
		}
		return nil
	})
}

// service makes a Service of type LoadBalancer.
func (f *fixture) service(name string, port int, app string) {
	f.t.Helper()
	_, err := f.kube("operator").CoreV1().Services("default").Create(f.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": app},
			Ports: []corev1.ServicePort{{Port: int32(port)}}},
	}, metav1.CreateOptions{})
	require.NoError(f.t, err)
}

// kill ends a component of the lab at once.
func (f *fixture) kill(component string) {
	f.t.Helper()
	running, err := process.Host{Lab: f.dir()}.Running()
	require.NoError(f.t, err)
	require.Contains(f.t, running, component)
	require.NoError(f.t, syscall.Kill(running[component].PID, syscall.SIGKILL))
	f.await(component+" to be gone", func(context.Context) error {
		running, err := process.Host{Lab: f.dir()}.Running()
		if err == nil && running[component] != nil {
			err = errors.New("it runs")
		}
		return err
	})
}

func TestExplain(t *testing.T) {
	f := newFixture(t)
	f.lab("up", "--without-ccm", "--nodes", "2", "--profile", "instant")
	for _, part := range []struct {
		name string
		run  func(*fixture)
	}{
		{"what there is", (*fixture).explainsNames},
		{"no CCM", func(f *fixture) {
			f.explains(
				"node/node-1", explain.NotReady, "is not initialised: no cloud controller manager runs.",
				"lab ccm start --name "+f.name,
			)
			f.explains(
				"service/web", explain.NotReady, "has no address: no cloud controller manager runs.",
				"lab ccm start --name "+f.name,
			)
		}},
		{"a CCM that the cloud refuses", func(f *fixture) {
			f.cloud("faults", "create", "--token", "ccm", "--status", "503")
			f.lab("ccm", "start")
			f.explains(
				"node/node-1", explain.NotReady,
				"is not initialised: the cloud answers the CCM wrongly, by a fault rule.", "fakecloud faults delete f-",
			)
			f.cloud("faults", "delete", "--all")
		}},
		{"all well", func(f *fixture) {
			f.explains("node/node-1", explain.Ready, "Node node-1 is ready.", "")
			f.explains("service/web", explain.Ready, "/TCP.", "")
		}},
		{"a CCM whose token is spoiled", (*fixture).explainsSpoiledToken},
		{"a stopped instance", (*fixture).explainsStopped},
		{"a port below 1024", (*fixture).explainsLowPort},
		{"a change that cannot be made", func(f *fixture) {
			annotate := func(value string) {
				_, err := f.kube("operator").CoreV1().Services("default").
					Patch(f.t.Context(), "web", "application/merge-patch+json",
						[]byte(`{"metadata":{"annotations":{"fakecloud.ccmlab.io/algorithm":`+value+`}}}`),
						metav1.PatchOptions{})
				require.NoError(f.t, err)
			}
			annotate(`"nonsense"`)
			f.explains(
				"service/web", explain.Degraded,
				"the latest change could not be made: it asks for what no load balancer can do.", "edit service web",
			)
			annotate("null")
			f.explains("service/web", explain.Ready, "/TCP.", "")
		}},
		{"a paused CCM and a paused API server", func(f *fixture) {
			f.whilePaused("ccm", func() {
				f.cloud("instances", "terminate", "node-2", "--wait")
				f.explains(
					"node/node-2", explain.NotReady, "and the CCM, which would delete it, is stopped by a signal.",
					"kill -CONT ",
				)
			})
			f.whilePaused("kube-apiserver", func() {
				f.explains(
					"node/node-1", explain.Unknown, "cannot be explained: the control plane is stopped by a signal.",
					"kill -CONT ",
				)
			})
		}},
		{"a Node that was deleted", func(f *fixture) {
			require.NoError(f.t, f.kube("operator").CoreV1().Nodes().
				Delete(f.t.Context(), "node-1", metav1.DeleteOptions{}))
			f.explains(
				"node/node-1", explain.NotReady,
				"its Node was deleted, and a kubelet that runs does not register again.",
				"fakecloud instances reboot node-1",
			)
			f.cloud("instances", "reboot", "node-1")
			f.explains("node/node-1", explain.Ready, "Node node-1 is ready.", "")
		}},
		{"parts that are down", func(f *fixture) {
			f.kill("fakecloud")
			f.explains(
				"service/web", explain.NotReady, "its load balancer is the cloud's, which does not run.", "lab up",
			)
			f.explains(
				"node/node-1", explain.Degraded, "of its instance nothing is known, as the cloud does not answer.",
				"lab up",
			)
			f.kill("kube-apiserver")
			f.explains("node/node-1", explain.Unknown, "cannot be explained: the control plane does not run.", "lab up")
		}},
		{"a lab that is stopped", func(f *fixture) {
			f.lab("down", "--keep-state")
			for _, args := range [][]string{{"explain", "node/node-1"}, {"explain", "node"}} {
				out, err := f.try(args...)
				require.Error(f.t, err, args)
				assert.Contains(f.t, out, `"`+f.name+"\" is stopped; `lab up --name "+f.name+"` starts it", args)
			}
		}},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(f.in(t)) }) {
			return // What follows builds upon it.
		}
	}
}

// explainsSpoiledToken has everything that a person may ask say that the CCM is locked out, while all else is well.
func (f *fixture) explainsSpoiledToken() {
	file := filepath.Join(f.dir(), "cloud", "ccm.token")
	token, err := os.ReadFile(file)
	require.NoError(f.t, err)
	require.NoError(f.t, os.WriteFile(file, []byte("spoiled"), 0o600))
	const refused = "the cloud refuses the CCM"
	f.explains("node/node-1", explain.Degraded, refused+"'s token.", "lab up")
	f.explains("service/web", explain.Degraded, refused+"'s token.", "lab up")
	out, err := f.command("lab", "status").Output()
	require.Error(f.t, err)
	assert.Contains(f.t, strings.Split(string(out), "\n\n")[0], refused)
	f.await("the timeline to tell of it", func(context.Context) error {
		if story := f.lab("watch", "--follow=false"); !strings.Contains(story, refused) {
			return errors.New(story)
		}
		return nil
	})
	require.NoError(f.t, os.WriteFile(file, token, 0o600))
	f.explains("node/node-1", explain.Ready, "Node node-1 is ready.", "")
	f.lab("status")
}

func (f *fixture) explainsNames() {
	assert.Equal(f.t, "node/node-1\nnode/node-2\n", f.lab("explain", "node"))
	assert.Equal(f.t, "service/kubernetes\nservice/web\n", f.lab("explain", "services"))
	assert.Contains(f.t, f.lab("__complete", "explain", "no"), "node/\n")
	assert.Contains(f.t, f.lab("__complete", "explain", "node/"), "node/node-1\nnode/node-2\n")
	assert.Contains(f.t, f.lab("__complete", "explain", "svc/"), "svc/web\n")
	f.explains(
		"node/node-9", explain.NotReady, "does not exist, and no instance has that name.",
		"lab explain node/node-1 --name "+f.name,
	)

	out, err := f.try("explain", "pod/web")
	var exit *exec.ExitError
	require.ErrorAs(f.t, err, &exit)
	assert.Equal(f.t, 2, exit.ExitCode(), out)
	assert.Contains(f.t, out, "want node/NAME or service/[NAMESPACE/]NAME")
}

func (f *fixture) explainsStopped() {
	f.cloud("instances", "stop", "node-2", "--wait")
	f.explains(
		"node/node-2", explain.NotReady, "is not ready: its instance is stopped.", "fakecloud instances start i-",
	)
	f.explains("service/web", explain.Degraded, "answers, with 1 of 2 targets amiss.", "lab explain node/node-2")
	f.cloud("instances", "start", "node-2", "--wait")
	f.explains("node/node-2", explain.Ready, "Node node-2 is ready.", "")
}

func (f *fixture) explainsLowPort() {
	first, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	require.NoError(f.t, err)
	if lowest, _ := strconv.Atoi(strings.TrimSpace(string(first))); os.Geteuid() == 0 || lowest <= 81 {
		f.t.Skip("this user may listen on port 81; CI runs this test as one who may not")
	}
	f.service("low", 81, "web")
	f.explains(
		"service/low", explain.NotReady, "net.ipv4.ip_unprivileged_port_start forbids it.",
		"sudo sysctl -w net.ipv4.ip_unprivileged_port_start=81",
	)
}

// whilePaused stops a component by a signal while do runs.
func (f *fixture) whilePaused(component string, do func()) {
	f.t.Helper()
	p := f.component(component)
	require.NotNil(f.t, p, component)
	require.NoError(f.t, p.Signal(syscall.SIGSTOP))
	defer func() { assert.NoError(f.t, p.Signal(syscall.SIGCONT)) }()
	do()
}
