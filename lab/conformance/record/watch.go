package record

// What is worth telling of Nodes, Services and Events as they change. Heartbeats
// and whatever else is the same as before are not.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// watch tells of changes until ctx ends.
func (r *Recorder) watch(ctx context.Context, kube kubernetes.Interface) {
	r.watches = informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTransform(spare))
	core := r.watches.Core().V1()
	follow(core.Nodes().Informer(), func(before, after *corev1.Node) {
		r.changed(SourceNode, either(before, after).Name, nodeChanges(before, after))
	})
	follow(core.Services().Informer(), func(before, after *corev1.Service) {
		s := either(before, after)
		r.changed(SourceService, s.Namespace+"/"+s.Name, serviceChanges(before, after))
	})
	follow(core.Events().Informer(), func(before, after *corev1.Event) {
		if after == nil || !worthTelling(after) || before != nil && occurred(before) == occurred(after) {
			return
		}
		o := after.InvolvedObject
		r.tell(SourceEvent, after.Type == corev1.EventTypeWarning, strings.Trim(o.Namespace+"/"+o.Name, "/"), "%s: %s", after.Reason, after.Message)
	})
	r.watches.StartWithContext(ctx)
}

// changed tells of all that one update has changed at once.
func (r *Recorder) changed(s Source, subject string, c changes) {
	if len(c.texts) > 0 {
		r.tell(s, c.bad, subject, "%s", strings.Join(c.texts, "; "))
	}
}

// spare leaves out of an object what nobody looks at, and is much.
func spare(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	if n, ok := o.(*corev1.Node); ok {
		n.Status.Images = nil
	}
	return o, nil
}

func either[O any](before, after *O) *O {
	if after != nil {
		return after
	}
	return before
}

// follow calls fn for each change: before is nil for what is new, after is nil
// for what is gone. What was there when the run began is not told of.
func follow[O any](informer cache.SharedIndexInformer, fn func(before, after *O)) {
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{ // An error means that it was stopped.
		AddFunc: func(o any, there bool) {
			if after, ok := o.(*O); ok && !there {
				fn(nil, after)
			}
		},
		UpdateFunc: func(was, is any) {
			before, ok1 := was.(*O)
			after, ok2 := is.(*O)
			if ok1 && ok2 {
				fn(before, after)
			}
		},
		DeleteFunc: func(o any) {
			if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = unknown.Obj
			}
			if before, ok := o.(*O); ok {
				fn(before, nil)
			}
		},
	})
}

// changes are those of an object from one version to the next.
type changes struct {
	texts []string
	bad   bool // one of them is no good news
}

func (c *changes) add(bad bool, format string, args ...any) {
	c.texts, c.bad = append(c.texts, fmt.Sprintf(format, args...)), c.bad || bad
}

// field tells that something is another now.
func (c *changes) field(name string, was, is any) {
	if !equality.Semantic.DeepEqual(was, is) {
		c.add(false, "%s: %v → %v", name, shown(was), shown(is))
	}
}

func shown(v any) any {
	if s := fmt.Sprint(v); s == "" || s == "[]" || s == "map[]" || s == "<nil>" {
		return "none"
	}
	return v
}

// set tells what has come and gone of a set of words.
func (c *changes) set(name string, was, is []string) {
	some := func(sign string, of, but []string) {
		of = slices.DeleteFunc(slices.Clone(of), func(s string) bool { return slices.Contains(but, s) })
		if len(of) > 0 {
			c.add(false, "%s %s %s", sign, name, strings.Join(of, ", "))
		}
	}
	some("+", is, was)
	some("−", was, is)
}

