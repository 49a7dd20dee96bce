package e2e

// A lab on an embedded cluster, through its whole life.

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/doctor"
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/status"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

func TestTheWholeWay(t *testing.T) {
	f := newFixture(t)
	f.lab("up", "--without-ccm")

	t.Run("without a CCM nodes stay tainted, pods Pending, the Service without address", func(t *testing.T) {
		st := f.status()
		require.Len(t, st.Nodes, 3)
		for _, n := range st.Nodes {
			assert.True(t, n.Tainted && n.Ready, "%+v", n)
			assert.Empty(t, n.ProviderID)
			assert.Empty(t, n.Zone)
			assert.Empty(t, n.Addresses, "the address comes from the CCM alone")
		}
		require.Len(t, st.Services, 1)
		assert.Empty(t, st.Services[0].Address)
		events, err := f.kube("operator").CoreV1().Events("default").
			List(t.Context(), metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
		require.NoError(t, err)
		require.NotEmpty(t, events.Items)
		assert.Contains(t, events.Items[0].Message, "untolerated taint")
	})
	t.Run("no credential but the operator's and the CCM's may update nodes", f.nodesAreOutOfReach)
	t.Run("the CCM, and nothing else, lifts the taint", f.ccmLiftsTaints)
	t.Run("nodes say what the cloud says", f.nodesMatchInstances)
	f.lab("up") // Completes the demo: waits for the balancer and an answer. That each pod answers, .ci/run tries.
	t.Run("the timeline tells it", f.timelineTells)
	t.Run("a lab takes few inotify instances", f.takesFewInotifyInstances)
	t.Run("instances are machines", f.instancesAreMachines)
	t.Run("a CCM that ends is started again, one that is stopped is not", f.ccmIsKept)
	t.Run("kill -9 of everything, then up", f.comesBackAfterKill)
	t.Run("after down nothing is left", f.leavesNothing)
}

// takesFewInotifyInstances counts those of all processes, of which a user has 128 by default.
func (f *fixture) takesFewInotifyInstances(t *testing.T) {
	running, err := process.Host{Lab: f.dir()}.Running()
	require.NoError(t, err)
	taken := map[string]int{}
	count := 0
	for component, p := range running {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID))
		require.NoError(t, err)
		for _, file := range files {
			if to, _ := os.Readlink(file); to == "anon_inode:inotify" {
				taken[component]++
				count++
			}
		}
	}
	assert.Equal(t, doctor.InotifyPerLab, count, "%v", taken)
}

func (f *fixture) nodesAreOutOfReach(t *testing.T) {
	files, err := filepath.Glob(f.dir("kubeconfig", "*.yaml"))
	require.NoError(t, err)
	require.Greater(t, len(files), 5)
	label := []byte(`{"metadata":{"labels":{"test":"true"}}}`)
	for _, file := range files {
		user := strings.TrimSuffix(filepath.Base(file), ".yaml")
		_, err := f.kube(user).CoreV1().Nodes().Patch(
			t.Context(), "node-1", types.MergePatchType, label, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}},
		)
		// The kubelet of node-1 may change its own Node, but for the taints.
		if user == "operator" || user == "ccm" || user == "node-node-1" {
			assert.NoError(t, err, user)
		} else {
			assert.True(t, apierrors.IsForbidden(err), "%s: %v", user, err)
		}
	}
	untaint := []byte(`{"spec":{"taints":null}}`)
	_, err = f.kube("node-node-1").CoreV1().Nodes().
		Patch(t.Context(), "node-1", types.MergePatchType, untaint, metav1.PatchOptions{})
	assert.ErrorContains(t, err, "is not allowed to modify taints")
}

