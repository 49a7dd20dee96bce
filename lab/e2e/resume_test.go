package e2e

// `up` on a lab that somebody has done something to: it waits for what can come,
// and says at once what cannot.

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/lifecycle"
	"github.com/ccmlab/ccmlab/lab/status"
)

func TestResume(t *testing.T) {
	f := newFailing(t)
	f.real("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
	up := []string{"up", "--nodes", "2", "--profile", "instant"}

	t.Run("a node that dies at each start", func(t *testing.T) {
		f := f.in(t)
		f.program("hollow-node", "#!/bin/sh\necho the reason; exit 3\n", 0o755)
		f.fails(
			1, up, "nodes: machine node-", " ends again and again", "last lines of "+f.dir("logs", "node-node-"),
			"the reason", "go on with `lab up`",
		)
	})
	t.Run("an agent that dies", func(t *testing.T) {
		f := f.in(t)
		f.program("hollow-node", asleep, 0o755)
		cmd := f.command("up", "--verbose")
		said, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		out := awaitText(t, said, "waiting for every running instance to have a Ready node")
		require.NoError(t, f.component("lab-agent").Signal(syscall.SIGKILL))
		out += awaitText(t, said, "")
		exited(t, cmd.Wait(), 1, out)
		assert.Contains(t, out, "nodes: lab-agent has ended")
		assert.Contains(t, out, f.dir("logs", "lab-agent.log"))
	})
	f.real("hollow-node")
	for _, p := range []string{"node/node-1", "node/node-2"} { // The agent boots the mended program.
		if asleep := f.component(p); asleep != nil {
			require.NoError(t, asleep.Signal(syscall.SIGKILL))
		}
	}
	assert.Equal(t, lifecycle.Completed, f.up().Result)
	t.Run("a node that waits for the CCM to delete an earlier one", func(t *testing.T) { f.in(t).clearsNames() })
	t.Run("a Service of another type", func(t *testing.T) { f.in(t).leavesTheService() })
	t.Run("down clears up what was killed", func(t *testing.T) {
		f := f.in(t)
		assert.Contains(t, f.lab("env"), f.kube, "LAB_KUBE_BIN was named once")
		f.killAll(t)
		f.lab("down")
		assert.NoDirExists(t, f.dir())
	})
}

func (f failing) clearsNames() {
	f.cloud("instances", "create", "stand-in", "--tag", "kubernetes-cluster="+f.name, "--tag", "ccmlab-machine=none")
	f.changesNothing() // What is no machine has no node to wait for.
	f.lab("ccm", "stop")
	f.cloud("instances", "terminate", "node-1")
	did := strings.Join(f.up().Did, "; ")
	assert.Contains(f.t, did, "created node-1")
	assert.Contains(f.t, did, "started ccm")
	instances, err := f.api().
		ListInstances(f.t.Context(), client.InstanceFilter{States: []api.InstanceState{api.InstanceRunning}})
	require.NoError(f.t, err)
	for _, i := range instances {
		if n := nodeNamed(f.status(), i.Name); i.Name == "node-1" && assert.NotNil(f.t, n) {
			assert.Equal(f.t, i.ID, n.InstanceID)
		}
	}
}

func (f failing) leavesTheService() {
	patch := func(kind string) {
		_, err := f.fixture.kube("operator").CoreV1().Services("default").Patch(
			f.t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"type":"`+kind+`"}}`), metav1.PatchOptions{},
		)
		require.NoError(f.t, err)
	}
	patch("ClusterIP")
	f.eventually("no balancer to be left", func(st status.Status) bool { return len(st.Services) == 0 })
	f.changesNothing()
	patch("LoadBalancer")
	f.up()
	_, err := ask(f.t, f.status())
	require.NoError(f.t, err)
}
