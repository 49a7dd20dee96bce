package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	servicehelpers "k8s.io/cloud-provider/service/helpers"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/core"
)

// serviceReconciler does for a Service what upstream's service controller would do, at
// times when upstream does not.
type serviceReconciler struct {
	cluster   string // --cluster-name
	kube      kubernetes.Interface
	balancers core.LoadBalancers
}

// getService asks the API server for a Service that an informer has. It is nil if the
// Service is gone. What the informer has may be a moment old, and a balancer for a Service
// that was just deleted would belong to nobody.
func (r *serviceReconciler) getService(ctx context.Context, cached *corev1.Service) (*corev1.Service, error) {
	svc, err := r.kube.CoreV1().Services(cached.Namespace).Get(ctx, cached.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("looking at service %s/%s before its load balancer is reconciled: %w",
			cached.Namespace, cached.Name, err)
	case svc.UID != cached.UID:
		return nil, nil
	}
	return svc, nil
}

// reconcile ensures the Service's balancer, and writes its address into the Service's
// status if that names another.
func (r *serviceReconciler) reconcile(ctx context.Context, svc *corev1.Service, nodes []*corev1.Node) error {
	status, err := r.balancers.EnsureLoadBalancer(ctx, r.cluster, svc, nodes)
	if core.IsPending(err) {
		return err // Unwrapped: isPending tells it by its type.
	}
	if err != nil {
		return fmt.Errorf("load balancer of service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	if servicehelpers.LoadBalancerStatusEqual(&svc.Status.LoadBalancer, status) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": svc.UID}, // a precondition: no other Service of that name
		"status":   map[string]any{"loadBalancer": status},
	})
	if err != nil {
		return err
	}
	_, err = r.kube.CoreV1().Services(svc.Namespace).
		Patch(ctx, svc.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("writing the load balancer's address to service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	return nil
}

// reconcileDeletion deletes the balancer of a Service that waits for that, and takes off the finalizer.
func (r *serviceReconciler) reconcileDeletion(ctx context.Context, svc *corev1.Service) error {
	if err := r.balancers.EnsureLoadBalancerDeleted(ctx, r.cluster, svc); err != nil {
		return fmt.Errorf("load balancer of service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	changed := svc.DeepCopy()
	changed.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	changed.Finalizers = slices.DeleteFunc(changed.Finalizers, func(name string) bool {
		return name == servicehelpers.LoadBalancerCleanupFinalizer
	})
	return r.patch(svc, changed)
}

// addFinalizer restores the finalizer that keeps a Service until its balancer is deleted.
func (r *serviceReconciler) addFinalizer(svc *corev1.Service) error {
	klog.InfoS("Restoring the finalizer of a Service that has a load balancer", "service", klog.KObj(svc))
	changed := svc.DeepCopy()
	changed.Finalizers = append(changed.Finalizers, servicehelpers.LoadBalancerCleanupFinalizer)
	return r.patch(svc, changed)
}

// patch writes finalizers and the status as upstream does, through the status subresource.
func (r *serviceReconciler) patch(svc, changed *corev1.Service) error {
	_, err := servicehelpers.PatchService(r.kube.CoreV1(), svc, changed)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing the finalizers of service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	return nil
}
