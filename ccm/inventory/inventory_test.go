package inventory_test

// What is answered when, at which price, against a cloud that fails the test at
// any call that was not to be made.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ccmlab/ccmlab/ccm/inventory"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOneListForAllWhoAskAtOnce(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		var all []api.Instance
		for i := range 1000 {
			all = append(all, instance(fmt.Sprintf("i-%04d", i), 1, api.InstanceRunning))
		}
		r.cloud.listInstances = func() ([]api.Instance, error) { time.Sleep(time.Second); return all, nil }
		first, leave := context.WithCancel(r.t.Context())
		var asking sync.WaitGroup
		asking.Go(func() { // The one whose question has the list made goes away.
			_, err := r.Instance(first, "i-0000")
			assert.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		for i := range all {
			asking.Go(func() { assert.EqualValues(t, 1, r.instanceVersion(all[i].ID)) })
			asking.Go(func() {
				assert.Equal(t, []api.Instance{all[i]}, r.named(all[i].Name))
			})
		}
		leave()
		asking.Wait()
		assert.EqualValues(t, 1, r.cloud.lists.Load())
		assert.EqualValues(t, 1, r.instanceVersion("i-0001"))
		assert.Equal(t, map[string]int{"instance listed": 2001, "instance hit": 1}, r.asked)
	})
}

// Without a stream a list is current for MaxAge, and is made only for a question.
func TestWithoutAStreamListsAreCurrentForMaxAge(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.cloud.setInstances(instance("i-1", 1, api.InstanceRunning))
		assert.EqualValues(t, 1, r.instanceVersion("i-1"))
		r.cloud.setInstances(instance("i-1", 2, api.InstanceRunning))
		time.Sleep(inventory.DefaultMaxAge - time.Millisecond)
		assert.EqualValues(t, 1, r.instanceVersion("i-1"))
		assert.EqualValues(t, 1, r.cloud.lists.Load())
		time.Sleep(time.Millisecond)
		assert.EqualValues(t, 2, r.instanceVersion("i-1"))
		time.Sleep(time.Hour)
		assert.EqualValues(t, 2, r.cloud.lists.Load())
		assert.Equal(t, []string{"listed anew", "i-1 v2 running"}, r.takeChanges())
	})
}

func TestAnOpenStreamKeepsCurrent(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.runWithInstances(instance("i-1", 1, api.InstanceRunning))
		r.cloud.sendEvent(api.EventUpdated, instance("i-1", 2, api.InstanceStopping))
		r.cloud.sendEvent(api.EventCreated, instance("i-2", 1, api.InstancePending))
		time.Sleep(inventory.DefaultResync - time.Second)
		assert.EqualValues(t, 2, r.instanceVersion("i-1"))
		assert.EqualValues(t, 1, r.instanceVersion("i-2"))
		assert.EqualValues(t, 1, r.cloud.lists.Load())
		assert.Equal(t, []string{"listed anew", "i-1 v2 stopping", "i-2 v1 pending"}, r.takeChanges())

		r.cloud.setInstances(instance("i-1", 3, api.InstanceStopped), instance("i-2", 1, api.InstancePending))
		time.Sleep(time.Second) // Everything is listed again all the same, with nobody's asking.
		assert.Equal(t, []string{"i-1 v3 stopped"}, r.takeChanges())
		time.Sleep(inventory.DefaultResync)
		synctest.Wait()
		assert.EqualValues(t, 3, r.cloud.lists.Load())
	})
}

