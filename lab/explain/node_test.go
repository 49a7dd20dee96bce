package explain

import (
	"flag"
	"fmt"
	"maps"
	"os"
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
	return api.AuditEntry{Operation: operation, Status: status, Code: code, Time: now.Add(-before), Token: "ccm"}
}

var update = flag.Bool("update", false, "write testdata anew")

// explainEach explains a Node or Service of which all is well but for what each situation makes of it, and compares
// the explanations, whole, with those in the file.
func explainEach[Facts any](
	t *testing.T,
	file string,
	wellFacts func() Facts,
	explain func(Facts) Explanation,
	situations map[string]func(*Facts),
) {
	t.Helper()
	told := map[string]string{}
	for name, spoil := range situations {
		f := wellFacts()
		spoil(&f)
		x := explain(f)
		told[name] = fmt.Sprintf("%s: %s\n", x.State, x.Verdict)
		for _, because := range x.Because {
			told[name] += fmt.Sprintf("  %s: %s\n", because.Where, because.What)
		}
		for _, next := range x.Next {
			told[name] += strings.TrimSuffix(fmt.Sprintf("  next: %s: %s", next.Do, next.Command), ": ") + "\n"
		}
	}
	if *update {
		text := ""
		for _, name := range slices.Sorted(maps.Keys(told)) {
			text += "== " + name + "\n" + told[name]
		}
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	want := map[string]string{}
	for situation := range strings.SplitSeq(strings.TrimPrefix(string(text), "== "), "\n== ") {
		name, explanation, _ := strings.Cut(situation, "\n")
		want[name] = strings.TrimSuffix(explanation, "\n") + "\n"
	}
	for name := range told {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, want[name], told[name], "after a change that is meant: go test ./lab/explain -update")
		})
	}
	assert.Len(t, want, len(told))
}

