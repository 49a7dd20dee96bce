package lifecycle

// Which nodes, and which pods of the demo, an `up` has to wait for: those of instances that
// run, and none that somebody has stopped.

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/agent"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/ui"
)

const labelControlPlane = "node-role.kubernetes.io/control-plane"

// nodeReadiness says which instances have a Ready node.
type nodeReadiness struct {
	// expected are the names of the instances that run a node or are about to.
	expected []string
	// missing are those of expected without a Ready node of their own, each with the
	// reason if it is known.
	missing []string
	// tainted counts those of expected whose node waits for a CCM.
	tainted int
	// workers are those of expected that may have a pod of the demo, and whether their
	// node is Ready.
	workers map[string]bool
}

// readinessOfNodes compares instances with the nodes whose kubelets are alive.
func readinessOfNodes(instances []api.Instance, alive []corev1.Node) nodeReadiness {
	r := nodeReadiness{workers: map[string]bool{}}
	nodes := map[string]*corev1.Node{}
	for i := range alive {
		nodes[alive[i].Name] = &alive[i]
	}
	for _, i := range instances {
		if i.State != api.InstancePending && i.State != api.InstanceRunning || !agent.IsMachine(i.Tags) {
			continue
		}
		name := strings.ToLower(i.Name) // As the Node's.
		r.expected = append(r.expected, name)
		n := nodes[name]
		switch {
		case n != nil && cluster.IsOfThisCloud(n.Spec.ProviderID) && !cluster.IsProviderIDOf(n.Spec.ProviderID, i):
			r.missing = append(
				r.missing, name+", whose Node is still that of an earlier instance until a CCM deletes it",
			)
			n = nil
		case n == nil || !kubediff.IsNodeReady(n):
			r.missing = append(r.missing, name)
		case kubediff.IsUninitialized(n):
			r.tainted++
		}
		if n == nil {
			r.workers[name] = false
		} else if _, controlPlane := n.Labels[labelControlPlane]; !controlPlane {
			r.workers[name] = kubediff.IsNodeReady(n)
		}
	}
	return r
}

// readyCount is how many of those expected have a Ready node.
func (r nodeReadiness) readyCount() int { return len(r.expected) - len(r.missing) }

// namedMissing is how many of the missing an error names.
const namedMissing = 5

// missingError is an error that names nodes that are not Ready; nil if all are.
func (r nodeReadiness) missingError() error {
	if len(r.missing) == 0 {
		return nil
	}
	return fmt.Errorf(
		"%d of %d nodes are Ready, without %s", r.readyCount(), len(r.expected), ui.JoinFirst(r.missing, namedMissing),
	)
}

// Reasons why there is nothing to wait for with the demo.
const (
	idleScaledToZero       = "none: deployment web is scaled to 0"
	idleNoNode             = "none: no node runs"
	idlePodsOnStoppedNodes = "none: the pods of deployment web are on nodes that do not run"
	idleServiceType        = "none: service web is of type %s"
)

// podReadiness says how many of the demo's pods are Ready.
type podReadiness struct {
	// readyOn are the nodes of the Ready pods, one name per pod.
	readyOn []string
	// total is the number of pods that have not ended for good, wantReady how many of them
	// should be Ready.
	total, wantReady int
	// idle says why there is nothing to wait for; "" if there is something.
	idle string
	// settled says that the pods that are not Ready will not become so by themselves:
	// those that run fail their probe, those that ended end again, and the others fit on
	// no node.
	settled bool
}

// readinessOfPods counts the demo's pods. By the demo's topologySpreadConstraints each node
// that runs has one, up to their number. The pods of a stopped node wait for it.
func (r nodeReadiness) readinessOfPods(pods []corev1.Pod) podReadiness {
	m := podReadiness{settled: true}
	for _, p := range pods {
		if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
			continue // It is kept only for people to see.
		}
		m.total++
		if _, runs := r.workers[p.Spec.NodeName]; p.Spec.NodeName != "" && !runs {
			continue
		}
		m.wantReady++
		if kubediff.IsPodReady(&p) {
			m.readyOn = append(m.readyOn, p.Spec.NodeName)
		} else {
			m.settled = m.settled && isSettled(&p)
		}
	}
	ready := 0
	for _, isReady := range r.workers {
		if isReady {
			ready++
		}
	}
	switch {
	case len(r.workers) == 0:
		m.idle = idleNoNode
	case m.total > 0 && m.wantReady == 0:
		m.idle = idlePodsOnStoppedNodes
	}
	m.wantReady = max(1, min(m.wantReady, ready))
	slices.Sort(m.readyOn)
	return m
}

// isSettled tells whether a pod that is not Ready will not become so by itself.
func isSettled(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil {
		return false // Another one comes.
	}
	if p.Spec.NodeName == "" {
		return kubediff.PodCondition(p, corev1.PodScheduled).Status == corev1.ConditionFalse
	}
	return len(p.Status.ContainerStatuses) > 0 &&
		!slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.State.Waiting != nil && (s.State.Waiting.Reason == "ContainerCreating" ||
				s.State.Waiting.Reason == "PodInitializing")
		})
}

// stuckBound is how long the demo of a lab that was there before may lack Ready pods before
// `up` gives up on them; a pod that starts is Ready sooner.
const stuckBound = 15 * time.Second

// stuckTimer measures how long something has been stuck.
type stuckTimer struct{ since time.Time }

// expired tells whether it has been stuck for stuckBound; a look at which it is not stuck
// begins anew.
func (t *stuckTimer) expired(stuck bool, now time.Time) bool {
	switch {
	case !stuck:
		t.since = time.Time{}
	case t.since.IsZero():
		t.since = now
	default:
		return now.Sub(t.since) >= stuckBound
	}
	return false
}