// ccmLiftsTaints watches the nodes from before the CCM starts: in the very
// update that takes the taint away, only the CCM's managedFields change.
func (f *fixture) ccmLiftsTaints(t *testing.T) {
	operator := f.kube("operator")
	list, err := operator.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	before := map[string]*corev1.Node{}
	for _, n := range list.Items {
		before[n.Name] = n.DeepCopy()
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	w, err := operator.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	defer w.Stop()

	f.lab("ccm", "start")
	lifted := map[string]bool{}
	for len(lifted) < len(before) {
		ev, ok := <-w.ResultChan()
		require.True(t, ok, "the watch ended with taints lifted from %v", lifted)
		after, ok := ev.Object.(*corev1.Node)
		require.True(t, ok)
		old := before[after.Name]
		before[after.Name] = after
		if kubediff.IsUninitialized(old) && !kubediff.IsUninitialized(after) {
			lifted[after.Name] = true
			assert.Equal(t, []string{"ccm"}, changedManagers(t, old, after))
		}
	}
}

// changedManagers are those that wrote something between two versions: their
// entry is new, newer, or owns more. (One whose field another took away owns
// less, and did nothing.)
func changedManagers(t *testing.T, before, after *corev1.Node) []string {
	type key struct{ manager, operation, subresource string }
	keyOf := func(e metav1.ManagedFieldsEntry) key { return key{e.Manager, string(e.Operation), e.Subresource} }
	owns := func(e metav1.ManagedFieldsEntry) *fieldpath.Set {
		set := &fieldpath.Set{}
		require.NoError(t, set.FromJSON(e.FieldsV1.GetRawReader()))
		return set
	}
	known := map[key]metav1.ManagedFieldsEntry{}
	for _, e := range before.ManagedFields {
		known[keyOf(e)] = e
	}
	var changed []string
	for _, e := range after.ManagedFields {
		old, ok := known[keyOf(e)]
		if !ok || e.Time.After(old.Time.Time) || !owns(e).Difference(owns(old)).Empty() {
			changed = append(changed, e.Manager)
		}
	}
	slices.Sort(changed)
	return slices.Compact(changed)
}

func (f *fixture) nodesMatchInstances(t *testing.T) {
	f.eventually("every node to have its address", func(st status.Status) bool {
		return !slices.ContainsFunc(st.Nodes, func(n status.Node) bool { return n.Tainted || len(n.Addresses) == 0 })
	})
	instances, err := f.api().ListInstances(t.Context(), client.InstanceFilter{})
	require.NoError(t, err)
	require.Len(t, instances, 3)
	workers, zones := 0, map[string]bool{}
	for _, i := range instances {
		n := nodeNamed(f.status(), i.Name)
		require.NotNil(t, n, i.Name)
		assert.Equal(t, i.ID, n.InstanceID)
		assert.Equal(t, "fakecloud://"+i.ID, n.ProviderID)
		assert.Equal(t, i.Zone, n.Zone)
		assert.Equal(t, []string{i.Addresses[0].IP}, n.Addresses)
		if strings.HasPrefix(i.Name, "node-") {
			workers++
			zones[i.Zone] = true
		}
	}
	assert.Len(t, zones, workers, "one per zone")
}

func (f *fixture) timelineTells(t *testing.T) {
	seen := map[string]float64{}
	for line := range strings.Lines(f.lab("watch", "--follow=false", "-o", "json")) {
		var e timeline.Entry
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		if kind, _, _ := strings.Cut(e.Subject, "/"); kind == "balancer" || kind == "service" ||
			e.Subject == "node/node-1" {
			seen[kind+" "+e.What] = e.Seconds
		}
	}
	order := []string{
		"node registered", "node initialized", "balancer requested", "balancer provisioned", "service address",
		"service first-answer",
	}
	for _, what := range order {
		assert.Contains(t, seen, what)
	}
	assert.LessOrEqual(t, seen["node registered"], seen["node initialized"])
	assert.LessOrEqual(t, seen["balancer requested"], seen["balancer provisioned"])
	assert.LessOrEqual(t, seen["balancer provisioned"], seen["service address"])
}

// instancesAreMachines goes through a machine's life by the cloud's CLI alone.
func (f *fixture) instancesAreMachines(t *testing.T) {
	f.cloud("instances", "create", "node-4")
	f.eventually("node-4 to be Ready and initialised", func(st status.Status) bool {
		n := nodeNamed(st, "node-4")
		return n != nil && n.Ready && !n.Tainted && n.Zone != ""
	})
	f.eventuallyTargets(4)

	f.cloud("instances", "stop", "node-4")
	f.eventually("node-4 to be NotReady with the shutdown taint", func(st status.Status) bool {
		n := nodeNamed(st, "node-4")
		return n != nil && !n.Ready && slices.Contains(n.Taints, "node.cloudprovider.kubernetes.io/shutdown:NoSchedule")
	})
	for range 8 {
		_, err := ask(t, f.status())
		assert.NoError(t, err, "the balancer goes around a stopped instance")
	}

	f.cloud("instances", "start", "node-4")
	f.eventually("node-4 to be back without taints", func(st status.Status) bool {
		n := nodeNamed(st, "node-4")
		return n != nil && n.Ready && len(n.Taints) == 0
	})

	f.cloud("instances", "terminate", "node-4")
	f.eventually("the Node object of node-4 to be gone", func(st status.Status) bool {
		return nodeNamed(st, "node-4") == nil
	})
	f.eventuallyTargets(3)

	// Another machine of the same name, before the Node of the first is gone:
	// it waits, and gets a Node of its own.
	f.cloud("instances", "create", "node-4")
	first := ""
	f.eventually("node-4 to be initialised", func(st status.Status) bool {
		n := nodeNamed(st, "node-4")
		if n != nil {
			first = n.InstanceID
		}
		return first != "" && n.Ready
	})
	f.cloud("instances", "terminate", "node-4", "--wait")
	f.cloud("instances", "create", "node-4")
	f.eventually("the second node-4 to have a Node of its own", func(st status.Status) bool {
		n := nodeNamed(st, "node-4")
		return n != nil && n.InstanceID != "" && n.InstanceID != first && n.Ready && len(n.Taints) == 0
	})

	// Under another name it boots as another node. The first Node stays, as its instance does.
	f.cloud("instances", "update", "node-4", "--name", "node-5")
	f.cloud("instances", "reboot", "node-5")
	f.eventually("node-5 to be initialised", func(st status.Status) bool {
		n, old := nodeNamed(st, "node-5"), nodeNamed(st, "node-4")
		return n != nil && old != nil && n.InstanceID == old.InstanceID && n.Ready && len(n.Taints) == 0
	})
	f.cloud("instances", "terminate", "node-5")
	f.eventually("the Nodes of both names to be gone", func(st status.Status) bool {
		return nodeNamed(st, "node-4") == nil && nodeNamed(st, "node-5") == nil
	})

	audit, err := os.ReadFile(f.dir("logs", "audit.jsonl"))
	require.NoError(t, err)
	var deleters []string
	for line := range strings.Lines(string(audit)) {
		var e struct {
			Verb string
			User struct{ Username string }
		}
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		if e.Verb == "delete" {
			deleters = append(deleters, e.User.Username)
		}
	}
	assert.Equal(t, slices.Repeat([]string{"cloud-controller-manager"}, 4), deleters)
}

func (f *fixture) eventuallyTargets(n int) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("the balancer to have %d targets", n), func(st status.Status) bool {
		lb, err := f.api().GetLoadBalancer(f.t.Context(), st.Services[0].BalancerID)
		return err == nil && len(lb.Targets) == n && lb.State == api.LoadBalancerActive
	})
}

