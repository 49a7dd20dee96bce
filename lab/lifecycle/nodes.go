package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/lab/timeline"
)

// awaitNodes waits for a Ready node of each instance that runs or is about to.
func (u *up) awaitNodes(ctx context.Context, note func(string)) (string, error) {
	ended, err := u.deaths()
	if err != nil {
		return "", err
	}
	defer func() { _ = ended.news.Close() }()
	if err := u.clearNames(ctx, note); err != nil {
		return "", err
	}
	err = u.poll(ctx, "every running instance to have a Ready node; `lab logs` has a log per node", func(ctx context.Context) error {
		if err := u.look(ctx); err != nil {
			return err
		}
		note(fmt.Sprintf("%d of %d Ready", u.census.ready(), len(u.census.wanted)))
		lacks := u.census.lacks()
		if lacks == nil {
			return nil
		}
		machine, err := ended.often()
		if machine != "" {
			return hopeless{fmt.Errorf("machine %s ends again and again\n%s", machine, u.LogHint("node/"+machine))}
		}
		return errors.Join(lacks, err)
	})
	if u.Cluster.Traits().NoCloudProvider {
		return fmt.Sprintf("%d Ready, none tainted: their kubelets wait for nobody", u.census.ready()), err
	}
	return fmt.Sprintf("%d Ready, %d of them tainted node.cloudprovider.kubernetes.io/uninitialized", u.census.ready(), u.census.tainted), err
}

// clearNames starts the CCM before its turn where a node is missing in a lab that
// was there: a new machine waits until a CCM has deleted an earlier one's Node.
func (u *up) clearNames(ctx context.Context, note func(string)) error {
	if u.fresh || !u.ccm {
		return nil
	}
	if err := u.look(ctx); err == nil && u.census.lacks() == nil {
		return nil
	}
	note("starting the CCM, which deletes the Nodes of instances that are gone")
	return u.StartCCM(ctx)
}

// look takes the census anew.
func (u *up) look(ctx context.Context) error {
	instances, err := u.liveInstances(ctx)
	if err != nil {
		return err
	}
	alive, err := u.aliveNodes(ctx)
	if err != nil {
		return err
	}
	u.census = takeCensus(instances, alive)
	return nil
}

// aliveNodes are those whose kubelet renews its lease now: after a crash, what
// a Node says of itself is still what it said before. In a new lab there is no
// before, and the first renewal need not be waited for.
func (u *up) aliveNodes(ctx context.Context) ([]corev1.Node, error) {
	nodes, err := u.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil || u.fresh {
		return nodes.Items, err
	}
	leases, err := u.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	renewed := map[string]bool{}
	for _, l := range leases.Items {
		renewed[l.Name] = l.Spec.RenewTime != nil && l.Spec.LeaseDurationSeconds != nil &&
			time.Since(l.Spec.RenewTime.Time) < time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second
	}
	if u.Cluster.Traits().HollowNodes { // A machine that has ended just now has renewed it, too.
		machines, err := u.Cluster.Machines(ctx)
		if err != nil {
			return nil, err
		}
		runs := map[string]bool{}
		for m := range machines {
			runs[m.Name] = true
		}
		maps.DeleteFunc(renewed, func(name string, _ bool) bool { return !runs[name] })
	}
	return slices.DeleteFunc(nodes.Items, func(n corev1.Node) bool { return !renewed[n.Name] }), nil
}

// startController starts the CCM and sees the taints lift.
func (u *up) startController(ctx context.Context, note func(string)) (string, error) {
	note("starting")
	if err := u.StartCCM(ctx); err != nil {
		return "", err
	}
	var initialized int
	err := u.poll(ctx, "the CCM to initialise the nodes; `lab logs ccm` says what it does", func(ctx context.Context) error {
		nodes, err := u.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		// In somebody's cluster there may be nodes that are no cloud's.
		waiting := 0
		initialized = 0
		for _, n := range nodes.Items {
			switch {
			case timeline.Uninitialized(&n):
				waiting++
			case n.Spec.ProviderID != "":
				initialized++
			}
		}
		note(fmt.Sprintf("%d nodes initialised, %d are waiting", initialized, waiting))
		if waiting > 0 {
			return fmt.Errorf("%d nodes are initialised, %d are waiting", initialized, waiting)
		}
		return nil
	})
	return fmt.Sprintf("taints lifted from %d nodes; provider IDs, zones and addresses set", initialized), err
}
