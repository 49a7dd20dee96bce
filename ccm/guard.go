package ccm

import (
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/ccmlab/ccmlab/ccm/contract"
)

// massDeletion says how many Nodes may end at once before that is doubted, and for how long
// further ones are held.
type massDeletion struct {
	// Share of the Nodes, from 0 to 1, and Minimum, a number of them: when more than both
	// end within Window, further ones are held.
	Share   float64
	Minimum int
	Window  time.Duration
	// Hold is for how long a Node is held at least, before the cloud is asked again.
	Hold time.Duration
}

// releaseInterval is the least time between two held Nodes that are let go.
const releaseInterval = time.Second

// deletionGuard stands between the verdict that an instance is gone and the controllers that
// delete its Node. The cloud may be wrong about many instances at once, each time with a
// definite answer, and Nodes that are deleted take their pods with them. So when too many end
// within a short time the rest are held, the cloud is asked about each of them again, and they
// are let go slowly: a person has time to look.
type deletionGuard struct {
	limits  massDeletion
	clock   clock.PassiveClock
	explain *explainer
	nodes   corelisters.NodeLister // set before the controllers start

	mu sync.Mutex
	// letGo are the Nodes that were let go within the last Window, and when their instance
	// was found gone.
	letGo map[types.UID]time.Time
	held  map[types.UID]*heldNode
	// active is true from when the guard trips until the Nodes that were let go and those
	// that are held are within the limits again. Nodes that are held then stay held for
	// their time.
	active      bool
	trips       int
	lastRelease time.Time
}

// heldNode is a Node that is held since a time, and when somebody last asked about it.
type heldNode struct {
	node         *corev1.Node
	since, asked time.Time
}

func newDeletionGuard(limits massDeletion, clock clock.PassiveClock, explain *explainer) *deletionGuard {
	return &deletionGuard{
		limits: limits, clock: clock, explain: explain,
		letGo: map[types.UID]time.Time{}, held: map[types.UID]*heldNode{},
	}
}

// checkHeld is an error for a Node that is held and cannot be let go yet. Then the cloud need
// not be asked.
func (g *deletionGuard) checkHeld(node *corev1.Node) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.dropExpired()
	h := g.held[node.UID]
	if h == nil {
		return nil
	}
	h.asked = now
	return g.retryUntilDue(h, now)
}

// checkNotReplaced is an error if there is another Node of that name by now. Upstream makes
// its rounds with the Nodes that it saw at their beginning, and deletes by name: on a busy
// machine that can be the Node of a new instance, which has registered meanwhile.
func (g *deletionGuard) checkNotReplaced(node *corev1.Node) error {
	if g.nodes == nil {
		return nil
	}
	now, err := g.nodes.Get(node.Name)
	if err == nil && now.UID != node.UID {
		return fmt.Errorf("node %s has registered anew, and what is asked about is the one before", node.Name)
	}
	return nil
}

// admitDeletion lets a Node go whose instance was just found gone. If it holds the Node it is
// an error.
func (g *deletionGuard) admitDeletion(node *corev1.Node, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.dropExpired()
	if h := g.held[node.UID]; h != nil {
		if err := g.retryUntilDue(h, now); err != nil {
			return err
		}
		klog.InfoS("Letting go a node that the mass-deletion guard held; the cloud has said it again",
			"node", klog.KObj(node), "why", why, "heldFor", now.Sub(h.since))
		g.releaseNode(node.UID)
		g.lastRelease, g.letGo[node.UID] = now, now
		return nil
	}
	if _, again := g.letGo[node.UID]; again {
		return nil // It was let go, and its Node is yet to be deleted.
	}
	if !g.active {
		count, known := len(g.letGo)+len(g.held)+1, g.countNodes(node.UID)
		if g.isWithinLimits(count, known) {
			g.letGo[node.UID] = now
			return nil
		}
		g.active = true
		g.trips++
		massDeletionTrips.Inc()
		klog.ErrorS(nil, "Mass-deletion guard: too many instances are gone at once; the nodes of further ones "+
			"are kept, to be asked about again and let go one by one. If the instances are there, mend the cloud; "+
			"the nodes then stay",
			"found", count, "nodes", known, "window", g.limits.Window, "share", g.limits.Share, "hold", g.limits.Hold)
	}
	h := &heldNode{node: node, since: now, asked: now}
	g.held[node.UID] = h
	err := g.retryUntilDue(h, now)
	g.explain.warnOnce(node, topicExistence, cause{reason: contract.ReasonMassDeletionHeld},
		"Node is not deleted yet: %s (%d found gone within %v); %s",
		why, len(g.letGo)+len(g.held), g.limits.Window, nextStep(contract.ReasonMassDeletionHeld))
	return err
}

