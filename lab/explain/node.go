package explain

import (
	"cmp"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/kubediff"
)

// NodeFacts are the facts about one Node.
type NodeFacts struct {
	LabFacts
	Name string
	// Node is nil when there is no such object.
	Node *corev1.Node
	// Lease is the kubelet's, nil if unknown.
	Lease  *coordinationv1.Lease
	Events []corev1.Event
	// Instance is the one that the provider ID names; nil if the provider ID is empty
	// or the project has no such instance.
	Instance *api.Instance
	// Named are all instances of the Node's name, including terminated ones.
	Named []api.Instance
	// Nodes and Instances are all there are, to suggest a name when this one does not
	// exist.
	Nodes     []string
	Instances []api.Instance
	// Removed is when a Node of this name was last deleted, zero if none was.
	Removed time.Time
}

// Node explains a Node from its facts.
func Node(f NodeFacts) Explanation {
	x := Explanation{Kind: KindNode, Name: f.Name}
	if f.ClusterError != "" {
		return x.conclude(f.LabFacts, f.addNamedInstances(f.findAPIServerDown()))
	}
	if f.Node == nil {
		return x.conclude(f.LabFacts, f.findMissingNode())
	}
	if gone := f.findGoneInstance(); gone != nil { // What else is wrong with it goes with it.
		return x.conclude(f.LabFacts, gone)
	}
	findings := []*finding{
		f.findLockedOut(), f.findForeignProviderID(), f.findInstanceDown(), f.findUninitialized(), f.findNotReady(), f.findStaleLease(),
		f.findShutdownTaint(), f.findNoRoute(), f.findCordon(), f.findUnknownInstance(),
	}
	if !slices.ContainsFunc(findings, func(found *finding) bool { return found != nil }) {
		findings = append(findings, f.findNothingWrong())
	}
	return x.conclude(f.LabFacts, findings...)
}

// callScope selects the CCM's calls for this Node.
func (f NodeFacts) callScope() callScope {
	a := callScope{words: nodeWords, kind: api.ResourceInstance}
	if i := f.matchingInstance(); i != nil {
		a.id, a.tags = i.ID, i.Tags
	}
	return a
}

// matchingInstance is the Node's instance by provider ID, or, before it has one, the
// only live instance of its name.
func (f NodeFacts) matchingInstance() *api.Instance {
	if f.Instance != nil || f.Node != nil && f.Node.Spec.ProviderID != "" && f.OtherCCM == "" {
		return f.Instance
	}
	if live := f.liveInstances(); len(live) == 1 {
		return &live[0]
	}
	return nil
}

func (f NodeFacts) liveInstances() []api.Instance {
	return slices.DeleteFunc(slices.Clone(f.Named), func(i api.Instance) bool {
		return i.State == api.InstanceTerminated
	})
}

// addNamedInstances adds the cloud's instances of the Node's name.
func (f NodeFacts) addNamedInstances(to *finding) *finding {
	for _, i := range f.Named {
		to.addFact(Cloud, "%s", describeInstance(&i))
	}
	return to
}

func describeInstance(i *api.Instance) string {
	return "instance " + i.ID + " (" + i.Name + ", " + i.Zone + ") is " + stateInSentence(i.State) +
		reasonSuffix(i.StateReason)
}

