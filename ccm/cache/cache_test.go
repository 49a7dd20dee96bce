package cache_test

// What is answered when, at which price, against a cloud that notes each call.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func TestOneListForAllWhoAskAtOnce(t *testing.T) {
	inBubble(t, func(r *harness) {
		var all []api.Instance
		for i := range 1000 {
			all = append(all, instance(fmt.Sprintf("i-%04d", i), 1, api.InstanceRunning))
		}
		r.cloud.setInstancesAfter(time.Second, all...)
		r.cloud.openStream()
		first, leave := context.WithCancel(r.t.Context())
		var asking sync.WaitGroup
		asking.Go(func() { // The one whose question has the list made goes away.
			_, err := r.GetInstance(first, "i-0000")
			assert.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		for i := range all {
			asking.Go(func() { assert.EqualValues(t, 1, r.version(all[i].ID)) })
			asking.Go(func() { assert.Equal(t, []api.Instance{all[i]}, r.named("NODE-"+all[i].ID)) })
		}
		leave()
		asking.Wait()
		assert.EqualValues(t, 1, r.version("i-0001"))
		assert.Equal(t, []string{"list"}, r.cloud.takeCalls())
		assert.Equal(t, map[string]int{"instance listed": 2001, "instance hit": 1}, r.asked)
	})
}

// While the stream is open its events are enough. Everything is listed now and then all the same.
func TestOpenStream(t *testing.T) {
	inBubble(t, func(r *harness) {
		r.haveInstances(instance("i-1", 1, api.InstanceRunning))
		r.cloud.sendEvent(api.EventUpdated, instance("i-1", 2, api.InstanceStopping))
		r.cloud.sendEvent(api.EventCreated, instance("i-2", 1, api.InstancePending))
		r.cloud.sendEvent(api.EventUpdated, api.ResourceQuota)
		time.Sleep(9 * time.Minute)
		assert.EqualValues(t, 2, r.version("i-1"))
		assert.EqualValues(t, 1, r.version("i-2"))
		assert.Empty(t, r.cloud.takeCalls())
		assert.Equal(t, []string{"i-1 v2 stopping", "i-2 v1 pending", "freed"}, r.takeChanges())
		r.cloud.setInstances(instance("i-1", 3, api.InstanceStopped), instance("i-2", 1, api.InstancePending))
		time.Sleep(2 * time.Minute)
		assert.Equal(t, []string{"list"}, r.cloud.takeCalls())
		assert.Equal(t, []string{"i-1 v3 stopped"}, r.takeChanges())
		r.cloud.failLists(errors.New("503"))
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []string{"list"}, r.cloud.takeCalls())
		r.cloud.setInstances(instance("i-1", 4, api.InstanceRunning), instance("i-2", 1, api.InstancePending))
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []string{"recovered", "i-1 v4 running"}, r.takeChanges(), "also after a list that failed")
	})
}

// Without a stream a list is current for two seconds, and is made only for a question. When the stream
// opens, one more is made: events were missed before.
func TestWithoutStream(t *testing.T) {
	inBubble(t, func(r *harness) {
		r.cloud.setInstances(instance("i-1", 1, api.InstanceRunning))
		r.cloud.refuseStream(api.Unauthenticated)
		assert.EqualValues(t, 1, r.version("i-1"))
		r.cloud.setInstances(instance("i-1", 2, api.InstanceRunning))
		time.Sleep(2*time.Second - time.Millisecond)
		assert.EqualValues(t, 1, r.version("i-1"))
		time.Sleep(time.Millisecond)
		assert.EqualValues(t, 2, r.version("i-1"))
		assert.Equal(t, []string{"list", "list"}, r.cloud.takeCalls())
		time.Sleep(8 * time.Minute)
		assert.Empty(t, r.cloud.takeCalls(), "nobody asks")
		r.cloud.openStream()
		time.Sleep(time.Minute)
		assert.EqualValues(t, 2, r.version("i-1"))
		assert.Equal(t, []string{"list"}, r.cloud.takeCalls())
		r.cloud.breakStream()
		r.cloud.setInstances(instance("i-1", 3, api.InstanceRunning))
		assert.EqualValues(t, 3, r.version("i-1"))
		r.cloud.openStream()
		assert.Equal(t, []string{"list", "list"}, r.cloud.takeCalls())
	})
}

