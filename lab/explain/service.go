package explain

// Why a Service does not answer. A balancer's address first, then what is behind
// it: see serving.go.

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// finalizer keeps a Service until the cloud has accepted its balancer's deletion
// (KEP-980).
const finalizer = "service.kubernetes.io/load-balancer-cleanup"

// ServiceFacts are what is known of one Service.
type ServiceFacts struct {
	Around
	Namespace, Name string
	// Service is nil when there is no such object.
	Service *corev1.Service
	Events  []corev1.Event
	Slices  []discoveryv1.EndpointSlice
	// Pods are those that the selector matches, PodEvents the Warnings in the
	// Service's namespace about them.
	Pods      []corev1.Pod
	PodEvents []corev1.Event
	Nodes     []corev1.Node
	// Balancer is the one that carries the Service's UID in its tags, nil if
	// there is none. Health is what it knows of its targets.
	Balancer *api.LoadBalancer
	Health   *api.LoadBalancerHealth
	// Quota is for load balancers, nil if it is not known.
	Quota *api.Quota
	// Instances name the balancer's targets.
	Instances []api.Instance
	// Services are all there are, as NAMESPACE/NAME.
	Services []string
}

// Service explains one.
func Service(f ServiceFacts) Explanation {
	x := Explanation{Kind: KindService, Namespace: f.Namespace, Name: f.Name}
	switch {
	case f.ClusterError != "":
		return x.conclude(f.Around, f.unanswered())
	case f.Service == nil:
		return x.conclude(f.Around, f.absent())
	case f.Service.DeletionTimestamp != nil:
		return x.conclude(f.Around, f.deleting())
	case f.Namespace == "default" && f.Name == "kubernetes":
		return x.conclude(f.Around, f.theAPIServers())
	case f.Service.Spec.Type != corev1.ServiceTypeLoadBalancer:
		return x.conclude(f.Around, f.otherType(), f.leftOver(), f.endpoints())
	}
	var findings []*finding
	if why := f.halted(componentCloud); f.theCCMs() && why != "" {
		findings = append(findings, f.lost(found(NotReady, "does not answer: its load balancer is the cloud's, which %s", why)))
	} else {
		findings = append(findings, f.address(), f.balancer(), f.outstanding())
	}
	findings = append(findings, f.endpoints(), f.targets(), f.ranges(), f.stale())
	if !slices.ContainsFunc(findings, func(found *finding) bool { return found != nil }) {
		findings = append(findings, f.chain())
	}
	return x.conclude(f.Around, findings...)
}

// theCCMs tells whether the CCM is to see to the Service.
func (f ServiceFacts) theCCMs() bool { return f.Service.Spec.LoadBalancerClass == nil }

func (f ServiceFacts) about() about {
	a := about{words: serviceWords, kind: api.FaultLoadBalancer}
	if f.Balancer != nil {
		a.id, a.tags = f.Balancer.ID, f.Balancer.Tags
	}
	return a
}

// kubectl is a command about the Service.
func (f ServiceFacts) kubectl(verb, args string) string {
	return strings.TrimSpace(fmt.Sprintf("kubectl --namespace %s %s service %s %s", f.Namespace, verb, f.Name, args))
}

func (f ServiceFacts) absent() *finding {
	none := found(NotReady, "does not exist").fact(Cluster, "there is no such Service in namespace %s", f.Namespace)
	var meant []string
	for _, full := range f.Services {
		if _, name, _ := strings.Cut(full, "/"); name == f.Name || len(meantNames(f.Name, []string{name})) > 0 {
			meant = append(meant, full)
		}
	}
	for _, full := range meant {
		none.step("did you mean "+full+"?", "%s", f.lab("explain service/"+full))
	}
	return none.step("see what there is", "%s", f.lab("explain service"))
}

// deleting is a Service that waits for what must go first.
func (f ServiceFacts) deleting() *finding {
	d := found(NotReady, "is being deleted").fact(Cluster, "it was deleted %s ago, and waits for: %s", age(f.Now, f.Service.DeletionTimestamp.Time), strings.Join(f.Service.Finalizers, ", "))
	if !slices.Contains(f.Service.Finalizers, finalizer) {
		if len(f.Service.Finalizers) == 0 {
			return d.due("wait; nothing holds it")
		}
		d.what += ", and waits for somebody else than the CCM"
		return d.step("see who set the finalizers", "%s", f.kubectl("get", "-o yaml"))
	}
	if f.Balancer != nil {
		d.fact(Cloud, "%s", describeBalancer(f.Balancer))
	}
	if trouble := f.ccmTrouble(f.about(), f.Events); trouble != nil {
		d.what += ", and its finalizer waits for the CCM to delete the load balancer: " + trouble.what
		return d.with(trouble)
	}
	switch {
	case f.CloudError != "":
		return f.lost(d)
	case f.Balancer != nil && f.Balancer.State == api.LoadBalancerDeleting:
		d.what += "; its load balancer is on its way out"
		return f.lifeCycle(d, f.about()).due("wait; the CCM takes the finalizer off once the cloud has accepted the deletion")
	}
	if e := f.standing(f.Events); e != nil {
		d.what += ", and the CCM cannot delete its load balancer: " + e.Reason
		d.event(f.Now, e)
	}
	return d.due("wait; the CCM deletes the balancer and takes the finalizer off").step("if it stays, see what the CCM says", "%s", f.lab("logs ccm --tail 30"))
}

