package watch

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics/testutil"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// orphanedBalancer is a balancer of this very cluster.
func orphanedBalancer(t *testing.T) *api.LoadBalancer {
	lb := built(t, api.LoadBalancerActive)
	lb.Tags[contract.TagClusterUID] = "cluster-uid"
	return lb
}

// orphanedBalancersOf are balancers of so many Services.
func orphanedBalancersOf(t *testing.T, services int) (many []api.LoadBalancer) {
	for i := range services {
		lb := orphanedBalancer(t)
		lb.ID, lb.Tags[contract.TagServiceUID] = fmt.Sprintf("lb-%d", i), fmt.Sprintf("uid-%d", i)
		many = append(many, *lb)
	}
	return many
}

func orphanGauge(t *testing.T, owner string) float64 {
	t.Helper()
	value, err := testutil.GetGaugeMetricValue(orphanedBalancers.WithLabelValues(owner))
	require.NoError(t, err)
	return value
}

// Which balancers are deleted for want of a Service, on the second look.
func TestSweeperDeletesOrphans(t *testing.T) {
	class := "other"
	plain := service()
	plain.Spec.Type = corev1.ServiceTypeClusterIP
	cleaning := plain.DeepCopy()
	cleaning.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"}
	classed := service()
	classed.Spec.LoadBalancerClass = &class
	another := service()
	another.UID = "another"
	for name, tc := range map[string]struct {
		lb       func(lb *api.LoadBalancer)
		svc      *corev1.Service // what the API server has
		informed bool            // and the informer too
		apiErr   error
		own      string // the cluster's UID
		deleted  bool
		unknown  bool
	}{
		"no such Service":                 {deleted: true},
		"another Service of that name":    {svc: another, deleted: true},
		"the Service wants none any more": {svc: plain, deleted: true},
		"the Service is another's by now": {svc: classed, deleted: true},
		"the Service wants it":            {svc: service(), informed: true},
		"the informer lags behind":        {svc: service()},
		"upstream is yet to clean up":     {svc: cleaning, informed: true},
		"the API server does not answer":  {apiErr: errors.New("refused")},
		"it is going":                     {lb: func(lb *api.LoadBalancer) { lb.State = api.LoadBalancerDeleting }},
		"of this cluster by an earlier name": {
			lb: func(lb *api.LoadBalancer) { lb.Tags[contract.TagCluster] = "blue" }, deleted: true,
		},
		"of another cluster, which did not know its UID": {lb: func(lb *api.LoadBalancer) {
			lb.Tags[contract.TagCluster] = "blue"
			delete(lb.Tags, contract.TagClusterUID)
		}},
		"of another name, and we do not know our cluster's UID": {lb: func(lb *api.LoadBalancer) {
			lb.Tags[contract.TagCluster] = "blue"
		}, own: "-"},
		"of another cluster of that name": {lb: func(lb *api.LoadBalancer) {
			lb.Tags[contract.TagClusterUID] = "blue"
		}},
		"without the cluster's UID": {lb: func(lb *api.LoadBalancer) {
			delete(lb.Tags, contract.TagClusterUID)
		}, unknown: true},
		"we do not know our cluster's UID": {own: "-", unknown: true},
		"no Service named":                 {lb: func(lb *api.LoadBalancer) { delete(lb.Tags, contract.TagService) }},
		"a Service named badly":            {lb: func(lb *api.LoadBalancer) { lb.Tags[contract.TagService] = "web" }},
		"no Service's UID": {lb: func(lb *api.LoadBalancer) {
			delete(lb.Tags, contract.TagServiceUID)
		}},
		"its name tag bent by hand": {svc: service(), informed: true, lb: func(lb *api.LoadBalancer) {
			lb.Tags[contract.TagService] = "a/b"
		}},
		"the UID of neither, but a Service": {svc: service(), informed: true, lb: func(lb *api.LoadBalancer) {
			delete(lb.Tags, contract.TagClusterUID)
		}},
	} {
		runInBubble(t, name, func(t *testing.T) {
			var objects []runtime.Object
			if tc.svc != nil {
				objects = append(objects, tc.svc)
			}
			w := newWatchWorld(t, objects...)
			if tc.svc != nil && !tc.informed {
				require.NoError(t, w.services.Delete(tc.svc))
			}
			if tc.own == "-" {
				w.cluster = testCluster("")
			}
			if tc.apiErr != nil {
				w.api.PrependReactor("get", "services", func(k8stesting.Action) (bool, runtime.Object, error) {
					return true, nil, tc.apiErr
				})
			}
			lb := orphanedBalancer(t)
			if tc.lb != nil {
				tc.lb(lb)
			}
			w.cloud.setBalancers(*lb)

			w.sweepOrphans(t.Context())
			advanceTime(orphanMinAge - time.Second)
			w.sweepOrphans(t.Context())
			assert.Equal(t, tc.deleted, orphanGauge(t, "this_cluster") == 1)
			assert.Equal(t, tc.unknown, orphanGauge(t, "unknown") == 1)

			// Till here nothing was deleted: the reconciler fails on it.
			advanceTime(time.Second)
			deleted := 0
			w.reconciler.deleted = func(svc *corev1.Service) error {
				deleted++
				assert.Equal(t, "default/web 01234567-89ab", svc.Namespace+"/"+svc.Name+" "+string(svc.UID))
				w.cloud.setBalancers()
				return nil
			}
			n := countIncrements(t, orphansDeleted, func() {
				w.sweepOrphans(t.Context())
				advanceTime(time.Hour)
				w.sweepOrphans(t.Context())
			})
			assert.Equal(t, tc.deleted, deleted == 1)
			assert.Equal(t, deleted, n)
			assert.Zero(t, orphanGauge(t, "this_cluster"))
			assert.Empty(t, w.takeWrites())
		})
	}
}

