package explain

// What is behind a Service's address: endpoints, pods, the balancer's targets.

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// served is what the Service's EndpointSlices say.
type served struct {
	ready, notReady, terminating int
	// readyOn has the nodes with a ready endpoint.
	readyOn map[string]bool
	pods    []string // of ready endpoints
	noPorts bool     // endpoints without any port: a named target port that no container has
}

func (f ServiceFacts) served() served {
	s := served{readyOn: map[string]bool{}}
	for _, slice := range f.Slices {
		for _, e := range slice.Endpoints {
			switch terminating := deref(e.Conditions.Terminating); {
			case terminating:
				s.terminating++
			case e.Conditions.Ready == nil || *e.Conditions.Ready:
				s.ready++
				s.noPorts = s.noPorts || len(slice.Ports) == 0
				s.readyOn[deref(e.NodeName)] = true
				if e.TargetRef != nil {
					s.pods = append(s.pods, e.TargetRef.Name)
				}
			default:
				s.notReady++
			}
		}
	}
	slices.Sort(s.pods)
	return s
}

func (s served) String() string {
	return fmt.Sprintf("%s ready, %d not ready, %d terminating", count(s.ready, "endpoint"), s.notReady, s.terminating)
}

// endpoints is when no pod can answer, and why.
func (f ServiceFacts) endpoints() *finding {
	if f.Service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	s := f.served()
	if s.ready > 0 && !s.noPorts {
		return nil
	}
	none := found(NotReady, "has nothing to answer with")
	if f.addressed() {
		none.what = "has an address, and nothing behind it answers"
	}
	none.fact(Cluster, "its EndpointSlices have %s", s)
	selector := labels.Set(f.Service.Spec.Selector).String()
	switch {
	case s.ready > 0:
		none.what += ": its target port has a name that no container's port has"
		return none.step("see the ports", "%s", f.kubectl("describe", ""))
	case selector == "":
		none.what += ": it selects no pods, and nobody has given it endpoints"
		return none.fact(Cluster, "spec.selector is empty").step("set its selector", "%s", f.kubectl("edit", ""))
	case len(f.Pods) == 0:
		none.what += ": its selector matches no pod"
		none.fact(Cluster, "no pod in namespace %s has the labels %s", f.Namespace, selector)
		f.down(none, componentKCM)
		return none.step("compare the pods' labels", "kubectl --namespace %s get pods --show-labels", f.Namespace).
			step("and mend the selector, or the pods", "%s", f.kubectl("edit", ""))
	}
	return f.pods(none)
}

func podReady(p *corev1.Pod) bool { return podCondition(p, corev1.PodReady) == corev1.ConditionTrue }

func podCondition(p *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}

// pods is why those that the selector matches are not ready.
func (f ServiceFacts) pods(to *finding) *finding {
	var ready, pending, unready, ending []*corev1.Pod
	for i := range f.Pods {
		switch p := &f.Pods[i]; {
		case p.DeletionTimestamp != nil:
			ending = append(ending, p)
		case p.Spec.NodeName == "":
			pending = append(pending, p)
		case podReady(p):
			ready = append(ready, p)
		default:
			unready = append(unready, p)
		}
	}
	to.fact(Cluster, "the selector matches %s: %d ready, %d not ready, %d without a node, %d on the way out", count(len(f.Pods), "pod"), len(ready), len(unready), len(pending), len(ending))
	switch {
	case len(ready) > 0:
		to.what += ": its pods are ready, and its EndpointSlices do not say so"
		if why := f.halted(componentKCM); why != "" {
			to.what += ", as kube-controller-manager, which writes them, " + why
			return f.down(to, componentKCM)
		}
		return to.due("wait; kube-controller-manager writes them within a second")
	case len(unready) > 0:
		return f.unreadyPods(to, unready)
	case len(pending) > 0:
		return f.pendingPods(to, pending)
	}
	to.what += ": its pods are all on the way out"
	return to.step("see the pods", "kubectl --namespace %s get pods", f.Namespace)
}

func (f ServiceFacts) unreadyPods(to *finding, pods []*corev1.Pod) *finding {
	reason := ""
	for _, p := range pods[:min(len(pods), maxShown)] {
		why, what := podTrouble(p)
		if reason == "" {
			reason = why
		}
		to.fact(Cluster, "pod %s on %s: %s", p.Name, p.Spec.NodeName, what)
		to.event(f.Now, newest(f.PodEvents, func(e *corev1.Event) bool { return e.InvolvedObject.Name == p.Name }))
		if n := f.node(p.Spec.NodeName); n != nil && !nodeReady(n) {
			reason = "their node is not ready"
			to.fact(Cluster, "node %s is not Ready", n.Name).step("see why", "%s", f.lab("explain node/"+n.Name))
		}
	}
	to.what += fmt.Sprintf(": of its %s none is ready%s", count(len(f.Pods), "pod"), because(reason))
	return to.step("see the pod", "kubectl --namespace %s describe pod %s", f.Namespace, pods[0].Name).
		step("and what it says", "kubectl --namespace %s logs %s", f.Namespace, pods[0].Name)
}

