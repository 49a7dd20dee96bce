package timeline

// Turning the cluster's and the cloud's changes into entries. Each function
// compares two versions of an object and says what is new, so that the same
// change is told once.

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Change is an entry without its time.
type Change struct{ Subject, What, Detail string }

const (
	taintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
	taintShutdown      = "node.cloudprovider.kubernetes.io/shutdown"
)

// Node compares two versions of a Node; before is nil for a new one, after is
// nil for one that was deleted.
func Node(before, after *corev1.Node) []Change {
	if after == nil {
		return []Change{{"node/" + before.Name, "removed", "the Node object was deleted"}}
	}
	var out []Change
	add := func(what, detail string) { out = append(out, Change{"node/" + after.Name, what, detail}) }
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

// Service compares two versions of a Service.
func Service(before, after *corev1.Service) []Change {
	if after == nil {
		if before.Spec.Type != corev1.ServiceTypeLoadBalancer {
			return nil
		}
		return []Change{{ServiceSubject(before), "deleted", ""}}
	}
	if after.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	var out []Change
	if before == nil {
		out = append(out, Change{ServiceSubject(after), "created", "type LoadBalancer, address pending"})
		before = &corev1.Service{}
	}
	if was, is := IngressIP(before), IngressIP(after); was != is && is != "" {
		out = append(out, Change{ServiceSubject(after), "address", is})
	}
	return out
}

// ServiceSubject names a Service, with its namespace unless it is "default".
func ServiceSubject(s *corev1.Service) string {
	if s.Namespace == corev1.NamespaceDefault || s.Namespace == "" {
		return "service/" + s.Name
	}
	return "service/" + s.Namespace + "/" + s.Name
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
		detail := fmt.Sprintf("%s at %s for service %s", ev.ID, ev.LoadBalancer.Address, ev.LoadBalancer.Tags[serviceTag])
		if r := deref(ev.LoadBalancer.StateReason); r != "" {
			detail += ": " + r
		}
		return []Change{{"balancer/" + ev.Name, what, detail}}
	case ev.Instance != nil && deref(ev.From) != deref(ev.To):
		return []Change{{"instance/" + ev.Name, deref(ev.To), ev.ID + " in " + ev.Instance.Zone}}
	case ev.Route != nil:
		return route(ev)
	}
	return nil
}

// route tells of a route that is there, is gone, or has changed its state: a
// blackhole drops what is sent to it.
func route(ev api.Event) []Change {
	detail := ev.Route.Destination + " via " + ev.Route.InstanceID
	if r := deref(ev.Route.StateReason); r != "" {
		detail += ": " + r
	}
	what := deref(ev.To)
	switch {
	case ev.Type == api.EventCreated, ev.Type == api.EventDeleted:
		what = string(ev.Type)
	case what == deref(ev.From):
		return nil
	}
	return []Change{{"route/" + ev.Name, what, detail}}
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