// findMissingNode says why no Node has this name.
func (f NodeFacts) findMissingNode() *finding {
	live := f.liveInstances()
	if f.CloudError != "" {
		return f.addCloudError(newFinding(
			Unknown,
			"does not exist, and whether there is an instance of that name cannot be said: the cloud does not answer",
		))
	}
	if len(live) > 0 {
		return f.addNamedInstances(f.findInstanceWithoutNode(&live[0]))
	}
	if len(f.Named) > 0 {
		return f.addNamedInstances(newFinding(NotReady, "does not exist any more: its instance was terminated")).
			addStep("create a new one", "fakecloud instances create %s", f.Name)
	}
	all := slices.Clone(f.Nodes)
	for _, i := range f.Instances {
		if i.ID == f.Name {
			return newFinding(NotReady, "does not exist; that is the ID of an instance").
				addFact(Cloud, "%s", describeInstance(&i)).
				addStep("explain its Node", "%s", f.labCommand("explain node/"+i.Name))
		}
		if i.State != api.InstanceTerminated {
			all = append(all, i.Name)
		}
	}
	none := newFinding(NotReady, "does not exist, and no instance has that name").
		addFact(Cluster, "there is no such Node").addFact(Cloud, "there is no such instance")
	for _, name := range similarNames(f.Name, all) {
		none.addStep("did you mean "+name+"?", "%s", f.labCommand("explain node/"+name))
	}
	return none.addStep("see what there is", "%s", f.labCommand("explain node"))
}

// findInstanceWithoutNode says why an instance has no Node.
func (f NodeFacts) findInstanceWithoutNode(i *api.Instance) *finding {
	process := f.findComponent("node/" + f.Name)
	switch {
	case i.State == api.InstancePending:
		return f.addLifecycleFaults(
			newFinding(NotReady, "does not exist yet: its instance is still being built"), f.callScope(),
		).addWait("wait; its machine boots once the instance runs")
	case i.State != api.InstanceRunning:
		return f.addRestart(
			newFinding(NotReady, "does not exist: its instance is %s, so no machine runs", stateInSentence(i.State)), i,
		)
	case i.Tags[contract.TagMachine] == contract.NoMachine:
		return newFinding(NotReady, "does not exist, as asked: no machine boots for its instance").
			addFact(Cloud, "the instance has the tag %s=%s", contract.TagMachine, contract.NoMachine)
	case i.Tags[contract.TagCluster] != f.LabName:
		return newFinding(NotReady, "does not exist: its instance is not this cluster's").
			addFact(Cloud, "the instance lacks the tag %s=%s", contract.TagCluster, f.LabName).
			addStep("tag it", "fakecloud instances update %s%s", i.ID, tagFlags(i.Tags, contract.TagCluster, f.LabName))
	case process == nil && f.haltReason(componentAgent) != "":
		return f.addHaltedComponents(newFinding(
			NotReady, "does not exist yet: the lab's agent, which boots machines, %s", f.haltReason(componentAgent),
		), componentAgent)
	case process != nil:
		return f.findUnregisteredKubelet(process.PID)
	}
	return newFinding(NotReady, "does not exist yet: its machine has not booted").
		addFact(Lab, "no process of node/%s runs; the agent, which boots it, does", f.Name).
		addStep("see what the agent waits for", "%s", f.labCommand("logs "+componentAgent+" --tail 20"))
}

// findUnregisteredKubelet says why a machine runs without a Node. A kubelet registers
// its Node when it starts, and never again (kubelet_node_status.go,
// registerWithAPIServer).
func (f NodeFacts) findUnregisteredKubelet(pid int) *finding {
	name := "node/" + f.Name
	p := f.Processes[name]
	not := newFinding(NotReady, "does not exist yet: its machine runs, and its kubelet has not registered it")
	f.addHaltedComponents(not, componentAPIServer, name).addFact(Lab, "the machine's process runs (pid %d)", pid)
	const reboot = "reboot its machine: a kubelet registers when it starts"
	switch {
	case p.Paused:
		not.verdict = "does not exist: its machine's process is stopped by a signal"
		return not
	case p.Began.IsZero():
	case f.Removed.After(p.Began):
		not.verdict = "does not exist: its Node was deleted, and a kubelet that runs does not register again"
		not.addFact(Cluster, "the Node was deleted %s ago", formatAge(f.Now, f.Removed)).
			addStep(reboot, "fakecloud instances reboot %s", f.Name)
	case !f.isProcessBooting(name):
		not.verdict = "does not exist, though its kubelet has run for " + formatAge(f.Now, p.Began) +
			": if its Node was deleted, it does not register again"
		not.addStep(reboot, "fakecloud instances reboot %s", f.Name)
	}
	return not.addStep("see what the kubelet says", "%s", f.labCommand("logs node-"+f.Name+" --tail 30"))
}