// A list that begins before the stream is open may miss what happens between the two: it waits, but not
// for long.
func TestListsWaitForTheStream(t *testing.T) {
	inBubble(t, func(r *harness) {
		var asking sync.WaitGroup
		asking.Go(func() { r.named("node-1") })
		assert.Empty(t, r.cloud.takeCalls())
		r.cloud.openStream()
		asking.Wait()
		assert.Equal(t, []string{"list"}, r.cloud.takeCalls())
	})
	inBubble(t, func(r *harness) {
		began := time.Now()
		r.named("node-1")
		assert.Equal(t, time.Second, time.Since(began))
		r.cloud.takeCalls()
		time.Sleep(2 * time.Second)
		r.cloud.setInstancesAfter(3*time.Second, instance("i-1", 1, api.InstanceRunning))
		var asking sync.WaitGroup
		asking.Go(func() { r.version("i-1") })
		time.Sleep(2 * time.Second)
		r.cloud.openStream() // during the list
		asking.Wait()
		time.Sleep(3 * time.Second)
		assert.Equal(t, []string{"list", "list"}, r.cloud.takeCalls())
	})
}

// Events that come while a list is made are applied to it.
func TestEventsDuringAList(t *testing.T) {
	inBubble(t, func(r *harness) {
		r.cloud.setInstancesAfter(time.Second,
			instance("i-1", 1, api.InstanceRunning), instance("i-2", 1, api.InstanceRunning))
		r.cloud.openStream()
		r.cloud.sendEvent(api.EventUpdated, instance("i-1", 1, api.InstanceRunning))
		assert.Empty(t, r.takeChanges(), "nobody has asked for instances")
		var asking sync.WaitGroup
		asking.Go(func() { r.named("node-i-1") })
		synctest.Wait()
		time.Sleep(time.Millisecond)
		r.cloud.sendEvent(api.EventCreated, instance("i-3", 1, api.InstancePending))
		r.cloud.sendEvent(api.EventUpdated, instance("i-1", 2, api.InstanceStopped))
		r.cloud.sendEvent(api.EventDeleted, instance("i-2", 1, api.InstanceRunning))
		asking.Wait()
		synctest.Wait()
		assert.EqualValues(t, 2, r.version("i-1"))
		assert.Zero(t, r.version("i-2"))
		assert.EqualValues(t, 1, r.version("i-3"))
		assert.Equal(t, []string{"list", "get i-2"}, r.cloud.takeCalls())
	})
}

func TestOlderNewsChangeNothing(t *testing.T) {
	inBubble(t, func(r *harness) {
		r.haveInstances(instance("i-1", 3, api.InstanceRunning), instance("i-2", 3, api.InstanceRunning))
		r.cloud.sendEvent(api.EventUpdated, instance("i-1", 2, api.InstanceStopped)) // late
		r.cloud.sendEvent(api.EventDeleted, instance("i-2", 4, api.InstanceTerminated))
		r.cloud.sendEvent(api.EventUpdated, instance("i-2", 3, api.InstanceRunning))
		r.cloud.setInstances(instance("i-1", 1, api.InstanceStopped), instance("i-2", 2, api.InstanceRunning)) // stale
		time.Sleep(10 * time.Minute)
		assert.EqualValues(t, 3, r.version("i-1"))
		assert.Zero(t, r.version("i-2"), "a deleted one stays so")
		assert.Equal(t, []string{"i-2 v4 terminated gone"}, r.takeChanges())
		time.Sleep(2 * time.Hour)
		assert.EqualValues(t, 3, r.version("i-1"))
	})
}