// A list that begins before the stream is open may miss what happens between
// the two: it waits for it, but not for long.
func TestListsWaitForTheStreamToOpen(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.cloud.setInstances(instance("i-1", 1, api.InstanceRunning))
		r.run()
		var asking sync.WaitGroup
		asking.Go(func() { assert.EqualValues(t, 1, r.instanceVersion("i-1")) })
		synctest.Wait()
		assert.Zero(t, r.cloud.lists.Load())
		r.cloud.openStream()
		asking.Wait()
		time.Sleep(time.Minute)
		assert.EqualValues(t, 1, r.instanceVersion("i-1"))
		assert.EqualValues(t, 1, r.cloud.lists.Load())
	})
	inBubble(t, nil, func(r *harness) {
		r.cloud.setInstances(instance("i-1", 1, api.InstanceRunning))
		r.run()
		assert.EqualValues(t, 1, r.instanceVersion("i-1"), "with a stream that does not open")
		r.cloud.openStream()
		time.Sleep(inventory.DefaultMaxAge)
		assert.EqualValues(t, 1, r.instanceVersion("i-1"))
		assert.EqualValues(t, 2, r.cloud.lists.Load(), "the first was before the stream opened")
	})
}

func TestABrokenStreamIsPolledFor(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.runWithInstances(instance("i-1", 1, api.InstanceRunning))
		time.Sleep(time.Minute)
		r.cloud.breakStream()
		r.cloud.setInstances(instance("i-1", 2, api.InstanceStopped))
		assert.EqualValues(t, 2, r.instanceVersion("i-1"))
		assert.EqualValues(t, 2, r.cloud.lists.Load())
		time.Sleep(inventory.DefaultMaxAge)
		assert.EqualValues(t, 2, r.instanceVersion("i-1"))
		assert.EqualValues(t, 3, r.cloud.lists.Load())
		r.cloud.openStream() // And what happened meanwhile is on its way.
		time.Sleep(inventory.DefaultMaxAge)
		assert.EqualValues(t, 2, r.instanceVersion("i-1"))
		time.Sleep(time.Minute)
		assert.EqualValues(t, 2, r.instanceVersion("i-1"))
		assert.EqualValues(t, 4, r.cloud.lists.Load(), "one for its having been broken")
	})
}

func TestUnknownNamesCostAListASecond(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.cloud.setInstances(instance("i-1", 1, api.InstanceRunning))
		r.runWithOpenStream()
		for second := range int32(3) {
			var asking sync.WaitGroup
			for i := range 1000 {
				asking.Go(func() {
					assert.Empty(t, r.named(fmt.Sprint("unknown-", i)))
				})
			}
			asking.Wait()
			assert.Equal(t, second+1, r.cloud.lists.Load())
			time.Sleep(time.Second)
		}
		// No event tells.
		r.cloud.setInstances(instance("i-1", 1, api.InstanceRunning), instance("i-2", 1, api.InstanceRunning))
		assert.Len(t, r.named("node-i-2"), 1)
		r.cloud.listInstances = func() ([]api.Instance, error) { return nil, errors.New("503") }
		time.Sleep(time.Second)
		_, err := r.InstancesNamed(r.t.Context(), "unknown")
		require.ErrorContains(t, err, "503", "that there is none must be seen")
		assert.Len(t, r.named("node-i-2"), 1, "what is known is current")
	})
}

func TestOlderNewsChangeNothing(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.runWithInstances(instance("i-1", 5, api.InstanceRunning), instance("i-2", 5, api.InstanceRunning))
		r.takeChanges()
		for v := range int64(5) {
			r.cloud.sendEvent(api.EventUpdated, instance("i-1", v+1, api.InstancePending))
		}
		assert.Empty(t, r.takeChanges())
		r.cloud.sendEvent(api.EventUpdated, instance("i-1", 6, api.InstanceTerminated))
		r.cloud.sendEvent(api.EventDeleted, instance("i-2", 5, api.InstanceRunning))
		r.cloud.sendEvent(api.EventUpdated, instance("i-2", 6, api.InstanceRunning))
		assert.Equal(t, []string{"i-1 v6 terminated gone", "i-2 v5 running gone"}, r.takeChanges())
		r.cloud.breakStream()
		time.Sleep(time.Minute)
		assert.EqualValues(t, 6, r.instanceVersion("i-1"), "after a stale list")
		assert.Zero(t, r.instanceVersion("i-2"), "a deleted one does not come back")
		assert.Len(t, r.named("node-i-1"), 1, "ended ones are shown")
		assert.Empty(t, r.takeChanges())
	})
}

