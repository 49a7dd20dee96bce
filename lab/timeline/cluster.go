package timeline

// Changes of Pods, and Kubernetes Events, which are a controller's own words.

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/lab/kubediff"
)

// PodSubject names a Pod, with its namespace unless it is "default".
func PodSubject(p *corev1.Pod) string { return subjectOf("pod", p.Namespace, p.Name) }

// Pod compares two versions of a Pod; before is nil for a new one, after is nil
// for one that was deleted. Why it is Pending, its Events say.
func Pod(before, after *corev1.Pod) []Change {
	if after == nil {
		return []Change{{Source: SourceCluster, Subject: PodSubject(before), What: "gone"}}
	}
	if before == nil {
		before = &corev1.Pod{}
	}
	var out []Change
	add := func(failed bool, what, detail string) {
		out = append(
			out, Change{Source: SourceCluster, Subject: PodSubject(after), What: what, Detail: detail, Failed: failed},
		)
	}
	if before.Spec.NodeName == "" && after.Spec.NodeName != "" {
		add(false, "scheduled", "on "+after.Spec.NodeName)
	}
	for i, c := range after.Status.ContainerStatuses {
		was := int32(0)
		if i < len(before.Status.ContainerStatuses) {
			was = before.Status.ContainerStatuses[i].RestartCount
		}
		if c.RestartCount > was {
			detail := fmt.Sprintf("container %s, %s", c.Name, countSoFar(c.RestartCount))
			if t := c.LastTerminationState.Terminated; t != nil {
				detail += fmt.Sprintf("; its last exit code was %d", t.ExitCode)
			}
			add(true, "restarted", detail)
		}
	}
	ending := after.DeletionTimestamp != nil
	if ending && before.DeletionTimestamp == nil {
		add(false, "terminating", "")
	}
	switch was, is := kubediff.IsPodReady(before), kubediff.IsPodReady(after); {
	case is && !was:
		add(false, "ready", after.Status.PodIP)
	case was && !is:
		add(!ending, "not-ready", "")
	}
	return out
}

func countSoFar(n int32) string {
	if n == 1 {
		return "once so far"
	}
	return fmt.Sprintf("%d times so far", n)
}

// EventSubject names what an Event is about.
func EventSubject(e *corev1.Event) string {
	o := e.InvolvedObject
	return subjectOf(strings.ToLower(o.Kind), o.Namespace, o.Name)
}

// EventKey identifies one occurrence of an Event: it differs when the Event occurs again.
func EventKey(e *corev1.Event) string { return fmt.Sprintf("%s/%d", e.UID, eventCount(e)) }

func eventCount(e *corev1.Event) int32 {
	if e.Series != nil {
		return max(e.Count, e.Series.Count)
	}
	return max(e.Count, 1)
}

// Event compares two versions of an Event: each occurrence is a change. Events that repeat
// what the watches of Nodes and Pods report are left out.
func Event(before, after *corev1.Event) []Change {
	if after == nil || !isRelevantEvent(after) || before != nil && EventKey(before) == EventKey(after) {
		return nil
	}
	c := Change{
		Source: SourceEvent, Subject: EventSubject(after), What: after.Reason,
		Detail: strings.Join(strings.Fields(after.Message), " "),
		Caller: after.ReportingController, Failed: after.Type == corev1.EventTypeWarning, EventKey: EventKey(after),
	}
	if c.Caller == "" {
		c.Caller = after.Source.Component
	}
	if n := eventCount(after); n > 1 {
		c.Detail += fmt.Sprintf(" (%d times)", n)
	}
	return []Change{c}
}

// isRelevantEvent accepts Warnings, all Events about Services, and those of controllers that
// remove Nodes and Pods.
func isRelevantEvent(e *corev1.Event) bool {
	if e.Type == corev1.EventTypeWarning || e.InvolvedObject.Kind == "Service" {
		return true
	}
	return slices.Contains([]string{
		contract.ReasonNodeRemoved,
		"TaintManagerEviction", // k8s.io/kubernetes/pkg/controller/tainteviction
		"DeletingNode",         // k8s.io/cloud-provider/controllers/nodelifecycle
		"RemovingNode",         // k8s.io/kubernetes/pkg/controller/nodelifecycle
		"Preempted",            // k8s.io/kubernetes/pkg/scheduler
		"LeaderElection",       // k8s.io/client-go/tools/leaderelection
	}, e.Reason)
}
