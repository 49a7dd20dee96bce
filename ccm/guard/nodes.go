package guard

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	servicecontroller "k8s.io/cloud-provider/controllers/service"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/ring"
)

// ofNodes are what a budget of Nodes is for.
var ofNodes = Kind{
	Key: "state.json", Confirmation: contract.AnnotationConfirmMassDeletion, One: "Node", Many: "Nodes",
	Finding: "were reported gone",
	Remedy:  "If the instances still exist, repair the cloud, and the Nodes stay",
}

// Instances keeps Nodes while too many are gone at once.
type Instances struct {
	core.Instances
	*Budget
	nodes corelisters.NodeLister
}

var _ core.Instances = (*Instances)(nil)

// Limit puts the budget of Nodes around what finds their instances. Call Follow before the controllers start.
func Limit(inner core.Instances, limits config.MassDeletion, events ring.Events) *Instances {
	return &Instances{Instances: inner, Budget: New(ofNodes, limits, events)}
}

// Follow sets what lists the Nodes, and what tells whether that is complete.
func (i *Instances) Follow(nodes corelisters.NodeLister, synced cache.InformerSynced) {
	i.nodes = nodes
	i.Watch(i.listUIDs, synced)
}

// listUIDs are the UIDs of all Nodes.
func (i *Instances) listUIDs() sets.Set[types.UID] {
	uids := sets.New[types.UID]()
	all, _ := i.nodes.List(labels.Everything()) // A lister that reads memory gives no error.
	for _, node := range all {
		uids.Insert(node.UID)
	}
	return uids
}

// InstanceExists is false only if the Node may be deleted.
func (i *Instances) InstanceExists(ctx context.Context, node *corev1.Node) (bool, error) {
	return core.Exists(ctx, i, node)
}

// InstanceMetadata notes that the Node's instance exists.
func (i *Instances) InstanceMetadata(ctx context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	metadata, err := i.Instances.InstanceMetadata(ctx, node)
	if err == nil {
		i.RecordExists(node.UID)
	}
	return metadata, err
}

// MayDelete is why the Node may be deleted: its instance is gone for certain, and the budget allows it. It is
// "" if the instance exists. An error keeps the Node; an api.RetryError says when to check again.
func (i *Instances) MayDelete(ctx context.Context, node *corev1.Node) (goneReason string, err error) {
	if err := i.CheckHeld(node.UID); err != nil {
		return "", err
	}
	goneReason, err = i.Instances.MayDelete(ctx, node)
	switch {
	case err != nil:
		return "", err
	case goneReason == "":
		i.RecordExists(node.UID)
		return "", nil
	case isBeingRemoved(node):
		return goneReason, nil
	}
	// Upstream lists Nodes at the start of a round and deletes by name, so it could delete the Node of a new instance
	// that registered since.
	if now, err := i.nodes.Get(node.Name); err == nil && now.UID != node.UID {
		return "", fmt.Errorf("node %s has registered again since this check began", node.Name)
	}
	err = i.Admit(ctx, Candidate{UID: node.UID, Why: goneReason, InUse: isReady(node)})
	if err != nil {
		return "", err
	}
	return goneReason, nil
}

// isBeingRemoved tells whether the Node is removed from within the cluster, whatever the cloud says.
func isBeingRemoved(node *corev1.Node) bool {
	return node.DeletionTimestamp != nil || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == servicecontroller.ToBeDeletedTaint
	})
}

func isReady(node *corev1.Node) bool {
	_, ready := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady)
	return ready != nil && ready.Status == corev1.ConditionTrue
}