// podTrouble is why a pod that has a node is not ready: in a word, and as seen.
func podTrouble(p *corev1.Pod) (why, what string) {
	for _, c := range p.Status.ContainerStatuses {
		switch w, t := c.State.Waiting, c.State.Terminated; {
		case w != nil:
			last := ""
			if ended := c.LastTerminationState.Terminated; ended != nil {
				last = fmt.Sprintf(", it ended with code %d", ended.ExitCode)
			}
			return w.Reason, fmt.Sprintf("container %s waits: %s%s%s%s", c.Name, w.Reason, because(w.Message), last, restarted(c.RestartCount))
		case t != nil:
			return t.Reason, fmt.Sprintf("container %s ended with code %d (%s)", c.Name, t.ExitCode, t.Reason)
		case !c.Ready:
			return "a probe fails", fmt.Sprintf("container %s runs, and its readiness or startup probe does not succeed", c.Name)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Message != "" {
			return c.Reason, fmt.Sprintf("%s (%s)", c.Message, c.Reason)
		}
	}
	return "", "phase " + string(p.Status.Phase) + because(p.Status.Reason)
}

// restarted goes on after a comma; "" if it never was.
func restarted(times int32) string {
	switch times {
	case 0:
		return ""
	case 1:
		return ", restarted once"
	}
	return fmt.Sprintf(", restarted %d times", times)
}

func (f ServiceFacts) pendingPods(to *finding, pods []*corev1.Pod) *finding {
	said := ""
	for _, c := range pods[0].Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			said = c.Message
			to.fact(Cluster, "pod %s has no node: %s (%s)", pods[0].Name, c.Message, c.Reason)
		}
	}
	if said == "" {
		to.fact(Cluster, "pod %s has no node, and the scheduler has not said why", pods[0].Name)
	}
	if why := f.halted(componentScheduler); why != "" {
		to.what += ": its pods wait for kube-scheduler, which " + why
		return f.down(to, componentScheduler)
	}
	var tainted []string
	for _, n := range f.Nodes {
		if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == cloudproviderapi.TaintExternalCloudProvider }) {
			tainted = append(tainted, n.Name)
		}
	}
	switch {
	case len(f.Nodes) == 0:
		to.what += ": its pods wait for a node, and there is none"
		return to.fact(Cluster, "the cluster has no Node").step("create an instance", "fakecloud instances create")
	case len(tainted) > 0:
		to.what += fmt.Sprintf(": its pods are Pending, as %s not initialised by the CCM", isAre(len(tainted), "node"))
		to.fact(Cluster, "tainted %s: %s", cloudproviderapi.TaintExternalCloudProvider, shown(tainted))
		if idle := f.idleCCM(); idle != nil {
			return to.with(idle)
		}
		return to.step("see why", "%s", f.lab("explain node/"+tainted[0]))
	case said == "":
		to.what += ": its pods are not scheduled yet"
		return to.due("wait; the scheduler takes a moment")
	}
	to.what += ": its pods are Pending, as no node suits them"
	return to.step("see the pod", "kubectl --namespace %s describe pod %s", f.Namespace, pods[0].Name).step("see the nodes", "%s", f.lab("explain node"))
}

func isAre(n int, what string) string {
	if n == 1 {
		return "1 " + what + " is"
	}
	return count(n, what) + " are"
}

