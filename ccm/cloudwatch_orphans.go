package ccm

// Balancers whose Service is gone. Upstream's controller leaves them behind: a
// Service that is deleted within milliseconds of its creation, a list of
// balancers that was empty while the Service went. Nothing brings them back to
// its mind, and somebody pays for them. They are deleted, on three conditions:
// the balancer carries the UID of this very cluster (two may share a name), the
// API server itself, and not a cache, says that the Service is gone or wants
// none, and it says so twice with some time between.

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	servicehelpers "k8s.io/cloud-provider/service/helpers"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// checkOrphans looks at every balancer of the cluster. Those whose Service the
// informer has cost nothing; of the others the API server is asked.
func (w *cloudWatch) checkOrphans(ctx context.Context) {
	w.undeletable.GC()
	since, doubtful := map[string]time.Time{}, map[string]bool{}
	for _, lb := range w.known.LoadBalancers() {
		if lb.State == api.LoadBalancerDeleting || lb.Tags[contract.TagCluster] != w.cluster || w.isOthers(&lb) {
			continue
		}
		owner, orphan, err := w.isOrphan(ctx, &lb)
		if err != nil {
			klog.V(2).InfoS("Load balancer is not judged", "id", lb.ID, "err", err)
			continue
		}
		switch {
		case !orphan:
		case w.clusterUID == "" || lb.Tags[contract.TagClusterUID] != w.clusterUID:
			doubtful[lb.ID] = true
			w.tellDoubtful(&lb)
		default:
			if since[lb.ID] = w.orphanSince(lb.ID); time.Since(since[lb.ID]) >= w.orphanAge {
				w.deleteOrphan(ctx, &lb, owner)
			}
		}
	}
	w.mu.Lock()
	w.orphaned, w.doubtful = since, doubtful
	w.mu.Unlock()
	orphans.WithLabelValues("this_cluster").Set(float64(len(since)))
	orphans.WithLabelValues("unknown").Set(float64(len(doubtful)))
}

// isOthers tells whether the balancer is of another cluster of the same name.
func (w *cloudWatch) isOthers(lb *api.LoadBalancer) bool {
	uid := lb.Tags[contract.TagClusterUID]
	return uid != "" && w.clusterUID != "" && uid != w.clusterUID
}

// isOrphan tells whether the balancer has no Service, and which its tags name.
// An error is no verdict.
func (w *cloudWatch) isOrphan(ctx context.Context, lb *api.LoadBalancer) (*corev1.Service, bool, error) {
	uid := lb.Tags[contract.TagServiceUID]
	if svc := w.serviceOf(uid); svc != nil && holdsBalancer(svc) {
		return svc, false, nil
	}
	namespace, name, ok := strings.Cut(lb.Tags[contract.TagService], "/")
	if !ok || namespace == "" || name == "" || uid == "" {
		return nil, false, fmt.Errorf("its tags %s and %s do not name a Service", contract.TagService, contract.TagServiceUID)
	}
	owner := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}}
	svc, err := w.kube.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return owner, true, nil
	case err != nil:
		return nil, false, fmt.Errorf("asking for service %s/%s: %w", namespace, name, err)
	default:
		return owner, svc.UID != owner.UID || !holdsBalancer(svc), nil
	}
}

// holdsBalancer tells whether upstream's controller will still look after the
// Service's balancer, be it to delete it.
func holdsBalancer(svc *corev1.Service) bool {
	return wantsBalancer(svc) || servicehelpers.HasLBFinalizer(svc)
}

func (w *cloudWatch) orphanSince(id string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if since, known := w.orphaned[id]; known {
		return since
	}
	return time.Now()
}

// tellDoubtful logs it once.
func (w *cloudWatch) tellDoubtful(lb *api.LoadBalancer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.doubtful[lb.ID] {
		klog.InfoS("Load balancer has no Service here, and is left alone: it may be of another cluster of the same name. If it is of none, delete it by hand",
			"id", lb.ID, "name", lb.Name, "service", lb.Tags[contract.TagService], "wantTag", contract.TagClusterUID+"="+w.clusterUID)
	}
}

// deleteOrphan deletes a few per minute: should all of this be wrong, somebody
// has the time to stop it.
//
// One that cannot be deleted is tried ever more rarely, so that it leaves the
// others their turn.
func (w *cloudWatch) deleteOrphan(ctx context.Context, lb *api.LoadBalancer, owner *corev1.Service) {
	if w.undeletable.IsInBackOffSinceUpdate(lb.ID, time.Now()) || !w.deletions.Allow() {
		return
	}
	klog.InfoS("Deleting load balancer whose Service is gone", "id", lb.ID, "name", lb.Name, "service", klog.KObj(owner), "uid", owner.UID)
	if err := w.balancers.EnsureLoadBalancerDeleted(ctx, w.cluster, owner); err != nil {
		w.undeletable.Next(lb.ID, time.Now())
		klog.ErrorS(err, "Load balancer whose Service is gone stays for now", "id", lb.ID, "retryAfter", w.undeletable.Get(lb.ID))
		return
	}
	orphansDeleted.Inc()
}
