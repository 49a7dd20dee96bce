package lifecycle

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/agent"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

func instance(name string, state api.InstanceState) api.Instance {
	return api.Instance{ID: "i-" + name, Name: name, State: state, Tags: api.Tags{}}
}

func nodeOf(name string, ready corev1.ConditionStatus) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
}

func TestReadinessOfNodes(t *testing.T) {
	noMachine := instance("stand-in", api.InstanceRunning)
	noMachine.Tags["ccmlab-machine"] = "none"
	earlier, own, tainted, controlPlane := nodeOf(
		"b", corev1.ConditionTrue,
	), nodeOf("b", corev1.ConditionTrue), nodeOf("b", corev1.ConditionTrue), nodeOf("a", corev1.ConditionTrue)
	earlier.Spec.ProviderID, own.Spec.ProviderID = "fakecloud://i-another", "fakecloud://i-b"
	tainted.Spec.Taints = []corev1.Taint{
		{Key: cloudproviderapi.TaintExternalCloudProvider, Effect: corev1.TaintEffectNoSchedule},
	}
	controlPlane.Labels[labelControlPlane] = ""
	a, b := instance("a", api.InstanceRunning), instance("b", api.InstancePending)
	readyA := nodeOf("a", corev1.ConditionTrue)
	for name, tc := range map[string]struct {
		instances []api.Instance
		nodes     []corev1.Node
		ready     int
		tainted   int
		workers   map[string]bool
		lacks     string
	}{
		"nothing": {workers: map[string]bool{}},
		"all":     {[]api.Instance{a, b}, []corev1.Node{readyA, own}, 2, 0, map[string]bool{"a": true, "b": true}, ""},
		"tainted": {[]api.Instance{b}, []corev1.Node{tainted}, 1, 1, map[string]bool{"b": true}, ""},
		"as many, but not the same": {
			[]api.Instance{a, b}, []corev1.Node{readyA, nodeOf("c", corev1.ConditionTrue)}, 1, 0,
			map[string]bool{"a": true, "b": false}, "1 of 2 nodes are Ready, without b",
		},
		"not Ready": {
			[]api.Instance{a}, []corev1.Node{nodeOf("a", corev1.ConditionFalse)}, 0, 0, map[string]bool{"a": false},
			"0 of 1 nodes are Ready, without a",
		},
		"of an earlier instance": {
			[]api.Instance{b}, []corev1.Node{earlier}, 0, 0, map[string]bool{"b": false},
			"without b, whose Node is still that of an earlier instance",
		},
		"stopped": {
			[]api.Instance{instance("a", api.InstanceStopped)}, []corev1.Node{readyA}, 0, 0, map[string]bool{}, "",
		},
		"no machine":              {[]api.Instance{a, noMachine}, []corev1.Node{readyA}, 1, 0, map[string]bool{"a": true}, ""},
		"a control plane is none": {[]api.Instance{a}, []corev1.Node{controlPlane}, 1, 0, map[string]bool{}, ""},
		"more than a message can say": {
			[]api.Instance{a, a, a, a, a, a, a}, nil, 0, 0, map[string]bool{"a": false},
			"without a, a, a, a, a and 2 more",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := readinessOfNodes(tc.instances, tc.nodes)
			assert.Equal(t, tc.ready, c.readyCount())
			assert.Equal(t, tc.tainted, c.tainted)
			assert.Equal(t, tc.workers, c.workers)
			if tc.lacks == "" {
				assert.NoError(t, c.missingError())
			} else {
				assert.ErrorContains(t, c.missingError(), tc.lacks)
			}
		})
	}
}

func podOn(node string, ready corev1.ConditionStatus, state corev1.ContainerState) corev1.Pod {
	p := corev1.Pod{Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{
		Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
		ContainerStatuses: []corev1.ContainerStatus{{State: state}},
	}}
	return p
}

