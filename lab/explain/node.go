package explain

// Why a Node is not ready.

import (
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// NodeFacts are what is known of one Node.
type NodeFacts struct {
	Around
	Name string
	// Node is nil when there is no such object.
	Node *corev1.Node
	// Lease is the kubelet's, nil if it is not known.
	Lease  *coordinationv1.Lease
	Events []corev1.Event
	// Instance is the one that the provider ID names; nil if that names none, or
	// the project has none of that ID.
	Instance *api.Instance
	// Named are all instances of the Node's name, ended ones too.
	Named []api.Instance
	// Nodes and Instances are what there is, for a name that is neither's.
	Nodes     []string
	Instances []api.Instance
	// Removed is when a Node of this name was last seen to be deleted, zero if
	// none was.
	Removed time.Time
}

// Node explains one.
func Node(f NodeFacts) Explanation {
	x := Explanation{Kind: KindNode, Name: f.Name}
	if f.ClusterError != "" {
		return x.conclude(f.Around, f.named(f.unanswered()))
	}
	if f.Node == nil {
		return x.conclude(f.Around, f.absent())
	}
	if gone := f.gone(); gone != nil { // What else is wrong with it goes with it.
		return x.conclude(f.Around, gone)
	}
	findings := []*finding{f.foreign(), f.instanceDown(), f.uninitialized(), f.notReady(), f.silent(), f.shutdown(), f.network(), f.cordoned(), f.unseen()}
	if !slices.ContainsFunc(findings, func(found *finding) bool { return found != nil }) {
		findings = append(findings, f.well())
	}
	return x.conclude(f.Around, findings...)
}

// about is what the CCM's calls for this Node are about.
func (f NodeFacts) about() about {
	a := about{words: nodeWords, kind: api.FaultInstance}
	if i := f.instance(); i != nil {
		a.id, a.tags = i.ID, i.Tags
	}
	return a
}

// instance is the Node's: by its provider ID, or, while it has none, the only
// one of its name.
func (f NodeFacts) instance() *api.Instance {
	if f.Instance != nil || f.Node != nil && f.Node.Spec.ProviderID != "" {
		return f.Instance
	}
	if live := f.live(); len(live) == 1 {
		return &live[0]
	}
	return nil
}

func (f NodeFacts) live() []api.Instance {
	return slices.DeleteFunc(slices.Clone(f.Named), func(i api.Instance) bool { return i.State == api.InstanceTerminated })
}

// named adds what the cloud has under the Node's name.
func (f NodeFacts) named(to *finding) *finding {
	for _, i := range f.Named {
		to.fact(Cloud, "%s", describe(&i))
	}
	return to
}

func describe(i *api.Instance) string {
	return "instance " + i.ID + " (" + i.Name + ", " + i.Zone + ") is " + in(i.State) + because(deref(i.StateReason))
}

// absent is a name that no Node has.
func (f NodeFacts) absent() *finding {
	live := f.live()
	if f.CloudError != "" {
		return f.lost(found(Unknown, "does not exist, and whether there is an instance of that name cannot be said: the cloud does not answer"))
	}
	if len(live) > 0 {
		return f.named(f.notJoined(&live[0]))
	}
	if len(f.Named) > 0 {
		return f.named(found(NotReady, "does not exist any more: its instance was terminated")).
			step("create a new one", "fakecloud instances create %s", f.Name)
	}
	all := slices.Clone(f.Nodes)
	for _, i := range f.Instances {
		if i.ID == f.Name {
			return found(NotReady, "does not exist; that is the ID of an instance").fact(Cloud, "%s", describe(&i)).
				step("explain its Node", "%s", f.lab("explain node/"+i.Name))
		}
		if i.State != api.InstanceTerminated {
			all = append(all, i.Name)
		}
	}
	none := found(NotReady, "does not exist, and no instance has that name").fact(Cluster, "there is no such Node").fact(Cloud, "there is no such instance")
	for _, name := range meantNames(f.Name, all) {
		none.step("did you mean "+name+"?", "%s", f.lab("explain node/"+name))
	}
	return none.step("see what there is", "%s", f.lab("explain node"))
}

// notJoined is an instance without a Node.
func (f NodeFacts) notJoined(i *api.Instance) *finding {
	process := f.component("node/" + f.Name)
	switch {
	case i.State == api.InstancePending:
		return f.lifeCycle(found(NotReady, "does not exist yet: its instance is still being built"), f.about()).due("wait; its machine boots once the instance runs")
	case i.State != api.InstanceRunning:
		return f.restart(found(NotReady, "does not exist: its instance is %s, so no machine runs", in(i.State)), i)
	case i.Tags[contract.TagMachine] == contract.NoMachine:
		return found(NotReady, "does not exist, as asked: no machine boots for its instance").
			fact(Cloud, "the instance has the tag %s=%s", contract.TagMachine, contract.NoMachine)
	case i.Tags[contract.TagCluster] != f.LabName:
		return found(NotReady, "does not exist: its instance is not this cluster's").
			fact(Cloud, "the instance lacks the tag %s=%s", contract.TagCluster, f.LabName).
			step("tag it", "fakecloud instances update %s%s", i.ID, tagFlags(i.Tags, contract.TagCluster, f.LabName))
	case process == nil && f.halted(componentAgent) != "":
		return f.down(found(NotReady, "does not exist yet: the lab's agent, which boots machines, %s", f.halted(componentAgent)), componentAgent)
	case process != nil:
		return f.unregistered(process.PID)
	}
	return found(NotReady, "does not exist yet: its machine has not booted").
		fact(Lab, "no process of node/%s runs; the agent, which boots it, does", f.Name).
		step("see what the agent waits for", "%s", f.lab("logs "+componentAgent+" --tail 20"))
}

// unregistered is a machine that runs without a Node. Its kubelet registers itself
// when it starts, and never again (kubelet_node_status.go, registerWithAPIServer).
func (f NodeFacts) unregistered(pid int) *finding {
	name := "node/" + f.Name
	p := f.Processes[name]
	not := found(NotReady, "does not exist yet: its machine runs, and its kubelet has not registered it")
	f.down(not, componentAPIServer, name).fact(Lab, "the machine's process runs (pid %d)", pid)
	const reboot = "reboot its machine: a kubelet registers when it starts"
	switch {
	case p.Paused:
		not.what = "does not exist: its machine's process is stopped by a signal"
		return not
	case p.Began.IsZero():
	case f.Removed.After(p.Began):
		not.what = "does not exist: its Node was deleted, and a kubelet that runs does not register again"
		not.fact(Cluster, "the Node was deleted %s ago", age(f.Now, f.Removed)).step(reboot, "fakecloud instances reboot %s", f.Name)
	case !f.booting(name):
		not.what = "does not exist, though its kubelet has run for " + age(f.Now, p.Began) + ": if its Node was deleted, it does not register again"
		not.step(reboot, "fakecloud instances reboot %s", f.Name)
	}
	return not.step("see what the kubelet says", "%s", f.lab("logs node-"+f.Name+" --tail 30"))
}

// tagFlags are an instance's tags and one more, as the command line replaces all.
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

// restart says how an instance that does not run comes back.
func (f NodeFacts) restart(to *finding, i *api.Instance) *finding {
	switch i.State {
	case api.InstanceStopped, api.InstanceError:
		to.step("start it again", "fakecloud instances start %s", i.ID)
	case api.InstanceStopping:
		to.step("start it again, once it has stopped", "fakecloud instances start %s", i.ID)
	case api.InstanceTerminating:
		to.due("wait; an instance that terminates does not come back, and its Node goes with it")
	default:
		to.due("wait; the instance runs in a moment")
	}
	return f.lifeCycle(to, f.about())
}

// ours tells whether the provider ID is of the lab's cloud.
func (f NodeFacts) ours() bool {
	return strings.HasPrefix(f.Node.Spec.ProviderID, contract.ProviderIDPrefix)
}

// gone is a Node that outlives its instance.
func (f NodeFacts) gone() *finding {
	if !f.ours() || f.CloudError != "" || f.Instance != nil && f.Instance.State != api.InstanceTerminated {
		return nil
	}
	lingers := found(NotReady, "lingers: its instance is gone").fact(Cluster, "the Node's provider ID is %s", f.Node.Spec.ProviderID)
	if f.Instance != nil {
		lingers.fact(Cloud, "%s", describe(f.Instance))
	} else {
		lingers.fact(Cloud, "the project has no instance of that ID")
	}
	for _, i := range f.live() {
		lingers.fact(Cloud, "%s: another one of the same name, whose machine waits until this Node is gone", describe(&i))
	}
	held := newestOf(f.Events, contract.ReasonMassDeletionHeld, contract.ReasonWrongProject)
	trouble := f.ccmTrouble(f.about(), f.Events)
	switch {
	case f.idleCCM() != nil:
		lingers.what += ", and " + trouble.what + " that would delete it"
		if f.component(componentCCM).Wanted {
			lingers.what = "lingers: its instance is gone, and the CCM, which would delete it, " + f.halted(componentCCM)
		}
		return lingers.with(trouble)
	case held != nil && held.Reason == contract.ReasonMassDeletionHeld:
		lingers.what += ", and the CCM's mass-deletion guard holds it back, as too many went at once"
		return lingers.event(f.Now, held).due("wait; the cloud is asked about it again after half a minute, and then it is let go")
	case held != nil:
		lingers.what += " for this project, and the CCM's token is of another one"
		return lingers.event(f.Now, held).step("give the CCM back its token", "%s", f.lab("logs ccm --tail 30"))
	case trouble != nil:
		lingers.what += ", and the CCM, which deletes a Node on the cloud's definite word only, is in doubt: " + trouble.what
		return lingers.with(trouble)
	}
	return lingers.fact(Lab, "the CCM runs").due("wait; the CCM deletes it within seconds").
		step("if it stays, see what the CCM says", "%s", f.lab("logs ccm --tail 30"))
}

// foreign is a Node that the CCM leaves alone.
func (f NodeFacts) foreign() *finding {
	if f.Node.Spec.ProviderID == "" || f.ours() {
		return nil
	}
	state := Degraded
	if f.has(cloudproviderapi.TaintExternalCloudProvider) {
		state = NotReady
	}
	return found(state, "is of another cloud, by its provider ID, so the CCM leaves it alone").
		fact(Cluster, "its provider ID is %s; the lab's begin with %s", f.Node.Spec.ProviderID, contract.ProviderIDPrefix).
		event(f.Now, newestOf(f.Events, contract.ReasonForeignProviderID)).
		step("if it is ours, delete it and start its kubelet without --provider-id", "kubectl delete node %s", f.Name)
}

func (f NodeFacts) has(taint string) bool {
	return slices.ContainsFunc(f.Node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taint })
}

