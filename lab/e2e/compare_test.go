package e2e

// Two labs side by side: one with an external cloud provider and a CCM, one with
// neither; and machines of the size that their instances have.

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/lab/compare"
	"github.com/ccmlab/ccmlab/lab/status"
)

// secondLab is another lab in the same folder of labs.
func (f *fixture) secondLab(t *testing.T, name string) *fixture {
	t.Helper()
	other := f.in(t)
	other.name += name
	t.Cleanup(func() {
		if t.Failed() {
			other.printLogs()
		}
		out, err := other.try("down")
		assert.NoError(t, err, out)
	})
	return other
}

func TestBeforeAndAfter(t *testing.T) {
	full := newFixture(t)
	plain := full.secondLab(t, "-plain")
	told := plain.lab("up", "--cloud-provider", "none", "--nodes", "2", "--profile", "instant")
	full.lab("up", "--nodes", "2", "--profile", "instant")

	t.Run("up says what there is to see, and nothing of a CCM", func(t *testing.T) {
		assert.Contains(t, told, "without a cloud provider")
		assert.Contains(t, told, "2 Ready, none tainted")
		assert.Contains(t, told, "compare "+plain.name)
		for _, not := range []string{"✓ ccm", "✓ load balancer", "✓ first answer", "ccm start", "uninitialized"} {
			assert.NotContains(t, told, not)
		}
	})
	t.Run("a CCM is not started in it", func(t *testing.T) { staysWithout(plain.in(t)) })
	t.Run("compare says what differs, and why", func(t *testing.T) { comparesWith(plain.in(t), full) })
	t.Run("a node is as big as its instance's type says, for life", func(t *testing.T) {
		followsInstanceType(full.in(t))
	})
}

func staysWithout(f *fixture) {
	out, err := f.try("ccm", "start")
	assert.Error(f.t, err)
	assert.Contains(f.t, out, "its kubelets run without --cloud-provider=external")
	assert.Contains(f.t, out, "lab up --name OTHER")
	assert.NotContains(f.t, f.lab("up"), "✓ ccm", "it is remembered")
}

func comparesWith(f, full *fixture) {
	var c compare.Comparison
	out, err := f.command("lab", "compare", f.name, full.name, "-o", "json").Output()
	require.NoError(f.t, err)
	require.NoError(f.t, json.Unmarshal(out, &c))
	assert.Equal(f.t, f.name, c.Labs[0].Name)
	assert.Equal(f.t, map[string]string{"kubelet": "", "kube-controller-manager": ""}, c.Labs[0].Flags)
	assert.Equal(f.t, map[string]string{"kubelet": "external", "kube-controller-manager": "external"}, c.Labs[1].Flags)
	assert.Zero(f.t, c.Labs[0].CCMCalls)
	assert.NotZero(f.t, c.Labs[1].CCMCalls)
	differ := map[string][2]string{}
	for _, r := range c.Rows {
		if r.Differs {
			differ[r.What] = r.Values
			assert.Len(f.t, r.Why, 2, r.What)
			assert.NotContains(f.t, strings.Join(r.Why, " "), "not as it is set up to be", r.What)
		}
	}
	assert.Equal(f.t, [2]string{"none", "fakecloud://INSTANCE-ID"}, differ["provider ID"])
	assert.Equal(f.t, [2]string{"none", "nebula-1a, nebula-1b"}, differ["zone"])
	assert.Equal(f.t, [2]string{"none", "small"}, differ["instance type"])
	assert.Equal(f.t, "LoadBalancer, address pending", differ["default/web"][0])
	assert.Regexp(f.t, `^LoadBalancer, 127\.`, differ["default/web"][1])
	for _, alike := range []string{"taints", "Ready", "InternalIP", "app=web"} {
		assert.NotContains(f.t, differ, alike)
	}

	table := f.lab("compare", f.name, full.name)
	assert.Contains(f.t, table, "≠ provider ID")
	assert.NotContains(f.t, table, "\033")
}

func followsInstanceType(f *fixture) {
	f.cloud("instances", "create", "--type", "large", "node-3")
	f.awaitSize("node-3", "8", "16Gi", "16284Mi") // Less what the kubelet keeps free.
	f.awaitSize("node-1", "2", "4Gi", "3996Mi")

	uid := f.bootID("node-3")
	f.cloud("instances", "reboot", "node-3")
	f.await("node-3 to have rebooted", func(context.Context) error {
		if f.bootID("node-3") == uid {
			return fmt.Errorf("its boot ID is still %s", uid)
		}
		return nil
	})
	f.awaitSize("node-3", "8", "16Gi", "16284Mi")
}

func (f *fixture) node(name string) *corev1.Node {
	f.t.Helper()
	n, err := f.kube("operator").CoreV1().Nodes().Get(f.t.Context(), name, metav1.GetOptions{})
	require.NoError(f.t, err)
	return n
}

func (f *fixture) bootID(node string) string {
	f.t.Helper()
	return f.node(node).Status.NodeInfo.BootID
}

// awaitSize awaits a Node that is Ready, and of this size.
func (f *fixture) awaitSize(name, cpus, memory, allocatable string) {
	f.t.Helper()
	f.eventually(name+" to be Ready", func(st status.Status) bool {
		n := nodeNamed(st, name)
		return n != nil && n.Ready
	})
	n := f.node(name)
	assert.Equal(f.t, cpus, n.Status.Capacity.Cpu().String())
	assert.Equal(f.t, memory, n.Status.Capacity.Memory().String())
	assert.Equal(f.t, cpus, n.Status.Allocatable.Cpu().String())
	assert.Equal(f.t, allocatable, n.Status.Allocatable.Memory().String())
	assert.Equal(f.t, "110", n.Status.Capacity.Pods().String())
}

// Without any network but loopback the kubelet has no address to guess: it must
// not have to.
func TestWithoutCloudProviderOnLoopbackAlone(t *testing.T) {
	if out, err := exec.Command("unshare", "--user", "--map-root-user", "--net", "ip", "link", "set", "lo", "up").
		CombinedOutput(); err != nil {
		t.Skipf("no network namespace is to be had: %v: %s", err, out)
	}
	f := newFixture(t)
	// All in one namespace: what is asked there ends there.
	const script = `set -eu
ip link set lo up
trap '"$0" down >&2' EXIT
"$0" up --quiet --cloud-provider none --nodes 1 --profile instant >&2
"$0" status -o json`
	cmd := f.command("unshare")
	cmd.Path, _ = exec.LookPath("unshare")
	cmd.Args = []string{
		"unshare", "--user", "--map-root-user", "--net", "sh", "-c", script, filepath.Join(f.bin, "lab"),
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	require.NoError(t, err, said.String())
	var st status.Status
	require.NoError(t, json.Unmarshal(out, &st))
	require.Len(t, st.Nodes, 1)
	assert.True(t, st.Nodes[0].Ready)
	assert.Regexp(t, `^\[127\.\d+\.16\.\d+\]$`, fmt.Sprint(st.Nodes[0].Addresses))
}
