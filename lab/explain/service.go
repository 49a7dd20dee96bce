package explain

// A Service's address and its balancer. What is behind the address is in serving.go.

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/kubediff"
)

// loadBalancerFinalizer keeps a Service until the cloud has accepted its balancer's deletion
// (KEP-980).
const loadBalancerFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// ServiceFacts are the facts about one Service.
type ServiceFacts struct {
	LabFacts
	Namespace, Name string
	// Service is nil when there is no such object.
	Service *corev1.Service
	Events  []corev1.Event
	Slices  []discoveryv1.EndpointSlice
	// Pods are those that the selector matches. PodEvents are the Warnings about pods
	// in the Service's namespace.
	Pods      []corev1.Pod
	PodEvents []corev1.Event
	Nodes     []corev1.Node
	// Balancer is the one with the Service's UID in its tags, nil if there is none.
	// Health is its targets' health, Stats are its counters.
	Balancer *api.LoadBalancer
	Health   *api.LoadBalancerHealth
	Stats    *api.LoadBalancerStats
	// Address is the reserved address that the status names, if no balancer has it: some CCMs attach one to a Node's
	// instance, and make no balancer. It may be nil.
	Address *api.ReservedAddress
	// Quota is the project's quota of load balancers, nil if unknown.
	Quota *api.Quota
	// Instances name the balancer's targets.
	Instances []api.Instance
	// Services are all of the cluster's, as NAMESPACE/NAME.
	Services []string
}

// Service explains a Service from its facts.
func Service(f ServiceFacts) Explanation {
	x := Explanation{Kind: KindService, Namespace: f.Namespace, Name: f.Name}
	switch {
	case f.ClusterError != "":
		return x.conclude(f.LabFacts, f.findAPIServerDown())
	case f.Service == nil:
		return x.conclude(f.LabFacts, f.findMissingService())
	case f.Service.DeletionTimestamp != nil:
		return x.conclude(f.LabFacts, f.findDeletion())
	case f.Namespace == "default" && f.Name == "kubernetes":
		return x.conclude(f.LabFacts, f.describeAPIServerService())
	case f.Service.Spec.Type != corev1.ServiceTypeLoadBalancer:
		return x.conclude(f.LabFacts, f.describeOtherType(), f.findLeftoverBalancer(), f.findNoEndpoints())
	}
	var findings []*finding
	if f.isManagedByCCM() {
		findings = append(findings, f.findLockedOut())
	}
	if why := f.haltReason(componentCloud); f.isManagedByCCM() && why != "" {
		findings = append(
			findings,
			f.addCloudError(newFinding(NotReady, "does not answer: its load balancer is the cloud's, which %s", why)),
		)
	} else {
		findings = append(findings, f.findNoAddress(), f.findBalancerMismatch(), f.findFailedUpdate())
	}
	findings = append(
		findings, f.findNoEndpoints(), f.findUnhealthyTargets(), f.findExcludedClient(), f.findStaleEndpoints(),
	)
	if !slices.ContainsFunc(findings, func(found *finding) bool { return found != nil && found.state != Degraded }) {
		findings = append(findings, f.findNoAnswers()) // Only where nothing else says why.
	}
	if !slices.ContainsFunc(findings, func(found *finding) bool { return found != nil }) {
		findings = append(findings, f.describeHealthyPath())
	}
	return x.conclude(f.LabFacts, findings...)
}

// isManagedByCCM tells whether the Service is the CCM's: it has no
// loadBalancerClass.
func (f ServiceFacts) isManagedByCCM() bool { return f.Service.Spec.LoadBalancerClass == nil }

func (f ServiceFacts) callScope() callScope {
	a := callScope{words: serviceWords, kind: api.ResourceLoadBalancer}
	if f.Balancer != nil {
		a.id, a.tags = f.Balancer.ID, f.Balancer.Tags
	}
	return a
}

// kubectlCommand returns a command line about the Service.
func (f ServiceFacts) kubectlCommand(verb, args string) string {
	return strings.TrimSpace(fmt.Sprintf("kubectl --namespace %s %s service %s %s", f.Namespace, verb, f.Name, args))
}

