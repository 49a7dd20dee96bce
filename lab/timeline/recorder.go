package timeline

// Changes of Nodes, Services and the cloud's resources. A function that compares two
// versions of an object returns what differs, so that each change is recorded once.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/utils/ptr"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/kubediff"
)

// Node compares two versions of a Node; before is nil for a new one, after is
// nil for one that was deleted.
func Node(before, after *corev1.Node) []Change {
	d := kubediff.Nodes(before, after)
	if d.Deleted {
		return []Change{
			{Source: SourceCluster, Subject: "node/" + d.Name, What: "removed", Detail: "the Node object was deleted"},
		}
	}
	var out []Change
	add := func(what, detail string) {
		out = append(out, Change{
			Source: SourceCluster, Subject: "node/" + d.Name, What: what, Detail: detail, Failed: what == "not-ready",
		})
	}
	if d.Created {
		add("registered", "by its kubelet")
	}
	addTaint := func(key, on, off, offDetail string) {
		if slices.Contains(d.TaintKeys.Added, key) {
			add(on, key)
		}
		if slices.Contains(d.TaintKeys.Removed, key) {
			add(off, offDetail)
		}
	}
	addTaint(
		cloudproviderapi.TaintExternalCloudProvider, "tainted", "initialized",
		fmt.Sprintf("provider ID %s, zone %s", after.Spec.ProviderID, cmp.Or(after.Labels[corev1.LabelTopologyZone], "none")),
	)
	addTaint(cloudproviderapi.TaintNodeShutdown, "shutdown-taint", "shutdown-taint-lifted", "the machine is back")
	const isTrue = string(corev1.ConditionTrue)
	for _, c := range d.Conditions {
		switch {
		case c.Type != string(corev1.NodeReady):
		case c.After == isTrue:
			add("ready", "")
		case c.Before == isTrue:
			add("not-ready", "")
		}
	}
	return out
}

// Service compares two versions of a Service; before is nil for a new one, after is
// nil for one that was deleted. Only what has a balancer, asks for one or does so no
// more is told of.
func Service(before, after *corev1.Service) []Change {
	d := kubediff.Services(before, after)
	had := !d.Created && d.Type.Before == corev1.ServiceTypeLoadBalancer
	has := !d.Deleted && d.Type.After == corev1.ServiceTypeLoadBalancer
	switch {
	case !had && !has:
		return nil
	case d.Deleted:
		return []Change{serviceChange(d, "deleted", "")}
	case !has:
		return []Change{serviceChange(d, "changed", fmt.Sprintf("type %s, no balancer any more", d.Type.After))}
	case d.Created:
		return append([]Change{serviceChange(d, "created", "type LoadBalancer, address pending")}, newAddress(d)...)
	case !had:
		return append([]Change{serviceChange(d, "changed", "type LoadBalancer, address pending")}, newAddress(d)...)
	}
	return append(specChanges(d), addressChange(d)...)
}

// specChanges tells what else somebody asks of a Service that has a balancer.
func specChanges(d kubediff.Service) (out []Change) {
	if was, is := portList(d.Ports.Before), portList(d.Ports.After); was != is {
		out = append(out, serviceChange(d, "changed", fmt.Sprintf("ports %s, before %s", is, was)))
	}
	if d.DeletionStarted {
		out = append(out, serviceChange(d, "deleting", "waits for "+strings.Join(d.Finalizers, ", ")))
	}
	return out
}

func portList(ports []corev1.ServicePort) string {
	var all []string
	for _, p := range ports {
		all = append(all, fmt.Sprintf("%s %d→%d", p.Protocol, p.Port, p.NodePort))
	}
	return strings.Join(all, ", ")
}

// newAddress tells the address of a Service that had no balancer before.
func newAddress(d kubediff.Service) []Change {
	d.IngressAddress.Before = ""
	return addressChange(d)
}

func addressChange(d kubediff.Service) []Change {
	switch {
	case !d.IngressAddress.Changed():
		return nil
	case d.IngressAddress.After == "":
		return []Change{serviceChange(d, "address-lost", d.IngressAddress.Before)}
	}
	return []Change{serviceChange(d, "address", d.IngressAddress.After)}
}

func serviceChange(d kubediff.Service, what, detail string) Change {
	return Change{Source: SourceCluster, Subject: subjectOf("service", d.Namespace, d.Name), What: what, Detail: detail}
}

// ServiceSubject names a Service, with its namespace unless it is "default".
func ServiceSubject(s *corev1.Service) string { return subjectOf("service", s.Namespace, s.Name) }

func subjectOf(kind, namespace, name string) string {
	if namespace == corev1.NamespaceDefault || namespace == "" {
		return kind + "/" + name
	}
	return kind + "/" + namespace + "/" + name
}

// Cloud tells what an event of the cloud means. serviceTag is the tag that
// names the Service a balancer belongs to.
func Cloud(ev api.Event, serviceTag string) []Change {
	tell := func(kind, what, detail string, failed bool) []Change {
		return []Change{{
			Source: SourceCloud, Subject: kind + "/" + ev.Name, What: what, Detail: detail, Failed: failed, ID: ev.ID,
			CloudSeq: ev.Seq,
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
		}[ptr.Deref(ev.To, "")]
		if ev.Type == api.EventDeleted {
			what = "gone"
		}
		if what == "" || (ev.Type != api.EventDeleted && ptr.Deref(ev.From, "") == ptr.Deref(ev.To, "")) {
			return nil
		}
		if what == "provisioned" && ptr.Deref(ev.From, "") == string(api.LoadBalancerUpdating) {
			what = "updated"
		}
		detail := ev.ID + " at " + ev.LoadBalancer.Address
		if ev.LoadBalancer.Kind == api.KindNetwork {
			detail += " (network)"
		}
		if service := ev.LoadBalancer.Tags[serviceTag]; service != "" { // A stranger's has none.
			detail += " for service " + service
		}
		if r := ptr.Deref(ev.LoadBalancer.StateReason, ""); r != "" {
			detail += ": " + r
		}
		return tell("balancer", what, detail, what == "error")
	case ev.Instance != nil && ptr.Deref(ev.From, "") != ptr.Deref(ev.To, ""):
		detail := ev.ID + " in " + ev.Instance.Zone
		if ev.Instance.State == api.InstanceError {
			detail += ": " + ptr.Deref(ev.Instance.StateReason, "")
		}
		return tell("instance", ptr.Deref(ev.To, ""), detail, ev.Instance.State == api.InstanceError)
	case ev.Route != nil:
		if what, detail := routeChange(ev); what != "" {
			return tell("route", what, detail, what == string(api.RouteBlackhole))
		}
	}
	return nil
}

// routeChange tells of a route that is there, is gone, or has changed its state: a
// blackhole drops what is sent to it. what is "" if none of that is new.
func routeChange(ev api.Event) (what, detail string) {
	detail = ev.Route.Destination + " via " + ev.Route.InstanceID
	if r := ptr.Deref(ev.Route.StateReason, ""); r != "" {
		detail += ": " + r
	}
	switch what = ptr.Deref(ev.To, ""); {
	case ev.Type == api.EventCreated, ev.Type == api.EventDeleted:
		what = string(ev.Type)
	case what == ptr.Deref(ev.From, ""):
		what = ""
	}
	return what, detail
}