// "No" is asked of the cloud: a list may lack what there is. What the cloud then shows is remembered.
func TestNoIsAskedOfTheCloud(t *testing.T) {
	inBubble(t, func(r *harness) {
		r.haveInstances(instance("i-1", 3, api.InstanceRunning))
		r.cloud.setInstances()
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []string{"i-1 v3 running"}, r.takeChanges(), "somebody should look")
		assert.Equal(t, []string{"list"}, r.cloud.takeCalls())
		there := instance("i-1", 3, api.InstanceRunning)
		r.cloud.getInstance = func(string) (*api.Instance, error) { return &there, nil }
		for range 3 {
			assert.EqualValues(t, 3, r.version("i-1"))
		}
		assert.Equal(t, []string{"get i-1"}, r.cloud.takeCalls())
		r.cloud.sendEvent(api.EventUpdated, instance("i-1", 4, api.InstanceTerminated))
		r.cloud.setInstances()
		assert.Zero(t, r.version("i-1"), "an ended one")
		assert.Equal(t, []string{"get i-1"}, r.cloud.takeCalls())
	})
}

// A name that no living instance has costs a list a second, however many ask: a new instance is in an event,
// but not one that the list lacked by mistake.
func TestUnknownNames(t *testing.T) {
	inBubble(t, func(r *harness) {
		r.cloud.setInstances(instance("i-1", 1, api.InstanceTerminated))
		r.cloud.openStream()
		for range 3 {
			time.Sleep(time.Second)
			var asking sync.WaitGroup
			for i := range 100 {
				asking.Go(func() { assert.Empty(t, r.named(fmt.Sprint("unknown-", i))) })
			}
			asking.Wait()
			assert.Len(t, r.named("node-i-1"), 1, "its end is shown")
			assert.Equal(t, []string{"list"}, r.cloud.takeCalls())
		}
		time.Sleep(time.Second)
		r.cloud.setInstances(instance("i-2", 1, api.InstanceRunning))
		assert.Len(t, r.named("node-i-2"), 1)
		time.Sleep(time.Second)
		r.cloud.failLists(errors.New("503"))
		assert.Len(t, r.named("node-i-2"), 1)
		_, err := r.ListInstances(r.t.Context(), client.InstanceFilter{Name: "unknown"})
		require.ErrorContains(t, err, "503", "that there is none must be seen")
	})
}

// Other data is not compared with what was: after a stream that cannot be resumed versions tell nothing, and
// a list from before is not taken in.
func TestOtherData(t *testing.T) {
	for _, code := range []api.ProblemCode{api.EventsExpired, api.Unauthenticated} {
		inBubble(t, func(r *harness) {
			r.haveInstances(instance("i-1", 9, api.InstanceRunning), instance("i-2", 9, api.InstanceRunning))
			r.cloud.sendEvent(api.EventDeleted, instance("i-2", 9, api.InstanceRunning))
			r.takeChanges()
			r.cloud.setInstancesAfter(time.Second, instance("i-1", 9, api.InstanceRunning))
			r.cloud.breakStream()
			var asking sync.WaitGroup
			time.Sleep(2 * time.Second)
			asking.Go(func() { r.version("i-1") })
			time.Sleep(time.Millisecond)
			r.cloud.refuseStream(code)
			r.cloud.setInstances(instance("i-1", 4, api.InstanceStopped), instance("i-2", 4, api.InstanceRunning))
			r.cloud.openStream()
			asking.Wait()
			time.Sleep(time.Second)
			assert.EqualValues(t, 4, r.version("i-1"))
			assert.EqualValues(t, 4, r.version("i-2"))
			assert.Contains(t, r.takeChanges(), "listed anew")
		})
	}
}

