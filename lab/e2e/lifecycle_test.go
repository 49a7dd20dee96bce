package e2e

// Coming up, going down, and coming back: after crashes, signals and races, with
// the state kept and without.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/lifecycle"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/status"
)

// up runs `lab up -o json` and returns what it did.
func (f *fixture) up(args ...string) lifecycle.Outcome {
	f.t.Helper()
	did, said, err := f.tryUp(args...)
	require.NoError(f.t, err, said)
	return did
}

// tryUp also returns what it said when it failed.
func (f *fixture) tryUp(args ...string) (lifecycle.Outcome, string, error) {
	f.t.Helper()
	cmd := f.command("lab", append([]string{"up", "-o", "json"}, args...)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return lifecycle.Outcome{}, said.String(), err
	}
	var st struct {
		status.Status
		Up lifecycle.Outcome
	}
	require.NoError(f.t, json.Unmarshal(out, &st))
	assert.Equal(f.t, "running", st.State)
	return st.Up, said.String(), nil
}

func (f *fixture) list() []status.Listed {
	f.t.Helper()
	out, err := f.command("lab", "list", "-o", "json").Output()
	require.NoError(f.t, err)
	var labs []status.Listed
	require.NoError(f.t, json.Unmarshal(out, &labs))
	return labs
}

// component is its process, whose name is all before an @; nil if it does not run.
func (f *fixture) component(name string) *process.Process {
	f.t.Helper()
	running, err := process.Host{Lab: f.dir()}.Running()
	require.NoError(f.t, err)
	for component, p := range running {
		if short, _, _ := strings.Cut(component, "@"); short == name {
			return p
		}
	}
	return nil
}

func (f *fixture) firstAnswers() int {
	f.t.Helper()
	return strings.Count(f.lab("watch", "--follow=false"), "first-answer")
}

func TestLifecycle(t *testing.T) {
	f := newFixture(t)
	assert.Equal(t, lifecycle.Created, f.up("--nodes", "2", "--profile", "instant").Result)
	t.Run("up on a lab that is up changes nothing, and says so", func(t *testing.T) { f.in(t).nothingMissing() })
	t.Run("up starts what was killed, and names it", func(t *testing.T) { f.in(t).completesEach() })
	t.Run("up starts what was killed beside an instance that crashed", func(t *testing.T) { f.in(t).completesBesideACrash() })
	t.Run("up does not wait for what a signal has stopped", func(t *testing.T) { f.in(t).namesPaused() })
	t.Run("up leaves alone what somebody has made of the demo", func(t *testing.T) { f.in(t).leavesTheDemo() })
	t.Run("down --keep-state, and back to the same", func(t *testing.T) { f.in(t).comesBackToTheSame() })
	t.Run("down deletes a lab that is stopped", func(t *testing.T) {
		f := f.in(t)
		f.lab("down", "--keep-state")
		f.lab("down")
		assert.NoDirExists(t, f.dir())
		out, err := f.try("down", "--keep-state")
		require.NoError(t, err)
		assert.Contains(t, out, "there is no lab")
	})
}

func (f *fixture) nothingMissing() {
	var out string
	f.await("an up that waits for nothing", func(context.Context) error {
		if out = f.lab("up"); !strings.Contains(out, "Nothing was missing.") {
			return errors.New(out)
		}
		return nil
	})
	assert.NotContains(f.t, out, "Timeline")
	steps := strings.Count(out, "✓")
	assert.Equal(f.t, 9, steps, out)
	assert.Equal(f.t, steps, strings.Count(out, "as it was"), out)
	f.changesNothing()
	assert.Equal(f.t, 1, f.firstAnswers())
	assert.NotRegexp(f.t, lifecycle.Completed+" +(.*; )?(started|created)", f.lab("watch", "--follow=false"))
}

func (f *fixture) completesEach() {
	for _, name := range []string{
		"fakecloud", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "lab-agent",
	} {
		p := f.component(name)
		require.NotNil(f.t, p, name)
		require.NoError(f.t, p.Signal(syscall.SIGKILL))
		require.NoError(f.t, p.Wait(f.t.Context()))
		out := f.up()
		assert.Equal(f.t, lifecycle.Completed, out.Result, name)
		assert.Contains(f.t, strings.Join(out.Did, "; "), name)
		assert.NotEqual(f.t, p.PID, f.component(name).PID)
	}
	// The agent restarts these, and up waits for that.
	for _, name := range []string{"ccm", "node/node-1"} {
		p := f.component(name)
		require.NotNil(f.t, p, name)
		require.NoError(f.t, p.Signal(syscall.SIGKILL))
		require.NoError(f.t, p.Wait(f.t.Context()))
		f.up()
		now := f.component(name)
		require.NotNil(f.t, now, name)
		assert.NotEqual(f.t, p.PID, now.PID)
	}
	assert.Equal(f.t, 1, f.firstAnswers(), "what comes again is not the first")
}

