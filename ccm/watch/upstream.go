package watch

// Upstream's rules for Services and Nodes, for the controllers beside it: which Services have a
// balancer, and which Nodes are its targets.

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	servicecontroller "k8s.io/cloud-provider/controllers/service"
	servicehelpers "k8s.io/cloud-provider/service/helpers"
	"k8s.io/klog/v2"
)

// wantsLoadBalancer is upstream's function of that name: a Service with a class is some
// other controller's.
func wantsLoadBalancer(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.LoadBalancerClass == nil
}

// isBalancerRequested tells whether upstream has begun to build the Service's balancer: it
// sets its finalizer before.
func isBalancerRequested(svc *corev1.Service) bool {
	return wantsLoadBalancer(svc) && svc.DeletionTimestamp == nil && servicehelpers.HasLBFinalizer(svc)
}

// hasBalancerAddress tells whether upstream has finished the Service's balancer: it sets
// the address after.
func hasBalancerAddress(svc *corev1.Service) bool {
	return isBalancerRequested(svc) && len(svc.Status.LoadBalancer.Ingress) > 0
}

// needsCleanup is upstream's function of that name: the Service's balancer is to be deleted.
func needsCleanup(svc *corev1.Service) bool {
	return servicehelpers.HasLBFinalizer(svc) &&
		(svc.DeletionTimestamp != nil || svc.Spec.Type != corev1.ServiceTypeLoadBalancer)
}

// lacksFinalizer tells whether somebody removed the finalizer of a Service that is to keep its balancer.
func lacksFinalizer(svc *corev1.Service) bool {
	return wantsLoadBalancer(svc) && svc.DeletionTimestamp == nil && !servicehelpers.HasLBFinalizer(svc)
}

// isManagedUpstream tells whether upstream's controller still looks after the Service's
// balancer, be it to delete it.
func isManagedUpstream(svc *corev1.Service) bool {
	return wantsLoadBalancer(svc) || servicehelpers.HasLBFinalizer(svc)
}

// targetNodes are the Nodes that a Service's balancer has as its targets, as upstream's
// service controller chooses them.
func targetNodes(nodes cache.Indexer) []*corev1.Node {
	all, _ := corelisters.NewNodeLister(nodes).List(labels.Everything()) // It reads memory, and cannot fail.
	return slices.DeleteFunc(all, func(node *corev1.Node) bool { return !isTargetNode(node) })
}

// isTargetNode is stableNodeSetPredicates of upstream's controllers/service/controller.go:
// not being deleted, not excluded by label, not about to be removed. Whether the Node is
// Ready is for the health check to find out (KEP-3458).
func isTargetNode(node *corev1.Node) bool {
	if !node.DeletionTimestamp.IsZero() {
		return false
	}
	if value, labelled := node.Labels[corev1.LabelNodeExcludeBalancers]; labelled {
		if excluded, err := strconv.ParseBool(value); excluded || err != nil {
			return false
		}
	}
	return !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == servicecontroller.ToBeDeletedTaint
	})
}

// serviceIndex finds the Services that an informer knows by their UID.
type serviceIndex struct{ cache.Indexer }

// byUID is the name of the index in the informer that is shared with upstream.
const byUID = "fakecloud-uid"

func indexByUID(obj any) ([]string, error) {
	if svc, ok := obj.(*corev1.Service); ok {
		return []string{string(svc.UID)}, nil
	}
	return nil, nil
}

// getByUID is the Service with that UID, nil if there is none.
func (s serviceIndex) getByUID(uid string) *corev1.Service {
	found, err := s.ByIndex(byUID, uid)
	if err != nil {
		klog.ErrorS(err, "Looking up Services by UID")
	}
	if len(found) == 0 {
		return nil
	}
	svc, _ := found[0].(*corev1.Service)
	return svc
}

// listServices are all Services.
func (s serviceIndex) listServices() []*corev1.Service {
	all, _ := corelisters.NewServiceLister(s.Indexer).List(labels.Everything()) // It cannot fail.
	return all
}