func (f ServiceFacts) findMissingService() *finding {
	none := newFinding(NotReady, "does not exist").
		addFact(Cluster, "there is no such Service in namespace %s", f.Namespace)
	var meant []string
	for _, full := range f.Services {
		if _, name, _ := strings.Cut(full, "/"); name == f.Name || len(similarNames(f.Name, []string{name})) > 0 {
			meant = append(meant, full)
		}
	}
	for _, full := range meant {
		none.addStep("did you mean "+full+"?", "%s", f.labCommand("explain service/"+full))
	}
	return none.addStep("see what there is", "%s", f.labCommand("explain service"))
}

// findDeletion says what the deletion of the Service waits for.
func (f ServiceFacts) findDeletion() *finding {
	d := newFinding(NotReady, "is being deleted").addFact(
		Cluster, "it was deleted %s ago, and waits for: %s", formatAge(f.Now, f.Service.DeletionTimestamp.Time),
		strings.Join(f.Service.Finalizers, ", "),
	)
	if !slices.Contains(f.Service.Finalizers, loadBalancerFinalizer) {
		if len(f.Service.Finalizers) == 0 {
			return d.addWait("wait; nothing holds it")
		}
		d.verdict += ", and waits for somebody else than the CCM"
		return d.addStep("see who set the finalizers", "%s", f.kubectlCommand("get", "-o yaml"))
	}
	if f.Balancer != nil {
		d.addFact(Cloud, "%s", describeBalancer(f.Balancer))
	}
	if trouble := f.findCCMTrouble(f.callScope(), f.Events); trouble != nil {
		d.verdict += ", and its finalizer waits for the CCM to delete the load balancer: " + trouble.verdict
		return d.addCause(trouble)
	}
	switch {
	case f.CloudError != "":
		return f.addCloudError(d)
	case f.Balancer != nil && f.Balancer.State == api.LoadBalancerDeleting:
		d.verdict += "; its load balancer is on its way out"
		return f.addLifecycleFaults(d, f.callScope()).
			addWait("wait; the CCM takes the finalizer off once the cloud has accepted the deletion")
	}
	if e := f.newestCurrentWarning(f.Events); e != nil {
		d.verdict += ", and the CCM cannot delete its load balancer: " + e.Reason
		d.addEvent(f.Now, e)
	}
	return d.addWait("wait; the CCM deletes the balancer and takes the finalizer off").
		addStep("if it stays, see what the CCM says", "%s", f.labCommand("logs ccm --tail 30"))
}

// describeAPIServerService describes default/kubernetes, which the API server
// creates, and restores whenever somebody changes it.
func (f ServiceFacts) describeAPIServerService() *finding {
	if s := f.summarizeEndpoints(); s.ready > 0 {
		return newFinding(Ready, "is the API server's own").addFact(Cluster, "its EndpointSlices have %s", s)
	}
	return newFinding(
		Ready, "is the API server's own; this lab keeps no endpoints for it, as loopback is not allowed there",
	).
		addFact(Cluster, "EndpointSlices take no addresses of 127.0.0.0/8, and the API server has no other")
}

// describeOtherType describes a Service that is not of type LoadBalancer.
func (f ServiceFacts) describeOtherType() *finding {
	other := newFinding(Ready, "is of type %s, so it has no load balancer", f.Service.Spec.Type).
		addFact(
			Cluster, "spec.type is %s; only a Service of type LoadBalancer gets a load balancer and an address",
			f.Service.Spec.Type,
		)
	if len(f.Service.Spec.Selector) == 0 { // A load balancer would lead to nothing.
		return other
	}
	return other.addStep(
		"if it should have one", "%s", f.kubectlCommand("patch", `--patch '{"spec":{"type":"LoadBalancer"}}'`),
	)
}

// findLeftoverBalancer reports the balancer of a Service that is no longer of type
// LoadBalancer.
func (f ServiceFacts) findLeftoverBalancer() *finding {
	if f.Balancer == nil {
		return nil
	}
	left := newFinding(Degraded, "asks for no load balancer any more, and still has one").
		addFact(Cloud, "%s", describeBalancer(f.Balancer))
	if trouble := f.findCCMTrouble(f.callScope(), f.Events); trouble != nil {
		left.verdict += ": " + trouble.verdict
		return left.addCause(trouble)
	}
	return left.addWait("wait; the CCM deletes it")
}