// uninitialized is a Node that no CCM has seen to.
func (f NodeFacts) uninitialized() *finding {
	if !f.has(cloudproviderapi.TaintExternalCloudProvider) || f.Node.Spec.ProviderID != "" && !f.ours() {
		return nil
	}
	const stays = "is not initialised: "
	cause := f.ccmTrouble(f.about(), f.Events)
	if cause == nil && f.CloudError == "" {
		cause = f.noInstance()
	}
	if cause == nil {
		if e := f.standing(f.Events); e != nil {
			cause = found(NotReady, "the CCM says why: %s", e.Reason).event(f.Now, e).step("see what the CCM does", "%s", f.lab("logs ccm --tail 30"))
		}
	}
	if cause == nil {
		cause = found(NotReady, "the CCM has not got to it yet").fact(Lab, "the CCM runs").
			due("wait; this takes a second or two").step("if it stays, see what the CCM says", "%s", f.lab("logs ccm --tail 30"))
	}
	tainted := found(NotReady, "%s", stays+cause.what).
		fact(Cluster, "it has the taint %s since its kubelet registered it %s ago, so no pod is scheduled on it", cloudproviderapi.TaintExternalCloudProvider, age(f.Now, f.Node.CreationTimestamp.Time))
	return tainted.with(cause)
}

