package watch

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// serviceWithoutAddress is a Service whose balancer upstream has begun to build.
func serviceWithoutAddress() *corev1.Service {
	svc := serviceWithAddress()
	svc.Status = corev1.ServiceStatus{}
	return svc
}

// newWaitingWorld has so many Services that wait for their address for that reason. Each try
// fails for it, and is counted, until up is set.
func newWaitingWorld(t *testing.T, services int, reason string) (w *watchWorld, tries, up *atomic.Int32) {
	var objects []runtime.Object
	for n := range services {
		svc := serviceWithoutAddress()
		svc.Name, svc.UID = fmt.Sprintf("web-%d", n), types.UID(fmt.Sprintf("uid-%03d", n))
		objects = append(objects, svc)
	}
	w, tries, up = newWatchWorld(t, objects...), &atomic.Int32{}, &atomic.Int32{}
	w.cloud.setUnknown(true) // Nothing is missed of those that have one.
	w.reconciler.ensure = func(svc *corev1.Service, _ []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
		if tries.Add(1); up.Load() == 0 {
			return nil, because(reason)
		}
		return &serviceWithAddress().Status.LoadBalancer, nil
	}
	for _, o := range objects {
		w.setOutcome(o.(*corev1.Service), reason)
	}
	return w, tries, up
}

// limitRoom has each try fail for that reason for which there is no room.
func (w *watchWorld) limitRoom(reason string, tries *atomic.Int32) (room *atomic.Int32) {
	room = &atomic.Int32{}
	w.reconciler.ensure = func(svc *corev1.Service, _ []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
		if tries.Add(1); room.Add(-1) < 0 {
			return nil, because(reason)
		}
		return &serviceWithAddress().Status.LoadBalancer, nil
	}
	return room
}

// countAddresses counts the Services that have an address.
func (w *watchWorld) countAddresses() (n int) {
	all, err := w.api.CoreV1().Services("default").List(w.t.Context(), metav1.ListOptions{})
	require.NoError(w.t, err)
	for _, svc := range all.Items {
		n += len(svc.Status.LoadBalancer.Ingress)
	}
	return n
}

// The cloud is down for longer than upstream's patience: it is tried ever more rarely, and at once
// when it is well again, by which time the cache can list it.
func TestWaitingServicesAfterOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, tries, up := newWaitingWorld(t, 50, contract.ReasonCloudUnavailable)
		w.run()
		advanceTime(10 * time.Minute)
		assert.LessOrEqual(t, tries.Load(), int32(50*11), "it was 50*40")
		up.Store(1)
		w.reportChange(cache.Change{Kind: cache.Recovered})
		synctest.Wait()
		assert.Equal(t, 50, w.countAddresses(), "the clock has not moved")
		before := tries.Load()
		advanceTime(time.Hour)
		assert.Equal(t, before, tries.Load(), "they have their addresses")
	})
}

// Nobody says that a cloud that can be listed is well again. One of many Services that wait for it is tried now and
// then; when that gets an answer all others are tried, though their pauses are long.
func TestOneAnswerWakesAllThatWaitForTheCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, tries, up := newWaitingWorld(t, 50, contract.ReasonCloudUnavailable)
		w.run()
		advanceTime(time.Hour)
		up.Store(1)
		advanceTime(probePeriod + time.Second)
		assert.Equal(t, 50, w.countAddresses())
		before := tries.Load()
		advanceTime(time.Hour)
		assert.Equal(t, before, tries.Load())
	})
}

