package external

// Which nodes of the cluster belong to another cloud, to an earlier lab, or to this
// lab.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/ui"
)

const (
	// leaseName is upstream's, for every CCM.
	leaseName = "cloud-controller-manager"
	// leaseBound is how long a lease is watched for its holder to renew it:
	// more than upstream's usual duration.
	leaseBound = 20 * time.Second
	leasePoll  = 500 * time.Millisecond
	// namesShown bounds how many nodes an error names.
	namesShown = 5
)

// checkNoCCM is an error when the cluster has a CCM: two would fight over nodes.
func checkNoCCM(ctx context.Context, kube kubernetes.Interface) error {
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var foreign []string
	for _, n := range nodes.Items {
		if n.Spec.ProviderID != "" && !cluster.IsOfThisCloud(n.Spec.ProviderID) {
			foreign = append(foreign, fmt.Sprintf("%s (%s)", n.Name, n.Spec.ProviderID))
		}
	}
	if len(foreign) > 0 {
		return fmt.Errorf(
			"the cluster's nodes are of another provider: %s; use a cluster whose kubelets run with --cloud-provider=external and no --provider-id, and that has no CCM yet",
			ui.JoinFirst(foreign, namesShown),
		)
	}
	return checkLeaseFree(ctx, kube)
}

// checkLeaseFree is an error when somebody holds the lease of CCMs, and lives: one that
// has ended, as an earlier lab's did, does not renew it.
func checkLeaseFree(ctx context.Context, kube kubernetes.Interface) error {
	var first *coordinationv1.LeaseSpec
	err := wait.PollUntilContextTimeout(ctx, leasePoll, leaseBound, true, func(ctx context.Context) (bool, error) {
		lease, err := kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, leaseName, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return true, nil
		case err != nil:
			return false, cmp.Or(ctx.Err(), err)
		case !isHeld(lease.Spec):
			return true, nil
		case first == nil:
			first = &lease.Spec
		case !first.RenewTime.Equal(lease.Spec.RenewTime):
			return false, errLeaseHeld(first)
		}
		return false, nil
	})
	if first != nil && errors.Is(err, context.DeadlineExceeded) {
		return errLeaseHeld(first)
	}
	return err
}

func isHeld(l coordinationv1.LeaseSpec) bool {
	return l.HolderIdentity != nil && *l.HolderIdentity != "" && l.RenewTime != nil && l.LeaseDurationSeconds != nil &&
		time.Since(l.RenewTime.Time) < time.Duration(*l.LeaseDurationSeconds)*time.Second
}

func errLeaseHeld(l *coordinationv1.LeaseSpec) error {
	return fmt.Errorf(
		"the cluster has a CCM already: %s holds the lease %s/%s; stop it, or use a cluster whose nodes wait for a CCM",
		*l.HolderIdentity, metav1.NamespaceSystem, leaseName,
	)
}

// presentMachines are the machines of the nodes that the lab's cloud is for. A node
// whose instance has terminated is the CCM's to remove.
func presentMachines(nodes []corev1.Node, instances []api.Instance) ([]cluster.Machine, error) {
	var machines []cluster.Machine
	var lost []string
	for _, n := range nodes {
		at := slices.IndexFunc(instances, func(i api.Instance) bool {
			return cluster.IsProviderIDOf(n.Spec.ProviderID, i)
		})
		known := at >= 0
		switch {
		case known && instances[at].State == api.InstanceTerminated:
		case cluster.IsOfThisCloud(n.Spec.ProviderID) && !known:
			lost = append(lost, fmt.Sprintf("%s (%s)", n.Name, n.Spec.ProviderID))
		case known || kubediff.IsUninitialized(&n): // Others are some other provider's, and none of our business.
			machines = append(machines, cluster.Machine{Name: n.Name, Address: internalIPv4(n)})
		}
	}
	if len(lost) > 0 {
		return nil, fmt.Errorf(
			"nodes are instances of a cloud that is no more: %s, and a provider ID cannot be changed; for each, `kubectl delete node NAME` and restart its kubelet, so that it registers anew, then `lab up` again",
			ui.JoinFirst(lost, namesShown),
		)
	}
	return machines, nil
}

// targetAddresses are those of nodes that are instances of the lab's cloud, or wait to be. Others are some other
// provider's, and a balancer has no business there.
func targetAddresses(nodes []corev1.Node) (all []netip.Addr) {
	for _, n := range nodes {
		if !kubediff.IsUninitialized(&n) && !cluster.IsOfThisCloud(n.Spec.ProviderID) {
			continue
		}
		if a, err := netip.ParseAddr(internalIPv4(n)); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// internalIPv4 is the node's first internal IPv4 address; "" if it has none. The cloud
// has IPv4 addresses only.
func internalIPv4(n corev1.Node) string {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); a.Type == corev1.NodeInternalIP && err == nil && ip.Is4() {
			return a.Address
		}
	}
	return ""
}