func describeBalancer(lb *api.LoadBalancer) string {
	return fmt.Sprintf(
		"load balancer %s (%s) at %s is %s%s", lb.ID, lb.Name, strings.Join(lb.PublicAddresses(), " and "), stateInSentence(lb.State),
		reasonSuffix(lb.StateReason),
	)
}

func (f ServiceFacts) hasAddress() bool { return len(f.Service.Status.LoadBalancer.Ingress) > 0 }

// findNoAddress says why the Service's status has no address.
func (f ServiceFacts) findNoAddress() *finding {
	if f.hasAddress() {
		return nil
	}
	none := newFinding(NotReady, "has no address").addFact(
		Cluster, "its status names no address; it was created %s ago",
		formatAge(f.Now, f.Service.CreationTimestamp.Time),
	)
	switch lb := f.Balancer; {
	case !f.isManagedByCCM():
		none.verdict = "has no address: it is another controller's, by its class"
		return none.addFact(
			Cluster, "spec.loadBalancerClass is %q, so the CCM leaves it alone", *f.Service.Spec.LoadBalancerClass,
		).
			addWait("have that controller run, or create the Service anew without the class, which cannot be changed")
	case lb != nil && lb.State == api.LoadBalancerError:
		return f.addBalancerError(none)
	case lb != nil:
		return f.addUnpublishedBalancer(none)
	}
	if trouble := f.findIdleCCM(); trouble != nil {
		none.verdict += ": " + trouble.verdict
		return none.addCause(trouble)
	}
	if f.CloudError != "" {
		none.state = Unknown
		none.verdict += ", and the cloud cannot be asked why"
		return f.addCloudError(none.addEvent(f.Now, f.newestCurrentWarning(f.Events)))
	}
	return f.addMissingBalancer(none)
}

// addBalancerError adds why the cloud could not build the balancer.
func (f ServiceFacts) addBalancerError(to *finding) *finding {
	lb, why := f.Balancer, f.Balancer.StateReason
	to.verdict += ": the cloud could not build its load balancer"
	to.addFact(Cloud, "%s", describeBalancer(lb))
	f.addLifecycleFaults(to, f.callScope())
	if lb.StateReasonCode != api.ReasonCannotListen {
		return to.addWait("wait; the cloud tries again by itself").
			addStep("see the balancer", "fakecloud load-balancers get %s", lb.ID)
	}
	if strings.Contains(why, "ip_unprivileged_port_start") {
		to.verdict = strings.TrimSuffix(
			to.verdict, "could not build its load balancer",
		) + "may not listen on a port that low: net.ipv4.ip_unprivileged_port_start forbids it"
		to.addStep("take a port from 1024 on", "%s", f.kubectlCommand("edit", "")).
			addStep(
				"or let everybody have low ports", "sudo sysctl -w net.ipv4.ip_unprivileged_port_start=%d",
				portInReason(why),
			)
		return to.addWait("the cloud tries again by itself")
	}
	to.verdict = strings.TrimSuffix(to.verdict, "could not build its load balancer") + "cannot listen on its port"
	return to.addStep("see who listens there", "ss -lnp 'sport = :%d'", portInReason(why)).
		addStep("or take another port", "%s", f.kubectlCommand("edit", "")).addWait("the cloud tries again by itself")
}

// portInReason is the port that the cloud could not listen on; 0 if the reason names
// none. The cloud's API tells it in that sentence alone.
func portInReason(why string) uint16 {
	_, rest, _ := strings.Cut(why, "cannot listen on ")
	at, _, _ := strings.Cut(rest, " ")
	where, err := netip.ParseAddrPort(strings.TrimSuffix(at, ":"))
	if err != nil {
		return 0
	}
	return where.Port()
}