func TestNodes(t *testing.T) {
	explainEach(t, "testdata/nodes.golden", wellNode, Node, map[string]func(*NodeFacts){
		"all well":               func(*NodeFacts) {},
		"well, with the CCM off": func(f *NodeFacts) { f.ccmOff() },
		"tainted: no CCM runs, in a lab of another name": func(f *NodeFacts) {
			tainted(f)
			f.ccmOff()
			f.LabName = "two"
		},
		"tainted: the CCM and its keeper have ended": func(f *NodeFacts) {
			tainted(f)
			f.stop(componentCCM, componentAgent)
		},
		"tainted: the cloud is down": func(f *NodeFacts) {
			tainted(f)
			f.stop(componentCloud)
			f.CloudError, f.Named = "connection refused", nil
		},
		"tainted: a fault": func(f *NodeFacts) {
			tainted(f)
			f.Faults = []api.Fault{fault(503, api.FaultMatch{Token: "ccm"})}
			f.Calls = []api.AuditEntry{call("listInstances", 503, "unavailable", 2*time.Second)}
		},
		"tainted: faults that are not its own": func(f *NodeFacts) {
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
		"tainted: throttled": func(f *NodeFacts) {
			tainted(f)
			f.Calls = []api.AuditEntry{
				call("listInstances", 429, "rate-limited", time.Second),
				call("listInstances", 200, "", 2*time.Second),
			}
		},
		"tainted: refused": func(f *NodeFacts) {
			tainted(f)
			f.Calls = []api.AuditEntry{call("listInstances", 403, "forbidden", time.Second)}
		},
		"tainted: calls broken off": func(f *NodeFacts) {
			tainted(f)
			f.Calls = []api.AuditEntry{call("getInstance", 0, "", time.Second)}
		},
		"tainted: calls that failed, and say nothing of now": func(f *NodeFacts) {
			tainted(f)
			f.Calls = []api.AuditEntry{
				call("listInstances", 200, "", time.Second), call("listInstances", 500, "internal", 2*time.Second),
				call("getInstance", 404, "not-found", time.Second), call(
					"getProject", 503, "unavailable", time.Hour,
				), call("createLoadBalancer", 503, "unavailable", time.Second),
			}
		},
		"tainted: 401, which no audit shows": func(f *NodeFacts) {
			tainted(f)
			f.Events = []corev1.Event{
				event("fakecloud-ccm", "CloudAccessDenied", "Node stays uninitialized: no such token"),
			}
		},
		"tainted: no instance of that name": func(f *NodeFacts) {
			tainted(f)
			f.Named = nil
			f.Events = []corev1.Event{event("fakecloud-ccm", "InstanceNotFound", "no instance")}
		},
		"tainted: two instances of that name": func(f *NodeFacts) {
			tainted(f)
			f.Named = append(f.Named, instance("i-2", api.InstanceStopped))
		},
		"tainted: the instance is pending": func(f *NodeFacts) { tainted(f); f.state(api.InstancePending) },
		"tainted: the CCM says why": func(f *NodeFacts) {
			tainted(f)
			f.Events = []corev1.Event{
				event("fakecloud-ccm", "ProvidedNodeIPMismatch", "no such address"),
				event("kubelet", "Rebooted", ""),
			}
		},
		"stopped, not noticed yet": func(f *NodeFacts) { f.state(api.InstanceStopped) },
		"stopped": func(f *NodeFacts) {
			f.state(api.InstanceStopped)
			f.end("node/node-1")
			f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			f.taint("node.cloudprovider.kubernetes.io/shutdown")
		},
		"stopping": func(f *NodeFacts) {
			f.state(api.InstanceStopping)
			f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
		},
		"crashed by a fault": func(f *NodeFacts) {
			f.state(api.InstanceError)
			f.Instance.StateReason = "crashed"
			f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			f.Faults = []api.Fault{{ID: "f-1", Effect: api.FaultEffect{Crash: true}}}
		},
		"shutdown taint, though it runs": func(f *NodeFacts) {
			f.taint("node.cloudprovider.kubernetes.io/shutdown")
			f.ccmOff()
		},
		"shutdown taint, about to be lifted": func(f *NodeFacts) {
			f.taint("node.cloudprovider.kubernetes.io/shutdown")
		},
		"the kubelet has ended": func(f *NodeFacts) {
			f.end("node/node-1")
			f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
		},
		"the kubelet hangs": func(f *NodeFacts) {
			f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
		},
		"booting": func(f *NodeFacts) {
			f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			f.began(3 * time.Second)
		},
		"the kubelet is back": func(f *NodeFacts) {
			f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			f.Lease.Spec.RenewTime = new(metav1.NewMicroTime(now))
		},
		"the kubelet is paused": func(f *NodeFacts) {
			f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
			f.pause("node/node-1")
		},
		"says Ready, and its kubelet is paused": func(f *NodeFacts) {
			f.Lease.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(-time.Minute)))
			f.pause("node/node-1", componentKCM)
		},
		"tainted: the CCM is paused": func(f *NodeFacts) {
			tainted(f)
			f.pause(componentCCM)
		},
		"the API server is paused": func(f *NodeFacts) {
			absent(f)
			f.ClusterError = "no answer in time"
			f.pause(componentAPIServer)
		},
		"tainted: a cloud that refused long ago is not why": func(f *NodeFacts) {
			tainted(f)
			f.Events = []corev1.Event{before(8*time.Minute, "CloudAccessDenied")}
		},
		"tainted: what is about the Node is said once, and holds": func(f *NodeFacts) {
			tainted(f)
			f.Events = []corev1.Event{before(8*time.Minute, "ProvidedNodeIPMismatch")}
		},
		"crashed, and no CCM": func(f *NodeFacts) {
			tainted(f)
			f.ccmOff()
			f.state(api.InstanceError)
			f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
		},
		"the kubelet says no": func(f *NodeFacts) { f.unready(corev1.ConditionFalse, "KubeletNotReady") },
		"no pod range": func(f *NodeFacts) {
			f.unready(corev1.ConditionFalse, "KubeletNotReady")
			f.Node.Spec.PodCIDR = ""
		},
		"no pod range, as nobody gives any": func(f *NodeFacts) {
			f.unready(corev1.ConditionFalse, "KubeletNotReady")
			f.Node.Spec.PodCIDR = ""
			f.stop(componentKCM)
		},
		"says Ready, and its kubelet is silent": func(f *NodeFacts) {
			f.Lease.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(-time.Minute)))
			f.stop(componentKCM)
		},
		"what is down comes back as it was, without the CCM": func(f *NodeFacts) {
			f.ccmOff()
			f.end("node/node-1")
			f.stop(componentAgent)
			f.unready(corev1.ConditionUnknown, "NodeStatusUnknown")
		},
		"no route": func(f *NodeFacts) {
			f.Node.Status.Conditions = append(f.Node.Status.Conditions, corev1.NodeCondition{
				Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "NoRouteCreated",
				Message: "no route",
			})
			f.Events = []corev1.Event{event("fakecloud-ccm", "RouteConflict", "taken")}
		},
		"cordoned": func(f *NodeFacts) { f.Node.Spec.Unschedulable = true },
		"of another cloud": func(f *NodeFacts) {
			f.Node.Spec.ProviderID, f.Instance = "kind://docker/a/b", nil
			f.taint("node.cloudprovider.kubernetes.io/uninitialized")
		},
		"another CCM whose IDs nobody else can read": func(f *NodeFacts) {
			f.OtherCCM, f.Node.Spec.ProviderID, f.Instance = "/bin/nebula-ccm", "nebula://42", nil
		},
		"another CCM, and no instance": func(f *NodeFacts) {
			f.OtherCCM, f.Node.Spec.ProviderID, f.Instance, f.Named = "/bin/nebula-ccm", "nebula://42", nil, nil
		},
		"another CCM that has not got to it": func(f *NodeFacts) {
			tainted(f)
			f.OtherCCM, f.Node.Spec.ProviderID = "/bin/nebula-ccm", "nebula://42"
		},
		"the CCM is locked out": func(f *NodeFacts) {
			f.CCMRefusal = "it does not accept the token in ccm.token"
		},
		"the CCM is locked out, and the Node waits": func(f *NodeFacts) {
			tainted(f)
			f.CCMRefusal = "it does not accept the token in ccm.token"
		},
		"lingers: no CCM": func(f *NodeFacts) {
			f.state(api.InstanceTerminated)
			f.ccmOff()
		},
		"lingers: the guard holds it": func(f *NodeFacts) {
			f.state(api.InstanceTerminated)
			f.Events = []corev1.Event{event("fakecloud-ccm", "MassDeletionHeld", "6 found gone")}
		},
		"lingers: doubt": func(f *NodeFacts) {
			f.state(api.InstanceTerminated)
			f.Faults = []api.Fault{fault(500, api.FaultMatch{Operations: []string{"getInstance"}, Resource: "i-1"})}
		},
		"lingers: another project": func(f *NodeFacts) {
			f.Instance, f.Named = nil, nil
			f.Events = []corev1.Event{event("fakecloud-ccm", "WrongProject", "p-2")}
		},
		"lingers, with a new instance of its name": func(f *NodeFacts) {
			f.state(api.InstanceTerminated)
			f.Named = append(f.Named, instance("i-2", api.InstanceRunning))
		},
		"a cloud that does not answer proves nothing": func(f *NodeFacts) {
			f.Instance, f.Named, f.CloudError = nil, nil, "503"
		},
		"absent: pending": func(f *NodeFacts) {
			f.state(api.InstancePending)
			absent(f)
			f.Faults = []api.Fault{{ID: "f-1", Effect: api.FaultEffect{Stuck: true}}}
		},
		"absent: stopped": func(f *NodeFacts) { f.state(api.InstanceStopped); absent(f) },
		"absent: no machine, as asked": func(f *NodeFacts) {
			absent(f)
			f.Named[0].Tags[contract.TagMachine] = contract.NoMachine
		},
		"absent: not this cluster's": func(f *NodeFacts) {
			absent(f)
			f.Named[0].Tags = api.Tags{"a": "b"}
		},
		"absent: no agent": func(f *NodeFacts) {
			absent(f)
			f.end("node/node-1")
			f.stop(componentAgent)
		},
		"absent: booting": func(f *NodeFacts) { absent(f); f.end("node/node-1") },
		"absent: booted, not registered": func(f *NodeFacts) {
			absent(f)
			f.began(3 * time.Second)
			f.Removed = now.Add(-time.Minute)
		},
		"absent: its Node was deleted": func(f *NodeFacts) {
			absent(f)
			f.began(12 * time.Second)
			f.Removed = now.Add(-10 * time.Second)
		},
		"absent: booted long ago":       func(f *NodeFacts) { absent(f); f.began(time.Minute) },
		"absent: its process is paused": func(f *NodeFacts) { absent(f); f.pause("node/node-1") },
		"absent: terminated":            func(f *NodeFacts) { f.state(api.InstanceTerminated); absent(f) },
		"absent: a slip of the pen": func(f *NodeFacts) {
			absent(f)
			f.Name, f.Named, f.Nodes = "nod-1", nil, []string{"node-1", "node-2", "control-plane"}
		},
		"absent: an instance's ID": func(f *NodeFacts) { absent(f); f.Name, f.Named = "i-1", nil },
		"absent, and the cloud does not answer": func(f *NodeFacts) {
			absent(f)
			f.Named, f.CloudError, f.Faults = nil, "503", []api.Fault{fault(503, api.FaultMatch{})}
		},
		"the API server is down": func(f *NodeFacts) {
			absent(f)
			f.ClusterError = "refused"
			f.stop(componentAPIServer)
		},
		"somebody else's API server does not answer": func(f *NodeFacts) {
			absent(f)
			f.ClusterError, f.Components = "no answer in time", f.Components[:1]
		},
	})
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
