package testbed

// Many Nodes and instances at once. The Node that a kubelet with
// --cloud-provider=external registers is described in upstream's
// pkg/kubelet/kubelet_node_status.go (initialNode).

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// atOnce is how many objects are created or changed in parallel.
const atOnce = 16

// Taint is the one that a kubelet registers its Node with, until the CCM removes it.
var Taint = corev1.Taint{
	Key: cloudproviderapi.TaintExternalCloudProvider, Value: "true", Effect: corev1.TaintEffectNoSchedule,
}

// CreateInstances creates instances with these names and the cluster's tag as the
// operator, and returns them in that order as the cloud answered. With the profile
// instant they run at once.
func (b *Bed) CreateInstances(ctx context.Context, names ...string) ([]api.Instance, error) {
	made := make([]api.Instance, len(names))
	return made, forEach(ctx, names, func(ctx context.Context, i int, name string) error {
		tags := api.Tags{contract.TagCluster: b.Name}
		instance, err := b.cloud.CreateInstance(ctx, api.InstanceCreate{Name: &name, Tags: &tags})
		if err != nil {
			return fmt.Errorf("creating instance %s: %w", name, err)
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
	return forEach(ctx, names, func(ctx context.Context, i int, name string) error {
		n := newNode(name)
		if edit != nil {
			edit(i, n)
		}
		_, err := b.admin.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		return err
	})
}

func newNode(name string) *corev1.Node {
	now := metav1.Now()
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{Taint}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
				Message: "kubelet is posting ready status", LastHeartbeatTime: now, LastTransitionTime: now,
			}},
			NodeInfo: corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"},
		},
	}
}

// SetReady sets the Nodes' Ready condition, as a kubelet (True) or
// kube-controller-manager (Unknown) would. The lifecycle controller looks only for the
// instances of Nodes that are not True.
func (b *Bed) SetReady(ctx context.Context, status corev1.ConditionStatus, names ...string) error {
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q,"reason":"Testbed","lastTransitionTime":%q}]}}`,
		status, time.Now().UTC().Format(time.RFC3339))
	return forEach(ctx, names, func(ctx context.Context, _ int, name string) error {
		_, err := b.admin.CoreV1().Nodes().
			Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// forEach calls do for all names, atOnce at a time, until one fails.
func forEach(ctx context.Context, names []string, do func(ctx context.Context, i int, name string) error) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(atOnce)
	for i, name := range names {
		all.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return do(ctx, i, name)
		})
	}
	return all.Wait()
}
