package testbed

// Many Nodes and instances at once.

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/fakekubelet"
)

// atOnce is how many objects are created or changed in parallel.
const atOnce = 16

// CreateInstances creates instances with these names and the cluster's tag as the
// operator, and returns them in that order as the cloud answered. With the profile
// instant they run at once.
func (b *Bed) CreateInstances(ctx context.Context, names ...string) ([]api.Instance, error) {
	made := make([]api.Instance, len(names))
	return made, conformance.Each(ctx, atOnce, len(names), func(ctx context.Context, i int) error {
		tags := api.Tags{contract.TagCluster: b.Name}
		instance, err := b.cloud.CreateInstance(ctx, api.InstanceCreate{Name: names[i], Tags: tags})
		if err != nil {
			return fmt.Errorf("creating instance %s: %w", names[i], err)
		}
		made[i] = *instance
		return nil
	})
}

// RegisterNodes creates Nodes with these names as kubelets of an external cloud
// provider would: tainted, without a provider ID or addresses, and Ready. edit may
// change each Node before it is created, given its index in names. It may be nil, and
// is called by several goroutines.
//
// The API server's admission adds the taint node.kubernetes.io/not-ready to a new Node,
// which nothing removes here.
func (b *Bed) RegisterNodes(ctx context.Context, edit func(i int, n *corev1.Node), names ...string) error {
	return conformance.Each(ctx, atOnce, len(names), func(ctx context.Context, i int) error {
		n := b.newNode(names[i])
		if edit != nil {
			edit(i, n)
		}
		_, err := b.admin.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		return err
	})
}

// newNode returns what a kubelet would register, with what it says of its machine.
func (b *Bed) newNode(name string) *corev1.Node {
	n := b.kubelets().NewNode(name)
	n.Labels[corev1.LabelArchStable] = "amd64"
	n.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"}
	return n
}

// kubelets write what no kubelet does here. Nothing looks at leases in a bed.
func (b *Bed) kubelets() *fakekubelet.Kubelets {
	return &fakekubelet.Kubelets{Kube: b.admin, Message: "kubelet is posting ready status"}
}

// SetReady sets the Nodes' Ready condition, as a kubelet (True) or
// kube-controller-manager (Unknown) would. The lifecycle controller looks only for the
// instances of Nodes that are not True.
func (b *Bed) SetReady(ctx context.Context, status corev1.ConditionStatus, names ...string) error {
	return conformance.Each(ctx, atOnce, len(names), func(ctx context.Context, i int) error {
		return b.kubelets().SetReady(ctx, names[i], status, "Testbed")
	})
}
