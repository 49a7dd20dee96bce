package ccm

import (
	"encoding/json"
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
	svc.Status.LoadBalancer = *balancerStatus(svc, &api.LoadBalancer{Address: "127.30.64.1"})
	return svc
}

// ensureInTwoSteps has EnsureLoadBalancer bring that balancer about: first it is
// provisioning, then active.
func (w *watchWorld) ensureInTwoSteps(lb api.LoadBalancer) (called *int) {
	called = new(int)
	w.reconciler.ensure = func(svc *corev1.Service, nodes []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
		*called++
		assert.Equal(w.t, "web", svc.Name)
		assert.Len(w.t, nodes, 1, "as upstream chooses them")
		w.t.Logf("%s: reconcile %d", time.Now().Format(time.TimeOnly), *called)
		if *called == 1 {
			lb.State = api.LoadBalancerProvisioning
			w.cloud.setBalancers(lb)
			return nil, cloudproviderapi.NewRetryError("provisioning", provisioningRetry)
		}
		lb.State = api.LoadBalancerActive
		w.cloud.setBalancers(lb)
		return balancerStatus(svc, &lb), nil
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
	for name, tc := range map[string]struct {
		change func(lb *api.LoadBalancer) bool // false: deleted
		event  string
		// moves: the new balancer has an address of its own.
		moves bool
	}{
		"deleted": {change: func(*api.LoadBalancer) bool { return false }, moves: true,
			event: "create load balancer web-01234567 with listeners [tcp:8080→30080 tcp:8443→30443] and 1 targets"},
		"deleted, the address drawn again": {change: func(*api.LoadBalancer) bool { return false },
			event: "create load balancer web-01234567 with listeners [tcp:8080→30080 tcp:8443→30443] and 1 targets"},
		"targets taken out": {change: func(lb *api.LoadBalancer) bool { lb.Targets = nil; return true },
			event: "update load balancer lb-1: targets 0 to 1"},
		"a listener bent": {change: func(lb *api.LoadBalancer) bool {
			lb.Listeners = []api.Listener{{Protocol: "tcp", Port: 8080, TargetPort: 1}}
			return true
		}, event: "update load balancer lb-1: listeners [tcp:8080→1] to [tcp:8080→30080 tcp:8443→30443]"},
	} {
		runInBubble(t, name, func(t *testing.T) {
			excluded := node("fakecloud://i-2")
			excluded.Name, excluded.Labels = "node-2", map[string]string{corev1.LabelNodeExcludeBalancers: ""}
			w := newWatchWorld(t, serviceWithAddress(), node("fakecloud://i-1"), excluded)
			w.cloud.instances = []api.Instance{
				instance(api.InstanceRunning), {ID: "i-2", Name: "node-2", State: api.InstanceRunning},
			}
			good := *built(t, api.LoadBalancerActive, "fakecloud://i-1")
			w.cloud.setBalancers(good)
			w.run() // and nothing is called: the balancer is as it should be

			changed := good
			there := tc.change(&changed)
			again := good
			if there {
				w.cloud.setBalancers(changed)
			} else {
				w.cloud.setBalancers()
				again.ID = "lb-2"
			}
			if tc.moves {
				again.Address = "127.30.64.9"
			}
			called := w.ensureInTwoSteps(again)
			repairs := countIncrements(t, balancerRepairs, func() {
				kind := cache.Changed
				if !there {
					kind = cache.Deleted
				}
				w.reportChange(cache.Change{Kind: kind, LoadBalancer: &changed})
				advanceTime(10 * time.Second)
			})
			assert.Equal(t, 1, repairs)
			assert.Equal(t, 2, *called, "until it is active, and no more")
			assert.Equal(t, []string{
				"Normal LoadBalancerRepaired The load balancer was changed or deleted out of band, and repaired: " +
					tc.event,
			}, w.takeEvents())
			writes := w.takeWrites()
			if !tc.moves {
				assert.Empty(t, writes)
			} else {
				require.Len(t, writes, 1)
				patch, ok := writes[0].(k8stesting.PatchAction)
				require.True(t, ok, "%+v", writes[0])
				assert.Equal(t, "status", patch.GetSubresource())
				var got map[string]map[string]any
				require.NoError(t, json.Unmarshal(patch.GetPatch(), &got))
				assert.Equal(
					t, map[string]any{"uid": "01234567-89ab"}, got["metadata"],
					"nothing of the user's, and no other Service of that name",
				)
			}
			svc, err := w.api.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, again.Address, svc.Status.LoadBalancer.Ingress[0].IP)
			assert.Equal(t, map[string]string{"team": "blue"}, svc.Annotations)

			advanceTime(time.Hour)
			assert.Equal(t, 2, *called, "nothing differs, nothing is asked")
			assert.Empty(t, w.takeEvents())
		})
	}
}