// tagFlags returns the flags for an instance's tags with one more: the command
// replaces all tags.
func tagFlags(tags api.Tags, key, value string) (flags string) {
	all := maps.Clone(tags)
	if all == nil {
		all = api.Tags{}
	}
	all[key] = value
	for _, k := range slices.Sorted(maps.Keys(all)) {
		flags += " --tag " + k + "=" + all[k]
	}
	return flags
}

// addRestart adds how an instance that does not run is started again.
func (f NodeFacts) addRestart(to *finding, i *api.Instance) *finding {
	switch i.State {
	case api.InstanceStopped, api.InstanceError:
		to.addStep("start it again", "fakecloud instances start %s", i.ID)
	case api.InstanceStopping:
		to.addStep("start it again, once it has stopped", "fakecloud instances start %s", i.ID)
	case api.InstanceTerminating:
		to.addWait("wait; an instance that terminates does not come back, and its Node goes with it")
	default:
		to.addWait("wait; the instance runs in a moment")
	}
	return f.addLifecycleFaults(to, f.callScope())
}

// isOfThisCloud tells whether the provider ID is one that a CCM of the lab's cloud has given. Which scheme
// another CCM than the lab's own has is not known: it shows by the instance's ID in it.
func (f NodeFacts) isOfThisCloud() bool {
	return f.Instance != nil || cluster.IsOfThisCloud(f.Node.Spec.ProviderID)
}

// findGoneInstance says why a Node still exists whose instance is terminated or
// unknown to the cloud.
func (f NodeFacts) findGoneInstance() *finding {
	if !f.isOfThisCloud() || f.CloudError != "" || f.Instance != nil && f.Instance.State != api.InstanceTerminated {
		return nil
	}
	lingers := newFinding(NotReady, "lingers: its instance is gone").
		addFact(Cluster, "the Node's provider ID is %s", f.Node.Spec.ProviderID)
	if f.Instance != nil {
		lingers.addFact(Cloud, "%s", describeInstance(f.Instance))
	} else {
		lingers.addFact(Cloud, "the project has no instance of that ID")
	}
	for _, i := range f.liveInstances() {
		lingers.addFact(
			Cloud, "%s: another one of the same name, whose machine waits until this Node is gone",
			describeInstance(&i),
		)
	}
	held := newestEventWithReason(f.Events, contract.ReasonMassDeletionHeld, contract.ReasonWrongProject)
	trouble := f.findCCMTrouble(f.callScope(), f.Events)
	switch {
	case f.findIdleCCM() != nil:
		lingers.verdict += ", and " + trouble.verdict + " that would delete it"
		if f.findComponent(componentCCM).Wanted {
			lingers.verdict = "lingers: its instance is gone, and the CCM, which would delete it, " +
				f.haltReason(componentCCM)
		}
		return lingers.addCause(trouble)
	case held != nil && held.Reason == contract.ReasonMassDeletionHeld:
		lingers.verdict += ", and the CCM's mass-deletion guard holds it back, as too many went at once"
		return lingers.addEvent(f.Now, held).
			addWait("wait; in a lab it goes when the cloud has said so for half a minute; that Event has the command " +
				"which lets it go at once")
	case held != nil:
		lingers.verdict += " for this project, and the CCM's token is of another one"
		return lingers.addEvent(f.Now, held).
			addStep("give the CCM back its token", "%s", f.labCommand("logs ccm --tail 30"))
	case trouble != nil:
		lingers.verdict += ", and the CCM, which deletes a Node on the cloud's definite word only, is in doubt: " +
			trouble.verdict
		return lingers.addCause(trouble)
	}
	return lingers.addFact(Lab, "the CCM runs").addWait("wait; the CCM deletes it within seconds").
		addStep("if it stays, see what the CCM says", "%s", f.labCommand("logs ccm --tail 30"))
}

