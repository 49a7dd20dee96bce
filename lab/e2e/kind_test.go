package e2e

// The lab on a kind cluster: real kubelets, real pods, real kube-proxy, the
// cloud in a container, the CCM as a Deployment. One lab is brought up, and
// its parts are looked at in an order in which each finds what it needs.
// What balancers carry there, the suite says (lb-traffic-*), and lesson client-address.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/status"
)

const shutdownTaint = "node.cloudprovider.kubernetes.io/shutdown:NoSchedule"

// newKindLab is a lab of which nothing runs yet. These tests come one after
// the other: two kind clusters at once are too much for a small machine.
func newKindLab(t *testing.T) *fixture {
	t.Helper()
	if os.Getenv("LAB_TEST_KIND") == "" {
		t.Skip("a kind cluster needs Docker and some minutes: `make test-kind` runs this, with LAB_TEST_KIND=1")
	}
	return newLab(t)
}

// kindPart is one step of a test on a kind lab. The steps of a test share the lab.
type kindPart struct {
	what string
	do   func(*fixture)
}

// runOnKind runs the parts in turn until one fails: those after it would fail for the same reason.
func runOnKind(t *testing.T, parts []kindPart) {
	f := newKindLab(t)
	for _, part := range parts {
		if !t.Run(part.what, func(t *testing.T) { part.do(f.in(t)) }) {
			return
		}
	}
}

func TestKindNodes(t *testing.T) {
	runOnKind(t, []kindPart{
		{"without a CCM nodes stay tainted and CoreDNS Pending", (*fixture).kindWithoutCCM},
		{"the CCM lifts taints and makes routes", (*fixture).kindCCM},
		{"status, watch, logs and env tell of it", (*fixture).kindIsLookedAt},
		{"an attached address leads to its node, and moves", (*fixture).attachedAddressMoves},
		{"instances are machines", (*fixture).kindInstancesAreMachines},
		{"after down nothing is left", (*fixture).kindLeavesNothing},
	})
}

func TestKindFailures(t *testing.T) {
	runOnKind(t, []kindPart{
		{"a lab with a probe on each node", (*fixture).kindUp},
		{"a container that is taken away comes back", (*fixture).kindContainerComesBack},
		{"the cloud is restarted", (*fixture).kindCloudRestarts},
		{"the control plane's instance is stopped and started", (*fixture).kindControlPlaneRestarts},
	})
}

// kindUp brings the lab up with its demo, and starts a pod on each of its three nodes.
func (f *fixture) kindUp() {
	f.lab("up", "--cluster", "kind")
	f.startProbes(3)
}

func (f *fixture) cluster() string { return "ccmlab-" + f.name }

func (f *fixture) controlPlane() string { return f.cluster() + "-control-plane" }

// container is where a Node runs.
func (f *fixture) container(node string) string {
	if node == f.controlPlane() {
		return node
	}
	return f.cluster() + "." + node
}

func (f *fixture) tryDocker(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

func (f *fixture) docker(args ...string) string {
	f.t.Helper()
	out, err := f.tryDocker(args...)
	require.NoError(f.t, err)
	return out
}

func (f *fixture) kindWithoutCCM() {
	// kubelets register with these. kind makes the control plane's before it has an instance, so the lab sets that.
	f.lab("up", "--cluster", "kind", "--without-ccm", "--kubelet-provider-ids", "fakecloud://{{.ID}}")
	st := f.status()
	require.Len(f.t, st.Nodes, 3)
	for _, n := range st.Nodes {
		assert.True(f.t, n.Tainted && n.Ready, "%+v", n)
		assert.Equal(f.t, "fakecloud://"+n.InstanceID, n.ProviderID, "no CCM has run")
		assert.Empty(f.t, n.Zone)
	}
	kube := f.kube("operator")
	_, err := kube.AppsV1().Deployments(metav1.NamespaceSystem).
		Get(f.t.Context(), "cloud-controller-manager", metav1.GetOptions{})
	require.True(f.t, apierrors.IsNotFound(err), "nobody but the kubelet can have set the taint: %v", err)
	for _, p := range f.pods("k8s-app=kube-dns") {
		assert.Equal(f.t, corev1.PodPending, p.Status.Phase, p.Name)
	}
	events, err := kube.CoreV1().Events(metav1.NamespaceSystem).
		List(f.t.Context(), metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
	require.NoError(f.t, err)
	assert.True(f.t, slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
		return strings.HasPrefix(e.InvolvedObject.Name, "coredns-") && strings.Contains(e.Message, "untolerated taint")
	}))
}

