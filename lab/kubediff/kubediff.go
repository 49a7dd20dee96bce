// Package kubediff compares two versions of a Node or of a Service and says what differs, as facts:
// the conformance suite's recorder and the lab's timeline each put those into their own words. It
// also reads what objects say of themselves, such as IsNodeReady. It knows Kubernetes' types, and the
// names that the lab's cloud gives addresses. Begin with Nodes and Services.
package kubediff

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/utils/ptr"

	"github.com/ccmlab/ccmlab/fakecloud/dns"
)

// Object is what Nodes and Services have in common.
type Object struct {
	Namespace, Name string
	// Created and Deleted say that there is no version before, or after. Nothing else is set when
	// the object is deleted.
	Created, Deleted bool
	// DeletionStarted says that the object has got a deletion timestamp. It waits for Finalizers.
	DeletionStarted bool
	Finalizers      []string
	// Conditions are those whose status is another, in the order of the version after, then those
	// that are gone.
	Conditions []Condition
}

// Condition is a change of one of an object's conditions. Before and After are "" where the
// condition is not there.
type Condition struct {
	Type, Before, After string
	Reason              string // of After
}

// Set is what has come into a set, and what has left it.
type Set struct{ Added, Removed []string }

// Value is a field of two versions.
type Value[T any] struct{ Before, After T }

// Changed tells whether the two differ. An empty list is like none.
func (v Value[T]) Changed() bool { return !equality.Semantic.DeepEqual(v.Before, v.After) }

// Node is what differs between two versions of a Node.
type Node struct {
	Object
	// Taints are as key:effect; TaintKeys are the keys alone.
	Taints, TaintKeys Set
	ProviderID        Value[string]
	Unschedulable     Value[bool]
	// Addresses are as type and address, Labels as key=value. The labels that a Node comes with
	// are no change.
	Addresses, Labels Set
}

// Nodes compares two versions of a Node; before is nil for a new one, after is nil for one that was
// deleted.
func Nodes(before, after *corev1.Node) Node {
	if after == nil {
		return Node{Object: Object{Name: before.Name, Deleted: true}}
	}
	created := before == nil
	if created {
		before = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: after.Labels}}
	}
	d := Node{
		Object:        compareMeta(&before.ObjectMeta, &after.ObjectMeta, created),
		Taints:        CompareSets(taintsOf(before), taintsOf(after)),
		TaintKeys:     CompareSets(taintKeysOf(before), taintKeysOf(after)),
		ProviderID:    Value[string]{before.Spec.ProviderID, after.Spec.ProviderID},
		Unschedulable: Value[bool]{before.Spec.Unschedulable, after.Spec.Unschedulable},
		Addresses:     CompareSets(addressesOf(before), addressesOf(after)),
		Labels:        CompareSets(pairsOf(before.Labels), pairsOf(after.Labels)),
	}
	conditions := func(n *corev1.Node) (all []Condition) {
		for _, c := range n.Status.Conditions {
			all = append(all, Condition{Type: string(c.Type), After: string(c.Status), Reason: c.Reason})
		}
		return all
	}
	d.Conditions = compareConditions(conditions(before), conditions(after))
	return d
}

// Service is what differs between two versions of a Service.
type Service struct {
	Object
	Type Value[corev1.ServiceType]
	// FinalizerSet is what has come and gone of the finalizers; Ingress are addresses with their
	// IP mode, Annotations as key=value.
	FinalizerSet, Ingress, Annotations Set
	// IngressAddress is the first address, or host name, of the status, or "".
	IngressAddress        Value[string]
	Ports                 Value[[]corev1.ServicePort]
	Class                 Value[string]
	Selector              Value[map[string]string]
	SourceRanges          Value[[]string]
	LoadBalancerIP        Value[string]
	SessionAffinity       Value[corev1.ServiceAffinity]
	ExternalTrafficPolicy Value[corev1.ServiceExternalTrafficPolicy]
	HealthCheckNodePort   Value[int32]
}

