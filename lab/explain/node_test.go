package explain

import (
	"slices"
	"strings"
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

// explainCase is a situation, and what its explanation must say.
type explainCase[Facts any] struct {
	given   func(*Facts)
	state   State
	verdict string // without its subject
	next    string // the commands, one a line
	because []Fact // each is among the facts, or begins one
}

func (want explainCase[Facts]) check(t *testing.T, subject string, got Explanation) {
	t.Helper()
	assert.Equal(t, want.state, got.State)
	assert.Equal(t, subject+" "+want.verdict, got.Verdict)
	for _, w := range want.because {
		assert.True(t, slices.ContainsFunc(got.Because, func(f Fact) bool {
			return f.Where == w.Where && strings.HasPrefix(f.What, w.What)
		}), "no fact %q in %q", w, got.Because)
	}
	var commands []string
	for _, s := range got.Next {
		require.NotEmpty(t, s.Do)
		if s.Command != "" {
			commands = append(commands, s.Command)
		}
	}
	assert.Equal(t, want.next, strings.Join(commands, "\n"))
}

const uninitialized = "it has the taint node.cloudprovider.kubernetes.io/uninitialized since its kubelet registered it 1m0s ago"

func TestNodes(t *testing.T) {
	for name, c := range map[string]explainCase[NodeFacts]{
		"all well": {
			func(*NodeFacts) {},
			Ready, "is ready.", "", []Fact{
				{Cluster, "InternalIP 127.30.16.1, zone nebula-1a"},
				{Cloud, "instance i-1 (node-1, nebula-1a) is running"},
			},
		},
		"well, with the CCM off": {
			func(f *NodeFacts) { f.ccmOff() },
			Ready, "is ready.", "", []Fact{{Lab, "the CCM is stopped, as it was asked to be"}},
		},
		"tainted: no CCM runs": {
			func(f *NodeFacts) { tainted(f); f.ccmOff() },
			NotReady, "is not initialised: no cloud controller manager runs.", "lab ccm start",
			[]Fact{{Cluster, uninitialized}, {Lab, "the CCM is stopped, as it was asked to be"}},
		},
		"tainted: no CCM runs, in a lab of another name": {
			func(f *NodeFacts) { tainted(f); f.ccmOff(); f.LabName = "two" },
			NotReady, "is not initialised: no cloud controller manager runs.", "lab ccm start --name two", nil,
		},
		"tainted: the CCM has ended": {
			func(f *NodeFacts) { tainted(f); f.stop(componentCCM) },
			NotReady, "is not initialised: the cloud controller manager does not run, though it should.",
			"lab logs ccm --tail 30", nil,
		},
		"tainted: the CCM and its keeper have ended": {
			func(f *NodeFacts) { tainted(f); f.stop(componentCCM, componentAgent) },
			NotReady, "is not initialised: the cloud controller manager does not run, though it should.", "lab up",
			[]Fact{{Lab, "lab-agent does not run"}},
		},
		"tainted: the cloud is down": {
			func(f *NodeFacts) {
				tainted(f)
				f.stop(componentCloud)
				f.CloudError, f.Named = "connection refused", nil
			},
			NotReady, "is not initialised: the cloud does not run.", "lab up",
			[]Fact{{Lab, "fakecloud does not run"}, {Cloud, "connection refused"}},
		},
		"tainted: a fault": {
			func(f *NodeFacts) {
				tainted(f)
				f.Faults = []api.Fault{fault(503, api.FaultMatch{Token: "ccm"})}
				f.Calls = []api.AuditEntry{call("listInstances", 503, "unavailable", 2*time.Second)}
			},
			NotReady, "is not initialised: the cloud answers the CCM wrongly, by a fault rule.",
			"fakecloud faults delete f-1", []Fact{
				{Cloud, "fault f-1: calls are answered 503 Service Unavailable, applied to 3 calls so far"},
				{Cloud, "the CCM's latest call of listInstances, 2s ago: 503 unavailable"},
			},
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
			NotReady, "is not initialised: the CCM has not got to it yet.", "lab logs ccm --tail 30",
			[]Fact{{Lab, "the CCM runs"}},
		},
		"tainted: throttled": {
			func(f *NodeFacts) {
				tainted(f)
				f.Calls = []api.AuditEntry{
					call("listInstances", 429, "rate-limited", time.Second),
					call("listInstances", 200, "", 2*time.Second),
				}
			},
			NotReady, "is not initialised: the cloud throttles the CCM.",
			"fakecloud audit list --token ccm --status 4xx",
			[]Fact{{Cloud, "the CCM's latest call of listInstances, 1s ago: 429 rate-limited"}},
		},
		"tainted: refused": {
			func(f *NodeFacts) {
				tainted(f)
				f.Calls = []api.AuditEntry{call("listInstances", 403, "forbidden", time.Second)}
			},
			NotReady, "is not initialised: the cloud refuses the CCM's token.",
			"fakecloud audit list --token ccm --status 4xx", nil,
		},
		"tainted: calls broken off": {
			func(f *NodeFacts) { tainted(f); f.Calls = []api.AuditEntry{call("getInstance", 0, "", time.Second)} },
			NotReady, "is not initialised: the cloud does not answer the CCM as it should.",
			"fakecloud audit list --token ccm --status none",
			[]Fact{{Cloud, "the CCM's latest call of getInstance, 1s ago: no answer: it was broken off"}},
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
			NotReady, "is not initialised: the CCM has not got to it yet.", "lab logs ccm --tail 30", nil,
		},
		"tainted: 401, which no audit shows": {
			func(f *NodeFacts) {
				tainted(f)
				f.Events = []corev1.Event{
					event("fakecloud-ccm", "CloudAccessDenied", "Node stays uninitialized: no such token"),
				}
			},
			NotReady, "is not initialised: the cloud refuses the CCM's token.", "lab logs ccm --tail 30",
			[]Fact{{CCM, "event CloudAccessDenied, 3s ago: Node stays uninitialized: no such token"}},
		},
		"tainted: no instance of that name": {
			func(f *NodeFacts) {
				tainted(f)
				f.Named = nil
				f.Events = []corev1.Event{event("fakecloud-ccm", "InstanceNotFound", "no instance")}
			},
			NotReady, "is not initialised: the cloud has no instance of its name.",
			"fakecloud instances create node-1\nkubectl delete node node-1",
			[]Fact{{Cloud, "no instance is called node-1"}, {CCM, "event InstanceNotFound, 3s ago: no instance"}},
		},
		"tainted: only an ended instance has that name": {
			func(f *NodeFacts) { tainted(f); f.state(api.InstanceTerminated) },
			NotReady, "is not initialised: the cloud has no instance of its name.",
			"fakecloud instances create node-1\nkubectl delete node node-1",
			[]Fact{{Cloud, "instance i-1 (node-1, nebula-1a) is terminated"}},
		},
		"tainted: two instances of that name": {
			func(f *NodeFacts) { tainted(f); f.Named = append(f.Named, instance("i-2", api.InstanceStopped)) },
			NotReady, "is not initialised: 2 instances have its name, and the CCM cannot tell which is its own.",
			"fakecloud instances list", []Fact{{Cloud, "instance i-1"}, {Cloud, "instance i-2"}},
		},
		"tainted: the instance is pending": {
			func(f *NodeFacts) { tainted(f); f.state(api.InstancePending) },
			NotReady, "is not initialised: its instance is still pending.", "",
			[]Fact{{Cloud, "instance i-1 (node-1, nebula-1a) is pending"}},
		},
		"tainted: the CCM says why": {
			func(f *NodeFacts) {
				tainted(f)
				f.Events = []corev1.Event{
					event("fakecloud-ccm", "ProvidedNodeIPMismatch", "no such address"),
					event("kubelet", "Rebooted", ""),
				}
			},
			NotReady, "is not initialised: the CCM says why: ProvidedNodeIPMismatch.", "lab logs ccm --tail 30",
			[]Fact{{CCM, "event ProvidedNodeIPMismatch"}},
		},
		"stopped, not noticed yet": {
			func(f *NodeFacts) { f.state(api.InstanceStopped) },
			NotReady, "is still Ready in the cluster, and its instance is stopped.", "fakecloud instances start i-1",
			[]Fact{{Cloud, "instance i-1 (node-1, nebula-1a) is stopped"}},
		},
		"stopped": {
			func(f *NodeFacts) {
				f.state(api.InstanceStopped)
				f.end("node/node-1")
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
				f.taint("node.cloudprovider.kubernetes.io/shutdown")
			},
			NotReady, "is not ready: its instance is stopped.", "fakecloud instances start i-1", []Fact{
				{Cloud, "instance i-1 (node-1, nebula-1a) is stopped"},
				{Cluster, "condition Ready is Unknown for 9s: the kubelet's words (NodeStatusUnknown)"},
				{Cluster, "its kubelet's lease, which lasts 4 s, was renewed 17s ago"},
				{Cluster, "it has the taint node.cloudprovider.kubernetes.io/shutdown"},
			},
		},
		"stopping": {
			func(f *NodeFacts) {
				f.state(api.InstanceStopping)
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			},
			NotReady, "is not ready: its instance is stopping.", "fakecloud instances start i-1", nil,
		},
		"terminating": {
			func(f *NodeFacts) {
				f.state(api.InstanceTerminating)
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			},
			NotReady, "is not ready: its instance is terminating.", "", nil,
		},
		"crashed by a fault": {
			func(f *NodeFacts) {
				f.state(api.InstanceError)
				f.Instance.StateReason = new("crashed")
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
				f.Faults = []api.Fault{{ID: "f-1", Effect: api.FaultEffect{Crash: true}}}
			},
			NotReady, "is not ready: its instance is in error.",
			"fakecloud instances start i-1\nfakecloud faults delete f-1", []Fact{
				{Cloud, "instance i-1 (node-1, nebula-1a) is in error: crashed"},
				{Cloud, "fault f-1 crashes instances"},
			},
		},
		"shutdown taint, though it runs": {
			func(f *NodeFacts) { f.taint("node.cloudprovider.kubernetes.io/shutdown"); f.ccmOff() },
			NotReady,
			"has the taint of a machine that is shut down, though its instance runs again: the CCM, which would lift it, does not run.",
			"lab ccm start", nil,
		},
		"shutdown taint, about to be lifted": {
			func(f *NodeFacts) { f.taint("node.cloudprovider.kubernetes.io/shutdown") },
			NotReady, "has the taint of a machine that is shut down, though its instance runs again.", "", nil,
		},
		"the kubelet has ended": {
			func(f *NodeFacts) { f.end("node/node-1"); f.unready(corev1.ConditionUnknown, "NodeStatusUnknown") },
			NotReady, "is not ready: its machine has ended.", "lab logs node-node-1 --tail 30",
			[]Fact{{Lab, "no process of node/node-1 runs"}},
		},
		"the kubelet has ended, and nobody boots it": {
			func(f *NodeFacts) {
				f.end("node/node-1")
				f.stop(componentAgent)
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			},
			NotReady,
			"is not ready: its machine has ended, and the lab's agent, which would boot it again, does not run.",
			"lab up", nil,
		},
		"the kubelet hangs": {
			func(f *NodeFacts) { f.unready(corev1.ConditionUnknown, "NodeStatusUnknown") },
			NotReady, "is not ready: its kubelet runs and hangs.",
			"fakecloud instances reboot node-1\nlab logs node-node-1 --tail 30",
			[]Fact{{Lab, "its machine's process runs (pid 4711)"}},
		},
		"booting": {
			func(f *NodeFacts) { f.unready(corev1.ConditionUnknown, "NodeStatusUnknown"); f.began(3 * time.Second) },
			NotReady, "is not ready: its machine is booting.", "lab logs node-node-1 --tail 30", nil,
		},
		"the kubelet is back": {
			func(f *NodeFacts) {
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
				f.Lease.Spec.RenewTime = new(metav1.NewMicroTime(now))
			},
			NotReady, "is not ready: its kubelet is back, and has not said yet that it is.",
			"lab logs node-node-1 --tail 30", nil,
		},
		"the kubelet is paused": {
			func(f *NodeFacts) { f.unready(corev1.ConditionUnknown, "NodeStatusUnknown"); f.pause("node/node-1") },
			NotReady, "is not ready: its kubelet is stopped by a signal.", "kill -CONT 4711",
			[]Fact{{Lab, "node/node-1 (pid 4711) is stopped by a signal"}},
		},
		"says Ready, and its kubelet is paused": {
			func(f *NodeFacts) {
				f.Lease.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(-time.Minute)))
				f.pause("node/node-1", componentKCM)
			},
			NotReady,
			"still says Ready, and its kubelet is stopped by a signal; nobody marks it, as kube-controller-manager is stopped by a signal.",
			"kill -CONT 4711\nlab logs node-node-1 --tail 30", nil,
		},
		"tainted: the CCM is paused": {
			func(f *NodeFacts) { tainted(f); f.pause(componentCCM) },
			NotReady, "is not initialised: the cloud controller manager is stopped by a signal.", "kill -CONT 4711",
			nil,
		},
		"tainted: the cloud is paused": {
			func(f *NodeFacts) { tainted(f); f.pause(componentCloud); f.CloudError = "no answer in time" },
			NotReady, "is not initialised: the cloud is stopped by a signal.", "kill -CONT 4711",
			[]Fact{{Lab, "fakecloud (pid 4711) is stopped by a signal"}},
		},
		"the API server is paused": {
			func(f *NodeFacts) { absent(f); f.ClusterError = "no answer in time"; f.pause(componentAPIServer) },
			Unknown, "cannot be explained: the control plane is stopped by a signal.", "kill -CONT 4711",
			[]Fact{{Lab, "kube-apiserver (pid 4711) is stopped by a signal"}},
		},
		"tainted: a cloud that refused long ago is not why": {
			func(f *NodeFacts) { tainted(f); f.Events = []corev1.Event{before(8*time.Minute, "CloudAccessDenied")} },
			NotReady, "is not initialised: the CCM has not got to it yet.", "lab logs ccm --tail 30", nil,
		},
		"tainted: what is about the Node is said once, and holds": {
			func(f *NodeFacts) {
				tainted(f)
				f.Events = []corev1.Event{before(8*time.Minute, "ProvidedNodeIPMismatch")}
			},
			NotReady, "is not initialised: the CCM says why: ProvidedNodeIPMismatch.", "lab logs ccm --tail 30", nil,
		},
		"crashed, and no CCM": {
			func(f *NodeFacts) {
				tainted(f)
				f.ccmOff()
				f.state(api.InstanceError)
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			},
			NotReady, "is not ready: its instance is in error.", "fakecloud instances start i-1\nlab ccm start", nil,
		},
		"the kubelet says no": {
			func(f *NodeFacts) { f.unready(corev1.ConditionFalse, "KubeletNotReady") },
			NotReady, "is not ready: its kubelet says KubeletNotReady.", "lab logs node-node-1 --tail 30",
			[]Fact{{Cluster, "condition Ready is False for 9s: the kubelet's words (KubeletNotReady)"}},
		},
		"no pod range": {
			func(f *NodeFacts) { f.unready(corev1.ConditionFalse, "KubeletNotReady"); f.Node.Spec.PodCIDR = "" },
			NotReady, "is not ready: it has no range of pod addresses, so its network is not set up.",
			"lab logs kube-controller-manager --tail 30", nil,
		},
		"no pod range, as nobody gives any": {
			func(f *NodeFacts) {
				f.unready(corev1.ConditionFalse, "KubeletNotReady")
				f.Node.Spec.PodCIDR = ""
				f.stop(componentKCM)
			},
			NotReady, "is not ready: it has no range of pod addresses, so its network is not set up.", "lab up",
			[]Fact{{Lab, "kube-controller-manager does not run"}},
		},
		"says Ready, and its kubelet is silent": {
			func(f *NodeFacts) {
				f.Lease.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(-time.Minute)))
				f.stop(componentKCM)
			},
			NotReady,
			"still says Ready, and its kubelet is silent; nobody marks it, as kube-controller-manager does not run.",
			"lab up\nlab logs node-node-1 --tail 30",
			[]Fact{{Cluster, "its kubelet's lease, which lasts 4 s, was renewed 1m0s ago"}},
		},
		"what is down comes back as it was, without the CCM": {
			func(f *NodeFacts) {
				f.ccmOff()
				f.end("node/node-1")
				f.stop(componentAgent)
				f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			},
			NotReady,
			"is not ready: its machine has ended, and the lab's agent, which would boot it again, does not run.",
			"lab up --without-ccm", nil,
		},
		"no route": {
			func(f *NodeFacts) {
				f.Node.Status.Conditions = append(f.Node.Status.Conditions, corev1.NodeCondition{
					Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "NoRouteCreated",
					Message: "no route",
				})
				f.Events = []corev1.Event{event("fakecloud-ccm", "RouteConflict", "taken")}
			},
			NotReady, "has no way for its pods: a route to them is missing.", "fakecloud routes list",
			[]Fact{{CCM, "event RouteConflict, 3s ago: taken"}},
		},
		"cordoned": {
			func(f *NodeFacts) { f.Node.Spec.Unschedulable = true },
			Degraded, "is cordoned: no new pod is scheduled on it.", "kubectl uncordon node-1", nil,
		},
		"of another cloud": {
			func(f *NodeFacts) {
				f.Node.Spec.ProviderID, f.Instance = "kind://docker/a/b", nil
				f.taint("node.cloudprovider.kubernetes.io/uninitialized")
			},
			NotReady, "is of another cloud, by its provider ID, so the CCM leaves it alone.",
			"kubectl delete node node-1", []Fact{{Cluster, "its provider ID is kind://docker/a/b"}},
		},
		"initialised by another CCM": {
			func(f *NodeFacts) { f.OtherCCM, f.Node.Spec.ProviderID = "/bin/nebula-ccm", "nebula:///a/i-1" },
			Ready, "is ready.", "", []Fact{{Cloud, "instance i-1 (node-1, nebula-1a) is running"}},
		},
		"another CCM whose IDs nobody else can read": {
			func(f *NodeFacts) {
				f.OtherCCM, f.Node.Spec.ProviderID, f.Instance = "/bin/nebula-ccm", "nebula://42", nil
			},
			Ready, "is ready.", "", []Fact{{Cloud, "instance i-1 (node-1, nebula-1a) is running"}},
		},
		"another CCM, and no instance": {
			func(f *NodeFacts) {
				f.OtherCCM, f.Node.Spec.ProviderID, f.Instance, f.Named = "/bin/nebula-ccm", "nebula://42", nil, nil
			},
			Degraded,
			"has no instance that the lab can tell: the cloud has none of its name that lives, " +
				"and its provider ID has none's ID.",
			"lab logs ccm --tail 30",
			[]Fact{{Cluster, "its provider ID is nebula://42"}, {Lab, "the CCM is /bin/nebula-ccm"}},
		},
		"another CCM that has not got to it": {
			func(f *NodeFacts) { tainted(f); f.OtherCCM, f.Node.Spec.ProviderID = "/bin/nebula-ccm", "nebula://42" },
			NotReady, "is not initialised: the CCM has not got to it yet.", "lab logs ccm --tail 30",
			[]Fact{{Cluster, uninitialized}},
		},
		"the CCM is locked out": {
			func(f *NodeFacts) { f.CCMRefusal = "it does not accept the token in ccm.token" },
			Degraded,
			"is as the CCM left it, and the CCM does not follow it any more: the cloud refuses the CCM's token.",
			"lab logs ccm --tail 30\nlab down --keep-state\nlab up",
			[]Fact{{Cloud, "it does not accept the token in ccm.token"}},
		},
		"the CCM is locked out, and the Node waits": {
			func(f *NodeFacts) { tainted(f); f.CCMRefusal = "it does not accept the token in ccm.token" },
			NotReady, "is not initialised: the cloud refuses the CCM's token.",
			"lab logs ccm --tail 30\nlab down --keep-state\nlab up",
			[]Fact{{Cloud, "it does not accept the token in ccm.token"}, {Cluster, uninitialized}},
		},
		"lingers: no CCM": {
			func(f *NodeFacts) { f.state(api.InstanceTerminated); f.ccmOff() },
			NotReady, "lingers: its instance is gone, and no cloud controller manager runs that would delete it.",
			"lab ccm start", []Fact{{Cloud, "instance i-1 (node-1, nebula-1a) is terminated"}},
		},
		"lingers: the guard holds it": {
			func(f *NodeFacts) {
				f.state(api.InstanceTerminated)
				f.Events = []corev1.Event{event("fakecloud-ccm", "MassDeletionHeld", "6 found gone")}
			},
			NotReady,
			"lingers: its instance is gone, and the CCM's mass-deletion guard holds it back, as too many went at once.",
			"", []Fact{{CCM, "event MassDeletionHeld"}},
		},
		"lingers: doubt": {
			func(f *NodeFacts) {
				f.state(api.InstanceTerminated)
				f.Faults = []api.Fault{fault(500, api.FaultMatch{Operations: []string{"getInstance"}, Resource: "i-1"})}
			},
			NotReady,
			"lingers: its instance is gone, and the CCM, which deletes a Node on the cloud's definite word only, is in doubt: the cloud answers the CCM wrongly, by a fault rule.",
			"fakecloud faults delete f-1", nil,
		},
		"lingers: another project": {
			func(f *NodeFacts) {
				f.Instance, f.Named = nil, nil
				f.Events = []corev1.Event{event("fakecloud-ccm", "WrongProject", "p-2")}
			},
			NotReady, "lingers: its instance is gone for this project, and the CCM's token is of another one.",
			"lab logs ccm --tail 30",
			[]Fact{{Cloud, "the project has no instance of that ID"}, {CCM, "event WrongProject"}},
		},
		"lingers, with a new instance of its name": {
			func(f *NodeFacts) {
				f.state(api.InstanceTerminated)
				f.Named = append(f.Named, instance("i-2", api.InstanceRunning))
			},
			NotReady, "lingers: its instance is gone.", "lab logs ccm --tail 30", []Fact{
				{Cloud, "instance i-2 (node-1, nebula-1a) is running: another one of the same name"},
				{Lab, "the CCM runs"},
			},
		},
		"a cloud that does not answer proves nothing": {
			func(f *NodeFacts) { f.Instance, f.Named, f.CloudError = nil, nil, "503" },
			Degraded, "is Ready by the cluster's word; of its instance nothing is known, as the cloud does not answer.",
			"lab logs fakecloud --tail 30", []Fact{{Cloud, "503"}},
		},
		"absent: pending": {
			func(f *NodeFacts) {
				f.state(api.InstancePending)
				absent(f)
				f.Faults = []api.Fault{{ID: "f-1", Effect: api.FaultEffect{Stuck: true}}}
			},
			NotReady, "does not exist yet: its instance is still being built.", "fakecloud faults delete f-1",
			[]Fact{{Cloud, "fault f-1 keeps resources in states"}},
		},
		"absent: stopped": {
			func(f *NodeFacts) { f.state(api.InstanceStopped); absent(f) },
			NotReady, "does not exist: its instance is stopped, so no machine runs.", "fakecloud instances start i-1",
			nil,
		},
		"absent: no machine, as asked": {
			func(f *NodeFacts) { absent(f); f.Named[0].Tags[contract.TagMachine] = contract.NoMachine },
			NotReady, "does not exist, as asked: no machine boots for its instance.", "",
			[]Fact{{Cloud, "the instance has the tag ccmlab-machine=none"}},
		},
		"absent: not this cluster's": {
			func(f *NodeFacts) { absent(f); f.Named[0].Tags = api.Tags{"a": "b"} },
			NotReady, "does not exist: its instance is not this cluster's.",
			"fakecloud instances update i-1 --tag a=b --tag kubernetes-cluster=lab", nil,
		},
		"absent: no agent": {
			func(f *NodeFacts) { absent(f); f.end("node/node-1"); f.stop(componentAgent) },
			NotReady, "does not exist yet: the lab's agent, which boots machines, does not run.", "lab up", nil,
		},
		"absent: booting": {
			func(f *NodeFacts) { absent(f); f.end("node/node-1") },
			NotReady, "does not exist yet: its machine has not booted.", "lab logs lab-agent --tail 20", nil,
		},
		"absent: booted, not registered": {
			func(f *NodeFacts) { absent(f); f.began(3 * time.Second); f.Removed = now.Add(-time.Minute) },
			NotReady, "does not exist yet: its machine runs, and its kubelet has not registered it.",
			"lab logs node-node-1 --tail 30", []Fact{{Lab, "the machine's process runs (pid 4711)"}},
		},
		"absent: its Node was deleted": {
			func(f *NodeFacts) { absent(f); f.began(12 * time.Second); f.Removed = now.Add(-10 * time.Second) },
			NotReady, "does not exist: its Node was deleted, and a kubelet that runs does not register again.",
			"fakecloud instances reboot node-1\nlab logs node-node-1 --tail 30",
			[]Fact{{Cluster, "the Node was deleted 10s ago"}},
		},
		"absent: booted long ago": {
			func(f *NodeFacts) { absent(f); f.began(time.Minute) },
			NotReady,
			"does not exist, though its kubelet has run for 1m0s: if its Node was deleted, it does not register again.",
			"fakecloud instances reboot node-1\nlab logs node-node-1 --tail 30", nil,
		},
		"absent: its process is paused": {
			func(f *NodeFacts) { absent(f); f.pause("node/node-1") },
			NotReady, "does not exist: its machine's process is stopped by a signal.", "kill -CONT 4711", nil,
		},
		"absent: terminated": {
			func(f *NodeFacts) { f.state(api.InstanceTerminated); absent(f) },
			NotReady, "does not exist any more: its instance was terminated.", "fakecloud instances create node-1", nil,
		},
		"absent: a slip of the pen": {
			func(f *NodeFacts) {
				absent(f)
				f.Name, f.Named, f.Nodes = "nod-1", nil, []string{"node-1", "node-2", "control-plane"}
			},
			NotReady, "does not exist, and no instance has that name.",
			"lab explain node/node-1\nlab explain node/node-2\nlab explain node", nil,
		},
		"absent: an instance's ID": {
			func(f *NodeFacts) { absent(f); f.Name, f.Named = "i-1", nil },
			NotReady, "does not exist; that is the ID of an instance.", "lab explain node/node-1", nil,
		},
		"absent, and the cloud does not answer": {
			func(f *NodeFacts) {
				absent(f)
				f.Named, f.CloudError, f.Faults = nil, "503", []api.Fault{fault(503, api.FaultMatch{})}
			},
			Unknown,
			"does not exist, and whether there is an instance of that name cannot be said: the cloud does not answer.",
			"fakecloud faults delete f-1", []Fact{{Cloud, "fault f-1: calls are answered 503"}},
		},
		"the API server is down": {
			func(f *NodeFacts) { absent(f); f.ClusterError = "refused"; f.stop(componentAPIServer) },
			Unknown, "cannot be explained: the control plane does not run.", "lab up", []Fact{
				{Cluster, "refused"}, {Lab, "kube-apiserver does not run"},
				{Cloud, "instance i-1 (node-1, nebula-1a) is running"},
			},
		},
		"somebody else's API server does not answer": {
			func(f *NodeFacts) { absent(f); f.ClusterError, f.Components = "no answer in time", f.Components[:1] },
			Unknown, "cannot be explained: the API server does not answer.", "lab status", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := wellNode()
			c.given(&f)
			c.check(t, "Node "+f.Name, Node(f))
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
