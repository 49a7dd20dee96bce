package record

// Entries for changes of Nodes, Services and Events. Heartbeats, and other updates that
// change nothing of interest, make none.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/ccmlab/ccmlab/lab/follow"
	"github.com/ccmlab/ccmlab/lab/kubediff"
)

// watchObjects adds entries for changes of Nodes, Services and Events until ctx ends.
func (r *Recorder) watchObjects(ctx context.Context, kube kubernetes.Interface) {
	r.watches = informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTransform(follow.StripObject))
	core := r.watches.Core().V1()
	followNew(core.Nodes().Informer(), func(before, after *corev1.Node) {
		r.addChanges(SourceNode, existing(before, after).Name, nodeChanges(before, after))
	})
	followNew(core.Services().Informer(), func(before, after *corev1.Service) {
		s := existing(before, after)
		r.addChanges(SourceService, s.Namespace+"/"+s.Name, serviceChanges(before, after))
	})
	followNew(core.Events().Informer(), func(before, after *corev1.Event) {
		if after == nil || !isRelevantEvent(after) || before != nil && occurrenceKey(before) == occurrenceKey(after) {
			return
		}
		o := after.InvolvedObject
		r.addEntry(
			SourceEvent, after.Type == corev1.EventTypeWarning, strings.Trim(o.Namespace+"/"+o.Name, "/"), "%s: %s",
			after.Reason, after.Message,
		)
	})
	r.watches.StartWithContext(ctx)
}

// followNew calls fn for each change. Objects that were there when the run began are no change.
func followNew[O any](informer cache.SharedIndexInformer, fn func(before, after *O)) {
	_ = follow.Objects(informer, func(*O) bool { return false }, fn) // An informer that was stopped tells nothing.
}

// addChanges adds one entry for all that one update has changed.
func (r *Recorder) addChanges(s Source, subject string, c changeTexts) {
	if len(c.texts) > 0 {
		r.addEntry(s, c.failed, subject, "%s", strings.Join(c.texts, "; "))
	}
}

func existing[O any](before, after *O) *O {
	if after != nil {
		return after
	}
	return before
}

// changeTexts are the changes of an object from one version to the next, in words.
type changeTexts struct {
	texts  []string
	failed bool // one of them is no good news
}

func (c *changeTexts) add(format string, args ...any) {
	c.texts = append(c.texts, fmt.Sprintf(format, args...))
}

// addObject adds how the object comes, as created says it, and goes.
func (c *changeTexts) addObject(o kubediff.Object, created string) {
	switch {
	case o.Deleted:
		c.add("deleted")
	case o.Created:
		c.add("%s", created)
	}
	if o.DeletionStarted {
		c.add("is being deleted, finalizers %v", o.Finalizers)
	}
}

func (c *changeTexts) addSet(name string, set kubediff.Set) {
	if len(set.Added) > 0 {
		c.add("+ %s %s", name, strings.Join(set.Added, ", "))
	}
	if len(set.Removed) > 0 {
		c.add("− %s %s", name, strings.Join(set.Removed, ", "))
	}
}

func addValue[T any](c *changeTexts, name string, v kubediff.Value[T]) {
	if v.Changed() {
		c.add("%s: %v → %v", name, orNone(v.Before), orNone(v.After))
	}
}

// addConditions adds conditions with another status than before. One that was removed is left out.
func (c *changeTexts) addConditions(changed []kubediff.Condition) {
	for _, condition := range changed {
		if condition.After != "" {
			c.add("%s: %s (%s)", condition.Type, condition.After, condition.Reason)
		}
	}
}

func orNone(v any) any {
	if s := fmt.Sprint(v); s == "" || s == "[]" || s == "map[]" || s == "<nil>" {
		return "none"
	}
	return v
}

// nodeChanges puts what differs between two versions of a Node into words.
func nodeChanges(before, after *corev1.Node) (c changeTexts) {
	d := kubediff.Nodes(before, after)
	if c.addObject(d.Object, "registered"); d.Deleted {
		return c
	}
	c.addSet("taint", d.Taints)
	addValue(&c, "provider ID", d.ProviderID)
	addValue(&c, "unschedulable", d.Unschedulable)
	c.addSet("address", d.Addresses)
	c.addSet("label", d.Labels)
	c.addConditions(d.Conditions)
	// Of a Node's conditions only Ready is good news when it is true.
	c.failed = slices.ContainsFunc(d.Conditions, func(one kubediff.Condition) bool {
		isTrue := one.After == string(corev1.ConditionTrue)
		return one.After != "" && isTrue != (one.Type == string(corev1.NodeReady))
	})
	return c
}

// serviceChanges puts what differs between two versions of a Service into words.
func serviceChanges(before, after *corev1.Service) (c changeTexts) {
	d := kubediff.Services(before, after)
	if c.addObject(d.Object, fmt.Sprintf("created, of type %s", d.Type.After)); d.Deleted {
		return c
	}
	c.addSet("finalizer", d.FinalizerSet)
	c.addSet("ingress", d.Ingress)
	c.addSet("annotation", d.Annotations)
	c.addSet("port", kubediff.CompareSets(portTexts(d.Ports.Before), portTexts(d.Ports.After)))
	addValue(&c, "type", d.Type)
	addValue(&c, "class", d.Class)
	addValue(&c, "selector", d.Selector)
	addValue(&c, "source ranges", d.SourceRanges)
	addValue(&c, "load balancer IP", d.LoadBalancerIP)
	addValue(&c, "affinity", d.SessionAffinity)
	addValue(&c, "external traffic policy", d.ExternalTrafficPolicy)
	addValue(&c, "health check node port", d.HealthCheckNodePort)
	c.addConditions(d.Conditions)
	return c
}

func portTexts(ports []corev1.ServicePort) (all []string) {
	for _, p := range ports {
		all = append(
			all, fmt.Sprintf("%s %d → %s, node port %d", p.Protocol, p.Port, p.TargetPort.String(), p.NodePort),
		)
	}
	return all
}

// isRelevantEvent is false for Events about how pods come to run.
func isRelevantEvent(e *corev1.Event) bool {
	return e.Type == corev1.EventTypeWarning ||
		slices.Contains([]string{"Node", "Service", "Lease"}, e.InvolvedObject.Kind)
}

// occurrenceKey differs each time that an Event occurs again.
func occurrenceKey(e *corev1.Event) [2]any {
	if e.Series != nil {
		return [2]any{max(e.Count, e.Series.Count), time.Time{}}
	}
	return [2]any{e.Count, e.LastTimestamp.Time}
}