// theAPIServers is default/kubernetes, which the API server makes for itself and
// sets right whenever somebody changes it.
func (f ServiceFacts) theAPIServers() *finding {
	if s := f.served(); s.ready > 0 {
		return found(Ready, "is the API server's own").fact(Cluster, "its EndpointSlices have %s", s)
	}
	return found(Ready, "is the API server's own; this lab keeps no endpoints for it, as loopback is not allowed there").
		fact(Cluster, "EndpointSlices take no addresses of 127.0.0.0/8, and the API server has no other")
}

// otherType is a Service that asks for no balancer.
func (f ServiceFacts) otherType() *finding {
	other := found(Ready, "is of type %s, so it has no load balancer", f.Service.Spec.Type).
		fact(Cluster, "spec.type is %s; only a Service of type LoadBalancer gets a load balancer and an address", f.Service.Spec.Type)
	if len(f.Service.Spec.Selector) == 0 { // A load balancer would lead to nothing.
		return other
	}
	return other.step("if it should have one", "%s", f.kubectl("patch", `--patch '{"spec":{"type":"LoadBalancer"}}'`))
}

// leftOver is the balancer of a Service that asks for none any more.
func (f ServiceFacts) leftOver() *finding {
	if f.Balancer == nil {
		return nil
	}
	left := found(Degraded, "asks for no load balancer any more, and still has one").fact(Cloud, "%s", describeBalancer(f.Balancer))
	if trouble := f.ccmTrouble(f.about(), f.Events); trouble != nil {
		left.what += ": " + trouble.what
		return left.with(trouble)
	}
	return left.due("wait; the CCM deletes it")
}

func describeBalancer(lb *api.LoadBalancer) string {
	return fmt.Sprintf("load balancer %s (%s) at %s is %s%s", lb.ID, lb.Name, lb.Address, in(lb.State), because(deref(lb.StateReason)))
}

func (f ServiceFacts) addressed() bool { return len(f.Service.Status.LoadBalancer.Ingress) > 0 }

// address is a Service that has none yet.
func (f ServiceFacts) address() *finding {
	if f.addressed() {
		return nil
	}
	none := found(NotReady, "has no address").fact(Cluster, "its status names no address; it was created %s ago", age(f.Now, f.Service.CreationTimestamp.Time))
	switch lb := f.Balancer; {
	case !f.theCCMs():
		none.what = "has no address: it is another controller's, by its class"
		return none.fact(Cluster, "spec.loadBalancerClass is %q, so the CCM leaves it alone", *f.Service.Spec.LoadBalancerClass).
			due("have that controller run, or create the Service anew without the class, which cannot be changed")
	case lb != nil && lb.State == api.LoadBalancerError:
		return f.inError(none)
	case lb != nil:
		return f.notToldYet(none)
	}
	if trouble := f.idleCCM(); trouble != nil {
		none.what += ": " + trouble.what
		return none.with(trouble)
	}
	if f.CloudError != "" {
		none.state = Unknown
		none.what += ", and the cloud cannot be asked why"
		return f.lost(none.event(f.Now, f.standing(f.Events)))
	}
	return f.notMade(none)
}

// cannotListen is how the cloud begins to say that a port could not be bound.
const cannotListen = "cannot listen on "