// kindCCM starts the CCM, which lifts the taints and routes to each node. What routes do, lesson routes says.
func (f *fixture) kindCCM() {
	f.startProbes(3)
	f.ccmLiftsTaints(f.t)
	f.await("CoreDNS to run", func(context.Context) error {
		for _, p := range f.pods("k8s-app=kube-dns") {
			if !podReady(p) {
				return fmt.Errorf("%s is %s", p.Name, p.Status.Phase)
			}
		}
		return nil
	})
	f.await("a route for each node", func(context.Context) error { return equal(3, len(f.routes())) })
}

// routes are the cloud's, by the name of the node that they lead to.
func (f *fixture) routes() map[string]api.Route {
	f.t.Helper()
	instances, err := f.api().ListInstances(f.t.Context(), client.InstanceFilter{})
	require.NoError(f.t, err)
	routes, err := f.api().ListRoutes(f.t.Context(), client.RouteFilter{})
	require.NoError(f.t, err)
	byNode := map[string]api.Route{}
	for _, r := range routes {
		for _, i := range instances {
			if i.ID == r.InstanceID {
				byNode[i.Name] = r
			}
		}
	}
	return byNode
}

func (f *fixture) kindIsLookedAt() {
	f.lab("up", "--cluster", "kind") // Completes the demo: waits for the balancer and an answer.
	var st status.Status
	f.eventually("everything to run", func(now status.Status) bool {
		st = now
		return st.State == "running" && len(st.Services) == 1
	})
	assert.Equal(f.t, "kind", st.Cluster)
	var names []string
	for _, c := range st.Components {
		assert.Equal(f.t, "running", c.State, c.Name)
		names = append(names, c.Name)
	}
	assert.ElementsMatch(
		f.t, []string{"lab-agent", "fakecloud", "ccm", "node/" + f.controlPlane(), "node/node-1", "node/node-2"}, names,
	)
	f.nodesMatchInstances(f.t)
	f.timelineTells(f.t)

	logs := f.logNames()
	assert.ElementsMatch(
		f.t, []string{"lab-agent", "fakecloud", "ccm", "node/" + f.controlPlane(), "node/node-1", "node/node-2"}, logs,
	)
	for _, name := range logs {
		assert.NotEmpty(f.t, f.lab("logs", name, "--tail", "5"), name)
	}
	kubectl := exec.CommandContext(
		f.t.Context(), "bash", "-c", `eval "$("$0" env)" && exec kubectl get nodes --output name`, f.bin+"/lab",
	)
	kubectl.Env = f.command("lab").Env
	out, err := kubectl.CombinedOutput()
	require.NoError(f.t, err, string(out))
	assert.Contains(f.t, string(out), "node/node-1\n")
	assert.Contains(f.t, f.cloud("instances", "list"), "node-1")
}

// kindInstancesAreMachines goes through a machine's life by the cloud's CLI
// alone.
func (f *fixture) kindInstancesAreMachines() {
	f.cloud("instances", "stop", "node-2")
	f.eventually("node-2 to be NotReady with the shutdown taint", func(st status.Status) bool {
		n := nodeNamed(st, "node-2")
		return n != nil && !n.Ready && slices.Contains(n.Taints, shutdownTaint)
	})
	f.await("its container to end", func(context.Context) error {
		return equal("exited", f.docker("inspect", "--format", "{{.State.Status}}", f.container("node-2")))
	})
	f.await("the balancer to go around it", func(context.Context) error {
		for range 8 {
			if _, err := fetch(url(f.served("web"), "/")); err != nil {
				return err
			}
		}
		return nil
	})
	f.answers("web", 8)

	f.cloud("instances", "start", "node-2")
	f.eventuallyWhole("node-2")

	f.cloud("instances", "create", "node-3")
	f.eventuallyWhole("node-3")
	probe := f.startProbes(4)["node-3"]
	f.await("a path to the new node's pod", func(context.Context) error {
		_, err := f.inPod(
			f.probes()["node-1"], "curl", "--silent", "--show-error", "--max-time", "2",
			"http://"+probe.Status.PodIP+":8080/",
		)
		return err
	})
	assert.Contains(f.t, f.routes(), "node-3")

	f.cloud("instances", "terminate", "node-3")
	f.eventually("the Node object of node-3 to be gone", func(st status.Status) bool {
		return nodeNamed(st, "node-3") == nil
	})
	f.await("its container and its route to be gone", func(context.Context) error {
		if _, err := f.tryDocker("inspect", f.container("node-3")); err == nil {
			return errors.New("the container is there")
		}
		routes, err := f.api().ListRoutes(f.t.Context(), client.RouteFilter{})
		return errors.Join(err, equal(3, len(routes)))
	})
}

