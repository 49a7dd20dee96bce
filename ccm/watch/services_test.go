package watch

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8stesting "k8s.io/client-go/testing"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// serviceWithAddress is one that upstream's controller is done with.
func serviceWithAddress() *corev1.Service {
	svc := service()
	svc.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"}
	svc.Annotations = map[string]string{"team": "blue"}
	svc.Status.LoadBalancer = *statusOf(svc, &api.LoadBalancer{Address: "127.30.64.1"})
	return svc
}

// ensureInTwoSteps has EnsureLoadBalancer bring that balancer about: first it is
// provisioning, then active.
func (w *watchWorld) ensureInTwoSteps(lb api.LoadBalancer) (called *int) {
	called = new(int)
	w.reconciler.ensure = func(svc *corev1.Service, _ []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
		*called++
		if *called == 1 {
			lb.State = api.LoadBalancerProvisioning
			w.cloud.setBalancers(lb)
			return nil, cloudproviderapi.NewRetryError("provisioning", retryPeriod)
		}
		lb.State = api.LoadBalancerActive
		w.cloud.setBalancers(lb)
		return statusOf(svc, &lb), nil
	}
	return called
}

// ensureAtOnce has EnsureLoadBalancer bring that balancer about with its first call.
func (w *watchWorld) ensureAtOnce(lb api.LoadBalancer) (called *int) {
	called = new(int)
	w.reconciler.ensure = func(svc *corev1.Service, _ []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
		*called++
		w.cloud.setBalancers(lb)
		return &svc.Status.LoadBalancer, nil
	}
	return called
}

// What is done out of band is undone, once, and told once.
func TestServiceWatchRepairs(t *testing.T) {
	const created = "create load balancer web-01234567 with listeners [tcp:8080→30080 tcp:8443→30443] and 1 targets"
	for name, tc := range map[string]struct {
		change func(lb *api.LoadBalancer) // nil if it is deleted
		event  string
		moves  bool // The new balancer has an address of its own.
	}{
		"deleted": {event: created, moves: true},
		"tagged with another's UID": {change: func(lb *api.LoadBalancer) {
			lb.Tags[contract.TagServiceUID] = "nobody"
		}, event: created},
		"a listener bent": {change: func(lb *api.LoadBalancer) {
			lb.Listeners = []api.Listener{{Protocol: "tcp", Port: 8080, TargetPort: 1}}
		}, event: "update load balancer lb-1: listeners [tcp:8080→1] to [tcp:8080→30080 tcp:8443→30443]"},
	} {
		runInBubble(t, name, func(t *testing.T) {
			w := newWatchWorld(t, serviceWithAddress(), node("fakecloud://i-1"))
			w.cloud.instances = []api.Instance{instance(api.InstanceRunning)}
			again := built(t, api.LoadBalancerActive, "fakecloud://i-1")
			changed := built(t, api.LoadBalancerActive, "fakecloud://i-1")
			w.cloud.setBalancers(*again)
			w.run() // and nothing is called: the balancer is as it should be

			kind := cache.Changed
			if tc.change != nil {
				tc.change(changed)
				w.cloud.setBalancers(*changed)
			} else {
				kind = cache.Deleted
				w.cloud.setBalancers()
			}
			if tc.event == created {
				again.ID = "lb-2"
			}
			if tc.moves {
				again.Address = "127.30.64.9"
			}
			called := w.ensureInTwoSteps(*again)
			repairs := countIncrements(t, balancerRepairs, func() {
				w.reportChange(cache.Change{Kind: kind, LoadBalancer: changed})
				advanceTime(10 * time.Second)
			})
			assert.Equal(t, 1, repairs)
			assert.Equal(t, []string{
				"Normal LoadBalancerRepaired The load balancer was changed or deleted out of band, and repaired: " +
					tc.event,
			}, w.takeEvents())
			writes := w.takeWrites()
			if !tc.moves {
				assert.Empty(t, writes)
			} else {
				require.Len(t, writes, 1)
				assert.Contains(t, string(writes[0].(k8stesting.PatchAction).GetPatch()),
					`{"metadata":{"uid":"01234567-89ab"},`, "nothing of the user's, and no other Service of that name")
			}
			svc, err := w.api.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, again.Address, svc.Status.LoadBalancer.Ingress[0].IP)
			assert.Equal(t, map[string]string{"team": "blue"}, svc.Annotations)

			advanceTime(time.Hour)
			assert.Equal(t, 2, *called, "until it is active, and no more")
			assert.Empty(t, w.takeEvents())
		})
	}
}