// addUnpublishedBalancer adds why the address of an existing balancer is not in the
// Service's status.
func (f ServiceFacts) addUnpublishedBalancer(to *finding) *finding {
	lb := f.Balancer
	to.addFact(Cloud, "%s, since %s by the cloud's clock", describeBalancer(lb), lb.UpdatedAt.UTC().Format("15:04:05"))
	if lb.State != api.LoadBalancerActive {
		to.verdict += fmt.Sprintf(" yet: its load balancer is %s", lb.State)
		f.addLifecycleFaults(to, f.callScope())
		if idle := f.findIdleCCM(); idle != nil {
			return to.addCause(idle)
		}
		return to.addWait("wait; the cloud takes its time, and the CCM is told when it is done")
	}
	if trouble := f.findCCMTrouble(f.callScope(), f.Events); trouble != nil {
		to.verdict += ", though its load balancer is active: " + trouble.verdict
		return to.addCause(trouble)
	}
	to.verdict += " yet, though its load balancer is active: the CCM is about to write it"
	return to.addEvent(f.Now, f.newestCurrentWarning(f.Events)).addWait("wait; this takes under a second").
		addStep("if it stays, see what the CCM says", "%s", f.labCommand("logs ccm --tail 30"))
}

// ccmReasonAdvice describes the CCM's Event reasons, with what to do first.
var ccmReasonAdvice = map[string]struct{ what, do, command string }{
	contract.ReasonInvalidService: {
		"it asks for what no load balancer can do", "change its spec or annotations", "",
	},
	contract.ReasonQuotaExceeded: {"the project's quota is used up", "see the quota", "fakecloud quotas get"},
	contract.ReasonAddressPoolExhausted: {
		"the cloud has no address left", "see who has them", "fakecloud load-balancers list",
	},
	contract.ReasonLoadBalancerNameTaken: {
		"another load balancer has its name", "see whose it is", "fakecloud load-balancers list",
	},
	contract.ReasonAddressNotAvailable: {
		"the address that it asks for is not to be had", "see the reserved addresses", "fakecloud addresses list",
	},
	contract.ReasonLoadBalancerAmbiguous: {
		"it cannot be told which load balancer is its own", "see whose they are", "fakecloud load-balancers list",
	},
	contract.ReasonLoadBalancerFailed: {
		"the cloud could not build its load balancer", "see it", "fakecloud load-balancers list",
	},
	contract.ReasonPortCannotBeBound: {
		"the cloud cannot listen on its port", "see why", "fakecloud load-balancers list",
	},
}

// addMissingBalancer adds why the CCM has created no balancer.
func (f ServiceFacts) addMissingBalancer(to *finding) *finding {
	if f.NoBalancers {
		to.verdict += ": the lab's CCM makes no load balancers"
		return to.addFact(Lab, "the CCM is %s", f.OtherCCM)
	}
	e := f.newestCurrentWarning(f.Events)
	if q := f.Quota; q != nil && q.Used >= q.Limit && (e == nil || e.Reason == contract.ReasonQuotaExceeded) {
		to.verdict += ": the project's quota of load balancers is used up"
		return to.addFact(Cloud, "%d load balancers are in use, and %d allowed", q.Used, q.Limit).addEvent(f.Now, e).
			addStep("raise it", "fakecloud quotas set --load-balancers %d", q.Used+1).
			addStep("or delete what is not needed", "fakecloud load-balancers list")
	}
	if trouble := f.findCCMTrouble(f.callScope(), f.Events); trouble != nil {
		to.verdict += ": " + trouble.verdict
		return to.addCause(trouble)
	}
	if e != nil {
		return f.addCCMEvent(to, e)
	}
	to.verdict += " yet: the CCM has not asked for its load balancer"
	return to.addEvent(f.Now, newestEventWithReason(f.Events, "SyncLoadBalancerFailed")).addFact(Lab, "the CCM runs").
		addWait("wait; this takes a second or two").
		addStep("if it stays, see what the CCM says", "%s", f.labCommand("logs ccm --tail 30"))
}

// noNetworkBalancers begins the cloud's reason why there can be no network balancer: in an embedded
// lab there is no network for packets to pass. The cloud's API tells it in that sentence alone.
const noNetworkBalancers = "this cloud has no network load balancers"