// completesBesideACrash leaves the instance to a person.
func (f *fixture) completesBesideACrash() {
	cloud := f.api()
	instances, err := cloud.ListInstances(f.t.Context(), client.InstanceFilter{Name: "node-2"})
	require.NoError(f.t, err)
	id := instances[len(instances)-1].ID
	_, err = cloud.CreateFault(f.t.Context(), api.FaultCreate{
		Times: 1, Match: api.FaultMatch{Resource: id}, Effect: api.FaultEffect{Crash: true},
	})
	require.NoError(f.t, err)
	f.awaitInstance(cloud, id, api.InstanceError)
	p := f.component("lab-agent")
	require.NoError(f.t, p.Signal(syscall.SIGKILL))
	require.NoError(f.t, p.Wait(f.t.Context()))
	f.up()
	assert.NotNil(f.t, f.component("lab-agent"))
	f.awaitInstance(cloud, id, api.InstanceError)
	_, err = cloud.StartInstance(f.t.Context(), id)
	require.NoError(f.t, err)
	f.awaitInstance(cloud, id, api.InstanceRunning)
	f.changesNothing()
}

func (f *fixture) awaitInstance(cloud *client.Client, id string, state api.InstanceState) {
	f.t.Helper()
	f.await("instance "+id+" to be "+string(state), func(ctx context.Context) error {
		i, err := cloud.GetInstance(ctx, id)
		if err == nil && i.State != state {
			err = fmt.Errorf("it is %s", i.State)
		}
		return err
	})
}

func (f *fixture) namesPaused() {
	p := f.component("kube-scheduler")
	require.NoError(f.t, p.Signal(syscall.SIGSTOP))
	require.Eventually(f.t, p.Paused, bound, 10*time.Millisecond)
	out, err := f.try("up")
	require.Error(f.t, err, out)
	assert.Contains(f.t, out, "kube-scheduler (pid ")
	assert.Contains(f.t, out, "is stopped by a signal and answers nobody; `kill -CONT ")
	out, err = f.try("status")
	require.Error(f.t, err)
	assert.Contains(f.t, out, "kube-scheduler (pid ")
	assert.Equal(f.t, lab.StateIncomplete, f.list()[0].State)
	require.NoError(f.t, p.Signal(syscall.SIGCONT))
	require.Eventually(f.t, func() bool { return !p.Paused() }, bound, 10*time.Millisecond)
	f.changesNothing()
}

// changesNothing is `up` where it finds nothing to do. Until then it may wait, and
// say so, but starts and makes nothing: on a busy machine a probe or a heartbeat comes
// late, and what a signal stopped need not answer at once.
func (f *fixture) changesNothing() {
	f.t.Helper()
	f.await("an up that waits for nothing", func(context.Context) error {
		out := f.up()
		for _, did := range out.Did {
			require.True(f.t, strings.HasPrefix(did, "waited for "), did)
		}
		if out.Result != lifecycle.Unchanged {
			return fmt.Errorf("%s: %v", out.Result, out.Did)
		}
		return nil
	})
}

func (f *fixture) leavesTheDemo() {
	kube := f.kube("operator")
	scale := func(n int32) {
		patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)
		_, err := kube.AppsV1().Deployments("default").
			Patch(f.t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{})
		require.NoError(f.t, err)
	}
	scale(0)
	f.changesNothing()
	scale(2)
	f.up()
	d, err := kube.AppsV1().Deployments("default").Get(f.t.Context(), "web", metav1.GetOptions{})
	require.NoError(f.t, err)
	assert.Equal(f.t, int32(2), *d.Spec.Replicas)

	require.NoError(f.t, kube.AppsV1().Deployments("default").Delete(f.t.Context(), "web", metav1.DeleteOptions{}))
	out := f.up()
	assert.Contains(f.t, strings.Join(out.Did, "; "), "created Deployment web")
}

// identity is what must be the same after coming back.
type identity struct {
	Instances, Nodes, Services map[string]string
	Pods                       []string
}