// That a list lacks something proves nothing: whoever asks for it has to ask the
// cloud, and the subscribers hear that.
func TestWhatAListLacksIsMissingAndNotGone(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		good := []api.Instance{
			instance("i-1", 3, api.InstanceRunning), instance("i-2", 1, api.InstanceRunning),
			instance("i-3", 9, api.InstanceTerminated),
		}
		r.cloud.setInstances(good...)
		assert.EqualValues(t, 3, r.instanceVersion("i-1"))
		assert.Equal(t, []string{"listed anew"}, r.takeChanges())
		r.cloud.setInstances()
		time.Sleep(time.Minute)
		assert.Zero(t, r.instanceVersion("i-1"))
		assert.Empty(t, r.named("node-i-2"))
		assert.Equal(t, []string{"i-1 v3 running missing", "i-2 v1 running missing"}, r.takeChanges())
		time.Sleep(time.Minute)
		assert.Zero(t, r.instanceVersion("i-1"))
		assert.Empty(t, r.takeChanges(), "it is said once")
		r.cloud.setInstances(instance("i-1", 2, api.InstancePending), good[1])
		time.Sleep(time.Minute)
		assert.EqualValues(t, 3, r.instanceVersion("i-1"), "an older version does not take its place")
		assert.Equal(t, []string{"i-1 v3 running", "i-2 v1 running"}, r.takeChanges())
	})
}

// An event that comes while a list is made is of what the list may be too old for.
func TestEventsDuringAList(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.cloud.listInstances = func() ([]api.Instance, error) {
			time.Sleep(time.Second)
			return []api.Instance{instance("i-1", 1, api.InstanceRunning), instance("i-2", 1, api.InstanceRunning)}, nil
		}
		r.runWithOpenStream()
		var asking sync.WaitGroup
		asking.Go(func() { assert.EqualValues(t, 2, r.instanceVersion("i-1")) })
		synctest.Wait()
		r.cloud.sendEvent(api.EventUpdated, instance("i-1", 2, api.InstanceStopped))
		r.cloud.sendEvent(api.EventDeleted, instance("i-2", 2, api.InstanceTerminated))
		r.cloud.sendEvent(api.EventCreated, instance("i-3", 1, api.InstancePending))
		asking.Wait()
		assert.Zero(t, r.instanceVersion("i-2"))
		assert.EqualValues(t, 1, r.instanceVersion("i-3"))
		assert.Equal(
			t, []string{"i-1 v2 stopped", "i-2 v2 terminated gone", "i-3 v1 pending", "listed anew"}, r.takeChanges(),
		)
	})
}

// When events were lost, or the cloud's data is another's, versions tell nothing.
func TestLostEventsHaveEverythingListedAnew(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.runWithInstances(instance("i-1", 9, api.InstanceRunning), instance("i-2", 9, api.InstanceRunning))
		r.cloud.sendEvent(api.EventDeleted, instance("i-2", 9, api.InstanceRunning))
		r.cloud.setInstances(instance("i-1", 4, api.InstanceStopped), instance("i-2", 4, api.InstanceRunning))
		r.cloud.breakStream()
		r.takeChanges()
		r.cloud.refuseStream(api.EventsExpired)
		r.cloud.openStream() // Nobody asks; those who follow want to know.
		assert.Equal(t, []string{"listed anew"}, r.takeChanges())
		time.Sleep(time.Minute)
		assert.EqualValues(t, 4, r.instanceVersion("i-1"))
		assert.EqualValues(t, 4, r.instanceVersion("i-2"))
		assert.EqualValues(t, 2, r.cloud.lists.Load())
	})
}

