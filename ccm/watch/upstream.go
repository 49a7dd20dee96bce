package watch

// Upstream's rules for Services and Nodes, for the controllers beside it: which Services have a
// balancer, and which Nodes are its targets.

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	servicecontroller "k8s.io/cloud-provider/controllers/service"
	servicehelpers "k8s.io/cloud-provider/service/helpers"
)

// wantsLoadBalancer is upstream's function of that name: a Service with a class is some
// other controller's.
func wantsLoadBalancer(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.LoadBalancerClass == nil
}

// keepsLoadBalancer tells whether the Service is to have a balancer and to stay.
func keepsLoadBalancer(svc *corev1.Service) bool {
	return wantsLoadBalancer(svc) && svc.DeletionTimestamp == nil
}

// isBalancerRequested tells whether upstream has begun to build the Service's balancer: it
// sets its finalizer before.
func isBalancerRequested(svc *corev1.Service) bool {
	return keepsLoadBalancer(svc) && servicehelpers.HasLBFinalizer(svc)
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

// isManagedUpstream tells whether upstream's controller still looks after the Service's
// balancer, be it to delete it.
func isManagedUpstream(svc *corev1.Service) bool {
	return wantsLoadBalancer(svc) || servicehelpers.HasLBFinalizer(svc)
}

// targetNodes are the Nodes that a Service's balancer has as its targets, as upstream's
// service controller chooses them.
func (w *Watch) targetNodes() []*corev1.Node {
	nodes := corelisters.NewNodeLister(w.nodes.GetIndexer())
	all, _ := nodes.List(labels.Everything()) // It reads memory, and cannot fail.
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

// byUID is the name of the index in the informer that is shared with upstream.
const byUID = "fakecloud-uid"

func indexByUID(obj any) ([]string, error) {
	if svc, ok := obj.(*corev1.Service); ok {
		return []string{string(svc.UID)}, nil
	}
	return nil, nil
}

// serviceByUID is the Service with that UID, nil if there is none.
func (w *Watch) serviceByUID(uid string) *corev1.Service {
	found, _ := w.services.GetIndexer().ByIndex(byUID, uid) // There is such an index.
	if len(found) == 0 {
		return nil
	}
	svc, _ := found[0].(*corev1.Service)
	return svc
}

// listServices are all Services.
func (w *Watch) listServices() []*corev1.Service {
	services := corelisters.NewServiceLister(w.services.GetIndexer())
	all, _ := services.List(labels.Everything()) // It reads memory, and cannot fail.
	return all
}
