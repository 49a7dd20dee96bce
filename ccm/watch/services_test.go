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
	k8stesting "k8s.io/client-go/testing"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// uid is that of the Service.
const uid = "01234567-89ab"

// ensures has EnsureLoadBalancer fail with these errors, one each time, and then bring that balancer about. While it is
// pending it is provisioning.
func (w *world) ensures(lb api.LoadBalancer, failures ...error) (called *int) {
	called = new(int)
	w.balancers.ensure = func(*corev1.Service) (*corev1.LoadBalancerStatus, error) {
		*called++
		has := lb
		if *called <= len(failures) {
			err := failures[*called-1]
			if has.State = api.LoadBalancerProvisioning; errors.Is(err, errPending) {
				w.memory.set(has)
			}
			return nil, err
		}
		w.memory.set(has)
		return statusAt(lb.Address), nil
	}
	return called
}

// What is done out of band is undone and told, once. Another difference is upstream's to reconcile, and told by nobody;
// one that lasts is reconciled, too.
func TestServiceWatchRepairs(t *testing.T) {
	good, without := built(t, "fakecloud://i-1"), built(t)
	made, moved, tagged, bent := good, good, built(t), good
	made.ID, moved.ID, moved.Address = "lb-2", "lb-2", "127.30.64.9"
	tagged.Tags[contract.TagServiceUID] = "nobody"
	bent.Listeners = []api.Listener{{Protocol: "tcp", Port: 8080, TargetPort: 1}}
	const created = "create load balancer web-01234567 with listeners [tcp:8080→30080 tcp:8443→30443] and 1 targets"
	quota := errors.New("quota")
	for name, tc := range map[string]struct {
		changed  []api.LoadBalancer // none: it is deleted
		ensured  api.LoadBalancer
		failures []error
		told     string // "" for nothing
	}{
		"deleted": {ensured: moved, failures: []error{errPending}, told: created},
		"tagged with another's UID": {
			changed: []api.LoadBalancer{tagged}, ensured: made, failures: []error{errPending}, told: created,
		},
		"a listener bent": {
			changed: []api.LoadBalancer{bent}, ensured: good, failures: []error{quota, quota, quota},
			told: "update load balancer lb-1: listeners [tcp:8080→1] to [tcp:8080→30080 tcp:8443→30443]",
		},
		"it was there all the time":         {ensured: good},
		"a target whose instance has ended": {changed: []api.LoadBalancer{without}, ensured: without},
		"never seen as it should be":        {changed: []api.LoadBalancer{bent}, ensured: good},
	} {
		runInBubble(t, name, func(t *testing.T) {
			w, delay := newWorld(t, serviceWithAddress(), node("fakecloud://i-1")), outOfBandDelay
			w.instances.mayDelete = mayDelete("", nil)
			w.memory.set(good)
			if name == "never seen as it should be" {
				w.memory.set(bent)
				delay = overdueDelay - time.Second // since it was seen first
			}
			change := cache.Change{LoadBalancer: &good, Kind: cache.Deleted}
			if len(tc.changed) > 0 {
				change = cache.Change{LoadBalancer: &tc.changed[0]}
			}
			w.run()
			w.memory.set(tc.changed...)
			repairs := countIncrements(t, balancerRepairs, func() {
				w.reportChange(change)
				advanceTime(delay - time.Millisecond) // Nothing is called.
				called := w.ensures(tc.ensured, tc.failures...)
				advanceTime(overdueDelay - time.Second)
				assert.Equal(t, len(tc.failures)+1, *called, "until it is active, and no more")
				if tc.told != "" {
					advanceTime(time.Hour)
					assert.Equal(t, len(tc.failures)+1, *called)
				}
			})
			if tc.told == "" {
				assert.Zero(t, repairs)
				assert.Empty(t, w.takeEvents())
				return
			}
			assert.Equal(t, 1, repairs)
			assert.Equal(t, []string{
				"LoadBalancerRepaired: The load balancer was changed or deleted out of band, and repaired: " + tc.told,
			}, w.takeEvents())
			svc := w.getService()
			assert.Equal(t, tc.ensured.Address, svc.Status.LoadBalancer.Ingress[0].IP)
			assert.Equal(t, map[string]string{"team": "blue"}, svc.Annotations)
			writes := w.takeWrites()
			require.Equal(t, tc.ensured.Address != good.Address, len(writes) == 1)
			if len(writes) > 0 {
				assert.Contains(t, string(writes[0].(k8stesting.PatchAction).GetPatch()),
					`{"metadata":{"uid":"01234567-89ab"},`, "nothing of the user's, and no other Service of that name")
			}
		})
	}
}

