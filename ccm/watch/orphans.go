package watch

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/guard"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	// sweepPeriod is how often orphans are looked for.
	sweepPeriod = 30 * time.Second
	// orphanMinAge is for how long a balancer must be an orphan before it is deleted.
	orphanMinAge = 30 * time.Second
)

// orphanSweeper deletes balancers whose Service is gone. Upstream's controller leaves them behind
// if a Service is deleted within milliseconds of its creation, or the list of balancers was wrongly
// empty during its deletion. It never looks at them again, and somebody pays for them. They are
// deleted on three conditions: the balancer carries the UID of this very cluster (two may share a
// name); the API server itself, and not a cache, says that the Service is gone or wants none; and
// it says so twice with orphanMinAge between. A guard keeps them when they are too many: after etcd
// was restored from an older backup, the API server does not know the Services of live balancers.
// Only one goroutine may use a sweeper.
type orphanSweeper struct {
	*Watch
	*watchJob
	kube kubernetes.Interface
	// undeletable spaces the retries of an orphan that cannot be deleted, so that the others get their turn. The
	// longest pause is how late the end of an outage is noticed.
	undeletable   *flowcontrol.Backoff // by balancer ID and version: one that somebody changed may be deletable
	orphanedSince map[string]time.Time // by balancer ID
}

// GuardedOrphans are what the guard of load balancers without a Service guards.
var GuardedOrphans = guard.Kind{
	Key: "load-balancers.json", Confirmation: contract.AnnotationConfirmOrphanDeletion,
	One: "load balancer", Many: "load balancers",
	Finding: "were found without a Service",
	Remedy:  "If the Services were lost, restore them with their UIDs, and the load balancers stay",
}

func newOrphanSweeper(c *Watch, kube kubernetes.Interface) *watchJob {
	s := &orphanSweeper{Watch: c, kube: kube, undeletable: flowcontrol.NewBackOff(30*time.Second, 5*time.Minute)}
	s.watchJob = &watchJob{
		name:     "the orphan sweeper",
		onChange: func(cache.Change) {}, // A balancer is an orphan only after a while.
		queue:    newKeyQueue("orphans", sweepPeriod, sweepPeriod),
		sync:     s.sweepOrphans,
		periodic: map[time.Duration]func(){sweepPeriod: func() { s.queue.Add("the cluster's load balancers") }},
	}
	s.orphans.Watch(s.listBalancerIDs, c.services.HasSynced)
	return s.watchJob
}

// listBalancerIDs are the IDs of the cluster's balancers.
func (w *Watch) listBalancerIDs() sets.Set[types.UID] {
	ids := sets.New[types.UID]()
	for _, lb := range w.memory.LoadBalancers() {
		ids.Insert(types.UID(lb.ID))
	}
	return ids
}

// sweepOrphans looks at every balancer of the cluster. One whose Service the informer has
// costs nothing; for each other one the API server is asked.
func (s *orphanSweeper) sweepOrphans(ctx context.Context, _ string) error {
	s.undeletable.GC()
	clusterUID := s.cluster.UID() // The same for the whole sweep.
	since, unknown := map[string]time.Time{}, 0
	for _, lb := range s.memory.LoadBalancers() {
		if lb.State == api.LoadBalancerDeleting {
			continue
		}
		owner, orphan, err := s.checkOrphan(ctx, &lb)
		if err != nil {
			klog.V(2).InfoS("Cannot tell whether the load balancer is an orphan", "id", lb.ID, "err", err)
			continue
		}
		if !orphan {
			s.orphans.RecordExists(types.UID(lb.ID))
			continue
		}
		first, known := s.orphanedSince[lb.ID]
		if !known {
			first = time.Now()
		}
		since[lb.ID] = first
		switch {
		case clusterUID == "" || lb.Tags[contract.TagClusterUID] != clusterUID:
			if unknown++; !known {
				klog.InfoS("Load balancer has no Service here and is not deleted: "+
					"it may belong to another cluster of the same name. If not, delete it by hand",
					"id", lb.ID, "name", lb.Name, "service", klog.KObj(owner),
					"wantTag", contract.TagClusterUID+"="+clusterUID)
			}
		case time.Since(first) >= orphanMinAge:
			s.deleteOrphan(ctx, &lb, owner)
		}
	}
	s.orphanedSince = since
	orphanedBalancers.WithLabelValues("this_cluster").Set(float64(len(since) - unknown))
	orphanedBalancers.WithLabelValues("unknown").Set(float64(unknown))
	return nil
}

// checkOrphan tells whether the balancer has no Service, and which its tags name. An error means that
// it cannot tell.
func (s *orphanSweeper) checkOrphan(
	ctx context.Context, lb *api.LoadBalancer,
) (owner *corev1.Service, orphan bool, err error) {
	uid := lb.Tags[contract.TagServiceUID]
	if svc := s.serviceByUID(uid); svc != nil && isManagedUpstream(svc) {
		return svc, false, nil
	}
	namespace, name, ok := strings.Cut(lb.Tags[contract.TagService], "/")
	if !ok || namespace == "" || name == "" || uid == "" {
		return nil, false, fmt.Errorf("its tags %s and %s do not name a Service",
			contract.TagService, contract.TagServiceUID)
	}
	owner = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}}
	svc, err := s.kube.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return owner, true, nil
	case err != nil:
		return nil, false, fmt.Errorf("asking for service %s/%s: %w", namespace, name, err)
	default:
		return owner, svc.UID != owner.UID || !isManagedUpstream(svc), nil
	}
}

func (s *orphanSweeper) deleteOrphan(ctx context.Context, lb *api.LoadBalancer, owner *corev1.Service) {
	id, try := types.UID(lb.ID), fmt.Sprint(lb.ID, " ", lb.Version)
	if s.undeletable.IsInBackOffSinceUpdate(try, time.Now()) || s.orphans.CheckHeld(id) != nil {
		return
	}
	why := fmt.Sprintf("load balancer %s belonged to service %s", lb.ID, klog.KObj(owner))
	if err := s.orphans.Admit(ctx, guard.Candidate{UID: id, Why: why}); err != nil {
		klog.V(2).InfoS("Keeping load balancer whose Service is gone for now", "id", lb.ID, "err", err)
		return
	}
	klog.InfoS("Deleting load balancer whose Service is gone",
		"id", lb.ID, "name", lb.Name, "service", klog.KObj(owner), "uid", owner.UID)
	if err := s.provider.LoadBalancers.EnsureLoadBalancerDeleted(ctx, s.cluster.Name(), owner); err != nil {
		s.undeletable.Next(try, time.Now())
		klog.ErrorS(err, "Cannot delete load balancer whose Service is gone",
			"id", lb.ID, "retryAfter", s.undeletable.Get(try))
		return
	}
	orphansDeleted.Inc()
}