// What was changed before the watch has seen it fulfilled was fulfilled all the same:
// upstream's controller saw that, or there would be no address.
func TestServiceWatchRepairsWhatUpstreamEnsured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchWorld(t, serviceWithAddress(), node("fakecloud://i-1"))
		w.cloud.instances = []api.Instance{instance(api.InstanceRunning)}
		good := *built(t, api.LoadBalancerActive, "fakecloud://i-1")
		upstream := newFakeBalancers(t, good).loadBalancers()
		_, err := upstream.EnsureLoadBalancer(t.Context(), clusterName, service(), nodes("fakecloud://i-1"))
		require.NoError(t, err)
		w.serviceWatch.balancers = upstream
		bent := good
		bent.Listeners = []api.Listener{{Protocol: "tcp", Port: 8080, TargetPort: 1}}
		w.cloud.setBalancers(bent)
		called := w.ensureInTwoSteps(good)
		w.run()
		advanceTime(10 * time.Second)
		assert.Equal(t, 2, *called)
		assert.Equal(t, []string{"Normal LoadBalancerRepaired The load balancer was changed or deleted out of band, and repaired: " +
			"update load balancer lb-1: listeners [tcp:8080→1] to [tcp:8080→30080 tcp:8443→30443]"}, w.takeEvents())
	})
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
			return balancerStatus(svc, &made), nil
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
	s.Status.LoadBalancer = *balancerStatus(s, &api.LoadBalancer{Address: "127.30.64.1"})
}

// What the status of a Service should name that asks for what cannot be is not known: whatever it names
// is no difference.
func TestInvalidServiceKeepsItsHostname(t *testing.T) {
	svc := serviceWithAddress()
	showHostname(svc)
	svc.Annotations[annotations.Prefix+annotations.ProxyProtocol] = "v9"
	_, err := newBalancerSpec(clusterID{name: clusterName}, svc, nil)
	require.Error(t, err)
	assert.Empty(t, describeDifference(svc, []api.LoadBalancer{*built(t, api.LoadBalancerActive)}, targetsSpec(svc, nil)))
}