func TestReadinessOfPods(t *testing.T) {
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waits := func(why string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why}}
	}
	ready := func(node string) corev1.Pod { return podOn(node, corev1.ConditionTrue, runs) }
	unready := func(node string) corev1.Pod { return podOn(node, corev1.ConditionFalse, runs) }
	creating, crashing := podOn(
		"a", corev1.ConditionFalse, waits("ContainerCreating"),
	), podOn("a", corev1.ConditionFalse, waits("CrashLoopBackOff"))
	ended, going, homeless := unready("a"), unready("a"), corev1.Pod{}
	ended.Status.Phase = corev1.PodFailed
	going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	homeless.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
	}
	one, three := map[string]bool{"a": true}, map[string]bool{"a": true, "b": true, "c": true}
	for name, tc := range map[string]struct {
		workers map[string]bool
		pods    []corev1.Pod
		ready   int
		want    int
		idle    string
		settled bool
	}{
		"one on each":           {three, []corev1.Pod{ready("a"), ready("b"), ready("c")}, 3, 3, "", true},
		"one on a stopped node": {three, []corev1.Pod{ready("a"), ready("b"), unready("stopped")}, 2, 2, "", true},
		"not made yet":          {three, nil, 0, 1, "", true},
		"no node runs":          {nil, []corev1.Pod{unready("stopped")}, 0, 1, idleNoNode, true},
		"all on a stopped node": {one, []corev1.Pod{unready("stopped")}, 0, 1, idlePodsOnStoppedNodes, true},
		"more than nodes":       {one, []corev1.Pod{ready("a"), homeless, homeless}, 1, 1, "", true},
		"a node not Ready yet": {
			map[string]bool{"a": true, "b": false}, []corev1.Pod{ready("a"), unready("b")}, 1, 1, "", true,
		},
		"told to be unready":            {one, []corev1.Pod{unready("a")}, 0, 1, "", true},
		"told to crash":                 {one, []corev1.Pod{crashing}, 0, 1, "", true},
		"starting":                      {one, []corev1.Pod{creating}, 0, 1, "", false},
		"going":                         {one, []corev1.Pod{going}, 0, 1, "", false},
		"not looked at yet":             {one, []corev1.Pod{{}}, 0, 1, "", false},
		"what has ended counts for nil": {three, []corev1.Pod{ready("a"), ended}, 1, 1, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			m := nodeReadiness{workers: tc.workers}.readinessOfPods(tc.pods)
			assert.Len(t, m.readyOn, tc.ready)
			assert.Equal(t, tc.want, m.wantReady)
			assert.Equal(t, tc.idle, m.idle)
			assert.Equal(t, tc.settled, m.settled)
		})
	}
}

func TestStuckTimer(t *testing.T) {
	var p stuckTimer
	now := time.Now()
	assert.False(t, p.expired(true, now))
	assert.False(t, p.expired(true, now.Add(stuckBound-1)))
	assert.True(t, p.expired(true, now.Add(stuckBound)))
	assert.False(t, p.expired(false, now.Add(2*stuckBound)), "it is over")
	assert.False(t, p.expired(true, now.Add(3*stuckBound)), "and begins anew")
}

func TestMachineExits(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	st, err := state.Create("lab")
	require.NoError(t, err)
	defer st.Unlock()
	u := &upRun{Lab: &lab.Lab{State: st}}
	require.NoError(t, u.Timeline().Create())
	end := func(name, what string) {
		require.NoError(t, u.Timeline().
			Add(timeline.Change{Source: timeline.SourceLab, Subject: agent.MachineSubject + name, What: what}))
	}
	for range maxMachineExits {
		end("before", agent.MachineEnded)
	}
	d, err := u.countMachineExits()
	require.NoError(t, err)
	defer func() { assert.NoError(t, d.timeline.Close()) }()
	for i := range maxMachineExits {
		end("halted", "halted")
		name, err := d.machineThatKeepsExiting()
		require.NoError(t, err)
		assert.Empty(t, name, i)
		end("dying", agent.MachineEnded)
	}
	name, err := d.machineThatKeepsExiting()
	require.NoError(t, err)
	assert.Equal(t, "dying", name)
}

func TestPollEndsWithPermanentError(t *testing.T) {
	u := &upRun{}
	tries := 0
	err := u.poll(t.Context(), "what never comes", func(context.Context) error {
		if tries++; tries < 2 {
			return errors.New("not yet")
		}
		return cluster.Permanent(errors.New("it is gone"))
	})
	assert.EqualError(t, err, "it is gone")
	assert.Equal(t, 2, tries)
	assert.True(t, u.waited)
}