// Another failure than "not yet" is tried again with back-off.
func TestServiceWatchRetriesRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchWorld(t, serviceWithAddress())
		good := *built(t, api.LoadBalancerActive)
		w.cloud.setBalancers(good)
		w.run()
		w.cloud.setBalancers()
		called := 0
		w.reconciler.ensure = func(svc *corev1.Service, _ []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
			if called++; called < 4 {
				return nil, errors.New("quota")
			}
			made := good
			made.ID = "lb-2"
			w.cloud.setBalancers(made)
			return statusOf(svc, &made), nil
		}
		w.reportChange(cache.Change{LoadBalancer: &good, Kind: cache.Deleted})
		advanceTime(time.Minute)
		assert.Equal(t, 4, called)
		assert.Len(t, w.takeEvents(), 1)
	})
}

// syncAfterChange is a Service that was seen fulfilled, then changed, and looked at
// until all has settled.
func (w *watchWorld) syncAfterChange(change func()) {
	require.NoError(w.t, w.syncService(w.t.Context(), "01234567-89ab"))
	change()
	w.reportChange(cache.Change{LoadBalancer: built(w.t, api.LoadBalancerActive)})
	for range 3 {
		require.NoError(w.t, w.syncService(w.t.Context(), "01234567-89ab"))
		advanceTime(outOfBandDelay)
	}
}

// showHostname has the Service's status name a host, as it asks.
func showHostname(s *corev1.Service) {
	s.Annotations[annotations.Prefix+annotations.Hostname] = "web.example.com"
	s.Status.LoadBalancer = *statusOf(s, &api.LoadBalancer{Address: "127.30.64.1"})
}

// What is not the watch's business: the reconciler fails on any call.
func TestServiceWatchLeavesServicesAlone(t *testing.T) {
	now := metav1.Now()
	for name, tc := range map[string]struct {
		svc func(svc *corev1.Service)
		// change is the end of the balancer, unless said.
		change func(t *testing.T, w *watchWorld, svc *corev1.Service)
	}{
		"being deleted":                    {svc: func(s *corev1.Service) { s.DeletionTimestamp = &now }},
		"without an address, not done yet": {svc: func(s *corev1.Service) { s.Status = corev1.ServiceStatus{} }},
		"that asks for what cannot be": {change: func(t *testing.T, w *watchWorld, s *corev1.Service) {
			s.Annotations = map[string]string{annotations.Prefix + annotations.ProxyProtocol: "v9"}
			require.NoError(t, w.services.Update(s))
			w.cloud.setBalancers()
		}},
		"that the user changed": {change: func(t *testing.T, w *watchWorld, s *corev1.Service) {
			s.Spec.Ports = s.Spec.Ports[:1]
			require.NoError(t, w.services.Update(s))
		}},
		"with a host name in place of its address": {
			svc:    showHostname,
			change: func(*testing.T, *watchWorld, *corev1.Service) {},
		},
		"that the user gave a host name": {change: func(t *testing.T, w *watchWorld, s *corev1.Service) {
			s.Annotations[annotations.Prefix+annotations.Hostname] = "web.example.com"
			require.NoError(t, w.services.Update(s))
		}},
		"that has more nodes now": {change: func(t *testing.T, w *watchWorld, _ *corev1.Service) {
			require.NoError(t, w.nodes.Add(node("fakecloud://i-1")))
		}},
		"whose balancer is on its way out": {change: func(t *testing.T, w *watchWorld, _ *corev1.Service) {
			w.cloud.setBalancers(*built(t, api.LoadBalancerDeleting))
		}},
		"with two balancers": {change: func(t *testing.T, w *watchWorld, _ *corev1.Service) {
			w.cloud.setBalancers(*built(t, api.LoadBalancerActive), *built(t, api.LoadBalancerActive))
		}},
		"deleted a moment ago": {change: func(t *testing.T, w *watchWorld, s *corev1.Service) {
			require.NoError(t, w.api.CoreV1().Services(s.Namespace).Delete(t.Context(), s.Name, metav1.DeleteOptions{}))
			w.cloud.setBalancers()
		}},
		"deleted and made anew a moment ago": {change: func(t *testing.T, w *watchWorld, s *corev1.Service) {
			another := s.DeepCopy()
			another.UID = "another"
			_, err := w.api.CoreV1().Services(s.Namespace).Update(t.Context(), another, metav1.UpdateOptions{})
			require.NoError(t, err)
			w.cloud.setBalancers()
		}},
	} {
		runInBubble(t, name, func(t *testing.T) {
			svc := serviceWithAddress()
			if tc.svc != nil {
				tc.svc(svc)
			}
			w := newWatchWorld(t, svc)
			w.cloud.setBalancers(*built(t, api.LoadBalancerActive))
			w.syncAfterChange(func() {
				if tc.change == nil {
					w.cloud.setBalancers()
					return
				}
				tc.change(t, w, svc.DeepCopy())
			})
			assert.Empty(t, w.takeEvents())
			for _, a := range w.takeWrites() {
				assert.NotEqual(t, "patch", a.GetVerb())
			}
		})
	}
}