// What is not the watch's business: the reconciler fails on any call.
func TestServiceWatchLeavesServicesAlone(t *testing.T) {
	class, now := "other", metav1.Now()
	for name, tc := range map[string]struct {
		svc func(svc *corev1.Service)
		// change is the end of the balancer, unless said.
		change func(t *testing.T, w *watchWorld, svc *corev1.Service)
	}{
		"of another type":                  {svc: func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }},
		"of a class":                       {svc: func(s *corev1.Service) { s.Spec.LoadBalancerClass = &class }},
		"being deleted":                    {svc: func(s *corev1.Service) { s.DeletionTimestamp = &now }},
		"without an address, not done yet": {svc: func(s *corev1.Service) { s.Status = corev1.ServiceStatus{} }},
		"that asks for what cannot be": {change: func(t *testing.T, w *watchWorld, s *corev1.Service) {
			s.Annotations = map[string]string{annotations.Prefix + annotations.ProxyProtocol: "v9"}
			require.NoError(t, w.services.Update(s))
			w.cloud.setBalancers()
		}},
		"as it should be": {change: func(*testing.T, *watchWorld, *corev1.Service) {}},
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
		"whose balancer somebody tagged": {change: func(t *testing.T, w *watchWorld, _ *corev1.Service) {
			tagged := built(t, api.LoadBalancerActive)
			tagged.Tags["team"] = "blue"
			w.cloud.setBalancers(*tagged)
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
		"gone": {change: func(t *testing.T, w *watchWorld, s *corev1.Service) {
			require.NoError(t, w.services.Delete(s))
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

// What was never seen as it should be is upstream's: its controller looks at
// each Service when it starts. But a Service with an address had a balancer, and
// one that was deleted as soon as it was there comes back too.
func TestServiceWatchNeverFulfilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchWorld(t, serviceWithAddress(), node("fakecloud://i-1"))
		w.cloud.instances = []api.Instance{instance(api.InstanceRunning)}
		other := *built(t, api.LoadBalancerActive, "fakecloud://i-1")
		other.Listeners[0].TargetPort++
		w.cloud.setBalancers(other)
		w.syncAfterChange(func() {})
		assert.Empty(t, w.takeEvents())

		w.cloud.setBalancers()
		called := w.ensureInTwoSteps(*built(t, api.LoadBalancerActive, "fakecloud://i-1"))
		w.run()
		w.reportChange(cache.Change{LoadBalancer: &other, Kind: cache.Deleted})
		advanceTime(time.Minute)
		assert.Positive(t, *called)
		require.Len(t, w.takeEvents(), 1)
	})
}

// The inventory says nothing of what may be out of date. That is no reason to
// ask the cloud for each balancer, unless it told something of one.
func TestServiceWatchBalancerNotInInventory(t *testing.T) {
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
			w.reportChange(cache.Change{Kind: cache.Relisted})
			advanceTime(time.Minute)
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

// addNodeOf has a Node in the informer, whose instance has that ID.
func (w *watchWorld) addNodeOf(instance string) {
	n := node("fakecloud://" + instance)
	n.Name = "node-of-" + instance
	require.NoError(w.t, w.nodes.Add(n))
}

// Nodes come one after the other, and upstream is slow: what it has written on
// its way to the newest node set was changed by nobody else. What somebody else
// does meanwhile is found all the same.
func TestServiceWatchWhileNodesJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := serviceWithAddress()
		w := newWatchWorld(t, svc)
		sync := func() { require.NoError(t, w.syncService(t.Context(), string(svc.UID))) }
		w.addNodeOf("i-1")
		w.cloud.setBalancers(*built(t, api.LoadBalancerActive, "fakecloud://i-1"))
		sync()
		w.addNodeOf("i-2")
		w.addNodeOf("i-3")
		w.cloud.setBalancers(*built(t, api.LoadBalancerActive, "fakecloud://i-1", "fakecloud://i-2"))
		w.serviceWatch.balancers.recordSettings(string(svc.UID), &w.cloud.LoadBalancers()[0]) // Upstream wrote it.
		for range 10 {                                                                        // The reconciler fails on any call.
			sync()
			advanceTime(outOfBandDelay)
		}
		bent := built(t, api.LoadBalancerActive, "fakecloud://i-1", "fakecloud://i-2")
		bent.Listeners[0].TargetPort++
		w.cloud.setBalancers(*bent)
		called := w.ensureAtOnce(
			*built(t, api.LoadBalancerActive, "fakecloud://i-1", "fakecloud://i-2", "fakecloud://i-3"),
		)
		for range 3 {
			sync()
			advanceTime(outOfBandDelay)
		}
		assert.Equal(t, 1, *called)
		assert.Len(t, w.takeEvents(), 1)
	})
}

// A difference that upstream's controller should be at, and which lasts, is
// bridged; that is no repair.
func TestServiceWatchReconcilesOverdueDifference(t *testing.T) {
	for name, tc := range map[string]struct {
		seenBefore bool
		change     func(lb *api.LoadBalancer)
	}{
		"the wish changed": {seenBefore: true, change: func(lb *api.LoadBalancer) {
			lb.Listeners = lb.Listeners[:1]
		}},
		"never seen as it should be": {change: func(lb *api.LoadBalancer) { lb.Listeners[0].TargetPort++ }},
	} {
		runInBubble(t, name, func(t *testing.T) {
			svc := serviceWithAddress()
			if tc.seenBefore {
				svc.Spec.Ports = svc.Spec.Ports[:1]
			}
			w := newWatchWorld(t, svc)
			differs := built(t, api.LoadBalancerActive)
			tc.change(differs)
			w.cloud.setBalancers(*differs)
			called := w.ensureAtOnce(*built(t, api.LoadBalancerActive))
			w.run()
			if tc.seenBefore {
				_, err := w.api.CoreV1().Services("default").
					Update(t.Context(), serviceWithAddress(), metav1.UpdateOptions{})
				require.NoError(t, err)
			}
			advanceTime(overdueDelay - 2*time.Second)
			assert.Zero(t, *called)
			repairs := countIncrements(t, balancerRepairs, func() { advanceTime(time.Hour) })
			assert.Equal(t, 1, *called)
			assert.Zero(t, repairs)
			assert.Empty(t, w.takeEvents())
		})
	}
}