// A list that was under way when all was forgotten is of what was before.
func TestAListFromBeforeIsNotTakenIn(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		var version atomic.Int64
		version.Store(9)
		r.cloud.listInstances = func() ([]api.Instance, error) {
			was := version.Load()
			time.Sleep(time.Second)
			return []api.Instance{instance("i-1", was, api.InstanceRunning)}, nil
		}
		r.runWithOpenStream()
		var asking sync.WaitGroup
		asking.Go(func() { assert.EqualValues(t, 4, r.instanceVersion("i-1")) })
		synctest.Wait()
		version.Store(4)
		r.cloud.refuseStream(api.EventsExpired)
		r.cloud.openStream()
		asking.Wait()
	})
}

func TestRefusedStreamsAreTriedAgain(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.cloud.setInstances(instance("i-1", 1, api.InstanceRunning))
		r.run()
		for range 3 {
			r.cloud.refuseStream(api.Unauthenticated)
			assert.EqualValues(t, 1, r.instanceVersion("i-1"))
			time.Sleep(time.Second)
			synctest.Wait()
		}
		r.cloud.openStream()
		assert.EqualValues(t, 1, r.instanceVersion("i-1"))
	})
}

func TestErrorsOfAListGoToWhoAsked(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		fail := errors.New("503")
		r.cloud.listInstances = func() ([]api.Instance, error) { return nil, fail }
		r.cloud.listRoutes = func() ([]api.Route, error) { return nil, fail }
		_, err := r.Instance(r.t.Context(), "i-1")
		require.ErrorIs(t, err, fail)
		_, err = r.InstancesNamed(r.t.Context(), "node-i-1")
		require.ErrorIs(t, err, fail)
		_, err = r.Routes(r.t.Context())
		require.ErrorIs(t, err, fail)
		assert.EqualValues(t, 2, r.cloud.lists.Load(), "one of each kind")
		r.cloud.listInstances = func() ([]api.Instance, error) {
			return []api.Instance{instance("i-1", 1, api.InstanceRunning)}, nil
		}
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 1, r.instanceVersion("i-1"))
		r.cloud.listInstances = func() ([]api.Instance, error) { return nil, fail }
		assert.EqualValues(t, 1, r.instanceVersion("i-1"), "current for a while")
		time.Sleep(inventory.DefaultMaxAge)
		_, err = r.Instance(r.t.Context(), "i-1")
		require.ErrorIs(t, err, fail)
	})
}

// A list that fails in the background is tried again, at a pace.
func TestTheKeeperTriesAgain(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		var up atomic.Bool
		r.cloud.listBalancers = func() ([]api.LoadBalancer, error) {
			if !up.Load() {
				return nil, errors.New("503")
			}
			return []api.LoadBalancer{balancer("lb-1", "uid-1", 1)}, nil
		}
		r.runWithOpenStream()
		assert.Empty(t, r.LoadBalancers())
		for range 100 {
			r.LoadBalancers()
			time.Sleep(100 * time.Millisecond)
		}
		assert.LessOrEqual(t, r.cloud.lists.Load(), int32(6), "at growing intervals")
		up.Store(true)
		time.Sleep(12 * time.Second)
		synctest.Wait()
		assert.Len(t, r.LoadBalancers(), 1)
	})
}

// Each kind is listed when it is first asked for, balancers without anybody's
// waiting.
func TestKindsAreListedWhenNeeded(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.runWithOpenStream()
		time.Sleep(2 * inventory.DefaultResync)
		r.cloud.listRoutes = func() ([]api.Route, error) { return []api.Route{route("r-2", 1), route("r-1", 1)}, nil }
		assert.Equal(t, []api.Route{route("r-1", 1), route("r-2", 1)}, r.routes())
		r.cloud.sendEvent(api.EventDeleted, route("r-1", 1))
		r.cloud.sendEvent(api.EventCreated, route("r-3", 1))
		assert.Equal(t, []api.Route{route("r-2", 1), route("r-3", 1)}, r.routes())

		r.cloud.setBalancers(balancer("lb-1", "uid-1", 1), balancer("lb-2", "uid-2", 1))
		assert.Empty(t, r.LoadBalancersOf("uid-1"))
		synctest.Wait()
		assert.Equal(t, []api.LoadBalancer{balancer("lb-1", "uid-1", 1)}, r.LoadBalancersOf("uid-1"))
		assert.Len(t, r.LoadBalancers(), 2)
		assert.EqualValues(t, 2, r.cloud.lists.Load())
		assert.Equal(
			t, map[string]int{"route listed": 1, "route hit": 1, "load-balancer asked": 1, "load-balancer hit": 2},
			r.asked,
		)
	})
}

