package lifecycle

// Which nodes and pods of the demo an `up` has to wait for: those of instances
// that run, by name, and none that somebody has stopped.

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/agent"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

const labelControlPlane = "node-role.kubernetes.io/control-plane"

// census is what there is of nodes at one look.
type census struct {
	// wanted are the names of the instances that run a node or are about to.
	wanted []string
	// missing says of those without a Ready node of their own which they are.
	missing []string
	// tainted counts those whose node waits for a CCM.
	tainted int
	// workers are those that may have a pod of the demo, and whether their node is
	// Ready.
	workers map[string]bool
}

// takeCensus compares instances with the nodes whose kubelets are alive.
func takeCensus(instances []api.Instance, alive []corev1.Node) census {
	c := census{workers: map[string]bool{}}
	nodes := map[string]*corev1.Node{}
	for i := range alive {
		nodes[alive[i].Name] = &alive[i]
	}
	for _, i := range instances {
		if i.State != api.InstancePending && i.State != api.InstanceRunning || !agent.IsMachine(i.Tags) {
			continue
		}
		c.wanted = append(c.wanted, i.Name)
		n, own := nodes[i.Name], cluster.Machine{ID: i.ID}.ProviderID()
		switch {
		case n != nil && n.Spec.ProviderID != own && strings.HasPrefix(n.Spec.ProviderID, contract.ProviderIDPrefix):
			c.missing = append(c.missing, i.Name+", whose Node is still that of an earlier instance until a CCM deletes it")
			n = nil
		case n == nil || !timeline.Ready(n):
			c.missing = append(c.missing, i.Name)
		case timeline.Uninitialized(n):
			c.tainted++
		}
		if n == nil {
			c.workers[i.Name] = false
		} else if _, controlPlane := n.Labels[labelControlPlane]; !controlPlane {
			c.workers[i.Name] = timeline.Ready(n)
		}
	}
	return c
}

// ready is how many of the wanted have a Ready node.
func (c census) ready() int { return len(c.wanted) - len(c.missing) }

// namedMissing is how many of the missing an error names.
const namedMissing = 5

// lacks is an error that names nodes that are not Ready; nil if all are.
func (c census) lacks() error {
	if len(c.missing) == 0 {
		return nil
	}
	names := c.missing[:min(namedMissing, len(c.missing))]
	more := ""
	if n := len(c.missing) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%d of %d nodes are Ready, without %s%s", c.ready(), len(c.wanted), strings.Join(names, ", "), more)
}

// What is said of a demo that has nothing to wait for.
const (
	noNode        = "none: no node runs"
	noPodOnANode  = "none: the pods of deployment web are on nodes that do not run"
	noSuchService = "none: service web is of type %s"
)

// muster is how the demo's pods are spread over those nodes.
type muster struct {
	// nodes have a Ready pod, one name per pod.
	nodes []string
	// all are the pods that count, want is how many of them should be Ready.
	all, want int
	// idle says why there is nothing to wait for.
	idle string
	// settled means that those that are not Ready will not be by themselves: what
	// runs says that it is not ready, what ended ends again, and the rest fits
	// nowhere.
	settled bool
}

// muster counts the pods. Every node that runs has one, up to their number: see
// the demo's topologySpreadConstraints. Those of a stopped node wait for it.
func (c census) muster(pods []corev1.Pod) muster {
	m := muster{settled: true}
	for _, p := range pods {
		if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
			continue // It is only there to be looked at.
		}
		m.all++
		if _, runs := c.workers[p.Spec.NodeName]; p.Spec.NodeName != "" && !runs {
			continue
		}
		m.want++
		if conditionIs(&p, corev1.PodReady, corev1.ConditionTrue) {
			m.nodes = append(m.nodes, p.Spec.NodeName)
		} else {
			m.settled = m.settled && settled(&p)
		}
	}
	ready := 0
	for _, isReady := range c.workers {
		if isReady {
			ready++
		}
	}
	switch {
	case len(c.workers) == 0:
		m.idle = noNode
	case m.all > 0 && m.want == 0:
		m.idle = noPodOnANode
	}
	m.want = max(1, min(m.want, ready))
	slices.Sort(m.nodes)
	return m
}

func conditionIs(p *corev1.Pod, what corev1.PodConditionType, status corev1.ConditionStatus) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == what && c.Status == status })
}

func settled(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil {
		return false // Another one comes.
	}
	if p.Spec.NodeName == "" {
		return conditionIs(p, corev1.PodScheduled, corev1.ConditionFalse)
	}
	return len(p.Status.ContainerStatuses) > 0 && !slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Waiting != nil && (s.State.Waiting.Reason == "ContainerCreating" || s.State.Waiting.Reason == "PodInitializing")
	})
}

// settledBound is how long the demo of a lab that was there may be as somebody
// made it before `up` takes it for meant; a pod that starts is Ready sooner.
const settledBound = 15 * time.Second

// patience is how long something has lasted.
type patience struct{ since time.Time }

// gone tells whether it has lasted too long.
func (p *patience) gone(lasts bool, now time.Time) bool {
	switch {
	case !lasts:
		p.since = time.Time{}
	case p.since.IsZero():
		p.since = now
	default:
		return now.Sub(p.since) >= settledBound
	}
	return false
}
