package timeline

// Turning the cluster's and the cloud's changes into entries. Each function
// compares two versions of an object and says what is new, so that the same
// change is told once.

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	taintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
	taintShutdown      = "node.cloudprovider.kubernetes.io/shutdown"
)

// Node compares two versions of a Node; before is nil for a new one, after is
// nil for one that was deleted.
func Node(before, after *corev1.Node) []Change {
	if after == nil {
		return []Change{{Source: SourceCluster, Subject: "node/" + before.Name, What: "removed", Detail: "the Node object was deleted"}}
	}
	var out []Change
	add := func(what, detail string) {
		out = append(out, Change{Source: SourceCluster, Subject: "node/" + after.Name, What: what, Detail: detail, Failed: what == "not-ready"})
	}
	if before == nil {
		add("registered", "by its kubelet")
		before = &corev1.Node{}
	}
	compareTaint := func(key, on, off, offDetail string) {
		was, is := Tainted(before, key), Tainted(after, key)
		if is && !was {
			add(on, key)
		}
		if was && !is {
			add(off, offDetail)
		}
	}
	compareTaint(taintUninitialized, "tainted", "initialized", fmt.Sprintf("provider ID %s, zone %s", after.Spec.ProviderID, after.Labels[corev1.LabelTopologyZone]))
	compareTaint(taintShutdown, "shutdown-taint", "shutdown-taint-lifted", "the machine is back")
	if was, is := Ready(before), Ready(after); was != is {
		if is {
			add("ready", "")
		} else if before.Name != "" {
			add("not-ready", "")
		}
	}
	return out
}

// Uninitialized tells whether a Node still waits for its cloud controller.
func Uninitialized(n *corev1.Node) bool { return Tainted(n, taintUninitialized) }

// Tainted tells whether a Node has a taint of this key.
func Tainted(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// Ready tells whether a Node's kubelet says that it is ready.
func Ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Service compares two versions of a Service; before is nil for a new one, after is
// nil for one that was deleted. Only what has a balancer, asks for one or does so no
// more is told of.
func Service(before, after *corev1.Service) []Change {
	switch was, is := balanced(before), balanced(after); {
	case !was && !is:
		return nil
	case after == nil:
		return []Change{service(before, "deleted", "")}
	case was && !is:
		return []Change{service(after, "changed", fmt.Sprintf("type %s, no balancer any more", after.Spec.Type))}
	case before == nil:
		return append([]Change{service(after, "created", "type LoadBalancer, address pending")}, address("", IngressIP(after), after)...)
	case !was:
		return append([]Change{service(after, "changed", "type LoadBalancer, address pending")}, address("", IngressIP(after), after)...)
	}
	return append(asked(before, after), address(IngressIP(before), IngressIP(after), after)...)
}

// asked tells what else somebody asks of a Service that has a balancer.
func asked(before, after *corev1.Service) (out []Change) {
	if was, is := ports(before), ports(after); was != is {
		out = append(out, service(after, "changed", fmt.Sprintf("ports %s, before %s", is, was)))
	}
	if before.DeletionTimestamp == nil && after.DeletionTimestamp != nil {
		out = append(out, service(after, "deleting", "waits for "+strings.Join(after.Finalizers, ", ")))
	}
	return out
}

func ports(s *corev1.Service) string {
	var all []string
	for _, p := range s.Spec.Ports {
		all = append(all, fmt.Sprintf("%s %d→%d", p.Protocol, p.Port, p.NodePort))
	}
	return strings.Join(all, ", ")
}

func balanced(s *corev1.Service) bool {
	return s != nil && s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

func address(was, is string, s *corev1.Service) []Change {
	switch {
	case was == is:
		return nil
	case is == "":
		return []Change{service(s, "address-lost", was)}
	}
	return []Change{service(s, "address", is)}
}

func service(s *corev1.Service, what, detail string) Change {
	return Change{Source: SourceCluster, Subject: ServiceSubject(s), What: what, Detail: detail}
}

// ServiceSubject names a Service, with its namespace unless it is "default".
func ServiceSubject(s *corev1.Service) string { return subject("service", s.Namespace, s.Name) }

func subject(kind, namespace, name string) string {
	if namespace == corev1.NamespaceDefault || namespace == "" {
		return kind + "/" + name
	}
	return kind + "/" + namespace + "/" + name
}

// IngressIP is the balancer's address in a Service's status, or "".
func IngressIP(s *corev1.Service) string {
	if len(s.Status.LoadBalancer.Ingress) == 0 {
		return ""
	}
	return s.Status.LoadBalancer.Ingress[0].IP
}

// Cloud tells what an event of the cloud means. serviceTag is the tag that
// names the Service a balancer belongs to.
func Cloud(ev api.Event, serviceTag string) []Change {
	tell := func(kind, what, detail string, failed bool) []Change {
		return []Change{{
			Source: SourceCloud, Subject: kind + "/" + ev.Name, What: what, Detail: detail, Failed: failed, ID: ev.ID, CloudSeq: ev.Seq,
		}}
	}
	switch {
	case ev.LoadBalancer != nil:
		what := map[string]string{
			string(api.LoadBalancerProvisioning): "requested",
			string(api.LoadBalancerActive):       "provisioned",
			string(api.LoadBalancerUpdating):     "updating",
			string(api.LoadBalancerDeleting):     "deleting",
			string(api.LoadBalancerError):        "error",
		}[deref(ev.To)]
		if ev.Type == api.EventDeleted {
			what = "gone"
		}
		if what == "" || (ev.Type != api.EventDeleted && deref(ev.From) == deref(ev.To)) {
			return nil
		}
		if what == "provisioned" && deref(ev.From) == string(api.LoadBalancerUpdating) {
			what = "updated"
		}
		detail := ev.ID + " at " + ev.LoadBalancer.Address
		if service := ev.LoadBalancer.Tags[serviceTag]; service != "" { // A stranger's has none.
			detail += " for service " + service
		}
		if r := deref(ev.LoadBalancer.StateReason); r != "" {
			detail += ": " + r
		}
		return tell("balancer", what, detail, what == "error")
	case ev.Instance != nil && deref(ev.From) != deref(ev.To):
		detail := ev.ID + " in " + ev.Instance.Zone
		if ev.Instance.State == api.InstanceError {
			detail += ": " + deref(ev.Instance.StateReason)
		}
		return tell("instance", deref(ev.To), detail, ev.Instance.State == api.InstanceError)
	case ev.Route != nil:
		if what, detail := route(ev); what != "" {
			return tell("route", what, detail, what == string(api.RouteBlackhole))
		}
	}
	return nil
}

// route tells of a route that is there, is gone, or has changed its state: a
// blackhole drops what is sent to it. what is "" if none of that is new.
func route(ev api.Event) (what, detail string) {
	detail = ev.Route.Destination + " via " + ev.Route.InstanceID
	if r := deref(ev.Route.StateReason); r != "" {
		detail += ": " + r
	}
	switch what = deref(ev.To); {
	case ev.Type == api.EventCreated, ev.Type == api.EventDeleted:
		what = string(ev.Type)
	case what == deref(ev.From):
		what = ""
	}
	return what, detail
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