// addCCMEvent adds the CCM's Event about the Service, and what to do.
func (f ServiceFacts) addCCMEvent(to *finding, e *corev1.Event) *finding {
	if strings.Contains(e.Message, noNetworkBalancers) {
		to.verdict += ": it asks for a network load balancer, and this lab's cloud has none"
		return to.addEvent(f.Now, e).
			addStep("take a proxy", "%s", f.kubectlCommand("annotate", contract.AnnotationKind+"=proxy --overwrite")).
			addStep("or use a lab that has them, with nodes that have a network", "lab up --name NAME --cluster kind")
	}
	why, known := ccmReasonAdvice[e.Reason]
	if !known {
		to.verdict += ": the CCM says " + e.Reason
		return to.addEvent(f.Now, e).addStep("see all that was said of it", "%s", f.kubectlCommand("describe", ""))
	}
	to.verdict += ": " + why.what
	if why.command == "" {
		why.command = f.kubectlCommand("edit", "")
	}
	return to.addEvent(f.Now, e).addStep(why.do, "%s", why.command)
}

// findFailedUpdate reports that the CCM could not apply the latest change of a
// Service that has an address.
func (f ServiceFacts) findFailedUpdate() *finding {
	e := f.newestFailedUpdate()
	if !f.hasAddress() || !f.isManagedByCCM() || e == nil {
		return nil
	}
	return f.addCCMEvent(
		newFinding(Degraded, "keeps the load balancer that it had, as the latest change could not be made"), e,
	)
}

// newestFailedUpdate is the Event that says why the latest change was not applied;
// nil if it was, or may still be.
func (f ServiceFacts) newestFailedUpdate() *corev1.Event {
	e := f.newestCurrentWarning(f.Events)
	done := newestEventWithReason(f.Events, "EnsuredLoadBalancer")
	if e == nil || e.Reason == contract.ReasonLoadBalancerDegraded || done != nil && !eventTime(e).
		After(eventTime(done)) {
		return nil
	}
	return e
}

// findBalancerMismatch says how the balancer differs from the Service's status.
func (f ServiceFacts) findBalancerMismatch() *finding {
	if !f.hasAddress() || !f.isManagedByCCM() {
		return nil
	}
	at := kubediff.IngressAddress(f.Service)
	switch lb := f.Balancer; {
	case f.CloudError != "":
		return f.addCloudError(newFinding(
			Unknown, "has the address %s; of its load balancer nothing is known, as the cloud does not answer", at,
		))
	case lb == nil && f.Address != nil:
		return f.findUnattachedAddress()
	case lb == nil:
		return f.addRepair(newFinding(NotReady, "does not answer: its load balancer is gone").
			addFact(Cluster, "its status names %s", at).addFact(Cloud, "no load balancer has its UID in its tags"))
	case lb.State == api.LoadBalancerError:
		return f.addBalancerError(newFinding(NotReady, "does not answer").addFact(Cluster, "its status names %s", at))
	case lb.State == api.LoadBalancerDeleting:
		return f.addRepair(newFinding(NotReady, "does not answer: its load balancer is being deleted").
			addFact(Cloud, "%s", describeBalancer(lb)))
	case lb.State != api.LoadBalancerActive:
		return f.addLifecycleFaults(
			newFinding(Degraded, "has its load balancer %s", lb.State).addFact(Cloud, "%s", describeBalancer(lb)),
			f.callScope(),
		).addWait("wait; it serves as it did before until that is done")
	}
	return f.findMissingPorts()
}

// findUnattachedAddress reports that the reserved address in the status leads to no instance that runs.
func (f ServiceFacts) findUnattachedAddress() *finding {
	if f.Address.Holder == nil {
		return f.addRepair(newFinding(NotReady, "does not answer: its address is attached to no instance").
			addFact(Cloud, "%s", f.describeAddress()))
	}
	holder := f.Address.Holder.ID
	at := slices.IndexFunc(f.Instances, func(i api.Instance) bool { return i.ID == holder })
	if at >= 0 && f.Instances[at].State == api.InstanceRunning {
		return f.findOtherNodesAddress(f.Instances[at])
	}
	down := newFinding(NotReady, "does not answer: its address is attached to an instance that does not run").
		addFact(Cloud, "%s", f.describeAddress())
	if at >= 0 {
		down.addFact(Cloud, "instance %s (%s) is %s", holder, f.Instances[at].Name, f.Instances[at].State).
			addStep("start it", "fakecloud instances start %s", holder)
	}
	return down.addWait("a CCM attaches the address elsewhere when the Node of the instance is deleted, and not before (KEP-3458)")
}