// What is over its quota is not tried again and again. When something is freed the Services are tried,
// one after the other, as long as there is room.
func TestServicesOverQuotaWaitForWhatIsFreed(t *testing.T) {
	deleted := cache.Change{
		Kind: cache.Deleted, LoadBalancer: &api.LoadBalancer{Tags: api.Tags{contract.TagServiceUID: "gone"}},
	}
	for _, reason := range scarcityReasons {
		synctest.Test(t, func(t *testing.T) {
			w, tries, _ := newWaitingWorld(t, 50, reason)
			room := w.limitRoom(reason, tries)
			w.run()
			advanceTime(time.Hour)
			assert.Zero(t, tries.Load(), "it was 50*240")
			room.Store(1)
			w.reportChange(deleted)
			advanceTime(outOfBandDelay)
			assert.Equal(t, 1, w.countAddresses())
			assert.EqualValues(t, 2, tries.Load(), "the next one finds no room")
			room.Store(20)
			w.reportChange(cache.Change{Kind: cache.Freed}) // A quota was raised.
			advanceTime(outOfBandDelay)
			assert.Equal(t, 21, w.countAddresses())
			assert.EqualValues(t, 23, tries.Load())
			advanceTime(time.Hour)
			assert.EqualValues(t, 23, tries.Load())
		})
	}
}

// What somebody else has is tried once after any number of changes in the project, and after a broken
// stream, which may have lost one.
func TestServicesWaitForWhatIsTaken(t *testing.T) {
	for _, reason := range takenReasons {
		for _, kind := range []cache.ChangeKind{cache.Freed, cache.Recovered} {
			synctest.Test(t, func(t *testing.T) {
				w, tries, up := newWaitingWorld(t, 3, reason)
				w.run()
				advanceTime(time.Hour)
				assert.Zero(t, tries.Load())
				for range 10 {
					w.reportChange(cache.Change{Kind: kind})
					synctest.Wait()
				}
				advanceTime(time.Hour)
				assert.EqualValues(t, 3, tries.Load())
				up.Store(1)
				w.reportChange(cache.Change{Kind: kind})
				advanceTime(outOfBandDelay)
				assert.Equal(t, 3, w.countAddresses())
			})
		}
	}
}

// A cloud that can be listed, and answers few Services, is not asked by all of them for each of its answers.
func TestFewAnswersWakeFewServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiting = 50
		w, tries, _ := newWaitingWorld(t, waiting, contract.ReasonCloudThrottled)
		room := w.limitRoom(contract.ReasonCloudThrottled, tries)
		w.run()
		advanceTime(time.Hour)
		for n := int32(1); n <= 5; n++ {
			before := tries.Load()
			room.Store(1)
			w.reportChange(cache.Change{Kind: cache.Recovered})
			synctest.Wait()
			assert.EqualValues(t, n, w.countAddresses())
			assert.LessOrEqual(t, tries.Load()-before, int32(2*probesPerAnswer), "of %d that wait", waiting)
		}
	})
}

// A balancer that is being built is followed until its address is in the status, and wakes nobody again.
func TestRetriedServiceIsFollowedWhileItsBalancerIsBuilt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, tries, up := newWaitingWorld(t, 50, contract.ReasonCloudUnavailable)
		ready := w.reconciler.ensure
		built := map[types.UID]int{}
		var mu sync.Mutex
		w.reconciler.ensure = func(svc *corev1.Service, nodes []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
			mu.Lock()
			defer mu.Unlock()
			if built[svc.UID]++; up.Load() == 1 && built[svc.UID] < 4 {
				tries.Add(1)
				return nil, cloudproviderapi.NewRetryError("provisioning", retryPeriod)
			}
			return ready(svc, nodes)
		}
		w.run()
		built = map[types.UID]int{}
		tries.Store(0)
		up.Store(1)
		w.reportChange(cache.Change{Kind: cache.Recovered})
		synctest.Wait()
		assert.LessOrEqual(t, tries.Load(), int32(2*50), "who is tried meanwhile is tried once more, and not again and again")
		advanceTime(10 * retryPeriod)
		assert.Equal(t, 50, w.countAddresses())
		assert.EqualValues(t, 4*50, tries.Load(), "each as often as it takes")
	})
}

