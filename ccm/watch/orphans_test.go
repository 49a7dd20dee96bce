package watch

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/metrics/testutil"

	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// countOrphans is the gauge of balancers without a Service.
func countOrphans(t *testing.T, owner string) int {
	t.Helper()
	value, err := testutil.GetGaugeMetricValue(orphanedBalancers.WithLabelValues(owner))
	require.NoError(t, err)
	return int(value)
}

// retag changes a tag, and removes it for "".
func retag(tag, value string) func(*api.LoadBalancer) {
	return func(lb *api.LoadBalancer) {
		if lb.Tags[tag] = value; value == "" {
			delete(lb.Tags, tag)
		}
	}
}

func (w *world) sweep() { require.NoError(w.t, w.sweeper.sync(w.t.Context(), "")) }

// Which balancers are deleted for want of a Service, on the second look.
func TestSweeperDeletesOrphans(t *testing.T) {
	plain, cleaning := serviceWithAddress(), serviceWithAddress()
	classed, another := serviceWithAddress(), serviceWithAddress()
	plain.Spec.Type, plain.Finalizers = corev1.ServiceTypeClusterIP, nil
	cleaning.Spec.Type = corev1.ServiceTypeClusterIP
	classed.Spec.LoadBalancerClass, classed.Finalizers = new("other"), nil
	another.UID = "another"
	for name, tc := range map[string]struct {
		lb       func(lb *api.LoadBalancer)
		svc      *corev1.Service // what the API server has
		informed bool            // and the informer too
		apiErr   error
		nameless bool // our cluster's UID is not known
		deleted  bool
		unknown  bool
	}{
		"no such Service":                 {deleted: true},
		"another Service of that name":    {svc: another, deleted: true},
		"the Service wants none any more": {svc: plain, deleted: true},
		"the Service is another's by now": {svc: classed, deleted: true},
		"the Service wants it":            {svc: serviceWithAddress(), informed: true},
		"the informer lags behind":        {svc: serviceWithAddress()},
		"upstream is yet to clean up":     {svc: cleaning, informed: true},
		"the API server does not answer":  {apiErr: errors.New("refused")},
		"it is going":                     {lb: func(lb *api.LoadBalancer) { lb.State = api.LoadBalancerDeleting }},
		"of an earlier name":              {lb: retag(contract.TagCluster, "blue"), deleted: true},
		"of an earlier name, and our cluster's UID is not known": {
			lb: retag(contract.TagCluster, "blue"), nameless: true, unknown: true,
		},
		"of another cluster of that name": {lb: retag(contract.TagClusterUID, "blue"), unknown: true},
		"without the cluster's UID":       {lb: retag(contract.TagClusterUID, ""), unknown: true},
		"our cluster's UID is not known":  {nameless: true, unknown: true},
		"no Service named":                {lb: retag(contract.TagService, "")},
		"a Service named badly":           {lb: retag(contract.TagService, "web")},
		"no Service's UID":                {lb: retag(contract.TagServiceUID, "")},
		"its name bent by hand": {
			lb: retag(contract.TagService, "a/b"), svc: serviceWithAddress(), informed: true,
		},
		"the UID of neither, but a Service": {lb: retag(contract.TagClusterUID, ""), svc: serviceWithAddress()},
	} {
		runInBubble(t, name, func(t *testing.T) {
			var objects []runtime.Object
			if tc.svc != nil {
				objects = append(objects, tc.svc)
			}
			w := newWorld(t, objects...)
			if tc.svc != nil && !tc.informed {
				require.NoError(t, w.services.GetIndexer().Delete(tc.svc))
			}
			if tc.nameless {
				w.cluster = testCluster("")
			}
			w.refuse("get", "services", tc.apiErr)
			lb := built(t)
			if tc.lb != nil {
				tc.lb(&lb)
			}
			w.memory.set(lb)

			w.sweep()
			advanceTime(orphanMinAge - time.Second)
			w.sweep() // A deletion would panic.
			assert.Equal(t, tc.deleted, countOrphans(t, "this_cluster") == 1)
			assert.Equal(t, tc.unknown, countOrphans(t, "unknown") == 1)

			advanceTime(time.Second)
			deleted := 0
			w.balancers.delete = func(svc *corev1.Service) error {
				deleted++
				assert.Equal(t, "default/web "+uid, svc.Namespace+"/"+svc.Name+" "+string(svc.UID))
				w.memory.set()
				return nil
			}
			n := countIncrements(t, orphansDeleted, func() {
				w.sweep()
				advanceTime(time.Hour)
				w.sweep()
			})
			assert.Equal(t, tc.deleted, deleted == 1)
			assert.Equal(t, deleted, n)
			assert.Zero(t, countOrphans(t, "this_cluster"))
			assert.Empty(t, w.takeWrites())
		})
	}
}

// A Service that is there after all ends the suspicion: the next begins anew.
func TestSweeperForgetsOrphanWithService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		services := w.api.CoreV1().Services("default")
		w.memory.set(built(t))
		w.sweep()
		_, err := services.Create(t.Context(), serviceWithAddress(), metav1.CreateOptions{})
		require.NoError(t, err)
		advanceTime(time.Hour)
		w.sweep()
		require.NoError(t, services.Delete(t.Context(), "web", metav1.DeleteOptions{}))
		w.sweep() // A deletion would panic.
	})
}

// A deletion that fails is tried again, ever more rarely, and is not counted.
func TestSweeperRetriesFailedDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, asked := newWorld(t), 0
		w.memory.set(built(t))
		w.balancers.delete = func(*corev1.Service) error { asked++; return errors.New("503") }
		assert.Zero(t, countIncrements(t, orphansDeleted, func() {
			for range 9 {
				w.sweep()
				advanceTime(sweepPeriod)
			}
		}))
		assert.Equal(t, 4, asked, "after 30 s, and then 30 s, 1 min and 2 min later")
		w.memory.set(built(t)) // Somebody may have lifted its protection.
		w.sweep()
		assert.Equal(t, 5, asked)
	})
}

// An API server that lost many Services, as after etcd was restored from an older backup, does not cost their
// balancers: what the guard holds is kept, and it is told when their Services come back.
func TestSweeperAsksTheGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, deleted, hour := newWorld(t), 0, metav1.Duration{Duration: time.Hour}
		w.orphans = w.newBudget(config.MassDeletion{Window: hour, Hold: hour}) // for one
		w.sweeper = w.newSweeper()
		first, second := built(t), built(t)
		first.ID, first.Tags[contract.TagServiceUID] = "lb-0", "first"
		w.memory.set(first, second)
		w.balancers.delete = func(svc *corev1.Service) error {
			deleted++
			assert.EqualValues(t, "first", svc.UID)
			w.memory.set(second)
			return nil
		}
		for range 9 {
			w.sweep()
			advanceTime(orphanMinAge)
		}
		assert.Equal(t, 1, deleted)
		assert.Contains(t, strings.Join(w.takeEvents(), ""),
			"Mass deletion stopped (trip 1): more than 1 of 2 load balancers were found without a Service")
		w.sweep()
		require.Error(t, w.orphans.CheckHeld("lb-1"))
		w.inform(serviceWithAddress())
		w.sweep()
		assert.NoError(t, w.orphans.CheckHeld("lb-1"))
	})
}