func (f *fixture) ccmIsKept(*testing.T) {
	ccm := func(st status.Status) cluster.Component {
		return st.Components[slices.IndexFunc(st.Components, func(c cluster.Component) bool { return c.Name == "ccm" })]
	}
	before := ccm(f.status())
	running, err := process.Host{Lab: f.dir()}.Running()
	require.NoError(f.t, err)
	require.NoError(f.t, running["ccm"].Signal(syscall.SIGKILL))
	f.eventually("another CCM to run", func(st status.Status) bool {
		c := ccm(st)
		return c.PID != 0 && c.PID != before.PID
	})
	f.lab("ccm", "stop")
	st := f.status()
	assert.Equal(f.t, "stopped", ccm(st).State)
	assert.Equal(f.t, "running", st.State, "a lab without a CCM is whole, if that is what one wants")
	f.lab("ccm", "restart")
	assert.Equal(f.t, "running", ccm(f.status()).State)
}

// withoutEndpoints are the Services without their pods, which come back in their
// own time.
func withoutEndpoints(services []status.Service) []status.Service {
	services = slices.Clone(services)
	for i := range services {
		services[i].ReadyEndpoints = nil
	}
	return services
}

func (f *fixture) comesBackAfterKill(t *testing.T) {
	before := f.status()
	f.killAll(t)
	f.lab("up")
	after := f.status()
	assert.Equal(t, withoutEndpoints(before.Services), withoutEndpoints(after.Services), "same address, same balancer")
	for _, n := range before.Nodes {
		assert.Equal(t, n.InstanceID, nodeNamed(after, n.Name).InstanceID)
	}
	_, err := ask(t, after)
	require.NoError(t, err)
}

