package explain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/cluster"
)

var now = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// around is a lab where everything runs, the processes of nodes given too.
func around(nodes ...string) LabFacts {
	a := LabFacts{LabName: "lab", Now: now, Project: "p-1"}
	for _, name := range append([]string{
		componentAgent, componentCloud, componentEtcd, componentAPIServer, componentKCM, componentScheduler,
		componentCCM,
	}, nodes...) {
		a.Components = append(
			a.Components, cluster.Component{Name: name, PID: 4711, State: cluster.StateRunning, Wanted: true},
		)
	}
	return a
}

func (a *LabFacts) stop(names ...string) {
	for i := range a.Components {
		for _, name := range names {
			if a.Components[i].Name == name {
				a.Components[i].State, a.Components[i].PID = cluster.StateStopped, 0
			}
		}
	}
}

func (a *LabFacts) end(node string) {
	for i := range a.Components {
		if a.Components[i].Name == node {
			a.Components = append(a.Components[:i:i], a.Components[i+1:]...)
			return
		}
	}
}

func (a *LabFacts) pause(names ...string) {
	a.Processes = map[string]Process{}
	for _, name := range names {
		a.Processes[name] = Process{PID: 4711, Began: now.Add(-time.Hour), Paused: true}
	}
}

// began has node-1's machine booted so long ago.
func (a *LabFacts) began(before time.Duration) {
	a.Processes = map[string]Process{"node/node-1": {PID: 4711, Began: now.Add(-before)}}
}

// before is an Event of the CCM so long ago.
func before(age time.Duration, reason string) corev1.Event {
	e := event("fakecloud-ccm", reason, "")
	e.LastTimestamp = ago(age)
	return e
}

func (a *LabFacts) ccmOff() {
	a.stop(componentCCM)
	a.findComponent(componentCCM).Wanted = false
}

func instance(id string, state api.InstanceState) api.Instance {
	return api.Instance{
		ID: id, Name: "node-1", Zone: "nebula-1a", State: state, Tags: api.Tags{contract.TagCluster: "lab"},
	}
}

// wellNode is a Node with nothing wrong; its instance is i-1.
func wellNode() NodeFacts {
	i := instance("i-1", api.InstanceRunning)
	return NodeFacts{
		LabFacts: around("node/node-1"), Name: "node-1", Nodes: []string{"node-1"},
		Node: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: "node-1", UID: "n-uid", CreationTimestamp: ago(time.Minute),
				Labels: map[string]string{corev1.LabelTopologyZone: "nebula-1a"},
			},
			Spec: corev1.NodeSpec{ProviderID: "fakecloud://i-1", PodCIDR: "10.1.0.0/25"},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
				Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.30.16.1"}},
			},
		},
		Lease: &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			RenewTime: new(metav1.NewMicroTime(now.Add(-time.Second))), LeaseDurationSeconds: new(int32(4)),
		}},
		Instance: &i, Named: []api.Instance{i}, Instances: []api.Instance{i},
	}
}

// tainted is a Node that no CCM has seen to yet.
func tainted(f *NodeFacts) {
	f.Node.Spec.ProviderID, f.Instance, f.Node.Status.Addresses = "", nil, nil
	f.taint("node.cloudprovider.kubernetes.io/uninitialized")
}

func (f *NodeFacts) taint(key string) {
	f.Node.Spec.Taints = append(f.Node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
}

func (f *NodeFacts) state(s api.InstanceState) {
	f.Named[0].State = s
	if f.Instance != nil {
		f.Instance.State = s
	}
}

func (f *NodeFacts) unready(status corev1.ConditionStatus, reason string) {
	f.Node.Status.Conditions[0] = corev1.NodeCondition{
		Type: corev1.NodeReady, Status: status, Reason: reason, Message: "the kubelet's words",
		LastTransitionTime: ago(9 * time.Second),
	}
	if status == corev1.ConditionUnknown {
		f.Lease.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(-17 * time.Second)))
	}
}

// absent takes the Node object away.
func absent(f *NodeFacts) {
	f.Node, f.Lease, f.Instance, f.Nodes = nil, nil, nil, nil
}

func event(source, reason, message string) corev1.Event {
	return corev1.Event{
		Type: corev1.EventTypeWarning, Reason: reason, Message: message, LastTimestamp: ago(3 * time.Second),
		Source: corev1.EventSource{Component: source},
	}
}

func fault(status int, match api.FaultMatch) api.Fault {
	return api.Fault{ID: "f-1", Hits: 3, Effect: api.FaultEffect{Status: status}, Match: match}
}

func call(operation string, status int, code string, before time.Duration) api.AuditEntry {
	return api.AuditEntry{Operation: operation, Status: status, Code: &code, Time: now.Add(-before), Token: "ccm"}
}