// findForeignProviderID reports a provider ID of another cloud, whose Node the CCM
// leaves alone.
func (f NodeFacts) findForeignProviderID() *finding {
	if f.Node.Spec.ProviderID == "" || f.isOfThisCloud() {
		return nil
	}
	if f.OtherCCM != "" {
		return f.findUnknownProviderID()
	}
	state := Degraded
	if kubediff.IsUninitialized(f.Node) {
		state = NotReady
	}
	return newFinding(state, "is of another cloud, by its provider ID, so the CCM leaves it alone").
		addFact(
			Cluster, "its provider ID is %s; the lab's begin with %s", f.Node.Spec.ProviderID,
			contract.ProviderIDPrefix,
		).
		addEvent(f.Now, newestEventWithReason(f.Events, contract.ReasonForeignProviderID)).
		addStep(
			"if it is ours, delete it and start its kubelet without --provider-id", "kubectl delete node %s", f.Name,
		)
}

// findUnknownProviderID reports a provider ID from which nobody but the CCM in use can tell the instance. With a
// live instance of the Node's name, nothing is wrong.
func (f NodeFacts) findUnknownProviderID() *finding {
	if len(f.liveInstances()) > 0 || f.CloudError != "" {
		return nil
	}
	return f.addNamedInstances(newFinding(Degraded, "has no instance that the lab can tell: the cloud has none of "+
		"its name that lives, and its provider ID has none's ID")).
		addFact(Cluster, "its provider ID is %s", f.Node.Spec.ProviderID).
		addFact(Lab, "the CCM is %s", f.OtherCCM).
		addStep("see what the CCM says of it", "%s", f.labCommand("logs ccm --tail 30"))
}

// findUninitialized says why no CCM has initialised the Node.
func (f NodeFacts) findUninitialized() *finding {
	if !kubediff.IsUninitialized(f.Node) || f.Node.Spec.ProviderID != "" && !f.isOfThisCloud() && f.OtherCCM == "" {
		return nil
	}
	const stays = "is not initialised: "
	cause := f.findCCMTrouble(f.callScope(), f.Events)
	if cause == nil && f.CloudError == "" {
		cause = f.findNoInstance()
	}
	if cause == nil {
		if e := f.newestCurrentWarning(f.Events); e != nil {
			cause = newFinding(NotReady, "the CCM says why: %s", e.Reason).addEvent(f.Now, e).
				addStep("see what the CCM does", "%s", f.labCommand("logs ccm --tail 30"))
		}
	}
	if cause == nil {
		cause = newFinding(NotReady, "the CCM has not got to it yet").addFact(Lab, "the CCM runs").
			addWait("wait; this takes a second or two").
			addStep("if it stays, see what the CCM says", "%s", f.labCommand("logs ccm --tail 30"))
	}
	tainted := newFinding(NotReady, "%s", stays+cause.verdict).
		addFact(
			Cluster, "it has the taint %s since its kubelet registered it %s ago, so no pod is scheduled on it",
			cloudproviderapi.TaintExternalCloudProvider, formatAge(f.Now, f.Node.CreationTimestamp.Time),
		)
	return tainted.addCause(cause)
}