// inError is a balancer that the cloud could not bring about.
func (f ServiceFacts) inError(to *finding) *finding {
	lb, why := f.Balancer, deref(f.Balancer.StateReason)
	to.what += ": the cloud could not build its load balancer"
	to.fact(Cloud, "%s", describeBalancer(lb))
	f.lifeCycle(to, f.about())
	if !strings.Contains(why, cannotListen) {
		return to.due("wait; the cloud tries again by itself").step("see the balancer", "fakecloud load-balancers get %s", lb.ID)
	}
	if strings.Contains(why, "ip_unprivileged_port_start") {
		to.what = strings.TrimSuffix(to.what, "could not build its load balancer") + "may not listen on a port that low: net.ipv4.ip_unprivileged_port_start forbids it"
		to.step("take a port from 1024 on", "%s", f.kubectl("edit", "")).
			step("or let everybody have low ports", "sudo sysctl -w net.ipv4.ip_unprivileged_port_start=%d", portInReason(why))
		return to.due("the cloud tries again by itself")
	}
	to.what = strings.TrimSuffix(to.what, "could not build its load balancer") + "cannot listen on its port"
	return to.step("see who listens there", "ss -lnp 'sport = :%d'", portInReason(why)).
		step("or take another port", "%s", f.kubectl("edit", "")).due("the cloud tries again by itself")
}

// portInReason is the port that the cloud says it cannot listen on.
func portInReason(why string) uint16 {
	_, rest, _ := strings.Cut(why, cannotListen)
	at, _, _ := strings.Cut(rest, " ")
	where, err := netip.ParseAddrPort(strings.TrimSuffix(at, ":"))
	if err != nil {
		return 0
	}
	return where.Port()
}

// notToldYet is a balancer that is there, and whose address is not written.
func (f ServiceFacts) notToldYet(to *finding) *finding {
	lb := f.Balancer
	to.fact(Cloud, "%s, since %s by the cloud's clock", describeBalancer(lb), lb.UpdatedAt.UTC().Format("15:04:05"))
	if lb.State != api.LoadBalancerActive {
		to.what += fmt.Sprintf(" yet: its load balancer is %s", lb.State)
		f.lifeCycle(to, f.about())
		if idle := f.idleCCM(); idle != nil {
			return to.with(idle)
		}
		return to.due("wait; the cloud takes its time, and the CCM is told when it is done")
	}
	if trouble := f.ccmTrouble(f.about(), f.Events); trouble != nil {
		to.what += ", though its load balancer is active: " + trouble.what
		return to.with(trouble)
	}
	to.what += " yet, though its load balancer is active: the CCM is about to write it"
	return to.event(f.Now, f.standing(f.Events)).due("wait; this takes under a second").step("if it stays, see what the CCM says", "%s", f.lab("logs ccm --tail 30"))
}

// told are the CCM's reasons in words, with what to do first.
var told = map[string]struct{ what, do, command string }{
	contract.ReasonInvalidService:        {"it asks for what no load balancer can do", "change its spec or annotations", ""},
	contract.ReasonQuotaExceeded:         {"the project's quota is used up", "see the quota", "fakecloud quotas get"},
	contract.ReasonAddressPoolExhausted:  {"the cloud has no address left", "see who has them", "fakecloud load-balancers list"},
	contract.ReasonLoadBalancerNameTaken: {"another load balancer has its name", "see whose it is", "fakecloud load-balancers list"},
	contract.ReasonAddressNotAvailable:   {"the address that it asks for is not to be had", "see the reserved addresses", "fakecloud addresses list"},
	contract.ReasonLoadBalancerAmbiguous: {"it cannot be told which load balancer is its own", "see whose they are", "fakecloud load-balancers list"},
	contract.ReasonLoadBalancerFailed:    {"the cloud could not build its load balancer", "see it", "fakecloud load-balancers list"},
	contract.ReasonPortCannotBeBound:     {"the cloud cannot listen on its port", "see why", "fakecloud load-balancers list"},
}

// notMade is a Service for which the CCM has not made a balancer.
func (f ServiceFacts) notMade(to *finding) *finding {
	e := f.standing(f.Events)
	if q := f.Quota; q != nil && q.Used >= q.Limit && (e == nil || e.Reason == contract.ReasonQuotaExceeded) {
		to.what += ": the project's quota of load balancers is used up"
		return to.fact(Cloud, "%d load balancers are in use, and %d allowed", q.Used, q.Limit).event(f.Now, e).
			step("raise it", "fakecloud quotas set --load-balancers %d", q.Used+1).
			step("or delete what is not needed", "fakecloud load-balancers list")
	}
	if trouble := f.ccmTrouble(f.about(), f.Events); trouble != nil {
		to.what += ": " + trouble.what
		return to.with(trouble)
	}
	if e != nil {
		return f.tell(to, e)
	}
	to.what += " yet: the CCM has not asked for its load balancer"
	return to.event(f.Now, newestOf(f.Events, "SyncLoadBalancerFailed")).fact(Lab, "the CCM runs").
		due("wait; this takes a second or two").step("if it stays, see what the CCM says", "%s", f.lab("logs ccm --tail 30"))
}