// findOtherNodesAddress reports that the status names another node than the one that has the Service's address. A
// node takes what comes to its own address for a Service only if the Service's status has that.
func (f ServiceFacts) findOtherNodesAddress(holder api.Instance) *finding {
	var others []string
	for _, in := range f.Service.Status.LoadBalancer.Ingress {
		if slices.ContainsFunc(holder.Addresses, func(a api.Address) bool {
			return a.Type == api.AddressInternal && a.IP == in.IP
		}) {
			return nil
		}
		if in.IP != f.Address.IP {
			others = append(others, in.IP)
		}
	}
	if len(others) == 0 {
		return nil
	}
	return f.addRepair(newFinding(NotReady, "does not answer: its address is attached to another node than its status names").
		addFact(Cluster, "its status names %s", strings.Join(others, ", ")).addFact(Cloud, "%s", f.describeAddress()))
}

// describeAddress says where the Service's reserved address leads.
func (f ServiceFacts) describeAddress() string {
	to := "attached to nothing"
	if f.Address.Holder != nil {
		to = fmt.Sprintf("attached to instance %s (%s)", f.Address.Holder.ID, f.targetName(f.Address.Holder.ID))
	}
	return fmt.Sprintf("address %s (%s, %s) is %s", f.Address.IP, f.Address.ID, f.Address.Name, to)
}

// addRepair adds why the CCM has not repaired the balancer yet.
func (f ServiceFacts) addRepair(to *finding) *finding {
	if trouble := f.findCCMTrouble(f.callScope(), f.Events); trouble != nil {
		to.verdict += ", and " + trouble.verdict
		return to.addCause(trouble)
	}
	if e := f.newestFailedUpdate(); e != nil {
		return f.addCCMEvent(to, e)
	}
	return to.addWait("wait; the CCM sees it, and makes a new one").
		addStep("if it stays, see what the CCM says", "%s", f.labCommand("logs ccm --tail 30"))
}

// findMissingPorts reports ports of the Service that the balancer does not listen on.
func (f ServiceFacts) findMissingPorts() *finding {
	var missing []string
	for _, p := range f.Service.Spec.Ports {
		if !slices.ContainsFunc(f.Balancer.Listeners, func(l api.Listener) bool {
			return l.Port == int(p.Port) && strings.EqualFold(string(l.Transport()), string(p.Protocol)) &&
				(p.NodePort == 0 || f.Balancer.Kind == api.KindNetwork || l.TargetPort == int(p.NodePort))
		}) {
			missing = append(missing, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return f.addRepair(newFinding(
		NotReady, "does not answer on %s: its load balancer does not have that port as the Service has",
		strings.Join(missing, ", "),
	).
		addFact(Cloud, "%s%s", describeBalancer(f.Balancer), reasonSuffix(formatListeners(f.Balancer))))
}

func formatListeners(lb *api.LoadBalancer) string {
	var all []string
	for _, l := range lb.Listeners {
		to := fmt.Sprintf("goes to node port %d", l.TargetPort)
		if lb.Kind == api.KindNetwork {
			to = "is passed on as it is"
		}
		all = append(all, fmt.Sprintf("%d/%s %s", l.Port, l.Protocol, to))
	}
	return strings.Join(all, ", ")
}

// findExcludedClient reports that the source ranges exclude this machine, which
// connects to a loopback address from 127.0.0.1.
func (f ServiceFacts) findExcludedClient() *finding {
	if f.Balancer == nil || len(f.Balancer.SourceRanges) == 0 {
		return nil
	}
	at, err := netip.ParseAddr(f.Balancer.Address)
	if err != nil || !at.IsLoopback() {
		return nil
	}
	for _, r := range f.Balancer.SourceRanges {
		if p, err := netip.ParsePrefix(r); err == nil && p.Contains(netip.AddrFrom4([4]byte{127, 0, 0, 1})) {
			return nil
		}
	}
	return newFinding(NotReady, "refuses this machine: its source ranges leave it out").
		addFact(
			Cloud, "only clients from %s may connect, and this machine calls from 127.0.0.1",
			strings.Join(f.Balancer.SourceRanges, ", "),
		).
		addStep("let this machine in: change spec.loadBalancerSourceRanges", "%s", f.kubectlCommand("edit", ""))
}
