package conformance

// Nodes that may be targets of balancers, in clusters that have none of their own.

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// eligibleNodeCount is how many there are: two, so that one may go.
const eligibleNodeCount = 2

// eligibleNodeBound is how long a test waits for the CCM to initialise them. One that does not has
// other tests to fail.
const eligibleNodeBound = 30 * time.Second

// eligibleNodes are stand-ins without the exclusion label, which all tests of a run share: other
// stand-ins have that label, and a CCM may rightly refuse a balancer that has no Node to send to
// (upstream's service controller warns of it: UnAvailableLoadBalancer). Where traffic is looked at
// there are none of them: pods run on Nodes with a kubelet there, and on these nobody would answer.
type eligibleNodes struct {
	keeper *T // of no test; keeps the Nodes alive

	mu    sync.Mutex
	nodes []eligibleNode
	late  bool // the CCM has not initialised them in time
}

type eligibleNode struct {
	*StandIn
	instance Instance
}

// newEligibleNodes makes no Node yet.
func newEligibleNodes(ctx context.Context, s *Suite) *eligibleNodes {
	return &eligibleNodes{keeper: &T{Suite: s, test: Test{ID: "eligible-nodes"}, ctx: context.WithoutCancel(ctx)}}
}

// needsEligibleNodes tells whether Services of the test may need a Node to send to.
func needsEligibleNodes(t Test) bool {
	return slices.Contains([]Profile{LoadBalancer, HA, Resilience}, t.Profile)
}

// ensure returns when the Nodes are there, and initialised unless the CCM takes too long. What an
// earlier test has ended is replaced.
func (e *eligibleNodes) ensure(ctx context.Context) error {
	if e == nil || e.keeper.HasFeature(FeatureTraffic) {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.replaceMissing(ctx); err != nil {
		return err
	}
	bound := e.keeper.ScaleBound(eligibleNodeBound)
	if e.late {
		bound = pollEvery // Once is enough.
	}
	waiting, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err := pollUntil(waiting, func(ctx context.Context) error {
		for _, n := range e.nodes {
			if _, err := e.keeper.Initialized(ctx, n.Name); err != nil {
				return err
			}
		}
		return nil
	})
	e.late = err != nil
	return err
}

// replaceMissing creates the Nodes that are not there.
func (e *eligibleNodes) replaceMissing(ctx context.Context) error {
	var kept []eligibleNode
	for _, n := range e.nodes {
		_, err := e.keeper.GetNode(ctx, n.Name)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err == nil {
			kept = append(kept, n)
			continue
		}
		n.kubelets.Stop()
		if err := e.keeper.Cloud.TerminateInstance(ctx, n.instance.ID); err != nil {
			return err
		}
	}
	e.nodes = kept
	for len(e.nodes) < eligibleNodeCount {
		failed := len(e.keeper.failures)
		e.keeper.runGuarded(ctx, "making a Node that may be a target", func() {
			i := e.keeper.NewInstance(e.keeper.Name("target"))
			e.nodes = append(e.nodes, eligibleNode{e.keeper.NewNodeOf(i, NodeSpec{Balanced: true}), i})
		})
		if len(e.keeper.failures) > failed {
			return errors.New(e.keeper.failures[failed])
		}
	}
	return nil
}

// remove deletes the Nodes and terminates their instances.
func (e *eligibleNodes) remove() {
	if e != nil {
		e.keeper.runCleanups()
	}
}