// noInstance is when the CCM cannot tell which instance the Node is.
func (f NodeFacts) noInstance() *finding {
	if f.Node.Spec.ProviderID != "" {
		return nil
	}
	live := f.live()
	ambiguous := newestOf(f.Events, contract.ReasonInstanceAmbiguous)
	switch {
	case len(live) == 0:
		none := f.named(found(NotReady, "the cloud has no instance of its name"))
		if len(f.Named) == 0 {
			none.fact(Cloud, "no instance is called %s", f.Name)
		}
		return none.event(f.Now, newestOf(f.Events, contract.ReasonInstanceNotFound)).
			step("create one", "fakecloud instances create %s", f.Name).
			step("or delete the Node", "kubectl delete node %s", f.Name)
	case len(live) > 1:
		return f.named(found(NotReady, "%d instances have its name, and the CCM cannot tell which is its own", len(live))).event(f.Now, ambiguous).
			step("see which is which, and terminate all but its own", "fakecloud instances list")
	case live[0].State == api.InstancePending:
		return f.lifeCycle(f.named(found(NotReady, "its instance is still pending")), f.about()).due("wait; the CCM is told when the instance runs")
	}
	return nil
}

// instanceDown is a Node whose machine is off, by the cloud's word.
func (f NodeFacts) instanceDown() *finding {
	i := f.instance()
	if i == nil || i.State == api.InstanceRunning || i.State == api.InstanceTerminated || i.State == api.InstancePending && f.ready() {
		return nil
	}
	off := found(NotReady, "is not ready: its instance is %s", in(i.State))
	if f.ready() {
		off.what = "is still Ready in the cluster, and its instance is " + in(i.State)
	}
	return f.restart(off.fact(Cloud, "%s", describe(i)), i)
}