// Balancers that may be out of date are not there.
func TestBalancersThatMayBeOutOfDate(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		lb := balancer("lb-1", "uid-1", 1)
		r.cloud.setBalancers(lb)
		r.runWithOpenStream()
		r.LoadBalancers()
		synctest.Wait()
		assert.Len(t, r.LoadBalancers(), 1)
		time.Sleep(time.Minute)
		r.cloud.breakStream()
		assert.Empty(t, r.LoadBalancersOf("uid-1"))
		synctest.Wait()
		assert.Len(t, r.LoadBalancersOf("uid-1"), 1, "listed again")
		time.Sleep(inventory.DefaultMaxAge)
		r.NoteLoadBalancer(balancer("lb-1", "uid-1", 2))
		assert.EqualValues(t, 2, r.LoadBalancersOf("uid-1")[0].Version)
	})
}

// An answer may have lacked an optional field, which no event tells.
func TestALaterAnswerOfTheSameVersionIsBelieved(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		whole := balancer("lb-1", "uid-1", 2)
		whole.HealthCheck = &api.HealthCheck{Protocol: api.HealthCheckTCP}
		r.cloud.setBalancers(balancer("lb-1", "uid-1", 2))
		r.runWithOpenStream()
		r.LoadBalancersOf("uid-1")
		synctest.Wait()
		assert.Nil(t, r.LoadBalancersOf("uid-1")[0].HealthCheck)
		r.takeChanges()
		r.NoteLoadBalancer(whole)
		r.NoteLoadBalancer(whole)
		assert.Equal(t, []api.LoadBalancer{whole}, r.LoadBalancersOf("uid-1"))
		assert.Equal(t, []string{"lb-1 v2"}, r.takeChanges(), "news once")
	})
}

func TestNotesAreTakenIn(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.cloud.setBalancers()
		r.cloud.listRoutes = func() ([]api.Route, error) { return nil, nil }
		r.runWithOpenStream()
		r.NoteLoadBalancer(balancer("lb-1", "uid-1", 2))
		r.NoteLoadBalancer(balancer("lb-1", "uid-1", 1))
		stranger := balancer("lb-2", "uid-1", 1)
		stranger.Tags = nil
		r.NoteLoadBalancer(stranger)
		assert.Equal(t, []string{"lb-1 v2"}, r.takeChanges())
		assert.Equal(t, []api.LoadBalancer{balancer("lb-1", "uid-1", 2)}, r.LoadBalancersOf("uid-1"))
		synctest.Wait()
		assert.Equal(t, []string{"lb-1 v2 missing", "listed anew"}, r.takeChanges())
		r.NoteLoadBalancer(balancer("lb-1", "uid-1", 2))
		assert.Len(t, r.LoadBalancersOf("uid-1"), 1)
		r.cloud.sendEvent(api.EventDeleted, balancer("lb-1", "uid-1", 3))
		r.NoteLoadBalancer(balancer("lb-1", "uid-1", 2))
		assert.Empty(t, r.LoadBalancersOf("uid-1"))

		r.routes()
		r.NoteRoute(route("r-1", 1))
		assert.Equal(t, []api.Route{route("r-1", 1)}, r.routes())
	})
}