// findNoInstance says why the CCM cannot tell which instance the Node is.
func (f NodeFacts) findNoInstance() *finding {
	if f.Node.Spec.ProviderID != "" {
		return nil
	}
	live := f.liveInstances()
	ambiguous := newestEventWithReason(f.Events, contract.ReasonInstanceAmbiguous)
	switch {
	case len(live) == 0:
		none := f.addNamedInstances(newFinding(NotReady, "the cloud has no instance of its name"))
		if len(f.Named) == 0 {
			none.addFact(Cloud, "no instance is called %s", f.Name)
		}
		return none.addEvent(f.Now, newestEventWithReason(f.Events, contract.ReasonInstanceNotFound)).
			addStep("create one", "fakecloud instances create %s", f.Name).
			addStep("or delete the Node", "kubectl delete node %s", f.Name)
	case len(live) > 1:
		return f.addNamedInstances(
			newFinding(NotReady, "%d instances have its name, and the CCM cannot tell which is its own", len(live)),
		).addEvent(f.Now, ambiguous).
			addStep("see which is which, and terminate all but its own", "fakecloud instances list")
	case live[0].State == api.InstancePending:
		return f.addLifecycleFaults(
			f.addNamedInstances(newFinding(NotReady, "its instance is still pending")), f.callScope(),
		).addWait("wait; the CCM is told when the instance runs")
	}
	return nil
}

// findInstanceDown reports an instance that does not run.
func (f NodeFacts) findInstanceDown() *finding {
	i := f.matchingInstance()
	if i == nil || i.State == api.InstanceRunning || i.State == api.InstanceTerminated ||
		i.State == api.InstancePending && kubediff.IsNodeReady(f.Node) {
		return nil
	}
	off := newFinding(NotReady, "is not ready: its instance is %s", stateInSentence(i.State))
	if kubediff.IsNodeReady(f.Node) {
		off.verdict = "is still Ready in the cluster, and its instance is " + stateInSentence(i.State)
	}
	return f.addRestart(off.addFact(Cloud, "%s", describeInstance(i)), i)
}

func (f NodeFacts) findCondition(kind corev1.NodeConditionType) *corev1.NodeCondition {
	_, found := nodeutil.GetNodeCondition(&f.Node.Status, kind)
	return found
}

// findNotReady says why the Node's condition Ready is not True.
func (f NodeFacts) findNotReady() *finding {
	if kubediff.IsNodeReady(f.Node) {
		return nil
	}
	not := newFinding(NotReady, "is not ready: its kubelet has not said yet that it is")
	c := f.findCondition(corev1.NodeReady)
	if c != nil {
		not.verdict = "is not ready: its kubelet says " + c.Reason
		if c.Status == corev1.ConditionUnknown {
			not.verdict = "is not ready: its kubelet is silent"
		}
		not.addFact(
			Cluster, "condition Ready is %s for %s: %s (%s)", c.Status, formatAge(f.Now, c.LastTransitionTime.Time),
			c.Message, c.Reason,
		)
	}
	f.addLease(not)
	process := f.findComponent("node/" + f.Name)
	switch i := f.matchingInstance(); {
	case i != nil && i.State != api.InstanceRunning: // findInstanceDown has reported it.
		return not
	case f.Processes["node/"+f.Name].Paused:
		not.verdict = "is not ready: its kubelet is stopped by a signal"
		return f.addHaltedComponents(not, "node/"+f.Name)
	case c != nil && c.Status == corev1.ConditionFalse && f.Node.Spec.PodCIDR == "":
		not.verdict = "is not ready: it has no range of pod addresses, so its network is not set up"
		not.addFact(Cluster, "spec.podCIDR is empty; kube-controller-manager gives it").
			addEvent(f.Now, newestEventWithReason(f.Events, "CIDRNotAvailable"))
		if f.haltReason(componentKCM) != "" {
			return f.addHaltedComponents(not, componentKCM)
		}
		return not.addWait("wait; it is given within a second").addStep(
			"if it stays, see who gives the ranges", "%s", f.labCommand("logs kube-controller-manager --tail 30"),
		)
	case process != nil && process.PID != 0 && (c == nil || c.Status == corev1.ConditionUnknown):
		return f.findSilentKubelet(not.addFact(Lab, "its machine's process runs (pid %d)", process.PID), c != nil)
	case process == nil && f.runsMachines() && f.haltReason(componentAgent) != "":
		not.verdict = "is not ready: its machine has ended, and the lab's agent, which would boot it again, " +
			f.haltReason(componentAgent)
		return f.addHaltedComponents(not.addFact(Lab, "no process of node/%s runs", f.Name), componentAgent)
	case process == nil && f.runsMachines():
		not.verdict = "is not ready: its machine has ended"
		return not.addFact(Lab, "no process of node/%s runs", f.Name).
			addWait("wait; the lab's agent boots it again within seconds").
			addStep("see why it ended", "%s", f.labCommand("logs node-"+f.Name+" --tail 30"))
	}
	return not.addStep("see what its kubelet says", "%s", f.labCommand("logs node-"+f.Name+" --tail 30"))
}