// What is not the watch's business, though the Service's balancer is gone, or has changed. A call panics.
func TestServiceWatchLeavesServicesAlone(t *testing.T) {
	deleting := built(t)
	deleting.State = api.LoadBalancerDeleting
	// edited is the Service with a change.
	edited := func(change func(svc *corev1.Service)) *corev1.Service {
		svc := serviceWithAddress()
		change(svc)
		return svc
	}
	annotated := func(name, value string) *corev1.Service {
		return edited(func(s *corev1.Service) { s.Annotations[annotations.Prefix+name] = value })
	}
	for name, tc := range map[string]struct {
		svc  *corev1.Service // as the informer has it, if it is another
		late *corev1.Service // as the API server has it
		have []api.LoadBalancer
		then func(w *world)
	}{
		"being deleted":                {svc: edited(func(s *corev1.Service) { s.DeletionTimestamp = new(metav1.Now()) })},
		"that asks for what cannot be": {svc: annotated(annotations.ProxyProtocol, "v9")},
		"that the user changed": {
			svc:  edited(func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] }),
			have: []api.LoadBalancer{built(t)},
		},
		"that the user gave a host name": {
			svc: annotated(annotations.Hostname, "web.example.com"), have: []api.LoadBalancer{built(t)},
		},
		"that has more Nodes now": {
			have: []api.LoadBalancer{built(t)}, then: func(w *world) { w.inform(node("fakecloud://i-1")) },
		},
		"whose balancer is on its way out": {have: []api.LoadBalancer{deleting}},
		"with two balancers":               {have: []api.LoadBalancer{built(t), built(t)}},
		"deleted a moment ago": {then: func(w *world) {
			require.NoError(t, w.api.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
		}},
		"made anew a moment ago": {late: edited(func(s *corev1.Service) { s.UID = "another" })},
		"that upstream is at": {then: func(w *world) {
			require.NoError(t, w.syncService())
			advanceTime(outOfBandDelay / 2)
			w.memory.set(built(t))
		}},
	} {
		runInBubble(t, name, func(t *testing.T) {
			w := newWorld(t, serviceWithAddress())
			w.memory.set(built(t))
			require.NoError(t, w.syncService())
			w.memory.set(tc.have...)
			if tc.svc != nil {
				w.inform(tc.svc)
				w.setService(tc.svc)
			}
			if tc.late != nil {
				w.setService(tc.late)
			}
			if tc.then != nil {
				tc.then(w)
			}
			w.takeWrites()
			for range 3 {
				require.NoError(t, w.syncService())
				advanceTime(outOfBandDelay)
			}
			assert.Empty(t, w.takeEvents())
			assert.Empty(t, w.takeWrites())
		})
	}
}

// The cache says nothing of what may be out of date. That is no reason to ask the cloud for each balancer. What is
// known then is looked at, at once or though nobody tells of it.
func TestServiceWatchBalancerNotInCache(t *testing.T) {
	for kind, within := range map[cache.ChangeKind]time.Duration{cache.Relisted: 0, cache.Changed: resyncPeriod} {
		runInBubble(t, fmt.Sprint(kind), func(t *testing.T) {
			w := newWorld(t, serviceWithAddress())
			w.memory.set(built(t))
			w.run()
			w.memory.set()
			w.memory.setUnknown(true)
			advanceTime(time.Hour) // A call panics.
			w.memory.setUnknown(false)
			called := w.ensures(built(t))
			w.reportChange(cache.Change{Kind: kind})
			advanceTime(within + outOfBandDelay)
			assert.Equal(t, 1, *called)
		})
	}
}