// tell says what the CCM says of the Service.
func (f ServiceFacts) tell(to *finding, e *corev1.Event) *finding {
	why, known := told[e.Reason]
	if !known {
		to.what += ": the CCM says " + e.Reason
		return to.event(f.Now, e).step("see all that was said of it", "%s", f.kubectl("describe", ""))
	}
	to.what += ": " + why.what
	if why.command == "" {
		why.command = f.kubectl("edit", "")
	}
	return to.event(f.Now, e).step(why.do, "%s", why.command)
}

// outstanding is a change of a Service that has an address, which the CCM could
// not carry out.
func (f ServiceFacts) outstanding() *finding {
	e := f.refusal()
	if !f.addressed() || !f.theCCMs() || e == nil {
		return nil
	}
	return f.tell(found(Degraded, "keeps the load balancer that it had, as the latest change could not be made"), e)
}

// refusal is the Event that says why the latest change was not made; nil if it was, or
// is about to be.
func (f ServiceFacts) refusal() *corev1.Event {
	e := f.standing(f.Events)
	done := newestOf(f.Events, "EnsuredLoadBalancer")
	if e == nil || e.Reason == contract.ReasonLoadBalancerDegraded || done != nil && !eventTime(e).After(eventTime(done)) {
		return nil
	}
	return e
}

// balancer is one that does not do what the Service's status says.
func (f ServiceFacts) balancer() *finding {
	if !f.addressed() || !f.theCCMs() {
		return nil
	}
	at := f.Service.Status.LoadBalancer.Ingress[0].IP
	switch lb := f.Balancer; {
	case f.CloudError != "":
		return f.lost(found(Unknown, "has the address %s; of its load balancer nothing is known, as the cloud does not answer", at))
	case lb == nil:
		return f.repair(found(NotReady, "does not answer: its load balancer is gone").
			fact(Cluster, "its status names %s", at).fact(Cloud, "no load balancer has its UID in its tags"))
	case lb.State == api.LoadBalancerError:
		return f.inError(found(NotReady, "does not answer").fact(Cluster, "its status names %s", at))
	case lb.State == api.LoadBalancerDeleting:
		return f.repair(found(NotReady, "does not answer: its load balancer is being deleted").fact(Cloud, "%s", describeBalancer(lb)))
	case lb.State != api.LoadBalancerActive:
		return f.lifeCycle(found(Degraded, "has its load balancer %s", lb.State).fact(Cloud, "%s", describeBalancer(lb)), f.about()).due("wait; it serves as it did before until that is done")
	}
	return f.ports()
}

// repair is for the CCM to do.
func (f ServiceFacts) repair(to *finding) *finding {
	if trouble := f.ccmTrouble(f.about(), f.Events); trouble != nil {
		to.what += ", and " + trouble.what
		return to.with(trouble)
	}
	if e := f.refusal(); e != nil {
		return f.tell(to, e)
	}
	return to.due("wait; the CCM sees it, and makes a new one").step("if it stays, see what the CCM says", "%s", f.lab("logs ccm --tail 30"))
}

// ports are those that the Service has and the balancer has not.
func (f ServiceFacts) ports() *finding {
	var missing []string
	for _, p := range f.Service.Spec.Ports {
		if !slices.ContainsFunc(f.Balancer.Listeners, func(l api.Listener) bool {
			return l.Port == int(p.Port) && strings.EqualFold(string(l.Protocol), string(p.Protocol)) && (p.NodePort == 0 || l.TargetPort == int(p.NodePort))
		}) {
			missing = append(missing, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return f.repair(found(NotReady, "does not answer on %s: its load balancer does not have that port as the Service has", strings.Join(missing, ", ")).
		fact(Cloud, "%s%s", describeBalancer(f.Balancer), because(listeners(f.Balancer))))
}

func listeners(lb *api.LoadBalancer) string {
	var all []string
	for _, l := range lb.Listeners {
		all = append(all, fmt.Sprintf("%d/%s goes to node port %d", l.Port, l.Protocol, l.TargetPort))
	}
	return strings.Join(all, ", ")
}

// ranges is when the balancer keeps this machine out. Whoever calls an address of
// loopback does so from 127.0.0.1.
func (f ServiceFacts) ranges() *finding {
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
	return found(NotReady, "refuses this machine: its source ranges leave it out").
		fact(Cloud, "only clients from %s may connect, and this machine calls from 127.0.0.1", strings.Join(f.Balancer.SourceRanges, ", ")).
		step("let this machine in: change spec.loadBalancerSourceRanges", "%s", f.kubectl("edit", ""))
}