// A balancer that loses the cluster's tag is not the cluster's any more.
func TestATagThatIsTakenAway(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.cloud.setBalancers(balancer("lb-1", "uid-1", 1))
		r.runWithOpenStream()
		r.LoadBalancers()
		synctest.Wait()
		stranger := balancer("lb-1", "uid-1", 2)
		delete(stranger.Tags, "cluster")
		r.takeChanges()
		r.cloud.sendEvent(api.EventUpdated, stranger)
		assert.Empty(t, r.LoadBalancers())
		assert.Equal(t, []string{"lb-1 v2 missing", "freed"}, r.takeChanges())
		time.Sleep(inventory.DefaultResync) // A stale list.
		assert.Empty(t, r.LoadBalancers())
		r.cloud.sendEvent(api.EventUpdated, balancer("lb-1", "uid-2", 3))
		assert.Empty(t, r.LoadBalancersOf("uid-1"))
		assert.Len(t, r.LoadBalancersOf("uid-2"), 1)
	})
}

// When the cluster learns its UID, balancers that carry it are listed, whatever name they
// have; others of the name turn out to be strangers'. A list from before is not believed.
func TestRelistCluster(t *testing.T) {
	var known atomic.Bool
	change := func(o *inventory.Options) {
		o.ClusterFilters = func() []string {
			if known.Load() {
				return []string{"cluster=lab", "uid=k"}
			}
			return []string{"cluster=lab"}
		}
		o.InCluster = func(tags api.Tags) bool {
			return tags["uid"] == "k" || isInCluster(tags) && (tags["uid"] == "" || !known.Load())
		}
	}
	inBubble(t, change, func(r *harness) {
		plain, renamed, stranger := balancer("lb-1", "s-1", 1), balancer("lb-2", "s-2", 1), balancer("lb-3", "s-3", 1)
		renamed.Tags["cluster"], renamed.Tags["uid"], stranger.Tags["uid"] = "old", "k", "other"
		both := balancer("lb-4", "s-4", 1)
		both.Tags["uid"] = "k"
		var filters []string
		r.cloud.balancersBy = func(tags []string) ([]api.LoadBalancer, error) {
			filters = append(filters, tags...)
			if tags[0] == "uid=k" {
				return []api.LoadBalancer{renamed, both}, nil
			}
			return []api.LoadBalancer{plain, stranger, both}, nil
		}
		r.runWithOpenStream()
		r.LoadBalancers()
		synctest.Wait()
		assert.Equal(t, []string{"lb-1", "lb-3", "lb-4"}, idsOf(r.LoadBalancers()))
		r.takeChanges()
		known.Store(true)
		r.RelistCluster()
		synctest.Wait()
		assert.Equal(t, []string{"lb-1", "lb-2", "lb-4"}, idsOf(r.LoadBalancers()))
		assert.Equal(t, []string{"lb-3 v1 missing", "listed anew"}, r.takeChanges())
		assert.Equal(t, []string{"cluster=lab", "cluster=lab", "uid=k"}, filters)
	})
}

func idsOf(balancers []api.LoadBalancer) []string {
	var ids []string
	for _, lb := range balancers {
		ids = append(ids, lb.ID)
	}
	return ids
}

func TestOffAsksTheCloud(t *testing.T) {
	inBubble(t, func(o *inventory.Options) { o.Off = true }, func(r *harness) {
		one := instance("i-1", 1, api.InstanceRunning)
		gone := errors.New("404")
		r.cloud.getInstance = func(id string) (*api.Instance, error) {
			if id != "i-1" {
				return nil, gone
			}
			return &one, nil
		}
		r.cloud.named = func(string) ([]api.Instance, error) { return []api.Instance{one}, nil }
		r.cloud.listRoutes = func() ([]api.Route, error) { return []api.Route{route("r-1", 1)}, nil }
		ctx, stop := context.WithCancel(r.t.Context())
		done := make(chan struct{})
		go func() { r.Run(ctx); close(done) }()
		for range 2 {
			assert.EqualValues(t, 1, r.instanceVersion("i-1"))
			_, err := r.Instance(r.t.Context(), "i-2")
			require.ErrorIs(t, err, gone)
			assert.Len(t, r.named("x"), 1)
			assert.Len(t, r.routes(), 1)
			r.NoteLoadBalancer(balancer("lb-1", "uid-1", 1))
			assert.Empty(t, r.LoadBalancersOf("uid-1"))
			assert.Empty(t, r.LoadBalancers())
		}
		stop()
		<-done
		assert.Equal(t, map[string]int{"instance asked": 6, "route asked": 2, "load-balancer asked": 4}, r.asked)
		assert.Empty(t, r.takeChanges())
	})
}