// eventuallyWhole awaits a node that is Ready, initialised and without taints.
func (f *fixture) eventuallyWhole(names ...string) {
	f.t.Helper()
	f.eventually(strings.Join(names, ", ")+
		" to be Ready without taints but the control plane's own", func(st status.Status) bool {
		for _, name := range names {
			n := nodeNamed(st, name)
			own := func(taint string) bool {
				return name == f.controlPlane() && taint == "node-role.kubernetes.io/control-plane:NoSchedule"
			}
			if n == nil || !n.Ready || len(slices.DeleteFunc(n.Taints, own)) > 0 || n.ProviderID == "" || n.Zone == "" {
				return false
			}
		}
		return true
	})
}

func (f *fixture) kindContainerComesBack() {
	id := func() string { return f.docker("inspect", "--format", "{{.Id}}", f.container("node-1")) }
	before, node := id(), nodeNamed(f.status(), "node-1")
	f.docker("rm", "--force", "--volumes", f.container("node-1"))
	f.await("another container", func(context.Context) error {
		now, err := f.tryDocker("inspect", "--format", "{{.Id}}", f.container("node-1"))
		if err == nil && now == before {
			err = errors.New("it is the same")
		}
		return err
	})
	f.await("its kubelet to be back", func(ctx context.Context) error {
		_, err := f.tryDocker("exec", f.container("node-1"), "test", "-e", "/kind/joined")
		return err
	})
	f.eventuallyWhole("node-1")
	assert.Equal(f.t, node.InstanceID, nodeNamed(f.status(), "node-1").InstanceID)
	f.await("a pod there to be reached", func(context.Context) error {
		probes := f.probes()
		_, err := f.inPod(
			probes["node-2"], "curl", "--silent", "--show-error", "--max-time", "2",
			"http://"+probes["node-1"].Status.PodIP+":8080/",
		)
		return err
	})
}

func (f *fixture) kindCloudRestarts() {
	before, err := f.api().ListLoadBalancers(f.t.Context(), client.LoadBalancerFilter{})
	require.NoError(f.t, err)
	services, routes := f.status().Services, f.routes()
	f.docker("restart", "--time", "5", f.cluster()+"-cloud")
	f.await("the cloud to be ready", func(ctx context.Context) error { return f.api().Ready(ctx) })
	after, err := f.api().ListLoadBalancers(f.t.Context(), client.LoadBalancerFilter{})
	require.NoError(f.t, err)
	addresses := func(all []api.LoadBalancer) map[string]string {
		byID := map[string]string{}
		for _, lb := range all {
			byID[lb.ID] = lb.Address
		}
		return byID
	}
	assert.Equal(f.t, addresses(before), addresses(after))
	for name, r := range f.routes() {
		assert.Equal(f.t, routes[name].ID, r.ID)
	}
	for _, s := range services {
		f.answers(s.Name, 2)
	}
	f.eventually("the same Services", func(st status.Status) bool {
		return slices.Equal(withoutEndpoints(services), withoutEndpoints(st.Services))
	})
}

