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

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/kubediff"
)

// waitForNodesReady waits until each instance that runs, or is about to, has a Ready node.
func (u *upRun) waitForNodesReady(ctx context.Context, note func(string)) (string, error) {
	exits, err := u.countMachineExits()
	if err != nil {
		return "", err
	}
	defer func() { _ = exits.timeline.Close() }()
	if err := u.startCCMForStaleNodes(ctx, note); err != nil {
		return "", err
	}
	err = u.poll(ctx, "every running instance to have a Ready node; `lab logs` has a log per node", func(ctx context.Context) error {
		if err := u.updateNodeReadiness(ctx); err != nil {
			return err
		}
		note(fmt.Sprintf("%d of %d Ready", u.nodes.readyCount(), len(u.nodes.expected)))
		missing := u.nodes.missingError()
		if missing == nil {
			return nil
		}
		machine, err := exits.machineThatKeepsExiting()
		if machine != "" {
			return cluster.Permanent(
				fmt.Errorf("machine %s ends again and again\n%s", machine, u.LogHint("node/"+machine)),
			)
		}
		return errors.Join(missing, err)
	})
	if err == nil { // A machine that was there before its instance has a Node without one.
		err = u.SetProviderIDs(ctx)
	}
	if u.Cluster.Traits().NoCloudProvider {
		return fmt.Sprintf("%d Ready, none tainted: their kubelets wait for nobody", u.nodes.readyCount()), err
	}
	return fmt.Sprintf(
		"%d Ready, %d of them tainted node.cloudprovider.kubernetes.io/uninitialized", u.nodes.readyCount(),
		u.nodes.tainted,
	), err
}

// startCCMForStaleNodes starts the CCM before its own step if the lab was there before and
// a node is missing: a new machine waits until a CCM has deleted the Node of an earlier
// instance of its name.
func (u *upRun) startCCMForStaleNodes(ctx context.Context, note func(string)) error {
	if u.fresh || !u.wantsCCM {
		return nil
	}
	if err := u.updateNodeReadiness(ctx); err == nil && u.nodes.missingError() == nil {
		return nil
	}
	note("starting the CCM, which deletes the Nodes of instances that are gone")
	return u.StartCCM(ctx)
}

// updateNodeReadiness compares instances and nodes anew.
func (u *upRun) updateNodeReadiness(ctx context.Context) error {
	instances, err := u.listLiveInstances(ctx)
	if err != nil {
		return err
	}
	alive, err := u.listAliveNodes(ctx)
	if err != nil {
		return err
	}
	u.nodes = readinessOfNodes(instances, alive)
	return nil
}

// listAliveNodes lists the Nodes whose kubelet renews its lease now. After a crash a Node's
// status is still what it was before. In a new lab there is no such status, so the first
// renewal need not be waited for.
func (u *upRun) listAliveNodes(ctx context.Context) ([]corev1.Node, error) {
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
	if u.Cluster.Traits().HollowNodes { // The lease of a machine that has ended just now is still fresh.
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

// chooseCCM says which program is the CCM, of a lab that is to come up without one.
func (u *upRun) chooseCCM(ctx context.Context, _ func(string)) (string, error) {
	if err := u.opts.UseCCM(ctx, u.Lab); err != nil {
		return "", err
	}
	other, err := u.OtherCCM()
	if err != nil {
		return "", err
	}
	return other.Path + "; --without-ccm leaves it stopped", nil
}

// startCCMAndInitializeNodes starts the CCM and waits until no node has its taint.
func (u *upRun) startCCMAndInitializeNodes(ctx context.Context, note func(string)) (string, error) {
	note("starting")
	if u.opts.UseCCM != nil {
		if err := u.opts.UseCCM(ctx, u.Lab); err != nil {
			return "", err
		}
	}
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
			case kubediff.IsUninitialized(&n):
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