// The cache says nothing of what may be out of date. That is no reason to
// ask the cloud for each balancer, unless it told something of one.
func TestServiceWatchBalancerNotInCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchWorld(t, serviceWithAddress())
		good := *built(t, api.LoadBalancerActive)
		w.cloud.setBalancers(good)
		w.run()
		w.cloud.setBalancers()
		w.cloud.setUnknown(true)
		advanceTime(time.Hour) // The reconciler fails on any call.

		w.cloud.setUnknown(false)
		called := w.ensureAtOnce(good) // It was there all the time.
		repairs := countIncrements(t, balancerRepairs, func() {
			advanceTime(allServicesPeriod + time.Minute) // Nobody tells.
		})
		assert.Equal(t, 1, *called)
		assert.Zero(t, repairs)
		assert.Empty(t, w.takeEvents(), "nothing was repaired")
		assert.Empty(t, w.takeWrites())
	})
}

// What cannot be bridged, such as a target whose instance has ended while its
// Node is there, is not tried for ever, and never said to be repaired.
func TestServiceWatchGivesUpImpossibleDifference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchWorld(t, serviceWithAddress(), node("fakecloud://i-1"))
		w.cloud.instances = []api.Instance{instance(api.InstanceRunning)}
		w.cloud.setBalancers(*built(t, api.LoadBalancerActive, "fakecloud://i-1"))
		w.run()
		without := *built(t, api.LoadBalancerActive)
		w.cloud.setBalancers(without)
		called := w.ensureAtOnce(without)
		w.reportChange(cache.Change{LoadBalancer: &without})
		advanceTime(time.Minute)
		assert.Equal(t, 1, *called)
		assert.Empty(t, w.takeEvents())
	})
}