// killAll kills every process of the lab, until none is there: a parent may
// start another in between.
func (f *fixture) killAll(t *testing.T) {
	t.Helper()
	host := process.Host{Lab: f.dir()}
	require.Eventually(t, func() bool {
		running, err := host.Running()
		require.NoError(t, err)
		for _, p := range running {
			require.NoError(t, p.Signal(syscall.SIGKILL))
		}
		return len(running) == 0
	}, bound, 20*time.Millisecond)
}

func (f *fixture) leavesNothing(t *testing.T) {
	st := f.status()
	listening := func() []string {
		tcp, err := os.ReadFile("/proc/net/tcp")
		require.NoError(t, err)
		slot := slotOf(t, st.CloudURL)
		var found []string
		for line := range strings.Lines(string(tcp)) {
			// local_address is hex with the last octet first; 0A is LISTEN.
			if fields := strings.Fields(line); len(fields) > 3 && fields[3] == "0A" &&
				strings.HasSuffix(fields[1][:8], fmt.Sprintf("%02X7F", slot)) {
				found = append(found, fields[1])
			}
		}
		return found
	}
	assert.NotEmpty(t, listening())
	before, err := process.Host{Lab: f.dir()}.Running()
	require.NoError(t, err)
	assert.Len(t, before, 10)
	lock := lockAddress(t, f.dir())
	f.lab("down")
	running, err := process.Host{Lab: f.dir()}.Running()
	require.NoError(t, err)
	assert.Empty(t, running)
	for name, p := range before {
		assert.False(t, p.Alive(), name)
	}
	// The slot is free now, and another lab may have it already. Whoever has
	// its lock is alone in it.
	if l, err := net.Listen("tcp4", lock); err == nil {
		defer func() { _ = l.Close() }()
		assert.Len(t, listening(), 1, "the lock that this test holds, and nothing else")
	}
	left, err := filepath.Glob(filepath.Join(f.home, "*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

// lockAddress is where the lab's hold on its slot is.
func lockAddress(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "lab.json"))
	require.NoError(t, err)
	var st struct {
		Slot  int
		Ports map[string]int
	}
	require.NoError(t, json.Unmarshal(data, &st))
	return fmt.Sprintf("127.%d.0.1:%d", st.Slot, st.Ports["lock"])
}

func slotOf(t *testing.T, url string) int {
	t.Helper()
	var slot, port int
	_, err := fmt.Sscanf(url, "https://127.%d.0.1:%d", &slot, &port)
	require.NoError(t, err)
	return slot
}