func (f *fixture) identity() identity {
	kube, id := f.kube("operator"), identity{map[string]string{}, map[string]string{}, map[string]string{}, nil}
	instances, err := f.api().ListInstances(f.t.Context(), client.InstanceFilter{})
	require.NoError(f.t, err)
	for _, i := range instances {
		id.Instances[i.Name] = i.ID + " " + i.Addresses[0].IP
	}
	nodes, err := kube.CoreV1().Nodes().List(f.t.Context(), metav1.ListOptions{})
	require.NoError(f.t, err)
	for _, n := range nodes.Items {
		id.Nodes[n.Name] = string(n.UID) + " " + n.Spec.ProviderID
	}
	for _, s := range f.status().Services {
		id.Services[s.Name] = s.Address + " " + s.BalancerID
	}
	pods, err := kube.CoreV1().Pods("default").List(f.t.Context(), metav1.ListOptions{})
	require.NoError(f.t, err)
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil { // Those that go may have gone.
			id.Pods = append(id.Pods, p.Name+" on "+p.Spec.NodeName)
		}
	}
	slices.Sort(id.Pods)
	return id
}

func (f *fixture) comesBackToTheSame() {
	mine := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Data: map[string]string{"a": "b"}}
	_, err := f.kube("operator").CoreV1().ConfigMaps("default").Create(f.t.Context(), mine, metav1.CreateOptions{})
	require.NoError(f.t, err)
	before, slot := f.identity(), f.list()[0].Slot

	f.lab("down", "--keep-state")
	running, err := process.Host{Lab: f.dir()}.Running()
	require.NoError(f.t, err)
	assert.Empty(f.t, running)
	out, err := f.try("status")
	require.Error(f.t, err, "a lab that is stopped is not running")
	assert.Contains(f.t, out, "is stopped")
	assert.Equal(f.t, cluster.StateStopped, f.list()[0].State)
	assert.Contains(f.t, f.lab("down", "--keep-state"), "it was stopped already")

	somebody := f.moveIn()
	out, err = f.try("up")
	require.Error(f.t, err, out)
	assert.Contains(f.t, out, "cannot come back to its addresses")
	assert.Contains(f.t, out, "`lab down --name "+f.name+"` removes it and what it kept")
	require.NoError(f.t, somebody.Close())
	assert.Equal(f.t, lifecycle.Completed, f.upWhenFree().Result)
	assert.Equal(f.t, before, f.identity())
	assert.Equal(f.t, slot, f.list()[0].Slot)
	kept, err := f.kube("operator").CoreV1().ConfigMaps("default").Get(f.t.Context(), "mine", metav1.GetOptions{})
	require.NoError(f.t, err)
	assert.Equal(f.t, mine.Data, kept.Data)
	_, err = ask(f.t, f.status())
	require.NoError(f.t, err)
}

// moveIn takes the lab's addresses. A test's lab has a home of its own, which labs
// of other homes do not look into: one of them may live there until its test ends.
func (f *fixture) moveIn() net.Listener {
	f.t.Helper()
	var l net.Listener
	require.Eventually(f.t, func() (free bool) {
		var err error
		l, err = net.Listen("tcp4", lockAddress(f.t, f.dir()))
		return err == nil
	}, bound, 50*time.Millisecond, "another lab at the addresses of %s", f.name)
	return l
}

// upWhenFree is `lab up` at a moment when no lab of another home is at the addresses.
func (f *fixture) upWhenFree() lifecycle.Outcome {
	f.t.Helper()
	for {
		require.NoError(f.t, f.moveIn().Close())
		did, said, err := f.tryUp()
		if err == nil || !strings.Contains(said, "cannot come back to its addresses") {
			require.NoError(f.t, err, said)
			return did
		}
	}
}

// start runs a command that is to be signalled.
func (f *fixture) start(args ...string) (*exec.Cmd, *bytes.Buffer) {
	f.t.Helper()
	cmd, out := f.command("lab", args...), &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(f.t, cmd.Start())
	return cmd, out
}

// awaitComponent returns when the component runs.
func (f *fixture) awaitComponent(name string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.component(name) != nil }, bound, 5*time.Millisecond, name)
}