// Services compares two versions of a Service; before is nil for a new one, after is nil for one
// that was deleted. What is in the specification and the annotations of a new one is no change.
func Services(before, after *corev1.Service) Service {
	if after == nil {
		return Service{
			Object: Object{Namespace: before.Namespace, Name: before.Name, Deleted: true},
			Type:   Value[corev1.ServiceType]{Before: before.Spec.Type},
		}
	}
	created := before == nil
	if created {
		before = &corev1.Service{Spec: after.Spec, ObjectMeta: metav1.ObjectMeta{Annotations: after.Annotations}}
	}
	was, is := before.Spec, after.Spec
	d := Service{
		Object:         compareMeta(&before.ObjectMeta, &after.ObjectMeta, created),
		Type:           Value[corev1.ServiceType]{was.Type, is.Type},
		FinalizerSet:   CompareSets(before.Finalizers, after.Finalizers),
		Ingress:        CompareSets(ingressOf(before), ingressOf(after)),
		Annotations:    CompareSets(pairsOf(before.Annotations), pairsOf(after.Annotations)),
		IngressAddress: Value[string]{IngressAddress(before), IngressAddress(after)},
		Ports:          Value[[]corev1.ServicePort]{was.Ports, is.Ports},
		Class:          Value[string]{ptr.Deref(was.LoadBalancerClass, ""), ptr.Deref(is.LoadBalancerClass, "")},
		Selector:       Value[map[string]string]{was.Selector, is.Selector},
		SourceRanges:   Value[[]string]{was.LoadBalancerSourceRanges, is.LoadBalancerSourceRanges},
		LoadBalancerIP: Value[string]{was.LoadBalancerIP, is.LoadBalancerIP},

		SessionAffinity: Value[corev1.ServiceAffinity]{was.SessionAffinity, is.SessionAffinity},
		ExternalTrafficPolicy: Value[corev1.ServiceExternalTrafficPolicy]{
			was.ExternalTrafficPolicy, is.ExternalTrafficPolicy,
		},
		HealthCheckNodePort: Value[int32]{was.HealthCheckNodePort, is.HealthCheckNodePort},
	}
	conditions := func(s *corev1.Service) (all []Condition) {
		for _, c := range s.Status.Conditions {
			all = append(all, Condition{Type: c.Type, After: string(c.Status), Reason: c.Reason})
		}
		return all
	}
	d.Conditions = compareConditions(conditions(before), conditions(after))
	return d
}

// IngressAddress is the first address in a Service's status, or the host name that stands for it, or "". The
// cloud's own names, which nothing may resolve, are as good as their addresses.
func IngressAddress(s *corev1.Service) string {
	if len(s.Status.LoadBalancer.Ingress) == 0 {
		return ""
	}
	first := s.Status.LoadBalancer.Ingress[0]
	if a, ours := dns.AddressOf(first.Hostname); ours {
		return a.String()
	}
	return cmp.Or(first.IP, first.Hostname)
}

// IsNodeReady tells whether the Node's kubelet says that it is ready.
func IsNodeReady(n *corev1.Node) bool {
	_, ready := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady)
	return ready != nil && ready.Status == corev1.ConditionTrue
}

// IsUninitialized tells whether the Node still waits for its cloud controller manager.
func IsUninitialized(n *corev1.Node) bool {
	return HasTaint(n, cloudproviderapi.TaintExternalCloudProvider)
}

// HasTaint tells whether the Node has a taint of this key.
func HasTaint(n *corev1.Node, key string) bool { return slices.Contains(taintKeysOf(n), key) }

// IsPodReady tells whether the Pod's condition Ready is True.
func IsPodReady(p *corev1.Pod) bool {
	return PodCondition(p, corev1.PodReady).Status == corev1.ConditionTrue
}

// PodCondition is the Pod's condition of this type, the zero condition if it has none.
func PodCondition(p *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}

func compareMeta(before, after *metav1.ObjectMeta, created bool) Object {
	return Object{
		Namespace: after.Namespace, Name: after.Name, Created: created,
		DeletionStarted: before.DeletionTimestamp == nil && after.DeletionTimestamp != nil,
		Finalizers:      after.Finalizers,
	}
}

// CompareSets says what has come into a set of words, and what has left it.
func CompareSets(before, after []string) Set {
	without := func(all, others []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(others, s) })
	}
	return Set{Added: without(after, before), Removed: without(before, after)}
}

func compareConditions(before, after []Condition) (changed []Condition) {
	find := func(all []Condition, kind string) (Condition, bool) {
		i := slices.IndexFunc(all, func(c Condition) bool { return c.Type == kind })
		if i < 0 {
			return Condition{}, false
		}
		return all[i], true
	}
	for _, is := range after {
		if was, there := find(before, is.Type); !there || was.After != is.After {
			is.Before = was.After
			changed = append(changed, is)
		}
	}
	for _, was := range before {
		if _, there := find(after, was.Type); !there {
			changed = append(changed, Condition{Type: was.Type, Before: was.After})
		}
	}
	return changed
}

func taintsOf(n *corev1.Node) (all []string) {
	for _, t := range n.Spec.Taints {
		all = append(all, t.Key+":"+string(t.Effect))
	}
	return all
}

func taintKeysOf(n *corev1.Node) (all []string) {
	for _, t := range n.Spec.Taints {
		all = append(all, t.Key)
	}
	return all
}

func addressesOf(n *corev1.Node) (all []string) {
	for _, a := range n.Status.Addresses {
		all = append(all, string(a.Type)+" "+a.Address)
	}
	return all
}

func pairsOf(m map[string]string) (all []string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k+"="+m[k])
	}
	return all
}

func ingressOf(s *corev1.Service) (all []string) {
	for _, i := range s.Status.LoadBalancer.Ingress {
		text := strings.TrimSpace(i.IP + " " + i.Hostname)
		if i.IPMode != nil {
			text += fmt.Sprintf(" (%s)", *i.IPMode)
		}
		all = append(all, text)
	}
	return all
}