// A balancer is deleted before the informer has the address that upstream wrote.
func TestServiceWatchDeletionBeforeAddress(t *testing.T) {
	for name, told := range map[string]cache.Change{
		"told of": {
			LoadBalancer: &api.LoadBalancer{Tags: api.Tags{contract.TagServiceUID: "01234567-89ab"}},
			Kind:         cache.Deleted,
		},
		"listed anew":   {Kind: cache.Relisted},
		"its UID taken": {LoadBalancer: &api.LoadBalancer{Tags: api.Tags{contract.TagServiceUID: "nobody"}}},
	} {
		runInBubble(t, name, func(t *testing.T) {
			early := serviceWithAddress()
			early.Status = corev1.ServiceStatus{}
			w := newWatchWorld(t, early, node("fakecloud://i-1"))
			w.cloud.instances = []api.Instance{instance(api.InstanceRunning)}
			w.run()
			w.reportChange(told)
			advanceTime(time.Second)
			called := w.ensureInTwoSteps(*built(t, api.LoadBalancerActive, "fakecloud://i-1"))
			_, err := w.api.CoreV1().Services("default").
				UpdateStatus(t.Context(), serviceWithAddress(), metav1.UpdateOptions{})
			require.NoError(t, err)
			advanceTime(overdueDelay + 10*time.Second)
			assert.Positive(t, *called)
			assert.Len(t, w.takeEvents(), 1)
		})
	}
}

// Somebody gave the balancer another Service's UID: it is missed.
func TestServiceWatchBalancerTaggedWithOtherUID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchWorld(t, serviceWithAddress(), node("fakecloud://i-1"))
		w.cloud.instances = []api.Instance{instance(api.InstanceRunning)}
		w.cloud.setBalancers(*built(t, api.LoadBalancerActive, "fakecloud://i-1"))
		w.run()
		lost := *built(t, api.LoadBalancerActive, "fakecloud://i-1")
		lost.Tags[contract.TagServiceUID] = "nobody"
		w.cloud.setBalancers(lost)
		again := *built(t, api.LoadBalancerActive, "fakecloud://i-1")
		again.ID = "lb-2"
		w.ensureInTwoSteps(again)
		w.reportChange(cache.Change{LoadBalancer: &lost})
		advanceTime(10 * time.Second)
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
			return nil, cloudproviderapi.NewRetryError("in error", failedStateRetry)
		}
		w.explain.markResolved(svc, topicLoadBalancer)
		return &svc.Status.LoadBalancer, nil
	}
	w.cloud.setBalancers(*built(t, api.LoadBalancerError))
	var retry *cloudproviderapi.RetryError
	require.ErrorAs(t, w.syncService(t.Context(), "01234567-89ab"), &retry)
	assert.Equal(t, failedStateRetry, retry.RetryAfter())

	w.explain.warnOnce(serviceWithAddress(), topicLoadBalancer, cause{reason: "PortCannotBeBound"}, "why")
	require.Len(t, w.takeEvents(), 1)
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

		svc.Annotations[annotations.Prefix+annotations.NodeSelector] = "a b"
		assert.Empty(t, planSteps(built(t, api.LoadBalancerActive, "fakecloud://i-1"), targetsSpec(svc, nil)))
	})
}

// What somebody takes off a Service whose balancer is there comes back: the status by the same reconcile
// as ever, and the finalizer, without which the Service could go and leave its balancer.
func TestServiceWatchRestoresTheService(t *testing.T) {
	for name, wipe := range map[string]func(svc *corev1.Service){
		"the status": func(svc *corev1.Service) { svc.Status = corev1.ServiceStatus{} },
		"another address": func(svc *corev1.Service) {
			svc.Status.LoadBalancer.Ingress[0].IP = "192.0.2.9"
		},
		"an address too many": func(svc *corev1.Service) {
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "192.0.2.9"})
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

// A Service that was seen to have all gets it back even if nothing of it is left.
func TestServiceWatchRestoresStatusAndBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchWorld(t, serviceWithAddress())
		good := *built(t, api.LoadBalancerActive)
		w.cloud.setBalancers(good)
		w.run()
		require.NoError(t, w.api.Tracker().
			Update(corev1.SchemeGroupVersion.WithResource("services"), serviceWithoutAddress(), "default"))
		w.cloud.setBalancers()
		w.ensureAtOnce(good)
		w.reportChange(cache.Change{Kind: cache.Deleted, LoadBalancer: &good})
		advanceTime(10 * time.Second)
		assert.Len(t, w.cloud.LoadBalancers(), 1)
	})
}