// The end of a Service waits for the cloud too: for its answer, or for a protection to be lifted.
func TestDeletionWaitsForTheCloud(t *testing.T) {
	now := metav1.Now()
	for name, tc := range map[string]struct {
		reason string
		change cache.Change
		svc    func(svc *corev1.Service)
	}{
		"the protection is lifted": {
			reason: contract.ReasonLoadBalancerProtected,
			change: cache.Change{LoadBalancer: built(t, api.LoadBalancerActive)},
			svc:    func(svc *corev1.Service) { svc.DeletionTimestamp = &now },
		},
		"of another type": {
			reason: contract.ReasonCloudUnavailable, change: cache.Change{Kind: cache.Recovered},
			svc: func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeClusterIP },
		},
	} {
		runInBubble(t, name, func(t *testing.T) {
			svc := serviceWithAddress()
			svc.Finalizers = append(svc.Finalizers, "example.com/other") // It stays for that.
			tc.svc(svc)
			w := newWatchWorld(t, svc)
			w.setOutcome(svc, tc.reason)
			deleted := 0
			w.reconciler.deleted = func(*corev1.Service) error {
				deleted++
				return nil
			}
			w.run()
			w.reportChange(tc.change)
			synctest.Wait()
			assert.Equal(t, 1, deleted, "the clock has not moved")
			left, err := w.api.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, []string{"example.com/other"}, left.Finalizers)
			assert.Empty(t, left.Status.LoadBalancer.Ingress)
		})
	}
}

// Whose address is upstream's to get, or nobody's: the reconciler fails on any
// call.
func TestWaitingServicesLeftAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		cause  string
		change func(svc *corev1.Service)
		late   func(svc *corev1.Service) // what the informer has not seen
	}{
		"no trouble told":     {},
		"the Service's fault": {cause: contract.ReasonInvalidService},
		"without a finalizer": {cause: contract.ReasonCloudUnavailable, change: func(s *corev1.Service) {
			s.Finalizers = nil
		}},
		"made anew since": {cause: contract.ReasonCloudUnavailable, late: func(s *corev1.Service) {
			s.UID = "another"
		}},
		"upstream was quicker": {cause: contract.ReasonCloudUnavailable, late: func(s *corev1.Service) {
			s.Status = serviceWithAddress().Status
		}},
	} {
		t.Run(name, func(t *testing.T) {
			svc := serviceWithoutAddress()
			if tc.change != nil {
				tc.change(svc)
			}
			w := newWatchWorld(t, svc)
			if tc.late != nil {
				late := svc.DeepCopy()
				tc.late(late)
				require.NoError(t, w.api.Tracker().
					Update(corev1.SchemeGroupVersion.WithResource("services"), late, "default"))
			}
			if tc.cause != "" {
				w.setOutcome(svc, tc.cause)
			}
			require.NoError(t, w.syncService(t.Context(), string(svc.UID)))
			assert.Empty(t, w.takeWrites())
		})
	}
}

// Of an invalid Service the targets are repaired, once for each difference, and nothing else.
func TestTargetsOfAnInvalidServiceAreRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := serviceWithAddress()
		svc.Annotations[annotations.Prefix+annotations.ProxyProtocol] = "v9"
		w := newWatchWorld(t, svc, node("fakecloud://i-1"))
		lb := built(t, api.LoadBalancerActive)
		lb.Listeners = nil
		w.cloud.setBalancers(*lb)
		ensured := 0
		w.reconciler.ensure = func(*corev1.Service, []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
			ensured++
			lb.Targets = api.Targets{{InstanceID: "i-1"}}
			w.cloud.setBalancers(*lb)
			return nil, because(contract.ReasonInvalidService)
		}
		sync := func() {
			require.NoError(t, w.syncService(t.Context(), string(svc.UID)))
			advanceTime(overdueDelay + time.Second)
		}
		sync()
		require.Zero(t, ensured, "upstream is given a minute")
		sync()
		require.Equal(t, 1, ensured)
		sync()
		sync()
		require.Equal(t, 1, ensured, "nothing else is repaired")
		w.cloud.setBalancers()
		sync()
		sync()
		require.Equal(t, 1, ensured, "nor created anew")
	})
}