// saidCase is what an explanation must say.
type saidCase struct {
	state   State
	verdict string
	because []Fact // each is among the facts, or begins one
	next    []string
}

func (want saidCase) check(t *testing.T, got Explanation) {
	t.Helper()
	assert.Equal(t, want.state, got.State)
	assert.Equal(t, want.verdict, got.Verdict)
	for _, w := range want.because {
		assert.Condition(t, func() bool {
			for _, f := range got.Because {
				if f.Where == w.Where && len(f.What) >= len(w.What) && f.What[:len(w.What)] == w.What {
					return true
				}
			}
			return false
		}, "no fact %q in %q", w, got.Because)
	}
	var commands []string
	for _, s := range got.Next {
		require.NotEmpty(t, s.Do)
		if s.Command != "" {
			commands = append(commands, s.Command)
		}
	}
	assert.Equal(t, want.next, commands)
}

const uninitialized = "it has the taint node.cloudprovider.kubernetes.io/uninitialized since its kubelet registered it 1m0s ago"

func TestNodes(t *testing.T) {
	for name, c := range map[string]struct {
		given func(*NodeFacts)
		want  saidCase
	}{
		"all well": {
			func(*NodeFacts) {},
			saidCase{Ready, "Node node-1 is ready.", []Fact{
				{Cluster, "InternalIP 127.30.16.1, zone nebula-1a"},
				{Cloud, "instance i-1 (node-1, nebula-1a) is running"},
			}, nil},
		},
		"well, with the CCM off": {
			func(f *NodeFacts) { f.ccmOff() },
			saidCase{Ready, "Node node-1 is ready.", []Fact{{Lab, "the CCM is stopped, as it was asked to be"}}, nil},
		},
		"tainted: no CCM runs": {
			func(f *NodeFacts) { tainted(f); f.ccmOff() },
			saidCase{NotReady, "Node node-1 is not initialised: no cloud controller manager runs.",
				[]Fact{{Cluster, uninitialized}, {Lab, "the CCM is stopped, as it was asked to be"}},
				[]string{"lab ccm start"}},
		},
		"tainted: no CCM runs, in a lab of another name": {
			func(f *NodeFacts) { tainted(f); f.ccmOff(); f.LabName = "two" },
			saidCase{
				NotReady, "Node node-1 is not initialised: no cloud controller manager runs.", nil,
				[]string{"lab ccm start --name two"},
			},
		},
		"tainted: the CCM has ended": {
			func(f *NodeFacts) { tainted(f); f.stop(componentCCM) },
			saidCase{
				NotReady,
				"Node node-1 is not initialised: the cloud controller manager does not run, though it should.", nil,
				[]string{"lab logs ccm --tail 30"},
			},
		},
		"tainted: the CCM and its keeper have ended": {
			func(f *NodeFacts) { tainted(f); f.stop(componentCCM, componentAgent) },
			saidCase{
				NotReady,
				"Node node-1 is not initialised: the cloud controller manager does not run, though it should.",
				[]Fact{{Lab, "lab-agent does not run"}}, []string{"lab up"},
			},
		},
		"tainted: the cloud is down": {
			func(f *NodeFacts) {
				tainted(f)
				f.stop(componentCloud)
				f.CloudError, f.Named = "connection refused", nil
			},
			saidCase{
				NotReady, "Node node-1 is not initialised: the cloud does not run.",
				[]Fact{{Lab, "fakecloud does not run"}, {Cloud, "connection refused"}}, []string{"lab up"},
			},
		},
		"tainted: a fault": {
			func(f *NodeFacts) {
				tainted(f)
				f.Faults = []api.Fault{fault(503, api.FaultMatch{Token: "ccm"})}
				f.Calls = []api.AuditEntry{call("listInstances", 503, "unavailable", 2*time.Second)}
			},
			saidCase{NotReady, "Node node-1 is not initialised: the cloud answers the CCM wrongly, by a fault rule.",
				[]Fact{
					{Cloud, "fault f-1: calls are answered 503 Service Unavailable, applied to 3 calls so far"},
					{Cloud, "the CCM's latest call of listInstances, 2s ago: 503 unavailable"},
				},
				[]string{"fakecloud faults delete f-1"}},
		},
		"tainted: faults that are not its own": {
			func(f *NodeFacts) {
				tainted(f)
				spent, unused := fault(503, api.FaultMatch{}), fault(503, api.FaultMatch{})
				spent.Spent, unused.Hits = true, 0
				f.Faults = []api.Fault{
					spent, unused, fault(503, api.FaultMatch{Token: "operator"}),
					fault(503, api.FaultMatch{Operations: []string{"createLoadBalancer"}}),
					fault(503, api.FaultMatch{Resource: "i-2"}), fault(503, api.FaultMatch{Tag: "role=other"}),
					fault(503, api.FaultMatch{Project: "p-2"}),
					{ID: "f-slow", Hits: 1, Effect: api.FaultEffect{DelayMilliseconds: 9}},
				}
			},
			saidCase{
				NotReady, "Node node-1 is not initialised: the CCM has not got to it yet.",
				[]Fact{{Lab, "the CCM runs"}}, []string{"lab logs ccm --tail 30"},
			},
		},
		"tainted: throttled": {
			func(f *NodeFacts) {
				tainted(f)
				f.Calls = []api.AuditEntry{
					call("listInstances", 429, "rate-limited", time.Second),
					call("listInstances", 200, "", 2*time.Second),
				}
			},
			saidCase{NotReady, "Node node-1 is not initialised: the cloud throttles the CCM.", []Fact{
				{Cloud, "the CCM's latest call of listInstances, 1s ago: 429 rate-limited"},
			},
				[]string{"fakecloud audit list --token ccm --status 4xx"}},
		},
		"tainted: refused": {
			func(f *NodeFacts) {
				tainted(f)
				f.Calls = []api.AuditEntry{call("listInstances", 403, "forbidden", time.Second)}
			},
			saidCase{
				NotReady, "Node node-1 is not initialised: the cloud refuses the CCM's token.", nil,
				[]string{"fakecloud audit list --token ccm --status 4xx"},
			},
		},
		"tainted: calls broken off": {
			func(f *NodeFacts) {
				tainted(f)
				f.Calls = []api.AuditEntry{call("getInstance", 0, "", time.Second)}
			},
			saidCase{NotReady, "Node node-1 is not initialised: the cloud does not answer the CCM as it should.", []Fact{
				{Cloud, "the CCM's latest call of getInstance, 1s ago: no answer: it was broken off"},
			},
				[]string{"fakecloud audit list --token ccm --status none"}},
		},
		"tainted: calls that failed, and say nothing of now": {
			func(f *NodeFacts) {
				tainted(f)
				f.Calls = []api.AuditEntry{
					call("listInstances", 200, "", time.Second), call("listInstances", 500, "internal", 2*time.Second),
					call("getInstance", 404, "not-found", time.Second), call(
						"getProject", 503, "unavailable", time.Hour,
					), call("createLoadBalancer", 503, "unavailable", time.Second),
				}
			},
			saidCase{
				NotReady, "Node node-1 is not initialised: the CCM has not got to it yet.", nil,
				[]string{"lab logs ccm --tail 30"},
			},
		},
		"tainted: 401, which no audit shows": {
			func(f *NodeFacts) {
				tainted(f)
				f.Events = []corev1.Event{
					event("fakecloud-ccm", "CloudAccessDenied", "Node stays uninitialized: no such token"),
				}
			},
			saidCase{
				NotReady, "Node node-1 is not initialised: the cloud refuses the CCM's token.",
				[]Fact{{CCM, "event CloudAccessDenied, 3s ago: Node stays uninitialized: no such token"}},
				[]string{"lab logs ccm --tail 30"},
			},
		},
		"tainted: no instance of that name": {
			func(f *NodeFacts) {
				tainted(f)
				f.Named = nil
				f.Events = []corev1.Event{event("fakecloud-ccm", "InstanceNotFound", "no instance")}
			},
			saidCase{NotReady, "Node node-1 is not initialised: the cloud has no instance of its name.",
				[]Fact{{Cloud, "no instance is called node-1"}, {CCM, "event InstanceNotFound, 3s ago: no instance"}},
				[]string{"fakecloud instances create node-1", "kubectl delete node node-1"}},
		},
		"tainted: only an ended instance has that name": {
			func(f *NodeFacts) { tainted(f); f.state(api.InstanceTerminated) },
			saidCase{NotReady, "Node node-1 is not initialised: the cloud has no instance of its name.",
				[]Fact{{Cloud, "instance i-1 (node-1, nebula-1a) is terminated"}},
				[]string{"fakecloud instances create node-1", "kubectl delete node node-1"}},
		},
		"tainted: two instances of that name": {
			func(f *NodeFacts) { tainted(f); f.Named = append(f.Named, instance("i-2", api.InstanceStopped)) },
			saidCase{NotReady, "Node node-1 is not initialised: 2 instances have its name, and the CCM cannot tell which is its own.",
				[]Fact{{Cloud, "instance i-1"}, {Cloud, "instance i-2"}}, []string{"fakecloud instances list"}},
		},
		"tainted: the instance is pending": {
			func(f *NodeFacts) { tainted(f); f.state(api.InstancePending) },
			saidCase{
				NotReady, "Node node-1 is not initialised: its instance is still pending.",
				[]Fact{{Cloud, "instance i-1 (node-1, nebula-1a) is pending"}}, nil,
			},
		},
		"tainted: the CCM says why": {
			func(f *NodeFacts) {
				tainted(f)
				f.Events = []corev1.Event{
					event("fakecloud-ccm", "ProvidedNodeIPMismatch", "no such address"),
					event("kubelet", "Rebooted", ""),
				}
			},
			saidCase{
				NotReady, "Node node-1 is not initialised: the CCM says why: ProvidedNodeIPMismatch.",
				[]Fact{{CCM, "event ProvidedNodeIPMismatch"}}, []string{"lab logs ccm --tail 30"},
			},
		},
		"stopped, not noticed yet": {
			func(f *NodeFacts) { f.state(api.InstanceStopped) },
			saidCase{
				NotReady, "Node node-1 is still Ready in the cluster, and its instance is stopped.",
				[]Fact{{Cloud, "instance i-1 (node-1, nebula-1a) is stopped"}},
				[]string{"fakecloud instances start i-1"},
			},
		},
		"stopped": {
			func(f *NodeFacts) {
				f.state(api.InstanceStopped)
				f.end("node/node-1")
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
				f.taint("node.cloudprovider.kubernetes.io/shutdown")
			},
			saidCase{NotReady, "Node node-1 is not ready: its instance is stopped.",
				[]Fact{
					{Cloud, "instance i-1 (node-1, nebula-1a) is stopped"},
					{Cluster, "condition Ready is Unknown for 9s: the kubelet's words (NodeStatusUnknown)"},
					{Cluster, "its kubelet's lease, which lasts 4 s, was renewed 17s ago"},
					{Cluster, "it has the taint node.cloudprovider.kubernetes.io/shutdown"},
				}, []string{"fakecloud instances start i-1"}},
		},
		"stopping": {
			func(f *NodeFacts) {
				f.state(api.InstanceStopping)
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			},
			saidCase{
				NotReady, "Node node-1 is not ready: its instance is stopping.", nil,
				[]string{"fakecloud instances start i-1"},
			},
		},
		"terminating": {
			func(f *NodeFacts) {
				f.state(api.InstanceTerminating)
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			},
			saidCase{NotReady, "Node node-1 is not ready: its instance is terminating.", nil, nil},
		},
		"crashed by a fault": {
			func(f *NodeFacts) {
				f.state(api.InstanceError)
				f.Instance.StateReason = new("crashed")
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
				f.Faults = []api.Fault{{ID: "f-1", Effect: api.FaultEffect{Crash: true}}}
			},
			saidCase{NotReady, "Node node-1 is not ready: its instance is in error.", []Fact{
				{Cloud, "instance i-1 (node-1, nebula-1a) is in error: crashed"},
				{Cloud, "fault f-1 crashes instances"},
			},
				[]string{"fakecloud instances start i-1", "fakecloud faults delete f-1"}},
		},
		"shutdown taint, though it runs": {
			func(f *NodeFacts) { f.taint("node.cloudprovider.kubernetes.io/shutdown"); f.ccmOff() },
			saidCase{NotReady, "Node node-1 has the taint of a machine that is shut down, though its instance runs again: the CCM, which would lift it, does not run.",
				nil, []string{"lab ccm start"}},
		},
		"shutdown taint, about to be lifted": {
			func(f *NodeFacts) { f.taint("node.cloudprovider.kubernetes.io/shutdown") },
			saidCase{
				NotReady, "Node node-1 has the taint of a machine that is shut down, though its instance runs again.",
				nil, nil,
			},
		},
		"the kubelet has ended": {
			func(f *NodeFacts) { f.end("node/node-1"); f.unready(corev1.ConditionUnknown, "NodeStatusUnknown") },
			saidCase{
				NotReady, "Node node-1 is not ready: its machine has ended.",
				[]Fact{{Lab, "no process of node/node-1 runs"}}, []string{"lab logs node-node-1 --tail 30"},
			},
		},
		"the kubelet has ended, and nobody boots it": {
			func(f *NodeFacts) {
				f.end("node/node-1")
				f.stop(componentAgent)
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			},
			saidCase{
				NotReady,
				"Node node-1 is not ready: its machine has ended, and the lab's agent, which would boot it again, does not run.",
				nil, []string{"lab up"},
			},
		},
		"the kubelet hangs": {
			func(f *NodeFacts) { f.unready(corev1.ConditionUnknown, "NodeStatusUnknown") },
			saidCase{NotReady, "Node node-1 is not ready: its kubelet runs and hangs.", []Fact{
				{Lab, "its machine's process runs (pid 4711)"},
			},
				[]string{"fakecloud instances reboot node-1", "lab logs node-node-1 --tail 30"}},
		},
		"booting": {
			func(f *NodeFacts) { f.unready(corev1.ConditionUnknown, "NodeStatusUnknown"); f.began(3 * time.Second) },
			saidCase{
				NotReady, "Node node-1 is not ready: its machine is booting.", nil,
				[]string{"lab logs node-node-1 --tail 30"},
			},
		},
		"the kubelet is back": {
			func(f *NodeFacts) {
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
				f.Lease.Spec.RenewTime = new(metav1.NewMicroTime(now))
			},
			saidCase{
				NotReady, "Node node-1 is not ready: its kubelet is back, and has not said yet that it is.", nil,
				[]string{"lab logs node-node-1 --tail 30"},
			},
		},
		"the kubelet is paused": {
			func(f *NodeFacts) { f.unready(corev1.ConditionUnknown, "NodeStatusUnknown"); f.pause("node/node-1") },
			saidCase{
				NotReady, "Node node-1 is not ready: its kubelet is stopped by a signal.",
				[]Fact{{Lab, "node/node-1 (pid 4711) is stopped by a signal"}}, []string{"kill -CONT 4711"},
			},
		},
		"says Ready, and its kubelet is paused": {
			func(f *NodeFacts) {
				f.Lease.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(-time.Minute)))
				f.pause("node/node-1", componentKCM)
			},
			saidCase{NotReady, "Node node-1 still says Ready, and its kubelet is stopped by a signal; nobody marks it, as kube-controller-manager is stopped by a signal.",
				nil, []string{"kill -CONT 4711", "lab logs node-node-1 --tail 30"}},
		},
		"tainted: the CCM is paused": {
			func(f *NodeFacts) { tainted(f); f.pause(componentCCM) },
			saidCase{
				NotReady, "Node node-1 is not initialised: the cloud controller manager is stopped by a signal.", nil,
				[]string{"kill -CONT 4711"},
			},
		},
		"tainted: the cloud is paused": {
			func(f *NodeFacts) { tainted(f); f.pause(componentCloud); f.CloudError = "no answer in time" },
			saidCase{
				NotReady, "Node node-1 is not initialised: the cloud is stopped by a signal.",
				[]Fact{{Lab, "fakecloud (pid 4711) is stopped by a signal"}}, []string{"kill -CONT 4711"},
			},
		},
		"the API server is paused": {
			func(f *NodeFacts) { absent(f); f.ClusterError = "no answer in time"; f.pause(componentAPIServer) },
			saidCase{
				Unknown, "Node node-1 cannot be explained: the control plane is stopped by a signal.",
				[]Fact{{Lab, "kube-apiserver (pid 4711) is stopped by a signal"}}, []string{"kill -CONT 4711"},
			},
		},
		"tainted: a cloud that refused long ago is not why": {
			func(f *NodeFacts) { tainted(f); f.Events = []corev1.Event{before(8*time.Minute, "CloudAccessDenied")} },
			saidCase{
				NotReady, "Node node-1 is not initialised: the CCM has not got to it yet.", nil,
				[]string{"lab logs ccm --tail 30"},
			},
		},
		"tainted: what is about the Node is said once, and holds": {
			func(f *NodeFacts) {
				tainted(f)
				f.Events = []corev1.Event{before(8*time.Minute, "ProvidedNodeIPMismatch")}
			},
			saidCase{
				NotReady, "Node node-1 is not initialised: the CCM says why: ProvidedNodeIPMismatch.", nil,
				[]string{"lab logs ccm --tail 30"},
			},
		},
		"crashed, and no CCM": {
			func(f *NodeFacts) {
				tainted(f)
				f.ccmOff()
				f.state(api.InstanceError)
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			},
			saidCase{
				NotReady, "Node node-1 is not ready: its instance is in error.", nil,
				[]string{"fakecloud instances start i-1", "lab ccm start"},
			},
		},
		"the kubelet says no": {
			func(f *NodeFacts) { f.unready(corev1.ConditionFalse, "KubeletNotReady") },
			saidCase{
				NotReady, "Node node-1 is not ready: its kubelet says KubeletNotReady.",
				[]Fact{{Cluster, "condition Ready is False for 9s: the kubelet's words (KubeletNotReady)"}},
				[]string{"lab logs node-node-1 --tail 30"},
			},
		},
		"no pod range": {
			func(f *NodeFacts) { f.unready(corev1.ConditionFalse, "KubeletNotReady"); f.Node.Spec.PodCIDR = "" },
			saidCase{
				NotReady, "Node node-1 is not ready: it has no range of pod addresses, so its network is not set up.",
				nil, []string{"lab logs kube-controller-manager --tail 30"},
			},
		},
		"no pod range, as nobody gives any": {
			func(f *NodeFacts) {
				f.unready(corev1.ConditionFalse, "KubeletNotReady")
				f.Node.Spec.PodCIDR = ""
				f.stop(componentKCM)
			},
			saidCase{
				NotReady, "Node node-1 is not ready: it has no range of pod addresses, so its network is not set up.",
				[]Fact{{Lab, "kube-controller-manager does not run"}}, []string{"lab up"},
			},
		},
		"says Ready, and its kubelet is silent": {
			func(f *NodeFacts) {
				f.Lease.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(-time.Minute)))
				f.stop(componentKCM)
			},
			saidCase{NotReady, "Node node-1 still says Ready, and its kubelet is silent; nobody marks it, as kube-controller-manager does not run.",
				[]Fact{{Cluster, "its kubelet's lease, which lasts 4 s, was renewed 1m0s ago"}},
				[]string{"lab up", "lab logs node-node-1 --tail 30"}},
		},
		"what is down comes back as it was, without the CCM": {
			func(f *NodeFacts) {
				f.ccmOff()
				f.end("node/node-1")
				f.stop(componentAgent)
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			},
			saidCase{
				NotReady,
				"Node node-1 is not ready: its machine has ended, and the lab's agent, which would boot it again, does not run.",
				nil, []string{"lab up --without-ccm"},
			},
		},
		"no route": {
			func(f *NodeFacts) {
				f.Node.Status.Conditions = append(f.Node.Status.Conditions, corev1.NodeCondition{
					Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "NoRouteCreated",
					Message: "no route",
				})
				f.Events = []corev1.Event{event("fakecloud-ccm", "RouteConflict", "taken")}
			},
			saidCase{
				NotReady, "Node node-1 has no way for its pods: a route to them is missing.",
				[]Fact{{CCM, "event RouteConflict, 3s ago: taken"}}, []string{"fakecloud routes list"},
			},
		},
		"cordoned": {
			func(f *NodeFacts) { f.Node.Spec.Unschedulable = true },
			saidCase{
				Degraded, "Node node-1 is cordoned: no new pod is scheduled on it.", nil,
				[]string{"kubectl uncordon node-1"},
			},
		},
		"of another cloud": {
			func(f *NodeFacts) {
				f.Node.Spec.ProviderID, f.Instance = "kind://docker/a/b", nil
				f.taint("node.cloudprovider.kubernetes.io/uninitialized")
			},
			saidCase{
				NotReady, "Node node-1 is of another cloud, by its provider ID, so the CCM leaves it alone.",
				[]Fact{{Cluster, "its provider ID is kind://docker/a/b"}}, []string{"kubectl delete node node-1"},
			},
		},
		"initialised by another CCM": {
			func(f *NodeFacts) { f.OtherCCM, f.Node.Spec.ProviderID = "/bin/nebula-ccm", "nebula:///a/i-1" },
			saidCase{
				Ready, "Node node-1 is ready.", []Fact{{Cloud, "instance i-1 (node-1, nebula-1a) is running"}}, nil,
			},
		},
		"another CCM whose IDs nobody else can read": {
			func(f *NodeFacts) {
				f.OtherCCM, f.Node.Spec.ProviderID, f.Instance = "/bin/nebula-ccm", "nebula://42", nil
			},
			saidCase{
				Ready, "Node node-1 is ready.", []Fact{{Cloud, "instance i-1 (node-1, nebula-1a) is running"}}, nil,
			},
		},
		"another CCM, and no instance": {
			func(f *NodeFacts) {
				f.OtherCCM, f.Node.Spec.ProviderID, f.Instance, f.Named = "/bin/nebula-ccm", "nebula://42", nil, nil
			},
			saidCase{
				Degraded, "Node node-1 has no instance that the lab can tell: the cloud has none of its name that lives, " +
					"and its provider ID has none's ID.",
				[]Fact{{Cluster, "its provider ID is nebula://42"}, {Lab, "the CCM is /bin/nebula-ccm"}},
				[]string{"lab logs ccm --tail 30"},
			},
		},
		"another CCM that has not got to it": {
			func(f *NodeFacts) {
				tainted(f)
				f.OtherCCM, f.Node.Spec.ProviderID = "/bin/nebula-ccm", "nebula://42"
			},
			saidCase{
				NotReady, "Node node-1 is not initialised: the CCM has not got to it yet.",
				[]Fact{{Cluster, uninitialized}}, []string{"lab logs ccm --tail 30"},
			},
		},
		"the CCM is locked out": {
			func(f *NodeFacts) { f.CCMRefusal = "it does not accept the token in ccm.token" },
			saidCase{
				Degraded, "Node node-1 is as the CCM left it, and the CCM does not follow it any more: " +
					"the cloud refuses the CCM's token.",
				[]Fact{{Cloud, "it does not accept the token in ccm.token"}},
				[]string{"lab logs ccm --tail 30", "lab down --keep-state", "lab up"},
			},
		},
		"the CCM is locked out, and the Node waits": {
			func(f *NodeFacts) { tainted(f); f.CCMRefusal = "it does not accept the token in ccm.token" },
			saidCase{
				NotReady, "Node node-1 is not initialised: the cloud refuses the CCM's token.",
				[]Fact{{Cloud, "it does not accept the token in ccm.token"}, {Cluster, uninitialized}},
				[]string{"lab logs ccm --tail 30", "lab down --keep-state", "lab up"},
			},
		},
		"lingers: no CCM": {
			func(f *NodeFacts) { f.state(api.InstanceTerminated); f.ccmOff() },
			saidCase{NotReady, "Node node-1 lingers: its instance is gone, and no cloud controller manager runs that would delete it.",
				[]Fact{{Cloud, "instance i-1 (node-1, nebula-1a) is terminated"}}, []string{"lab ccm start"}},
		},
		"lingers: the guard holds it": {
			func(f *NodeFacts) {
				f.state(api.InstanceTerminated)
				f.Events = []corev1.Event{event("fakecloud-ccm", "MassDeletionHeld", "6 found gone")}
			},
			saidCase{
				NotReady,
				"Node node-1 lingers: its instance is gone, and the CCM's mass-deletion guard holds it back, as too many went at once.",
				[]Fact{{CCM, "event MassDeletionHeld"}}, nil,
			},
		},
		"lingers: doubt": {
			func(f *NodeFacts) {
				f.state(api.InstanceTerminated)
				f.Faults = []api.Fault{fault(500, api.FaultMatch{Operations: []string{"getInstance"}, Resource: "i-1"})}
			},
			saidCase{NotReady, "Node node-1 lingers: its instance is gone, and the CCM, which deletes a Node on the cloud's definite word only, is in doubt: the cloud answers the CCM wrongly, by a fault rule.",
				nil, []string{"fakecloud faults delete f-1"}},
		},
		"lingers: another project": {
			func(f *NodeFacts) {
				f.Instance, f.Named = nil, nil
				f.Events = []corev1.Event{event("fakecloud-ccm", "WrongProject", "p-2")}
			},
			saidCase{NotReady, "Node node-1 lingers: its instance is gone for this project, and the CCM's token is of another one.",
				[]Fact{{Cloud, "the project has no instance of that ID"}, {CCM, "event WrongProject"}},
				[]string{"lab logs ccm --tail 30"}},
		},
		"lingers, with a new instance of its name": {
			func(f *NodeFacts) {
				f.state(api.InstanceTerminated)
				f.Named = append(f.Named, instance("i-2", api.InstanceRunning))
			},
			saidCase{NotReady, "Node node-1 lingers: its instance is gone.", []Fact{
				{Cloud, "instance i-2 (node-1, nebula-1a) is running: another one of the same name"},
				{Lab, "the CCM runs"},
			}, []string{"lab logs ccm --tail 30"}},
		},
		"a cloud that does not answer proves nothing": {
			func(f *NodeFacts) { f.Instance, f.Named, f.CloudError = nil, nil, "503" },
			saidCase{
				Degraded,
				"Node node-1 is Ready by the cluster's word; of its instance nothing is known, as the cloud does not answer.",
				[]Fact{{Cloud, "503"}}, []string{"lab logs fakecloud --tail 30"},
			},
		},
		"absent: pending": {
			func(f *NodeFacts) {
				f.state(api.InstancePending)
				absent(f)
				f.Faults = []api.Fault{{ID: "f-1", Effect: api.FaultEffect{Stuck: true}}}
			},
			saidCase{
				NotReady, "Node node-1 does not exist yet: its instance is still being built.",
				[]Fact{{Cloud, "fault f-1 keeps resources in states"}}, []string{"fakecloud faults delete f-1"},
			},
		},
		"absent: stopped": {
			func(f *NodeFacts) { f.state(api.InstanceStopped); absent(f) },
			saidCase{
				NotReady, "Node node-1 does not exist: its instance is stopped, so no machine runs.", nil,
				[]string{"fakecloud instances start i-1"},
			},
		},
		"absent: no machine, as asked": {
			func(f *NodeFacts) { absent(f); f.Named[0].Tags[contract.TagMachine] = contract.NoMachine },
			saidCase{
				NotReady, "Node node-1 does not exist, as asked: no machine boots for its instance.",
				[]Fact{{Cloud, "the instance has the tag ccmlab-machine=none"}}, nil,
			},
		},
		"absent: not this cluster's": {
			func(f *NodeFacts) { absent(f); f.Named[0].Tags = api.Tags{"a": "b"} },
			saidCase{
				NotReady, "Node node-1 does not exist: its instance is not this cluster's.", nil,
				[]string{"fakecloud instances update i-1 --tag a=b --tag kubernetes-cluster=lab"},
			},
		},
		"absent: no agent": {
			func(f *NodeFacts) { absent(f); f.end("node/node-1"); f.stop(componentAgent) },
			saidCase{
				NotReady, "Node node-1 does not exist yet: the lab's agent, which boots machines, does not run.", nil,
				[]string{"lab up"},
			},
		},
		"absent: booting": {
			func(f *NodeFacts) { absent(f); f.end("node/node-1") },
			saidCase{
				NotReady, "Node node-1 does not exist yet: its machine has not booted.", nil,
				[]string{"lab logs lab-agent --tail 20"},
			},
		},
		"absent: booted, not registered": {
			func(f *NodeFacts) { absent(f); f.began(3 * time.Second); f.Removed = now.Add(-time.Minute) },
			saidCase{
				NotReady, "Node node-1 does not exist yet: its machine runs, and its kubelet has not registered it.",
				[]Fact{{Lab, "the machine's process runs (pid 4711)"}}, []string{"lab logs node-node-1 --tail 30"},
			},
		},
		"absent: its Node was deleted": {
			func(f *NodeFacts) { absent(f); f.began(12 * time.Second); f.Removed = now.Add(-10 * time.Second) },
			saidCase{NotReady, "Node node-1 does not exist: its Node was deleted, and a kubelet that runs does not register again.",
				[]Fact{{Cluster, "the Node was deleted 10s ago"}},
				[]string{"fakecloud instances reboot node-1", "lab logs node-node-1 --tail 30"}},
		},
		"absent: booted long ago": {
			func(f *NodeFacts) { absent(f); f.began(time.Minute) },
			saidCase{NotReady, "Node node-1 does not exist, though its kubelet has run for 1m0s: if its Node was deleted, it does not register again.",
				nil, []string{"fakecloud instances reboot node-1", "lab logs node-node-1 --tail 30"}},
		},
		"absent: its process is paused": {
			func(f *NodeFacts) { absent(f); f.pause("node/node-1") },
			saidCase{
				NotReady, "Node node-1 does not exist: its machine's process is stopped by a signal.", nil,
				[]string{"kill -CONT 4711"},
			},
		},
		"absent: terminated": {
			func(f *NodeFacts) { f.state(api.InstanceTerminated); absent(f) },
			saidCase{
				NotReady, "Node node-1 does not exist any more: its instance was terminated.", nil,
				[]string{"fakecloud instances create node-1"},
			},
		},
		"absent: a slip of the pen": {
			func(f *NodeFacts) {
				absent(f)
				f.Name, f.Named, f.Nodes = "nod-1", nil, []string{"node-1", "node-2", "control-plane"}
			},
			saidCase{
				NotReady, "Node nod-1 does not exist, and no instance has that name.", nil,
				[]string{"lab explain node/node-1", "lab explain node/node-2", "lab explain node"},
			},
		},
		"absent: an instance's ID": {
			func(f *NodeFacts) { absent(f); f.Name, f.Named = "i-1", nil },
			saidCase{
				NotReady, "Node i-1 does not exist; that is the ID of an instance.", nil,
				[]string{"lab explain node/node-1"},
			},
		},
		"absent, and the cloud does not answer": {
			func(f *NodeFacts) {
				absent(f)
				f.Named, f.CloudError, f.Faults = nil, "503", []api.Fault{fault(503, api.FaultMatch{})}
			},
			saidCase{Unknown, "Node node-1 does not exist, and whether there is an instance of that name cannot be said: the cloud does not answer.",
				[]Fact{{Cloud, "fault f-1: calls are answered 503"}}, []string{"fakecloud faults delete f-1"}},
		},
		"the API server is down": {
			func(f *NodeFacts) { absent(f); f.ClusterError = "refused"; f.stop(componentAPIServer) },
			saidCase{Unknown, "Node node-1 cannot be explained: the control plane does not run.",
				[]Fact{
					{Cluster, "refused"}, {Lab, "kube-apiserver does not run"},
					{Cloud, "instance i-1 (node-1, nebula-1a) is running"},
				}, []string{"lab up"}},
		},
		"somebody else's API server does not answer": {
			func(f *NodeFacts) { absent(f); f.ClusterError, f.Components = "no answer in time", f.Components[:1] },
			saidCase{
				Unknown, "Node node-1 cannot be explained: the API server does not answer.", nil,
				[]string{"lab status"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := wellNode()
			c.given(&f)
			c.want.check(t, Node(f))
		})
	}
}

// Whatever is missing, an answer comes, and it is whole.
func TestNodesOfWhichLittleIsKnown(t *testing.T) {
	for name, f := range map[string]NodeFacts{
		"nothing":      {Name: "n"},
		"no condition": {Name: "n", Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}},
	} {
		t.Run(name, func(t *testing.T) {
			x := Node(f)
			assert.Equal(t, NotReady, x.State)
			assert.NotNil(t, x.Because)
			assert.NotEmpty(t, x.Next)
		})
	}
}
