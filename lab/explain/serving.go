package explain

// What is behind a Service's address: endpoints, pods, and the balancer's targets.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/utils/ptr"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// endpointSummary counts the endpoints in a Service's EndpointSlices.
type endpointSummary struct {
	ready, notReady, terminating int
	// readyOn has the names of the nodes with a ready endpoint.
	readyOn map[string]bool
	pods    []string // of ready endpoints
	noPorts bool     // endpoints without any port: a named target port that no container has
}

func (f ServiceFacts) summarizeEndpoints() endpointSummary {
	s := endpointSummary{readyOn: map[string]bool{}}
	for _, slice := range f.Slices {
		for _, e := range slice.Endpoints {
			switch terminating := ptr.Deref(e.Conditions.Terminating, false); {
			case terminating:
				s.terminating++
			case e.Conditions.Ready == nil || *e.Conditions.Ready:
				s.ready++
				s.noPorts = s.noPorts || len(slice.Ports) == 0
				s.readyOn[ptr.Deref(e.NodeName, "")] = true
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

func (s endpointSummary) String() string {
	return fmt.Sprintf(
		"%s ready, %d not ready, %d terminating", formatCount(s.ready, "endpoint"), s.notReady, s.terminating,
	)
}

// findNoEndpoints says why the Service has no ready endpoint.
func (f ServiceFacts) findNoEndpoints() *finding {
	if f.Service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	s := f.summarizeEndpoints()
	if s.ready > 0 && !s.noPorts {
		return f.findEndpointsOfLostNodes(s)
	}
	none := newFinding(NotReady, "has nothing to answer with")
	if f.hasAddress() {
		none.verdict = "has an address, and nothing behind it answers"
	}
	none.addFact(Cluster, "its EndpointSlices have %s", s)
	selector := labels.Set(f.Service.Spec.Selector).String()
	switch {
	case s.ready > 0:
		none.verdict += ": its target port has a name that no container's port has"
		return none.addStep("see the ports", "%s", f.kubectlCommand("describe", ""))
	case selector == "":
		none.verdict += ": it selects no pods, and nobody has given it endpoints"
		return none.addFact(Cluster, "spec.selector is empty").
			addStep("set its selector", "%s", f.kubectlCommand("edit", ""))
	case len(f.Pods) == 0:
		none.verdict += ": its selector matches no pod"
		none.addFact(Cluster, "no pod in namespace %s has the labels %s", f.Namespace, selector)
		f.addHaltedComponents(none, componentKCM)
		return none.addStep("compare the pods' labels", "kubectl --namespace %s get pods --show-labels", f.Namespace).
			addStep("and mend the selector, or the pods", "%s", f.kubectlCommand("edit", ""))
	}
	return f.addPods(none)
}

// findEndpointsOfLostNodes reports ready endpoints whose nodes are all not Ready: a node that was lost just after its
// kubelet had called the pod ready.
func (f ServiceFacts) findEndpointsOfLostNodes(s endpointSummary) *finding {
	lost := newFinding(NotReady, "has endpoints that are called ready, and whose nodes are not Ready").
		addFact(Cluster, "its EndpointSlices have %s", s)
	for _, name := range slices.Sorted(maps.Keys(s.readyOn)) {
		if n := f.findNode(name); n == nil || kubediff.IsNodeReady(n) {
			return nil
		}
		lost.addFact(Cluster, "node %s is not Ready", name).addStep("see why", "%s", f.labCommand("explain node/"+name))
	}
	return lost.addWait("or wait: five minutes after a node was lost its pods are deleted, and others take their place")
}

// addPods adds why no pod that the selector matches is a ready endpoint.
func (f ServiceFacts) addPods(to *finding) *finding {
	var ready, pending, unready, ending []*corev1.Pod
	for i := range f.Pods {
		switch p := &f.Pods[i]; {
		case p.DeletionTimestamp != nil:
			ending = append(ending, p)
		case p.Spec.NodeName == "":
			pending = append(pending, p)
		case kubediff.IsPodReady(p):
			ready = append(ready, p)
		default:
			unready = append(unready, p)
		}
	}
	to.addFact(
		Cluster, "the selector matches %s: %d ready, %d not ready, %d without a node, %d on the way out",
		formatCount(len(f.Pods), "pod"), len(ready), len(unready), len(pending), len(ending),
	)
	switch {
	case len(ready) > 0:
		to.verdict += ": its pods are ready, and its EndpointSlices do not say so"
		if why := f.haltReason(componentKCM); why != "" {
			to.verdict += ", as kube-controller-manager, which writes them, " + why
			return f.addHaltedComponents(to, componentKCM)
		}
		return to.addWait("wait; kube-controller-manager writes them within a second")
	case len(unready) > 0:
		return f.addNotReadyPods(to, unready)
	case len(pending) > 0:
		return f.addPendingPods(to, pending)
	}
	to.verdict += ": its pods are all on the way out"
	return to.addStep("see the pods", "kubectl --namespace %s get pods", f.Namespace)
}

func (f ServiceFacts) addNotReadyPods(to *finding, pods []*corev1.Pod) *finding {
	reason := ""
	for _, p := range pods[:min(len(pods), maxShown)] {
		why, what := describePodTrouble(p)
		if reason == "" {
			reason = why
		}
		to.addFact(Cluster, "pod %s on %s: %s", p.Name, p.Spec.NodeName, what)
		to.addEvent(f.Now, newestEvent(f.PodEvents, func(e *corev1.Event) bool {
			return e.InvolvedObject.Name == p.Name
		}))
		if n := f.findNode(p.Spec.NodeName); n != nil && !kubediff.IsNodeReady(n) {
			reason = "their node is not ready"
			to.addFact(Cluster, "node %s is not Ready", n.Name).
				addStep("see why", "%s", f.labCommand("explain node/"+n.Name))
		}
	}
	to.verdict += fmt.Sprintf(": of its %s none is ready%s", formatCount(len(f.Pods), "pod"), reasonSuffix(reason))
	return to.addStep("see the pod", "kubectl --namespace %s describe pod %s", f.Namespace, pods[0].Name).
		addStep("and what it says", "kubectl --namespace %s logs %s", f.Namespace, pods[0].Name)
}

// describePodTrouble says why a scheduled pod is not ready: in a word, and as
// observed.
func describePodTrouble(p *corev1.Pod) (why, what string) {
	for _, c := range p.Status.ContainerStatuses {
		switch w, t := c.State.Waiting, c.State.Terminated; {
		case w != nil:
			last := ""
			if ended := c.LastTerminationState.Terminated; ended != nil {
				last = fmt.Sprintf(", it ended with code %d", ended.ExitCode)
			}
			return w.Reason, fmt.Sprintf(
				"container %s waits: %s%s%s%s", c.Name, w.Reason, reasonSuffix(w.Message), last,
				formatRestarts(c.RestartCount),
			)
		case t != nil:
			return t.Reason, fmt.Sprintf("container %s ended with code %d (%s)", c.Name, t.ExitCode, t.Reason)
		case !c.Ready:
			return "a probe fails", fmt.Sprintf(
				"container %s runs, and its readiness or startup probe does not succeed", c.Name,
			)
		}
	}
	if c := kubediff.PodCondition(p, corev1.PodReady); c.Message != "" {
		return c.Reason, fmt.Sprintf("%s (%s)", c.Message, c.Reason)
	}
	return "", "phase " + string(p.Status.Phase) + reasonSuffix(p.Status.Reason)
}

// formatRestarts returns ", restarted ...", or "" if the container never was.
func formatRestarts(times int32) string {
	switch times {
	case 0:
		return ""
	case 1:
		return ", restarted once"
	}
	return fmt.Sprintf(", restarted %d times", times)
}

func (f ServiceFacts) addPendingPods(to *finding, pods []*corev1.Pod) *finding {
	said := ""
	if c := kubediff.PodCondition(pods[0], corev1.PodScheduled); c.Status == corev1.ConditionFalse {
		said = c.Message
		to.addFact(Cluster, "pod %s has no node: %s (%s)", pods[0].Name, c.Message, c.Reason)
	}
	if said == "" {
		to.addFact(Cluster, "pod %s has no node, and the scheduler has not said why", pods[0].Name)
	}
	if why := f.haltReason(componentScheduler); why != "" {
		to.verdict += ": its pods wait for kube-scheduler, which " + why
		return f.addHaltedComponents(to, componentScheduler)
	}
	var tainted []string
	for _, n := range f.Nodes {
		if kubediff.IsUninitialized(&n) {
			tainted = append(tainted, n.Name)
		}
	}
	switch {
	case len(f.Nodes) == 0:
		to.verdict += ": its pods wait for a node, and there is none"
		return to.addFact(Cluster, "the cluster has no Node").
			addStep("create an instance", "fakecloud instances create")
	case len(tainted) > 0:
		to.verdict += fmt.Sprintf(
			": its pods are Pending, as %s not initialised by the CCM", countWithVerb(len(tainted), "node"),
		)
		to.addFact(Cluster, "tainted %s: %s", cloudproviderapi.TaintExternalCloudProvider, ui.JoinFirst(tainted, maxShown))
		if idle := f.findIdleCCM(); idle != nil {
			return to.addCause(idle)
		}
		return to.addStep("see why", "%s", f.labCommand("explain node/"+tainted[0]))
	case said == "":
		to.verdict += ": its pods are not scheduled yet"
		return to.addWait("wait; the scheduler takes a moment")
	}
	to.verdict += ": its pods are Pending, as no node suits them"
	return to.addStep("see the pod", "kubectl --namespace %s describe pod %s", f.Namespace, pods[0].Name).
		addStep("see the nodes", "%s", f.labCommand("explain node"))
}

func countWithVerb(n int, what string) string {
	if n == 1 {
		return "1 " + what + " is"
	}
	return formatCount(n, what) + " are"
}

func (f ServiceFacts) findNode(name string) *corev1.Node {
	if i := slices.IndexFunc(f.Nodes, func(n corev1.Node) bool { return n.Name == name }); i >= 0 {
		return &f.Nodes[i]
	}
	return nil
}

// targetName is the name of a target's node if it is known, and else its ID.
func (f ServiceFacts) targetName(id string) string {
	for _, i := range f.Instances {
		if i.ID == id {
			return i.Name
		}
	}
	return id
}

func (f ServiceFacts) hasLocalTrafficPolicy() bool {
	return f.Service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// findUnhealthyTargets reports targets that the balancer does not send clients to,
// though it should.
func (f ServiceFacts) findUnhealthyTargets() *finding {
	lb := f.Balancer
	if lb == nil || lb.State != api.LoadBalancerActive {
		return nil
	}
	if len(lb.Targets) == 0 {
		return f.findNoTargets()
	}
	s, unhealthy, bad := f.summarizeEndpoints(), 0, 0
	sick := newFinding(Degraded, "")
	for _, t := range ptr.Deref(f.Health, api.LoadBalancerHealth{}).Targets {
		name := f.targetName(t.InstanceID)
		what := fmt.Sprintf("target %s (%s) is unhealthy%s", name, t.InstanceID, reasonSuffix(t.Reason))
		if t.Health == api.TargetUnhealthy {
			unhealthy++
			if f.hasLocalTrafficPolicy() && !s.readyOn[name] { // As it should be: clients go to the others.
				continue
			}
		} else if n := f.findNode(name); t.Health == api.TargetUnknown && n != nil && !kubediff.IsNodeReady(n) {
			what = fmt.Sprintf(
				"target %s (%s) is not checked, and sent clients, though its node is not Ready", name, t.InstanceID,
			)
		} else {
			continue
		}
		if bad++; bad <= maxShown {
			sick.addFact(Cloud, "%s", what).addStep("see to its node", "%s", f.labCommand("explain node/"+name))
		}
	}
	switch all := unhealthy == len(lb.Targets); {
	case all && bad == 0:
		return newFinding(NotReady, "has an address, and no node has a pod of its own to answer with").
			addFact(Cluster, "externalTrafficPolicy is Local, and no node that is a target has a ready endpoint").
			addStep("see where the pods are", "kubectl --namespace %s get pods -o wide", f.Namespace)
	case all:
		sick.state, sick.verdict = NotReady, "has an address, and no node behind it is healthy"
		return sick
	case bad == 0:
		return f.findRefusingBalancer()
	}
	sick.verdict = fmt.Sprintf("answers, with %d of %s amiss", bad, formatCount(len(lb.Targets), "target"))
	return sick
}

// findRefusingBalancer reports the balancer's own reason for refusing clients.
func (f ServiceFacts) findRefusingBalancer() *finding {
	why := f.Balancer.StateReason
	if why == "" {
		return nil
	}
	return newFinding(NotReady, "has an address, and its load balancer refuses clients").
		addFact(Cloud, "%s", describeBalancer(f.Balancer)).
		addStep("see what it knows of its targets", "fakecloud load-balancers health %s", f.Balancer.ID)
}

func (f ServiceFacts) findNoTargets() *finding {
	none := newFinding(NotReady, "has an address, and its load balancer has no targets").
		addFact(Cloud, "%s, with no targets", describeBalancer(f.Balancer))
	for _, n := range f.Nodes {
		_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
		switch {
		case n.Spec.ProviderID == "":
			none.addFact(Cluster, "node %s has no provider ID, so it is no target", n.Name).
				addStep("see why", "%s", f.labCommand("explain node/"+n.Name))
		case excluded:
			none.addFact(Cluster, "node %s has the label %s", n.Name, corev1.LabelNodeExcludeBalancers).
				addStep("take the label off", "kubectl label node %s %s-", n.Name, corev1.LabelNodeExcludeBalancers)
		}
	}
	if len(f.Nodes) == 0 {
		return none.addFact(Cluster, "the cluster has no Node").
			addStep("create an instance", "fakecloud instances create")
	}
	return f.addRepair(none)
}

// findStaleEndpoints reports EndpointSlices that no controller updates.
func (f ServiceFacts) findStaleEndpoints() *finding {
	why := f.haltReason(componentKCM)
	if why == "" {
		return nil
	}
	old := newFinding(
		Degraded, "is served by EndpointSlices that nobody keeps up to date: kube-controller-manager %s", why,
	)
	s := f.summarizeEndpoints()
	for _, pod := range s.pods {
		i := slices.IndexFunc(f.Pods, func(p corev1.Pod) bool { return p.Name == pod })
		if i < 0 || !kubediff.IsPodReady(&f.Pods[i]) {
			old.addFact(Cluster, "its EndpointSlices have pod %s as ready, which it is not any more", pod)
		}
	}
	return f.addHaltedComponents(old, componentKCM)
}

// findNoAnswers reports ports whose connections have all failed, without a byte from any
// target. It is for TCP only: a datagram needs no answer.
//
// The counters have no times, so connections that failed before a repair count as well,
// until one is answered.
func (f ServiceFacts) findNoAnswers() *finding {
	if f.Balancer == nil || f.Stats == nil {
		return nil
	}
	var ports []string
	var failed int64
	silent := newFinding(NotReady, "").
		addFact(Cloud, "%s%s", describeBalancer(f.Balancer), reasonSuffix(formatListeners(f.Balancer)))
	for _, p := range f.Service.Spec.Ports {
		l := f.findUnansweredListener(p)
		if l == nil {
			continue
		}
		name := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		ports, failed = append(ports, name), failed+l.FailedConnections+l.BrokenConnections
		silent.addFact(
			Cloud, "of %s to %s %d broke and %d found no target that takes them; its targets have sent 0 bytes",
			formatCount(int(l.Connections), "connection"), name, l.BrokenConnections, l.FailedConnections,
		)
		for _, to := range f.describeTargetPorts(p) {
			silent.addFact(Cluster, "%s goes to %s", name, to)
		}
	}
	if len(ports) == 0 {
		return nil
	}
	silent.verdict = fmt.Sprintf(
		"has an address, and nothing behind it has answered on %s so far: %s failed, and none ended well",
		strings.Join(ports, ", "), formatCount(int(failed), "connection"),
	)
	silent.addStep("see the Service's targetPort", "%s", f.kubectlCommand("describe", ""))
	if len(f.Service.Spec.Selector) > 0 {
		silent.addStep(
			"compare it with the ports that the pods' containers declare",
			"kubectl --namespace %s get pods --selector %s -o '%s'", f.Namespace, labels.Set(f.Service.Spec.Selector),
			"custom-columns=POD:.metadata.name,PORTS:.spec.containers[*].ports[*].containerPort",
		)
	}
	return silent.addStep("and mend the targetPort, or what should serve it", "%s", f.kubectlCommand("edit", "")).
		addStep("see what became of connections, by target", "fakecloud load-balancers stats %s", f.Balancer.ID).
		addWait("after a change connect again: what failed before counts until one connection is answered")
}

// findUnansweredListener returns the counters of a TCP port if each of its connections
// that has ended has failed, and no target has sent a byte; else nil.
func (f ServiceFacts) findUnansweredListener(p corev1.ServicePort) *api.ListenerStats {
	for i, l := range f.Stats.Listeners {
		failed := l.FailedConnections + l.BrokenConnections
		if l.Port == int(p.Port) && l.Protocol != api.ProtocolUDP && strings.EqualFold(string(p.Protocol), "tcp") &&
			failed > 0 && failed >= l.Connections-l.ActiveConnections && l.BytesOut == 0 {
			return &f.Stats.Listeners[i]
		}
	}
	return nil
}

// describeTargetPorts says, for each port of the endpoints that a Service's port leads
// to, how many ready pods declare it. A container may serve a port that it does not
// declare.
func (f ServiceFacts) describeTargetPorts(p corev1.ServicePort) []string {
	pods := map[int32][]*corev1.Pod{}
	for _, slice := range f.Slices {
		for _, port := range slice.Ports {
			if ptr.Deref(port.Name, "") != p.Name || port.Port == nil {
				continue
			}
			for _, e := range slice.Endpoints {
				if ptr.Deref(e.Conditions.Ready, true) && !ptr.Deref(e.Conditions.Terminating, false) {
					pods[*port.Port] = f.appendPodOf(pods[*port.Port], e)
				}
			}
		}
	}
	var all []string
	for _, port := range slices.Sorted(maps.Keys(pods)) {
		all = append(all, describeTargetPort(port, pods[port]))
	}
	return all
}

// appendPodOf adds an endpoint's pod, unless it is unknown or listed already, by an
// endpoint of the other IP family.
func (f ServiceFacts) appendPodOf(pods []*corev1.Pod, e discoveryv1.Endpoint) []*corev1.Pod {
	for i := range f.Pods {
		pod := &f.Pods[i]
		if e.TargetRef != nil && e.TargetRef.Name == pod.Name && !slices.Contains(pods, pod) {
			pods = append(pods, pod)
		}
	}
	return pods
}

func describeTargetPort(port int32, pods []*corev1.Pod) string {
	if len(pods) == 0 {
		return fmt.Sprintf("port %d of its endpoints", port)
	}
	var declared []string
	declaring := 0
	for _, pod := range pods {
		ports := declaredTCPPorts(pod)
		if slices.Contains(ports, port) {
			declaring++
		}
		for _, p := range ports {
			if text := fmt.Sprint(p); !slices.Contains(declared, text) {
				declared = append(declared, text)
			}
		}
	}
	ready := formatCount(len(pods), "ready pod")
	switch {
	case declaring > 0:
		return fmt.Sprintf(
			"port %d of its pods, declared by %d of %s; that does not say that it is served",
			port, declaring, ready,
		)
	case len(declared) == 0:
		return fmt.Sprintf(
			"port %d of its pods; none of %s declares any port, so which they serve is not to be seen here",
			port, ready,
		)
	}
	return fmt.Sprintf(
		"port %d of its pods, which none of %s declares: they declare %s; a port need not be declared to be served",
		port, ready, ui.JoinFirst(declared, maxShown),
	)
}

// declaredTCPPorts are the ports in the pod's spec, of its sidecars, too.
func declaredTCPPorts(pod *corev1.Pod) (ports []int32) {
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		for _, p := range c.Ports {
			if cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP {
				ports = append(ports, p.ContainerPort)
			}
		}
	}
	return ports
}

// describeHealth continues a sentence about the number of targets with their health.
func (f ServiceFacts) describeHealth() string {
	switch {
	case f.Balancer.HealthCheck == nil && f.Service.Annotations[contract.AnnotationHealthCheck] != "":
		return fmt.Sprintf(", which nothing checks, as the annotation %s says", contract.AnnotationHealthCheck)
	case f.Balancer.HealthCheck == nil:
		return ", which nothing checks"
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

// describeKind says of which kind the balancer is, and whose address the pods see therefore.
func (f ServiceFacts) describeKind() string {
	kind, seen := "it is a proxy: it makes connections of its own", "its address"
	if f.Balancer.Kind == api.KindNetwork {
		kind, seen = fmt.Sprintf(
			"it is a network balancer: packets reach nodes as clients sent them, and each node's kube-proxy takes those for %s",
			f.Balancer.Address,
		), "the client's address"
	}
	if slices.ContainsFunc(f.Balancer.Listeners, func(l api.Listener) bool { return l.ProxyProtocol != "" }) {
		return kind + ", and tells pods the client's address by the PROXY protocol"
	}
	if !f.hasLocalTrafficPolicy() { // kube-proxy has the answer come back through the first node.
		seen = "a node's address, by externalTrafficPolicy: Cluster"
	}
	return kind + "; pods see " + seen
}

// describeHealthyPath describes the path from a client to the pods.
func (f ServiceFacts) describeHealthyPath() *finding {
	s := f.summarizeEndpoints()
	var at, ports []string
	for _, i := range f.Service.Status.LoadBalancer.Ingress {
		at = append(at, i.IP+i.Hostname)
	}
	for _, p := range f.Service.Spec.Ports {
		ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
	}
	ok := newFinding(Ready, "is ready at %s, port %s", strings.Join(at, " and "), strings.Join(ports, ", "))
	if lb := f.Balancer; lb != nil {
		ok.addFact(Cloud, "%s%s", describeBalancer(lb), reasonSuffix(formatListeners(lb)))
		ok.addFact(Cloud, "%s", f.describeKind())
		ok.addFact(Cloud, "it has %s%s", formatCount(len(lb.Targets), "target"), f.describeHealth())
		if len(lb.SourceRanges) > 0 {
			ok.addFact(Cloud, "only clients from %s may connect", strings.Join(lb.SourceRanges, ", "))
		}
	}
	if f.Address != nil {
		ok.addFact(Cloud, "%s, which takes all ports; there is no load balancer", f.describeAddress())
	}
	if f.hasLocalTrafficPolicy() {
		ok.addFact(
			Cluster,
			"externalTrafficPolicy is Local: a node without a pod of its own gets no clients, and counts as unhealthy",
		)
	}
	endpoints := "its endpoints are"
	if s.ready == 1 {
		endpoints = "its endpoint is"
	}
	ok.addFact(
		Cluster, "%s %s on %s%s", endpoints, formatCount(s.ready, "ready pod"), formatCount(len(s.readyOn), "node"),
		reasonSuffix(ui.JoinFirst(s.pods, maxShown)),
	)
	if idle := f.findIdleCCM(); idle != nil {
		ok.facts = append(ok.facts, idle.facts...)
	}
	return ok
}