// A caller may do what it likes with an answer, and so may a subscriber.
func TestAnswersAreCopies(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.cloud.setInstances(instance("i-1", 1, api.InstanceRunning))
		r.Subscribe(func(c inventory.Change) {
			if c.Instance != nil {
				c.Instance.Tags["role"] = "x"
			}
		})
		r.runWithOpenStream()
		spoil := func(i *api.Instance) { i.Tags["role"], i.Addresses[0].IP, i.State = "x", "y", "z" }
		i, err := r.Instance(r.t.Context(), "i-1")
		require.NoError(t, err)
		spoil(i)
		named := r.named("node-i-1")
		assert.Equal(t, instance("i-1", 1, api.InstanceRunning), named[0])
		spoil(&named[0])
		r.cloud.sendEvent(api.EventUpdated, instance("i-1", 2, api.InstanceStopped))
		i, err = r.Instance(r.t.Context(), "i-1")
		require.NoError(t, err)
		assert.Equal(t, instance("i-1", 2, api.InstanceStopped), *i)
	})
}

// A subscriber may ask, and note, while it is told.
func TestSubscribersMayAsk(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.cloud.setBalancers()
		var saw []int64
		r.Subscribe(func(c inventory.Change) {
			if c.LoadBalancer == nil {
				return
			}
			saw = append(saw, c.LoadBalancer.Version)
			if v := c.LoadBalancer.Version; v < 5 {
				r.NoteLoadBalancer(balancer("lb-1", "uid-1", v+1))
				assert.Equal(t, v+1, r.LoadBalancersOf("uid-1")[0].Version)
			}
		})
		r.NoteLoadBalancer(balancer("lb-1", "uid-1", 1))
		assert.Equal(t, []int64{1, 2, 3, 4, 5}, saw)
	})
}

// What was lost long ago takes no memory: nothing is stale enough to show it.
func TestLossesAreForgottenInTheEnd(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.cloud.setInstances(instance("i-1", 5, api.InstanceRunning))
		assert.EqualValues(t, 5, r.instanceVersion("i-1"))
		r.cloud.setInstances()
		time.Sleep(time.Minute)
		assert.Zero(t, r.instanceVersion("i-1"))
		time.Sleep(2 * time.Hour)
		assert.Zero(t, r.instanceVersion("i-1"))
		r.cloud.setInstances(instance("i-1", 4, api.InstanceRunning))
		time.Sleep(time.Minute)
		assert.EqualValues(t, 4, r.instanceVersion("i-1"))
	})
}

// Run ends with its context, and so do lists that are under way.
func TestRunEndsPromptly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &hangingCloud{fakeCloud: fakeCloud{t: t, stream: make(chan step)}}
		v := inventory.New(cloud, inventory.Options{})
		ctx, stop := context.WithCancel(t.Context())
		began := time.Now()
		done := make(chan struct{})
		go func() { v.Run(ctx); close(done) }()
		synctest.Wait()
		cloud.openStream()
		v.LoadBalancers() // Has the keeper list.
		asked := make(chan error, 1)
		go func() { _, err := v.Instance(t.Context(), "i-1"); asked <- err }()
		synctest.Wait()
		stop()
		<-done
		require.ErrorIs(t, <-asked, context.Canceled)
		assert.Equal(t, began, time.Now())
	})
}

// hangingCloud is a cloud that answers no list.
type hangingCloud struct{ fakeCloud }

func (h *hangingCloud) ListInstances(ctx context.Context, _ client.InstanceFilter) ([]api.Instance, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (h *hangingCloud) ListLoadBalancers(ctx context.Context, _ client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