// findSilentKubelet says why the kubelet of a machine that runs posts no status.
// spoken tells that it has done so before.
func (f NodeFacts) findSilentKubelet(not *finding, spoken bool) *finding {
	switch {
	case f.isProcessBooting("node/" + f.Name):
		not.verdict = "is not ready: its machine is booting"
		not.addWait("wait; its kubelet says in a moment that it is ready")
	case spoken && f.leaseExpiredFor() > 0:
		not.verdict = "is not ready: its kubelet runs and hangs"
		not.addStep("reboot its machine", "fakecloud instances reboot %s", f.Name)
	case spoken:
		not.verdict = "is not ready: its kubelet is back, and has not said yet that it is"
		not.addWait("wait; it says so in a moment")
	}
	return not.addStep("see what it says", "%s", f.labCommand("logs node-"+f.Name+" --tail 30"))
}

// runsMachines tells whether the lab runs the nodes itself: it does where it runs
// the control plane.
func (f NodeFacts) runsMachines() bool { return f.findComponent(componentAPIServer) != nil }

// leaseExpiredFor is the time since the renewal of an expired lease; 0 while it is
// valid or unknown.
func (f NodeFacts) leaseExpiredFor() time.Duration {
	if f.Lease == nil || f.Lease.Spec.RenewTime == nil || f.Lease.Spec.LeaseDurationSeconds == nil {
		return 0
	}
	since := f.Now.Sub(f.Lease.Spec.RenewTime.Time)
	if since < time.Duration(*f.Lease.Spec.LeaseDurationSeconds)*time.Second {
		return 0
	}
	return since
}

func (f NodeFacts) addLease(to *finding) {
	if over := f.leaseExpiredFor(); over > 0 {
		to.addFact(
			Cluster, "its kubelet's lease, which lasts %d s, was renewed %s ago", *f.Lease.Spec.LeaseDurationSeconds,
			formatAge(f.Now, f.Now.Add(-over)),
		)
	}
}

// findStaleLease reports a Node that is still Ready though its kubelet has stopped
// renewing the lease.
func (f NodeFacts) findStaleLease() *finding {
	if !kubediff.IsNodeReady(f.Node) || f.leaseExpiredFor() == 0 {
		return nil
	}
	old := newFinding(NotReady, "still says Ready, and its kubelet is silent")
	f.addLease(old)
	if f.findComponent("node/"+f.Name) == nil && f.runsMachines() {
		old.addFact(Lab, "no process of node/%s runs", f.Name)
	}
	f.addHaltedComponents(old, "node/"+f.Name, componentKCM, componentAgent)
	if why := f.haltReason("node/" + f.Name); why != "" {
		old.verdict = "still says Ready, and its kubelet " + why
	}
	if why := f.haltReason(componentKCM); why != "" {
		old.verdict += "; nobody marks it, as kube-controller-manager " + why
	}
	return old.addStep("see what its kubelet says", "%s", f.labCommand("logs node-"+f.Name+" --tail 30"))
}