// recordExists releases a Node whose instance exists after all.
func (g *deletionGuard) recordExists(node *corev1.Node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropExpired()
	delete(g.letGo, node.UID)
	if g.held[node.UID] != nil {
		klog.InfoS("The instance of a held node is there after all; the node stays", "node", klog.KObj(node))
		g.releaseNode(node.UID)
	}
}

// activeAndHeld tells whether the guard is active, and how many Nodes it holds; for metrics.
func (g *deletionGuard) activeAndHeld() (active bool, held int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropExpired()
	return g.active, len(g.held)
}

// retryUntilDue is an api.RetryError until a held Node's time has come.
func (g *deletionGuard) retryUntilDue(h *heldNode, now time.Time) error {
	next := h.since.Add(g.limits.Hold)
	if slow := g.lastRelease.Add(releaseInterval); slow.After(next) {
		next = slow
	}
	if !next.After(now) {
		return nil
	}
	why := fmt.Sprintf("the cloud says that the instance is gone, as it said of %d other nodes' within %v: "+
		"this node is kept for now, and asked about again", len(g.letGo)+len(g.held)-1, g.limits.Window)
	return cloudproviderapi.NewRetryError(why, next.Sub(now))
}

func (g *deletionGuard) releaseNode(uid types.UID) {
	g.explain.markResolved(g.held[uid].node, topicExistence)
	delete(g.held, uid)
}

// isWithinLimits tells whether count of the known Nodes may end within Window.
func (g *deletionGuard) isWithinLimits(count, known int) bool {
	return count <= g.limits.Minimum || float64(count) <= g.limits.Share*float64(known)
}

// countNodes counts the Nodes, and with them those that were let go within Window, are held,
// or are asked about: a cluster that shrinks must not trip the guard sooner.
func (g *deletionGuard) countNodes(asked ...types.UID) int {
	all, err := g.nodes.List(labels.Everything())
	if err != nil {
		return 0 // A lister that reads memory gives no error.
	}
	n := len(asked) + len(g.letGo) + len(g.held)
	for _, node := range all {
		_, went := g.letGo[node.UID]
		if !went && g.held[node.UID] == nil && !slices.Contains(asked, node.UID) {
			n++
		}
	}
	return n
}

// dropExpired drops what is no longer of use. A held Node that nobody asks about any more is
// Ready again, or was deleted by somebody else: upstream asks about the others every few
// seconds.
func (g *deletionGuard) dropExpired() (now time.Time) {
	now = g.clock.Now()
	for uid, h := range g.held {
		if now.Sub(h.asked) > g.limits.Hold+g.limits.Window {
			g.releaseNode(uid)
		}
	}
	for uid, at := range g.letGo {
		if now.Sub(at) >= g.limits.Window {
			delete(g.letGo, uid)
		}
	}
	// A mass of held Nodes keeps the guard active until they have gone, slowly.
	if count := len(g.letGo) + len(g.held); g.active && g.isWithinLimits(count, g.countNodes()) {
		g.active = false
		klog.InfoS("Mass-deletion guard: no more instances than usual are gone; nodes go at once again",
			"found", count, "held", len(g.held), "window", g.limits.Window)
	}
	return now
}