// Nodes come one after the other, and upstream is slow: what it has written on its way to the newest node set was
// changed by nobody else. What somebody else does meanwhile is found all the same.
func TestServiceWatchWhileNodesJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, serviceWithAddress(), node("fakecloud://i-1"))
		ids := []string{"fakecloud://i-1", "fakecloud://i-2", "fakecloud://i-3"}
		syncTimes := func(n int) {
			for range n {
				require.NoError(t, w.syncService())
				advanceTime(outOfBandDelay)
			}
		}
		w.memory.set(built(t, ids[0]))
		syncTimes(1)
		for _, id := range ids[1:] {
			joined := node(id)
			joined.Name = id
			w.inform(joined)
		}
		upstreams := built(t, ids[:2]...)
		w.memory.set(upstreams)
		w.recordSettings(&w.memory.LoadBalancers()[0])
		syncTimes(10) // A call panics.
		upstreams.Listeners = slices.Clone(upstreams.Listeners)
		upstreams.Listeners[0].TargetPort++
		w.memory.set(upstreams)
		called := w.ensures(built(t, ids...))
		syncTimes(3)
		assert.Equal(t, 1, *called)
		assert.Len(t, w.takeEvents(), 1)
	})
}

// A balancer is deleted before the informer has the address that upstream wrote.
func TestServiceWatchDeletionBeforeAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, serviceWithoutAddress())
		w.run()
		gone := built(t)
		w.reportChange(cache.Change{LoadBalancer: &gone, Kind: cache.Deleted})
		advanceTime(time.Second)
		called := w.ensures(built(t), errPending)
		w.setService(serviceWithAddress())
		advanceTime(10 * time.Second)
		assert.Equal(t, 2, *called)
		assert.Len(t, w.takeEvents(), 1)
	})
}

// A balancer that has all that is wanted and does not work is EnsureLoadBalancer's to explain, as is that it works
// again.
func TestServiceWatchHasTroubleExplained(t *testing.T) {
	w := newWorld(t, serviceWithAddress())
	broken, idle := built(t), built(t)
	broken.State, idle.StateReason = api.LoadBalancerError, "it has no targets"
	called := w.ensures(built(t), errPending)
	w.memory.set(broken)
	require.ErrorIs(t, w.syncService(), errPending)

	w.setOutcome(serviceWithAddress(), "PortCannotBeBound")
	w.memory.set(built(t))
	for range 2 {
		require.NoError(t, w.syncService())
	}
	assert.Equal(t, 2, *called, "once, as then nothing is to be explained any more")
	w.memory.set(idle)
	require.NoError(t, w.syncService())
	assert.Equal(t, 3, *called, "active, and refuses clients")
	assert.Empty(t, w.takeEvents(), "nothing was repaired")
}

// Of the Nodes those are targets that a Service's selector chooses, also when their labels change later.
func TestNodeSelector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := serviceWithAddress()
		svc.Annotations[annotations.Prefix+annotations.NodeSelector] = "pool in (web),!spot"
		web, db := node("fakecloud://i-1"), node("fakecloud://i-2")
		web.Labels, db.Name, db.Labels = map[string]string{"pool": "web"}, "node-2", map[string]string{"pool": "db"}
		w := newWorld(t, svc, web, db)
		w.instances.mayDelete = mayDelete("", nil)
		w.memory.set(built(t, "fakecloud://i-1"))
		w.run()
		advanceTime(time.Hour) // A call panics.
		db.Labels["pool"] = "web"
		called := w.ensures(built(t, "fakecloud://i-1", "fakecloud://i-2"))
		_, err := w.api.CoreV1().Nodes().Update(t.Context(), db, metav1.UpdateOptions{})
		require.NoError(t, err)
		advanceTime(overdueDelay + time.Second)
		assert.Equal(t, 1, *called)
	})
}

// What somebody takes off a Service whose balancer is there comes back: the status by the same reconcile as ever, and
// the finalizer, without which the Service could go and leave its balancer.
func TestServiceWatchRestoresTheService(t *testing.T) {
	wiped := serviceWithAddress()
	wiped.Finalizers, wiped.Status = nil, corev1.ServiceStatus{}
	for name, first := range map[string]*corev1.Service{"seen before": serviceWithAddress(), "never seen": wiped} {
		runInBubble(t, name, func(t *testing.T) {
			w := newWorld(t, first)
			w.memory.set(built(t))
			w.ensures(built(t))
			w.run()
			w.setService(wiped.DeepCopy())
			advanceTime(10 * time.Second)
			if first == wiped { // It may be upstream's controller that is about to write.
				advanceTime(overdueDelay)
			}
			assert.Equal(t, serviceWithAddress(), w.getService())
			w.takeWrites()
			advanceTime(time.Hour)
			assert.Empty(t, w.takeWrites(), "it is there")
		})
	}
}