// findShutdownTaint reports upstream's taint for a Node whose instance is shut down.
func (f NodeFacts) findShutdownTaint() *finding {
	if !kubediff.HasTaint(f.Node, cloudproviderapi.TaintNodeShutdown) {
		return nil
	}
	off := newFinding(NotReady, "has the taint of a machine that is shut down").
		addFact(Cluster, "it has the taint %s, so no pod is scheduled on it", cloudproviderapi.TaintNodeShutdown)
	if i := f.matchingInstance(); i == nil || i.State != api.InstanceRunning {
		return off
	}
	off.verdict += ", though its instance runs again"
	if trouble := f.findIdleCCM(); trouble != nil {
		off.verdict += ": the CCM, which would lift it, " + f.haltReason(componentCCM)
		return off.addCause(trouble)
	}
	return off.addWait("wait; the CCM lifts the taint once the Node is Ready")
}

// findNoRoute reports a Node without a route to its pods.
func (f NodeFacts) findNoRoute() *finding {
	c := f.findCondition(corev1.NodeNetworkUnavailable)
	if c == nil || c.Status != corev1.ConditionTrue {
		return nil
	}
	return newFinding(NotReady, "has no way for its pods: a route to them is missing").
		addFact(Cluster, "condition NetworkUnavailable is True: %s (%s)", c.Message, c.Reason).
		addEvent(f.Now, newestEventWithReason(f.Events, contract.ReasonRouteConflict, contract.ReasonRouteNotSupported,
			"FailedToCreateRoute")).
		addStep("see the cloud's routes", "fakecloud routes list")
}

// findCordon reports a cordoned Node.
func (f NodeFacts) findCordon() *finding {
	if !f.Node.Spec.Unschedulable {
		return nil
	}
	return newFinding(Degraded, "is cordoned: no new pod is scheduled on it").
		addFact(Cluster, "spec.unschedulable is set, by `kubectl cordon` or `kubectl drain`").
		addStep("let pods on it again", "kubectl uncordon %s", f.Name)
}

// findUnknownInstance reports that the cloud could not be queried for the instance.
func (f NodeFacts) findUnknownInstance() *finding {
	if f.CloudError == "" {
		return nil
	}
	return f.addCloudError(newFinding(
		Degraded, "is Ready by the cluster's word; of its instance nothing is known, as the cloud does not answer",
	))
}

// addCloudError adds why the cloud could not be queried, and what can be done.
func (a LabFacts) addCloudError(f *finding) *finding {
	f.addFact(Cloud, "%s", a.CloudError)
	for _, rule := range a.Faults {
		if effect := effectOnCalls(rule.Effect); effect != "" && a.isFaultInForce(rule) && rule.Match.Token == "" {
			f.addFact(Cloud, "fault %s: %s", rule.ID, effect).
				addStep("lift the fault", "fakecloud faults delete %s", rule.ID)
		}
	}
	if a.addHaltedComponents(f, componentCloud); len(f.next) == 0 {
		f.addStep("see what the cloud says", "%s", a.labCommand("logs "+componentCloud+" --tail 30"))
	}
	return f
}

// findNothingWrong describes a Node that is as it should be.
func (f NodeFacts) findNothingWrong() *finding {
	ok := newFinding(Ready, "is ready").
		addFact(Cluster, "condition Ready is True, no taint keeps pods away that the cloud or the CCM set")
	for _, a := range f.Node.Status.Addresses {
		if a.Type != corev1.NodeHostName {
			zone := cmp.Or(f.Node.Labels[corev1.LabelTopologyZone], "none")
			ok.addFact(Cluster, "%s %s, zone %s", a.Type, a.Address, zone)
		}
	}
	if i := f.matchingInstance(); i != nil {
		ok.addFact(Cloud, "%s", describeInstance(i))
	}
	if idle := f.findIdleCCM(); idle != nil { // It is initialised, and stays so.
		ok.facts = append(ok.facts, idle.facts...)
	}
	return ok
}
