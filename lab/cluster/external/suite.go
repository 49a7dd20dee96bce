package external

// A cluster for the conformance suite. The CCM under test acts on the whole cluster: on
// Nodes that its cloud does not know, and on all Services. So the cluster must hold
// nothing that it could change.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/kubeaccess"
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/labels"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// lendToSuite returns an error when a CCM under test would change what is in the
// cluster. With nodes, the suite may use those that wait for a CCM. tidy removes what a
// CCM that has ended leaves behind: its lease, and Events on that lease and on Nodes
// that did not exist before. It also waits for the suite's namespaces to be deleted.
func lendToSuite(ctx context.Context, kubeconfig string, nodes bool) (tidy func(context.Context) error, err error) {
	kube, err := kubeaccess.Client(kubeconfig, "operator")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cleanUpBound+leaseBound)
	defer cancel()
	before, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("the cluster of %s does not answer: %w", kubeconfig, err)
	}
	services, err := kube.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(checkNoCCM(ctx, kube), checkUntouched(before.Items, services.Items, nodes)); err != nil {
		return nil, err
	}
	said, err := listEvents(ctx, kube)
	if err != nil {
		return nil, err
	}
	leases := kube.CoordinationV1().Leases(metav1.NamespaceSystem)
	lease, err := leases.Get(ctx, leaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease = nil
	} else if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, tidyBound)
		defer cancel()
		return errors.Join(
			restoreLease(ctx, kube, lease), deleteNewEvents(ctx, kube, before.Items, said), awaitNamespaces(ctx, kube),
		)
	}, nil
}

// tidyBound is generous: namespaces go one by one.
const tidyBound = 2 * time.Minute

// awaitNamespaces waits until none of the suite's is on its way out. What is in
// others is none of its business.
func awaitNamespaces(ctx context.Context, kube kubernetes.Interface) error {
	return cluster.Poll(ctx, "the tests' namespaces to go", func(ctx context.Context) error {
		list, err := kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: labels.ConformanceSuite})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%s is still there", list.Items[0].Name)
		}
		return err
	})
}

// checkUntouched returns an error when a CCM would write to or delete one of the nodes,
// or create a balancer for one of the Services. With consent, it may write to nodes
// that wait for a CCM.
func checkUntouched(nodes []corev1.Node, services []corev1.Service, consent bool) error {
	var errs []error
	var waiting, unreached, others, asking []string
	for _, n := range nodes {
		switch {
		case kubediff.IsUninitialized(&n) && consent && internalIPv4(n) == "":
			unreached = append(unreached, n.Name)
		case kubediff.IsUninitialized(&n):
			waiting = append(waiting, n.Name)
		case n.Spec.ProviderID == "":
			others = append(others, n.Name)
		}
	}
	for _, s := range services {
		if s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass == nil {
			asking = append(asking, s.Namespace+"/"+s.Name)
		}
	}
	if len(waiting) > 0 && !consent {
		errs = append(errs, fmt.Errorf(
			"nodes wait for a CCM: %s; the one under test would make them instances of the suite's cloud for good; --traffic says that it may, and that their ports are reached from here",
			ui.JoinFirst(waiting, namesShown),
		))
	}
	if len(unreached) > 0 {
		errs = append(errs, fmt.Errorf(
			"--traffic: nodes name no address at which they are reached: %s; give their kubelets --node-ip",
			ui.JoinFirst(unreached, namesShown),
		))
	}
	if len(others) > 0 {
		errs = append(errs, fmt.Errorf(
			"nodes are of no cloud: %s; a CCM deletes such a Node when it is not Ready; use a cluster without nodes, or whose kubelets run with --cloud-provider=external",
			ui.JoinFirst(others, namesShown),
		))
	}
	if len(asking) > 0 {
		errs = append(errs, fmt.Errorf(
			"there are Services of type LoadBalancer: %s; the CCM under test would answer them", ui.JoinFirst(asking, namesShown),
		))
	}
	return errors.Join(errs...)
}

// restoreLease restores the spec of the CCMs' lease, or deletes the lease if there was
// none.
func restoreLease(ctx context.Context, kube kubernetes.Interface, was *coordinationv1.Lease) error {
	leases := kube.CoordinationV1().Leases(metav1.NamespaceSystem)
	now, err := leases.Get(ctx, leaseName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case was == nil:
		return leases.Delete(ctx, leaseName, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &now.UID}})
	}
	now.Spec = was.Spec
	_, err = leases.Update(ctx, now, metav1.UpdateOptions{})
	return err
}

// deleteNewEvents deletes Events on the CCMs' lease and on Nodes, except those of
// before, and those on Nodes that exist or existed before.
func deleteNewEvents(ctx context.Context, kube kubernetes.Interface, before []corev1.Node, said []corev1.Event) error {
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	now, err := listEvents(ctx, kube)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range now {
		about := func(n corev1.Node) bool { return n.Name == e.InvolvedObject.Name }
		theirs := e.InvolvedObject.Kind == "Node" && (slices.ContainsFunc(before, about) ||
			slices.ContainsFunc(nodes.Items, about))
		if theirs || slices.ContainsFunc(said, func(o corev1.Event) bool { return o.UID == e.UID }) {
			continue
		}
		if err := kube.CoreV1().Events(e.Namespace).
			Delete(ctx, e.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// listEvents returns the Events on Nodes and on the CCMs' lease.
func listEvents(ctx context.Context, kube kubernetes.Interface) ([]corev1.Event, error) {
	list, err := kube.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool {
		on := e.InvolvedObject
		return on.Kind != "Node" && (on.Kind != "Lease" || on.Name != leaseName)
	}), nil
}