func nodeChanges(before, after *corev1.Node) (c changes) {
	if after == nil {
		c.add(false, "deleted")
		return c
	}
	if before == nil {
		c.add(false, "registered")
		before = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: after.Labels}} // Those it came with are no change.
	}
	if before.DeletionTimestamp == nil && after.DeletionTimestamp != nil {
		c.add(false, "is being deleted, finalizers %v", after.Finalizers)
	}
	c.set("taint", taints(before), taints(after))
	c.field("provider ID", before.Spec.ProviderID, after.Spec.ProviderID)
	c.field("unschedulable", before.Spec.Unschedulable, after.Spec.Unschedulable)
	c.set("address", addresses(before), addresses(after))
	c.set("label", pairs(before.Labels), pairs(after.Labels))
	for _, now := range after.Status.Conditions {
		i := slices.IndexFunc(before.Status.Conditions, func(was corev1.NodeCondition) bool { return was.Type == now.Type })
		if i < 0 || before.Status.Conditions[i].Status != now.Status {
			good := (now.Type == corev1.NodeReady) == (now.Status == corev1.ConditionTrue)
			c.add(!good, "%s: %s (%s)", now.Type, now.Status, now.Reason)
		}
	}
	return c
}

func taints(n *corev1.Node) (all []string) {
	for _, t := range n.Spec.Taints {
		all = append(all, t.Key+":"+string(t.Effect))
	}
	return all
}

func addresses(n *corev1.Node) (all []string) {
	for _, a := range n.Status.Addresses {
		all = append(all, string(a.Type)+" "+a.Address)
	}
	return all
}

func pairs(m map[string]string) (all []string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k+"="+m[k])
	}
	return all
}

func serviceChanges(before, after *corev1.Service) (c changes) {
	if after == nil {
		c.add(false, "deleted")
		return c
	}
	if before == nil {
		c.add(false, "created, of type %s", after.Spec.Type)
		before = &corev1.Service{Spec: after.Spec, ObjectMeta: metav1.ObjectMeta{Annotations: after.Annotations}}
	}
	if before.DeletionTimestamp == nil && after.DeletionTimestamp != nil {
		c.add(false, "is being deleted, finalizers %v", after.Finalizers)
	}
	was, is := before.Spec, after.Spec
	c.set("finalizer", before.Finalizers, after.Finalizers)
	c.set("ingress", ingress(before), ingress(after))
	c.set("annotation", pairs(before.Annotations), pairs(after.Annotations))
	c.set("port", ports(before), ports(after))
	c.field("type", was.Type, is.Type)
	c.field("class", deref(was.LoadBalancerClass), deref(is.LoadBalancerClass))
	c.field("selector", was.Selector, is.Selector)
	c.field("source ranges", was.LoadBalancerSourceRanges, is.LoadBalancerSourceRanges)
	c.field("load balancer IP", was.LoadBalancerIP, is.LoadBalancerIP)
	c.field("affinity", was.SessionAffinity, is.SessionAffinity)
	c.field("external traffic policy", was.ExternalTrafficPolicy, is.ExternalTrafficPolicy)
	c.field("health check node port", was.HealthCheckNodePort, is.HealthCheckNodePort)
	for _, now := range after.Status.Conditions {
		i := slices.IndexFunc(before.Status.Conditions, func(was metav1.Condition) bool { return was.Type == now.Type })
		if i < 0 || before.Status.Conditions[i].Status != now.Status {
			c.add(false, "%s: %s (%s)", now.Type, now.Status, now.Reason)
		}
	}
	return c
}

func ingress(s *corev1.Service) (all []string) {
	for _, i := range s.Status.LoadBalancer.Ingress {
		text := strings.TrimSpace(i.IP + " " + i.Hostname)
		if i.IPMode != nil {
			text += " (" + string(*i.IPMode) + ")"
		}
		all = append(all, text)
	}
	return all
}

func ports(s *corev1.Service) (all []string) {
	for _, p := range s.Spec.Ports {
		all = append(all, fmt.Sprintf("%s %d → %s, node port %d", p.Protocol, p.Port, p.TargetPort.String(), p.NodePort))
	}
	return all
}

func deref[V any](p *V) (v V) {
	if p != nil {
		v = *p
	}
	return v
}

// worthTelling leaves out how pods come to run.
func worthTelling(e *corev1.Event) bool {
	return e.Type == corev1.EventTypeWarning || slices.Contains([]string{"Node", "Service", "Lease"}, e.InvolvedObject.Kind)
}

// occurred is another each time that an Event comes again.
func occurred(e *corev1.Event) [2]any {
	if e.Series != nil {
		return [2]any{max(e.Count, e.Series.Count), time.Time{}}
	}
	return [2]any{e.Count, e.LastTimestamp.Time}
}