// A Service that is there after all ends the suspicion: the next begins anew.
func TestSweeperForgetsOrphanWithService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchWorld(t)
		w.cloud.setBalancers(*orphanedBalancer(t))
		w.sweepOrphans(t.Context())
		_, err := w.api.CoreV1().Services("default").Create(t.Context(), service(), metav1.CreateOptions{})
		require.NoError(t, err)
		advanceTime(time.Hour)
		w.sweepOrphans(t.Context())
		require.NoError(t, w.api.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
		w.sweepOrphans(t.Context()) // The reconciler fails on a deletion.
		assert.InDelta(t, 1, orphanGauge(t, "this_cluster"), 0)
	})
}

// A deletion that fails is tried again, ever more rarely, and is not counted.
func TestSweeperRetriesFailedDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchWorld(t)
		w.cloud.setBalancers(*orphanedBalancer(t))
		asked := 0
		w.reconciler.deleted = func(*corev1.Service) error {
			asked++
			return errors.New("503")
		}
		n := countIncrements(t, orphansDeleted, func() {
			for range 9 {
				w.sweepOrphans(t.Context())
				advanceTime(sweepPeriod)
			}
		})
		assert.Equal(t, 4, asked, "after 30 s, and then 30 s, 1 min and 2 min later")
		assert.Zero(t, n)
		changed := orphanedBalancer(t)
		changed.Version++ // Somebody may have lifted its protection.
		w.cloud.setBalancers(*changed)
		w.sweepOrphans(t.Context())
		assert.Equal(t, 5, asked)
	})
}

// An API server that lost many Services, as after etcd was restored from an older backup, does not
// cost their balancers: the guard holds those that are too many, and their Services come back.
func TestSweeperHoldsManyOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchWorld(t)
		w.cloud.setBalancers(orphanedBalancersOf(t, 20)...)
		w.reconciler.deleted = func(svc *corev1.Service) error {
			w.cloud.setBalancers(slices.DeleteFunc(w.cloud.LoadBalancers(), func(lb api.LoadBalancer) bool {
				return lb.Tags[contract.TagServiceUID] == string(svc.UID)
			})...)
			return nil
		}
		w.run()
		advanceTime(oneThird.Hold)
		require.Len(t, w.cloud.LoadBalancers(), 13)
		assert.Contains(t, w.takeEvents()[0], "MassDeletionStopped Mass deletion stopped (trip 1): "+
			"more than 7 of 20 load balancers were found without a Service within 1h0m0s.")
		for _, lb := range w.cloud.LoadBalancers() {
			back := service()
			back.UID = types.UID(lb.Tags[contract.TagServiceUID])
			back.Name = string(back.UID)
			require.NoError(t, w.services.Add(back))
		}
		advanceTime(2 * oneThird.Hold)
		assert.Len(t, w.cloud.LoadBalancers(), 13)
	})
}