// A signal in the middle leaves nothing, or what up and down complete.
func TestSignals(t *testing.T) {
	f := newFixture(t)
	for _, during := range []string{"fakecloud", "kube-apiserver"} {
		cmd, out := f.start("up", "--nodes", "1", "--profile", "instant")
		f.awaitComponent(during)
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		require.Error(t, cmd.Wait(), out.String())
		assert.Contains(t, out.String(), "lab: interrupted")
		running, err := process.Host{Lab: f.dir()}.Running()
		require.NoError(t, err)
		assert.Empty(t, running)
		assert.NoDirExists(t, f.dir())
	}

	for _, during := range []string{"etcd", "kube-scheduler"} {
		cmd, _ := f.start("up", "--nodes", "1", "--profile", "instant")
		f.awaitComponent(during)
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
	}
	assert.Equal(t, lifecycle.Completed, f.up().Result, "what two killed runs began")

	cmd, out := f.start("down")
	require.Eventually(t, func() bool { return f.component("lab-agent") == nil }, bound, time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	if cmd.Wait() != nil {
		assert.Contains(t, out.String(), "interrupted; `lab down --name "+f.name+"` again ends what is left")
	}
	f.lab("down")
	assert.NoDirExists(t, f.dir())
}

// Several commands at once: one lab of each name, and whoever comes second is
// told who was first.
func TestRaces(t *testing.T) {
	f := newFixture(t)
	other := *f
	other.name += "-b"
	type run struct {
		cmd *exec.Cmd
		out *bytes.Buffer
		err error
	}
	var runs []*run
	for _, f := range []*fixture{f, f, &other} {
		cmd, out := f.start("up", "--nodes", "1", "--profile", "instant", "--name", f.name)
		runs = append(runs, &run{cmd: cmd, out: out})
	}
	for _, r := range runs {
		r.err = r.cmd.Wait()
	}
	require.NoError(t, runs[2].err, runs[2].out.String())
	won, lost := runs[0], runs[1]
	if won.err != nil {
		won, lost = lost, won
	}
	require.NoError(t, won.err, won.out.String())
	require.Error(t, lost.err, lost.out.String())
	assert.Regexp(
		t, `another command is working on lab "`+f.name+"\": `lab up .*` \\(pid [0-9]+\\); wait for it to end",
		lost.out.String(),
	)
	labs := f.list()
	require.Len(t, labs, 2)
	assert.NotEqual(t, labs[0].Slot, labs[1].Slot)
	for _, l := range labs {
		assert.Equal(t, cluster.StateRunning, l.State)
	}

	// Either may be first; both end, and what is there then is whole or gone.
	up, upSaid := f.start("up")
	down, downSaid := f.start("down")
	if errors.Join(up.Wait(), down.Wait()) != nil {
		assert.Regexp(t, "another command is working on lab|no such lab", upSaid.String()+downSaid.String())
	}
	if _, err := os.Stat(f.dir()); err == nil {
		assert.NotEqual(t, lifecycle.Created, f.up().Result)
	}

	// A folder that was deleted keeps nothing from going down, also when the kubelet
	// has made some of it anew.
	other.await("the folder to be deleted", func(context.Context) error { return os.RemoveAll(other.dir()) })
	require.NoError(t, os.MkdirAll(other.dir("n", "anew"), 0o700))
	labs = f.list()
	assert.True(t, slices.ContainsFunc(labs, func(l status.Listed) bool {
		return l.Name == other.name &&
			l.State == lab.StateLeftover
	}), "%+v", labs)
	out := f.lab("down", "--all")
	assert.Contains(t, out, "down "+other.name)
	assert.Contains(t, out, "its folder "+other.dir()+" had been deleted")
	running, err := process.All()
	require.NoError(t, err)
	assert.False(t, slices.ContainsFunc(running, func(p process.Found) bool {
		return strings.HasPrefix(p.Lab, f.home+"/")
	}))
	left, err := filepath.Glob(filepath.Join(f.home, "*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

// What cannot be taken down does not keep the others.
func TestDownAllGoesOn(t *testing.T) {
	f := newLab(t)
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, os.MkdirAll(filepath.Join(f.home, name), 0o700))
		require.NoError(t, os.WriteFile(
			filepath.Join(f.home, name, "lab.json"), []byte(`{"name":"`+name+`","cluster":"embedded"}`), 0o600,
		))
	}
	held, err := os.Open(filepath.Join(f.home, "b"))
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(held.Fd()), syscall.LOCK_EX))
	out, err := f.try("down", "--all")
	require.Error(t, err, out)
	assert.Contains(t, out, `lab "b": another command is working on lab "b"`)
	for name, gone := range map[string]bool{"a": true, "b": false, "c": true} {
		_, err := os.Stat(filepath.Join(f.home, name))
		assert.Equal(t, gone, errors.Is(err, fs.ErrNotExist), name)
	}
	require.NoError(t, held.Close())
	f.lab("down", "--all")
	assert.Contains(t, f.lab("down", "--all"), "There is no lab")
	out, err = f.try("down", "--all", "--name", "a")
	require.Error(t, err)
	assert.Contains(t, out, "--all and --name: want one of them")
}