func (f *fixture) kindControlPlaneRestarts() {
	web := f.served("web")
	f.cloud("instances", "stop", f.controlPlane())
	state := func() error {
		status, err := f.tryDocker("inspect", "--format", "{{.State.Status}}", f.controlPlane())
		return errors.Join(err, equal("exited", status))
	}
	f.await("its container to end", func(context.Context) error { return state() })
	for range 4 { // Balancers, node ports and pods need no control plane.
		answer, err := fetch(url(web, "/"))
		require.NoError(f.t, err)
		assert.Contains(f.t, answer, "Hello from pod web-")
	}
	f.cloud("instances", "start", f.controlPlane())
	f.eventuallyWhole(f.controlPlane(), "node-1", "node-2")
	f.await("the CCM to lead again", func(context.Context) error {
		if slices.ContainsFunc(f.pods("app=cloud-controller-manager"), podReady) {
			return nil
		}
		return errors.New("no replica is ready")
	})
	f.createService(serviceOf("web", "later"))
	f.answering("later")
	f.answers("later", 4)
}

// kindLeavesNothing also counts the volumes that have no name of ours.
func (f *fixture) kindLeavesNothing() {
	require.NotEmpty(f.t, f.leftovers())
	var volumes []string
	for _, name := range strings.Fields(
		f.docker("ps", "--all", "--filter", "name="+f.cluster(), "--format", "{{.Names}}"),
	) {
		volumes = append(
			volumes, strings.Fields(f.docker("inspect", "--format", "{{range .Mounts}}{{.Name}} {{end}}", name))...,
		)
	}
	require.NotEmpty(f.t, volumes)
	f.lab("down")
	f.nothingIsLeft()
	for _, v := range volumes {
		_, err := f.tryDocker("volume", "inspect", v)
		assert.ErrorContains(f.t, err, "no such volume", v)
	}
}

// leftovers are what the engine has of the lab, by name and by label.
func (f *fixture) leftovers() []string {
	var all []string
	for _, filter := range []string{
		"name=" + f.cluster(), "label=io.ccmlab.lab=" + f.dir(), "label=io.x-k8s.kind.cluster=" + f.cluster(),
	} {
		for _, list := range [][]string{
			{"ps", "--all", "--format", "container {{.Names}}"}, {"network", "ls", "--format", "network {{.Name}}"},
			{"volume", "ls", "--format", "volume {{.Name}}"},
		} {
			if found := f.docker(append(list, "--filter", filter)...); found != "" {
				all = append(all, strings.Split(found, "\n")...)
			}
		}
	}
	return all
}

func (f *fixture) nothingIsLeft() {
	assert.Empty(f.t, f.leftovers())
	running, err := process.Host{Lab: f.dir()}.Running()
	require.NoError(f.t, err)
	assert.Empty(f.t, running)
	assert.NoDirExists(f.t, f.dir())
}

// Ctrl-C while kind is at work: what it made goes too.
func TestKindInterrupted(t *testing.T) {
	f := newKindLab(t)
	up := f.command("lab", "up", "--cluster", "kind")
	var said strings.Builder
	up.Stdout, up.Stderr = &said, &said
	require.NoError(t, up.Start())
	f.await("the control plane's container", func(context.Context) error {
		_, err := f.tryDocker("inspect", f.controlPlane())
		return err
	})
	require.NoError(t, up.Process.Signal(os.Interrupt))
	var exit *exec.ExitError
	require.ErrorAs(t, up.Wait(), &exit, said.String())
	assert.Contains(t, said.String(), "interrupted")
	f.nothingIsLeft()
}

// What has the lab's name and is not the lab's is left alone.
func TestKindRefusesWhatIsNotItsOwn(t *testing.T) {
	f := newKindLab(t)
	refused := func(says string) {
		t.Helper()
		before := f.leftovers()
		require.NotEmpty(t, before)
		out, err := f.try("up", "--cluster", "kind")
		require.Error(t, err, out)
		assert.Contains(t, out, says)
		assert.NoDirExists(t, f.dir())
		f.lab("down")
		assert.Equal(t, before, f.leftovers())
	}
	f.docker("network", "create", f.cluster())
	refused("nobody that left a mark")
	f.docker("network", "rm", f.cluster())
	f.docker(
		"create", "--name", f.controlPlane(), "--label", "io.x-k8s.kind.cluster="+f.cluster(), "--network", "none",
		"ccmlab/fakecloud:dev",
	)
	refused("kind cluster " + f.cluster())
	f.docker("rm", f.controlPlane())
}

func podReady(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// equal is an error that says what is there instead.
func equal[T comparable](want, have T) error {
	if want != have {
		return fmt.Errorf("there is %v, not %v", have, want)
	}
	return nil
}
