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

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/console/story"
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
	c, ok := story.OfEvent(ev, func(tags api.Tags) string {
		if service := tags[serviceTag]; service != "" { // A stranger's has none.
			return " for service " + service
		}
		return ""
	})
	if !ok {
		return nil
	}
	return []Change{c}
}