// Nodes come one after the other, and upstream is slow: what it has written on
// its way to the newest node set was changed by nobody else. What somebody else
// does meanwhile is found all the same.
func TestServiceWatchWhileNodesJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const one, two, three = "fakecloud://i-1", "fakecloud://i-2", "fakecloud://i-3"
		svc := serviceWithAddress()
		w := newWatchWorld(t, svc)
		addNode := func(id string) {
			n := node(id)
			n.Name = "node-of-" + id
			require.NoError(t, w.nodes.Add(n))
		}
		syncFor := func(rounds int) {
			for range rounds {
				require.NoError(t, w.syncService(t.Context(), string(svc.UID)))
				advanceTime(outOfBandDelay)
			}
		}
		addNode(one)
		w.cloud.setBalancers(*built(t, api.LoadBalancerActive, one))
		syncFor(1)
		addNode(two)
		addNode(three)
		w.cloud.setBalancers(*built(t, api.LoadBalancerActive, one, two))
		w.settings.record(&w.cloud.LoadBalancers()[0]) // Upstream wrote it.
		syncFor(10)                                    // The reconciler fails on any call.
		bent := built(t, api.LoadBalancerActive, one, two)
		bent.Listeners[0].TargetPort++
		w.cloud.setBalancers(*bent)
		called := w.ensureAtOnce(*built(t, api.LoadBalancerActive, one, two, three))
		syncFor(3)
		assert.Equal(t, 1, *called)
		assert.Len(t, w.takeEvents(), 1)
	})
}

// A difference that upstream's controller should be at, and which lasts, is
// bridged; that is no repair. This one was never seen as it should be.
func TestServiceWatchReconcilesOverdueDifference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchWorld(t, serviceWithAddress())
		differs := built(t, api.LoadBalancerActive)
		differs.Listeners[0].TargetPort++
		w.cloud.setBalancers(*differs)
		called := w.ensureAtOnce(*built(t, api.LoadBalancerActive))
		w.run()
		advanceTime(overdueDelay - 2*time.Second)
		assert.Zero(t, *called)
		repairs := countIncrements(t, balancerRepairs, func() { advanceTime(time.Hour) })
		assert.Equal(t, 1, *called)
		assert.Zero(t, repairs)
		assert.Empty(t, w.takeEvents())
	})
}

// A balancer is deleted before the informer has the address that upstream wrote.
func TestServiceWatchDeletionBeforeAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		early := serviceWithAddress()
		early.Status = corev1.ServiceStatus{}
		w := newWatchWorld(t, early)
		w.run()
		w.reportChange(cache.Change{LoadBalancer: built(t, api.LoadBalancerActive), Kind: cache.Deleted})
		advanceTime(time.Second)
		called := w.ensureInTwoSteps(*built(t, api.LoadBalancerActive))
		_, err := w.api.CoreV1().Services("default").
			UpdateStatus(t.Context(), serviceWithAddress(), metav1.UpdateOptions{})
		require.NoError(t, err)
		advanceTime(10 * time.Second)
		assert.Positive(t, *called)
		assert.Len(t, w.takeEvents(), 1)
	})
}

// Upstream's controller was at it: the difference is gone before it is acted on.
func TestServiceWatchWaitsForUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchWorld(t, serviceWithAddress())
		w.cloud.setBalancers(*built(t, api.LoadBalancerActive))
		w.syncAfterChange(func() {
			w.cloud.setBalancers()
			require.NoError(t, w.syncService(t.Context(), "01234567-89ab"))
			advanceTime(outOfBandDelay / 2)
			w.cloud.setBalancers(*built(t, api.LoadBalancerActive))
		})
		assert.Empty(t, w.takeEvents())
	})
}

// A balancer that has all that is wanted and does not work is EnsureLoadBalancer's
// to explain; that it works again, too.
func TestServiceWatchHasTroubleExplained(t *testing.T) {
	w := newWatchWorld(t, serviceWithAddress())
	called := 0
	w.reconciler.ensure = func(svc *corev1.Service, _ []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
		if called++; called == 1 {
			return nil, cloudproviderapi.NewRetryError("in error", retryPeriod)
		}
		return &svc.Status.LoadBalancer, nil
	}
	w.cloud.setBalancers(*built(t, api.LoadBalancerError))
	var retry *cloudproviderapi.RetryError
	require.ErrorAs(t, w.syncService(t.Context(), "01234567-89ab"), &retry)
	assert.Equal(t, retryPeriod, retry.RetryAfter())

	w.setOutcome(serviceWithAddress(), "PortCannotBeBound")
	w.cloud.setBalancers(*built(t, api.LoadBalancerActive))
	for range 2 {
		require.NoError(t, w.syncService(t.Context(), "01234567-89ab"))
	}
	assert.Equal(t, 2, called, "once, as then nothing is to be explained any more")
	idle, why := built(t, api.LoadBalancerActive), "it has no targets"
	idle.StateReason = &why
	w.cloud.setBalancers(*idle)
	require.NoError(t, w.syncService(t.Context(), "01234567-89ab"))
	assert.Equal(t, 3, called, "active, and refuses clients")
	assert.Empty(t, w.takeEvents(), "nothing was repaired")
}