// In an outage all share the last error, and the cloud is asked at growing intervals. Its end is reported.
func TestOutage(t *testing.T) {
	inBubble(t, func(r *harness) {
		r.haveInstances(instance("i-1", 1, api.InstanceRunning))
		r.cloud.breakStream()
		time.Sleep(2 * time.Second)
		fail := errors.New("503")
		r.cloud.failLists(fail)
		for range 600 {
			_, err := r.GetInstance(r.t.Context(), "i-1")
			require.ErrorIs(t, err, fail)
			assert.Empty(t, r.LoadBalancers())
			time.Sleep(100 * time.Millisecond)
		}
		assert.LessOrEqual(t, len(r.cloud.takeCalls()), 20)
		assert.Empty(t, r.takeChanges())
		r.cloud.setInstances(instance("i-1", 2, api.InstanceRunning))
		time.Sleep(12 * time.Second)
		assert.EqualValues(t, 2, r.version("i-1"))
		assert.Equal(t, []string{"recovered", "i-1 v2 running"}, r.takeChanges())
		r.cloud.setBalancers()

		time.Sleep(2 * time.Second)
		r.cloud.failLists(fail)
		_, err := r.GetInstance(r.t.Context(), "i-1")
		require.ErrorIs(t, err, fail)
		r.cloud.setInstances(instance("i-1", 3, api.InstanceRunning))
		r.cloud.setBalancers()
		r.cloud.openStream() // The stream tells of the end at once.
		assert.EqualValues(t, 3, r.version("i-1"))
		assert.ElementsMatch(t, []string{"recovered", "i-1 v3 running", "listed anew"}, r.takeChanges())
	})
}

// A Service's balancer is answered from memory if nothing is to be expected of it. An empty list is no proof
// while one is remembered.
func TestBalancersOfAService(t *testing.T) {
	inBubble(t, func(r *harness) {
		r.cloud.openStream()
		have := balancer("lb-1", "uid-1", 1)
		r.cloud.setBalancers(have)
		assert.Equal(t, []api.LoadBalancer{have}, r.balancersOf("uid-1"), "nothing is listed yet")
		assert.ElementsMatch(t, []string{"list service=uid-1", "list " + clusterTag}, r.cloud.takeCalls())
		assert.True(t, r.KnowsLoadBalancers())
		for range 3 {
			assert.Equal(t, []api.LoadBalancer{have}, r.balancersOf("uid-1"))
		}
		assert.Equal(t, []api.LoadBalancer{have}, r.LoadBalancers())
		assert.Empty(t, r.cloud.takeCalls())

		have.State, have.Version = api.LoadBalancerUpdating, 2
		r.cloud.sendEvent(api.EventUpdated, have)
		r.cloud.setBalancers()
		r.cloud.getBalancer = func(string) (*api.LoadBalancer, error) { return &have, nil }
		assert.Len(t, r.balancersOf("uid-1"), 1)
		assert.Empty(t, r.cloud.takeCalls(), "it was shown a moment ago")
		time.Sleep(5 * time.Second)
		assert.Len(t, r.balancersOf("uid-1"), 1)
		assert.Equal(t, []string{"list service=uid-1", "get lb-1"}, r.cloud.takeCalls(), "the stream may be broken")

		r.cloud.getBalancer = func(string) (*api.LoadBalancer, error) { return nil, notFound() }
		time.Sleep(5 * time.Second)
		assert.Empty(t, r.balancersOf("uid-1"))
		r.cloud.breakStream()
		time.Sleep(2 * time.Second)
		assert.Empty(t, r.LoadBalancersOf("uid-1"))
		assert.False(t, r.KnowsLoadBalancers())
	})
}