func (f ServiceFacts) node(name string) *corev1.Node {
	if i := slices.IndexFunc(f.Nodes, func(n corev1.Node) bool { return n.Name == name }); i >= 0 {
		return &f.Nodes[i]
	}
	return nil
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// instance names a target: its node's name, if it is known.
func (f ServiceFacts) instance(id string) string {
	for _, i := range f.Instances {
		if i.ID == id {
			return i.Name
		}
	}
	return id
}

func (f ServiceFacts) local() bool {
	return f.Service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// targets is when the balancer has nobody to send clients to, or not all that it
// should have.
func (f ServiceFacts) targets() *finding {
	lb := f.Balancer
	if lb == nil || lb.State != api.LoadBalancerActive {
		return nil
	}
	if len(lb.Targets) == 0 {
		return f.noTargets()
	}
	s, unhealthy, bad := f.served(), 0, 0
	sick := found(Degraded, "")
	for _, t := range deref(f.Health).Targets {
		name := f.instance(t.InstanceID)
		what := fmt.Sprintf("target %s (%s) is unhealthy%s", name, t.InstanceID, because(deref(t.Reason)))
		if t.Health == api.TargetUnhealthy {
			unhealthy++
			if f.local() && !s.readyOn[name] { // As it should be: clients go to the others.
				continue
			}
		} else if n := f.node(name); t.Health == api.TargetUnknown && n != nil && !nodeReady(n) {
			what = fmt.Sprintf("target %s (%s) is not checked, and sent clients, though its node is not Ready", name, t.InstanceID)
		} else {
			continue
		}
		if bad++; bad <= maxShown {
			sick.fact(Cloud, "%s", what).step("see to its node", "%s", f.lab("explain node/"+name))
		}
	}
	switch all := unhealthy == len(lb.Targets); {
	case all && bad == 0:
		return found(NotReady, "has an address, and no node has a pod of its own to answer with").
			fact(Cluster, "externalTrafficPolicy is Local, and no node that is a target has a ready endpoint").
			step("see where the pods are", "kubectl --namespace %s get pods -o wide", f.Namespace)
	case all:
		sick.state, sick.what = NotReady, "has an address, and no node behind it is healthy"
		return sick
	case bad == 0:
		return f.refusing()
	}
	sick.what = fmt.Sprintf("answers, with %d of %s amiss", bad, count(len(lb.Targets), "target"))
	return sick
}

// refusing is what the balancer says itself, where no target tells.
func (f ServiceFacts) refusing() *finding {
	why := deref(f.Balancer.StateReason)
	if why == "" {
		return nil
	}
	return found(NotReady, "has an address, and its load balancer refuses clients").fact(Cloud, "%s", describeBalancer(f.Balancer)).
		step("see what it knows of its targets", "fakecloud load-balancers health %s", f.Balancer.ID)
}

func (f ServiceFacts) noTargets() *finding {
	none := found(NotReady, "has an address, and its load balancer has no targets").fact(Cloud, "%s, with no targets", describeBalancer(f.Balancer))
	for _, n := range f.Nodes {
		_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
		switch {
		case n.Spec.ProviderID == "":
			none.fact(Cluster, "node %s has no provider ID, so it is no target", n.Name).step("see why", "%s", f.lab("explain node/"+n.Name))
		case excluded:
			none.fact(Cluster, "node %s has the label %s", n.Name, corev1.LabelNodeExcludeBalancers).
				step("take the label off", "kubectl label node %s %s-", n.Name, corev1.LabelNodeExcludeBalancers)
		}
	}
	if len(f.Nodes) == 0 {
		return none.fact(Cluster, "the cluster has no Node").step("create an instance", "fakecloud instances create")
	}
	return f.repair(none)
}

// stale is what nobody keeps up to date.
func (f ServiceFacts) stale() *finding {
	why := f.halted(componentKCM)
	if why == "" {
		return nil
	}
	old := found(Degraded, "is served by EndpointSlices that nobody keeps up to date: kube-controller-manager %s", why)
	s := f.served()
	for _, pod := range s.pods {
		i := slices.IndexFunc(f.Pods, func(p corev1.Pod) bool { return p.Name == pod })
		if i < 0 || !podReady(&f.Pods[i]) {
			old.fact(Cluster, "its EndpointSlices have pod %s as ready, which it is not any more", pod)
		}
	}
	return f.down(old, componentKCM)
}

// describeHealth says what is known of the targets' health, after their number.
func (f ServiceFacts) describeHealth() string {
	switch {
	case f.Balancer.HealthCheck == nil:
		return fmt.Sprintf(", which nothing checks, as the Service asks for no health check; the annotation %s asks for one", contract.AnnotationHealthCheck)
	case f.Health == nil:
		return ", which are checked" // Why no more is known is in Missing.
	}
	healthy := 0
	for _, t := range f.Health.Targets {
		if t.Health == api.TargetHealthy {
			healthy++
		}
	}
	return fmt.Sprintf(", and %d healthy", healthy)
}

// chain is all well: the way from a client to the pods.
func (f ServiceFacts) chain() *finding {
	s := f.served()
	var at, ports []string
	for _, i := range f.Service.Status.LoadBalancer.Ingress {
		at = append(at, i.IP+i.Hostname)
	}
	for _, p := range f.Service.Spec.Ports {
		ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
	}
	ok := found(Ready, "is ready at %s, port %s", strings.Join(at, " and "), strings.Join(ports, ", "))
	if lb := f.Balancer; lb != nil {
		ok.fact(Cloud, "%s%s", describeBalancer(lb), because(listeners(lb)))
		ok.fact(Cloud, "it has %s%s", count(len(lb.Targets), "target"), f.describeHealth())
		if len(lb.SourceRanges) > 0 {
			ok.fact(Cloud, "only clients from %s may connect", strings.Join(lb.SourceRanges, ", "))
		}
	}
	if f.local() {
		ok.fact(Cluster, "externalTrafficPolicy is Local: a node without a pod of its own gets no clients, and counts as unhealthy")
	}
	endpoints := "its endpoints are"
	if s.ready == 1 {
		endpoints = "its endpoint is"
	}
	ok.fact(Cluster, "%s %s on %s%s", endpoints, count(s.ready, "ready pod"), count(len(s.readyOn), "node"), because(shown(s.pods)))
	if idle := f.idleCCM(); idle != nil {
		ok.facts = append(ok.facts, idle.facts...)
	}
	return ok
}