func (f NodeFacts) condition(kind corev1.NodeConditionType) *corev1.NodeCondition {
	if i := slices.IndexFunc(f.Node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind }); i >= 0 {
		return &f.Node.Status.Conditions[i]
	}
	return nil
}

func (f NodeFacts) ready() bool {
	c := f.condition(corev1.NodeReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// notReady is what the Node's own condition says, and why.
func (f NodeFacts) notReady() *finding {
	if f.ready() {
		return nil
	}
	not := found(NotReady, "is not ready: its kubelet has not said yet that it is")
	c := f.condition(corev1.NodeReady)
	if c != nil {
		not.what = "is not ready: its kubelet says " + c.Reason
		if c.Status == corev1.ConditionUnknown {
			not.what = "is not ready: its kubelet is silent"
		}
		not.fact(Cluster, "condition Ready is %s for %s: %s (%s)", c.Status, age(f.Now, c.LastTransitionTime.Time), c.Message, c.Reason)
	}
	f.tellLease(not)
	process := f.component("node/" + f.Name)
	switch i := f.instance(); {
	case i != nil && i.State != api.InstanceRunning: // instanceDown has said so.
		return not
	case f.Processes["node/"+f.Name].Paused:
		not.what = "is not ready: its kubelet is stopped by a signal"
		return f.down(not, "node/"+f.Name)
	case c != nil && c.Status == corev1.ConditionFalse && f.Node.Spec.PodCIDR == "":
		not.what = "is not ready: it has no range of pod addresses, so its network is not set up"
		not.fact(Cluster, "spec.podCIDR is empty; kube-controller-manager gives it").event(f.Now, newestOf(f.Events, "CIDRNotAvailable"))
		if f.halted(componentKCM) != "" {
			return f.down(not, componentKCM)
		}
		return not.due("wait; it is given within a second").step("if it stays, see who gives the ranges", "%s", f.lab("logs kube-controller-manager --tail 30"))
	case process != nil && process.PID != 0 && (c == nil || c.Status == corev1.ConditionUnknown):
		return f.speechless(not.fact(Lab, "its machine's process runs (pid %d)", process.PID), c != nil)
	case process == nil && f.runsMachines() && f.halted(componentAgent) != "":
		not.what = "is not ready: its machine has ended, and the lab's agent, which would boot it again, " + f.halted(componentAgent)
		return f.down(not.fact(Lab, "no process of node/%s runs", f.Name), componentAgent)
	case process == nil && f.runsMachines():
		not.what = "is not ready: its machine has ended"
		return not.fact(Lab, "no process of node/%s runs", f.Name).due("wait; the lab's agent boots it again within seconds").
			step("see why it ended", "%s", f.lab("logs node-"+f.Name+" --tail 30"))
	}
	return not.step("see what its kubelet says", "%s", f.lab("logs node-"+f.Name+" --tail 30"))
}

// speechless is a machine that runs, and whose kubelet does not say how it is;
// spoken tells that it did once.
func (f NodeFacts) speechless(not *finding, spoken bool) *finding {
	switch {
	case f.booting("node/" + f.Name):
		not.what = "is not ready: its machine is booting"
		not.due("wait; its kubelet says in a moment that it is ready")
	case spoken && f.leaseOver() > 0:
		not.what = "is not ready: its kubelet runs and hangs"
		not.step("reboot its machine", "fakecloud instances reboot %s", f.Name)
	case spoken:
		not.what = "is not ready: its kubelet is back, and has not said yet that it is"
		not.due("wait; it says so in a moment")
	}
	return not.step("see what it says", "%s", f.lab("logs node-"+f.Name+" --tail 30"))
}

// runsMachines tells whether the lab runs the nodes itself: where it does not run
// the control plane, it does not.
func (f NodeFacts) runsMachines() bool { return f.component(componentAPIServer) != nil }

// leaseOver is for how long a lease is not renewed, or 0 as long as it is valid.
func (f NodeFacts) leaseOver() time.Duration {
	if f.Lease == nil || f.Lease.Spec.RenewTime == nil || f.Lease.Spec.LeaseDurationSeconds == nil {
		return 0
	}
	since := f.Now.Sub(f.Lease.Spec.RenewTime.Time)
	if since < time.Duration(*f.Lease.Spec.LeaseDurationSeconds)*time.Second {
		return 0
	}
	return since
}

func (f NodeFacts) tellLease(to *finding) {
	if over := f.leaseOver(); over > 0 {
		to.fact(Cluster, "its kubelet's lease, which lasts %d s, was renewed %s ago", *f.Lease.Spec.LeaseDurationSeconds, age(f.Now, f.Now.Add(-over)))
	}
}

// silent is a Node that still says Ready, and whose kubelet says nothing.
func (f NodeFacts) silent() *finding {
	if !f.ready() || f.leaseOver() == 0 {
		return nil
	}
	old := found(NotReady, "still says Ready, and its kubelet is silent")
	f.tellLease(old)
	if f.component("node/"+f.Name) == nil && f.runsMachines() {
		old.fact(Lab, "no process of node/%s runs", f.Name)
	}
	f.down(old, "node/"+f.Name, componentKCM, componentAgent)
	if why := f.halted("node/" + f.Name); why != "" {
		old.what = "still says Ready, and its kubelet " + why
	}
	if why := f.halted(componentKCM); why != "" {
		old.what += "; nobody marks it, as kube-controller-manager " + why
	}
	return old.step("see what its kubelet says", "%s", f.lab("logs node-"+f.Name+" --tail 30"))
}

// shutdown is upstream's taint of a Node whose machine is off.
func (f NodeFacts) shutdown() *finding {
	if !f.has(cloudproviderapi.TaintNodeShutdown) {
		return nil
	}
	off := found(NotReady, "has the taint of a machine that is shut down").
		fact(Cluster, "it has the taint %s, so no pod is scheduled on it", cloudproviderapi.TaintNodeShutdown)
	if i := f.instance(); i == nil || i.State != api.InstanceRunning {
		return off
	}
	off.what += ", though its instance runs again"
	if trouble := f.idleCCM(); trouble != nil {
		off.what += ": the CCM, which would lift it, " + f.halted(componentCCM)
		return off.with(trouble)
	}
	return off.due("wait; the CCM lifts the taint once the Node is Ready")
}

// network is a Node that no route leads to.
func (f NodeFacts) network() *finding {
	c := f.condition(corev1.NodeNetworkUnavailable)
	if c == nil || c.Status != corev1.ConditionTrue {
		return nil
	}
	return found(NotReady, "has no way for its pods: a route to them is missing").
		fact(Cluster, "condition NetworkUnavailable is True: %s (%s)", c.Message, c.Reason).
		event(f.Now, newestOf(f.Events, contract.ReasonRouteConflict, "FailedToCreateRoute")).
		step("see the cloud's routes", "fakecloud routes list")
}

// cordoned is a person's doing.
func (f NodeFacts) cordoned() *finding {
	if !f.Node.Spec.Unschedulable {
		return nil
	}
	return found(Degraded, "is cordoned: no new pod is scheduled on it").
		fact(Cluster, "spec.unschedulable is set, by `kubectl cordon` or `kubectl drain`").
		step("let pods on it again", "kubectl uncordon %s", f.Name)
}

// unseen is a Node whose instance could not be looked at.
func (f NodeFacts) unseen() *finding {
	if f.CloudError == "" {
		return nil
	}
	return f.lost(found(Degraded, "is Ready by the cluster's word; of its instance nothing is known, as the cloud does not answer"))
}

// lost adds why the cloud could not be asked, and what can be done.
func (a Around) lost(f *finding) *finding {
	f.fact(Cloud, "%s", a.CloudError)
	for _, rule := range a.Faults {
		if effect := effectOnCalls(rule.Effect); effect != "" && a.inForce(rule) && rule.Match.Token == "" {
			f.fact(Cloud, "fault %s: %s", rule.ID, effect).step("lift the fault", "fakecloud faults delete %s", rule.ID)
		}
	}
	if a.down(f, componentCloud); len(f.next) == 0 {
		f.step("see what the cloud says", "%s", a.lab("logs "+componentCloud+" --tail 30"))
	}
	return f
}

// well is a Node as it should be.
func (f NodeFacts) well() *finding {
	ok := found(Ready, "is ready").fact(Cluster, "condition Ready is True, no taint keeps pods away that the cloud or the CCM set")
	for _, a := range f.Node.Status.Addresses {
		if a.Type != corev1.NodeHostName {
			ok.fact(Cluster, "%s %s, zone %s", a.Type, a.Address, f.Node.Labels[corev1.LabelTopologyZone])
		}
	}
	if i := f.instance(); i != nil {
		ok.fact(Cloud, "%s", describe(i))
	}
	if idle := f.idleCCM(); idle != nil { // It is initialised, and stays so.
		ok.facts = append(ok.facts, idle.facts...)
	}
	return ok
}