// What a change answers is remembered, and what the cloud contradicts is not.
func TestAnswersToChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"made":                 {want: "[deleting]"},
		"of another version":   {problem(http.StatusPreconditionFailed, api.PreconditionFailed), "[]"},
		"gone":                 {notFound(), "[]"},
		"of another state":     {problem(http.StatusConflict, api.WrongState), "[]"},
		"the cloud is down":    {errors.New("503"), "[active]"},
		"not allowed, as such": {problem(http.StatusConflict, api.Protected), "[active]"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *harness) {
				r.cloud.openStream()
				r.cloud.setBalancers(balancer("lb-1", "uid-1", 1))
				r.balancersOf("uid-1")
				r.cloud.takeCalls()
				r.cloud.change = tc.err
				_, err := r.DeleteLoadBalancer(r.t.Context(), "lb-1")
				require.Equal(t, tc.err, err)
				var states []api.LoadBalancerState
				for _, lb := range r.LoadBalancersOf("uid-1") {
					states = append(states, lb.State)
				}
				assert.Equal(t, tc.want, fmt.Sprint(states))
			})
		})
	}
}

// Others' balancers are not remembered, but may have freed what was scarce. One that loses the cluster's tags
// is another's.
func TestOtherClusters(t *testing.T) {
	inBubble(t, func(r *harness) {
		r.cloud.openStream()
		r.cloud.setBalancers(balancer("lb-1", "uid-1", 1))
		r.balancersOf("uid-1")
		r.takeChanges()
		others := balancer("lb-2", "uid-2", 1)
		others.Tags["cluster"] = "other"
		r.cloud.sendEvent(api.EventDeleted, others)
		assert.Equal(t, []string{"freed"}, r.takeChanges())
		lost := balancer("lb-1", "uid-1", 2)
		lost.Tags = nil
		r.cloud.sendEvent(api.EventUpdated, lost)
		r.cloud.sendEvent(api.EventUpdated, balancer("lb-1", "uid-1", 1)) // late
		assert.ElementsMatch(t, []string{"lb-1 v2", "freed"}, r.takeChanges())
		assert.Empty(t, r.LoadBalancers())
	})
}

func TestRoutes(t *testing.T) {
	inBubble(t, func(r *harness) {
		r.cloud.openStream()
		r.cloud.listRoutes = func() ([]api.Route, error) { return []api.Route{route("r-1", 1)}, nil }
		assert.Len(t, r.routes(), 1)
		_, err := r.CreateRoute(r.t.Context(), api.RouteCreate{Name: "r-2"})
		require.NoError(t, err)
		assert.Len(t, r.routes(), 2)
		r.cloud.sendEvent(api.EventDeleted, route("r-1", 1))
		assert.Len(t, r.routes(), 1)
		assert.Equal(t, []string{"list [" + clusterTag + "]", "create r-2"}, r.cloud.takeCalls())
		_, err = r.ListRoutes(r.t.Context(), client.RouteFilter{})
		require.NoError(t, err)
		assert.Equal(t, []string{"list []"}, r.cloud.takeCalls(), "of all clusters")
		r.cloud.listRoutes = func() ([]api.Route, error) { time.Sleep(time.Second); return nil, nil }
		for range 100 {
			go func() { _, _ = r.ListRoutes(r.t.Context(), client.RouteFilter{}) }()
		}
		time.Sleep(2 * time.Second)
		assert.Equal(t, []string{"list []"}, r.cloud.takeCalls(), "one for all who ask at the time")
		r.RelistCluster()
		time.Sleep(time.Millisecond)
		r.RelistCluster() // during the list
		time.Sleep(2 * time.Second)
		assert.Equal(t, []string{"list [" + clusterTag + "]", "list [" + clusterTag + "]"}, r.cloud.takeCalls())
	})
}

// Without Run every question goes to the cloud.
func TestWithoutRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newHarness(t)
		r.cloud.setBalancers(balancer("lb-1", "uid-1", 1))
		r.cloud.listRoutes = func() ([]api.Route, error) { return []api.Route{route("r-1", 1)}, nil }
		for range 2 {
			assert.Zero(t, r.version("i-1"))
			assert.Empty(t, r.named("node-1"))
			assert.Len(t, r.balancersOf("uid-1"), 1)
			assert.Len(t, r.routes(), 1)
			assert.Equal(t, []string{"get i-1", "listnode-1", "list service=uid-1", "list [" + clusterTag + "]"},
				r.cloud.takeCalls())
		}
	})
}