// Of the Nodes those are targets that a Service's selector chooses, also when their labels change
// later. With a selector that is none the targets stay as they are.
func TestNodeSelector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := serviceWithAddress()
		svc.Annotations[annotations.Prefix+annotations.NodeSelector] = "pool in (web),!spot"
		web, db := node("fakecloud://i-1"), node("fakecloud://i-2")
		web.Labels, db.Name, db.Labels = map[string]string{"pool": "web"}, "node-2", map[string]string{"pool": "db"}
		w := newWatchWorld(t, svc, web, db)
		w.cloud.instances = []api.Instance{
			instance(api.InstanceRunning), {ID: "i-2", Name: "node-2", State: api.InstanceRunning},
		}
		w.cloud.setBalancers(*built(t, api.LoadBalancerActive, "fakecloud://i-1"))
		w.run()
		advanceTime(time.Hour) // The reconciler fails on any call.

		db.Labels["pool"] = "web"
		called := w.ensureAtOnce(*built(t, api.LoadBalancerActive, "fakecloud://i-1", "fakecloud://i-2"))
		_, err := w.api.CoreV1().Nodes().Update(t.Context(), db, metav1.UpdateOptions{})
		require.NoError(t, err)
		advanceTime(overdueDelay + time.Second)
		assert.Equal(t, 1, *called)
	})
}

// What somebody takes off a Service whose balancer is there comes back: the status by the same reconcile
// as ever, and the finalizer, without which the Service could go and leave its balancer.
func TestServiceWatchRestoresTheService(t *testing.T) {
	for name, wipe := range map[string]func(svc *corev1.Service){
		"another address": func(svc *corev1.Service) {
			svc.Status.LoadBalancer.Ingress[0].IP = "192.0.2.9"
		},
		"the IP mode": func(svc *corev1.Service) {
			svc.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPModeVIP)
		},
		"the finalizer": func(svc *corev1.Service) { svc.Finalizers = nil },
		"both":          func(svc *corev1.Service) { svc.Finalizers, svc.Status = nil, corev1.ServiceStatus{} },
	} {
		for _, known := range []bool{true, false} { // false: the CCM was started after it
			runInBubble(t, fmt.Sprintf("%s, seen before: %t", name, known), func(t *testing.T) {
				before, wiped := serviceWithAddress(), serviceWithAddress()
				wipe(wiped)
				first := wiped
				if known {
					first = before
				}
				w := newWatchWorld(t, first, node("fakecloud://i-1"))
				w.cloud.instances = []api.Instance{instance(api.InstanceRunning)}
				good := *built(t, api.LoadBalancerActive, "fakecloud://i-1")
				w.cloud.setBalancers(good)
				w.reconciler.ensure = func(*corev1.Service, []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
					return &before.Status.LoadBalancer, nil
				}
				w.run()
				require.NoError(t, w.api.Tracker().
					Update(corev1.SchemeGroupVersion.WithResource("services"), wiped, "default"))
				advanceTime(10 * time.Second)
				if !known { // It may be upstream's controller that is about to write.
					advanceTime(overdueDelay)
				}
				after, err := w.api.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
				require.NoError(t, err)
				assert.Equal(t, before.Status, after.Status)
				assert.Equal(t, before.Finalizers, after.Finalizers)
				assert.Equal(t, before.Annotations, after.Annotations, "the user's")
				writes := len(w.takeWrites())
				advanceTime(time.Hour)
				assert.Empty(t, w.takeWrites(), "once it is there nothing is written; it took %d", writes)
			})
		}
	}
}
