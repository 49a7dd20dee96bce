package watch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// crowd are Services that wait for their address.
type crowd struct {
	*world
	tries int
	room  int // for how many tries there is room; the others fail
}

// newCrowd has so many Services that wait for that reason.
func newCrowd(t *testing.T, services int, reason string) *crowd {
	var objects []runtime.Object
	for n := range services {
		svc := serviceWithoutAddress()
		svc.Name, svc.UID = fmt.Sprintf("web-%d", n), types.UID(fmt.Sprintf("uid-%03d", n))
		objects = append(objects, svc)
	}
	c := &crowd{world: newWorld(t, objects...)}
	c.memory.setUnknown(true) // Nothing is missed of those that have one.
	c.balancers.ensure = func(*corev1.Service) (*corev1.LoadBalancerStatus, error) {
		if c.tries++; c.room == 0 {
			return nil, because(reason)
		}
		c.room--
		return statusAt("127.30.64.1"), nil
	}
	for _, o := range objects {
		c.setOutcome(o.(*corev1.Service), reason)
	}
	c.run()
	return c
}

// report has room for so many tries, reports a change of that kind and lets time pass.
func (c *crowd) report(room int, kind cache.ChangeKind, within time.Duration) {
	c.room = room
	c.reportChange(cache.Change{
		Kind: kind, LoadBalancer: &api.LoadBalancer{Metadata: api.Metadata{Tags: api.Tags{contract.TagServiceUID: "gone"}}},
	})
	advanceTime(within)
}

// check tells how many Services have an address by now, after how many tries.
func (c *crowd) check(addresses, tries int) {
	c.t.Helper()
	all, err := c.api.CoreV1().Services("default").List(c.t.Context(), metav1.ListOptions{})
	require.NoError(c.t, err)
	for _, svc := range all.Items {
		addresses -= len(svc.Status.LoadBalancer.Ingress)
	}
	assert.Zero(c.t, addresses, "they have no address")
	assert.Equal(c.t, tries, c.tries)
}

// The cloud is down for longer than upstream's patience: it is tried ever more rarely. When it is well again all are
// tried, though their pauses are long: at once if the cache can list it again, and else when one that is tried now and
// then gets an answer.
func TestWaitingServicesAfterOutage(t *testing.T) {
	for kind, within := range map[cache.ChangeKind]time.Duration{
		cache.Recovered: 0, cache.Changed: probePeriod + time.Second,
	} {
		runInBubble(t, fmt.Sprint(kind), func(t *testing.T) {
			c := newCrowd(t, 50, contract.ReasonCloudUnavailable)
			advanceTime(10 * time.Minute)
			before := c.tries
			assert.LessOrEqual(t, before, 50*11, "it was 50*40")
			c.report(50, kind, within)
			c.check(50, before+50)
			advanceTime(time.Hour)
			c.check(50, before+50)
		})
	}
}

// What is over its quota is not tried again and again. When something is freed the Services are tried, one after the
// other, as long as there is room.
func TestServicesOverQuotaWaitForWhatIsFreed(t *testing.T) {
	for _, reason := range scarcityReasons {
		runInBubble(t, reason, func(t *testing.T) {
			c := newCrowd(t, 50, reason)
			advanceTime(time.Hour)
			c.check(0, 0)
			c.report(1, cache.Deleted, outOfBandDelay)
			c.check(1, 2) // The next one finds no room.
			c.report(20, cache.Freed, outOfBandDelay)
			c.check(21, 23)
			advanceTime(time.Hour)
			c.check(21, 23)
		})
	}
}

// What somebody else has is tried once after any number of changes in the project, and after a broken stream, which may
// have lost one.
func TestServicesWaitForWhatIsTaken(t *testing.T) {
	for _, reason := range takenReasons {
		for _, kind := range []cache.ChangeKind{cache.Freed, cache.Recovered} {
			runInBubble(t, fmt.Sprint(reason, " ", kind), func(t *testing.T) {
				c := newCrowd(t, 3, reason)
				advanceTime(time.Hour)
				c.check(0, 0)
				for range 10 {
					c.report(0, kind, 0)
				}
				advanceTime(time.Hour)
				c.check(0, 3)
				c.report(3, kind, outOfBandDelay)
				c.check(3, 6)
			})
		}
	}
}

// A cloud that can be listed, and answers few Services, is not asked by all of them for each of its answers.
func TestFewAnswersWakeFewServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 50, contract.ReasonCloudThrottled)
		advanceTime(time.Hour)
		for n := 1; n <= 5; n++ {
			before := c.tries
			c.report(1, cache.Recovered, 0)
			assert.LessOrEqual(t, c.tries-before, 2*probesPerAnswer)
			c.check(n, c.tries)
		}
	})
}

// A balancer that is being built is followed until its address is in the status, and wakes nobody again.
func TestRetriedServiceIsFollowedWhileItsBalancerIsBuilt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 50, contract.ReasonCloudUnavailable)
		c.tries = 0
		tries := map[types.UID]int{}
		c.balancers.ensure = func(svc *corev1.Service) (*corev1.LoadBalancerStatus, error) {
			c.tries++
			if tries[svc.UID]++; tries[svc.UID] < 4 {
				return nil, errPending
			}
			return statusAt("127.30.64.1"), nil
		}
		c.report(0, cache.Recovered, 0)
		assert.LessOrEqual(t, c.tries, 2*50, "who is tried meanwhile is tried once more, and not again and again")
		advanceTime(10 * errPending.RetryAfter())
		c.check(50, 4*50) // Each as often as it takes.
	})
}

// The end of a Service waits for the cloud too: for its answer, or for a protection to be lifted.
func TestDeletionWaitsForTheCloud(t *testing.T) {
	lb, deleting, retyped := built(t), serviceWithAddress(), serviceWithAddress()
	deleting.DeletionTimestamp, retyped.Spec.Type = new(metav1.Now()), corev1.ServiceTypeClusterIP
	for reason, tc := range map[string]struct {
		change cache.Change
		svc    *corev1.Service
	}{
		contract.ReasonLoadBalancerProtected: {cache.Change{LoadBalancer: &lb}, deleting},
		contract.ReasonCloudUnavailable:      {cache.Change{Kind: cache.Recovered}, retyped},
	} {
		runInBubble(t, reason, func(t *testing.T) {
			tc.svc.Finalizers = append(tc.svc.Finalizers, "example.com/other") // It stays for that.
			w, deleted := newWorld(t, tc.svc), 0
			w.balancers.delete = func(*corev1.Service) error { deleted++; return nil }
			w.run()
			w.setOutcome(tc.svc, reason)
			w.reportChange(tc.change)
			synctest.Wait()
			assert.Equal(t, 1, deleted, "the clock has not moved")
			left := w.getService()
			assert.Equal(t, []string{"example.com/other"}, left.Finalizers)
			assert.Empty(t, left.Status.LoadBalancer.Ingress)
		})
	}
}

// Whose address is upstream's to get, or nobody's. A call panics.
func TestWaitingServicesLeftAlone(t *testing.T) {
	const unavailable = contract.ReasonCloudUnavailable
	unfinalized, anew, plain := serviceWithoutAddress(), serviceWithoutAddress(), serviceWithoutAddress()
	unfinalized.Finalizers, anew.UID, plain.Spec.Type = nil, "another", corev1.ServiceTypeClusterIP
	for name, tc := range map[string]struct {
		reason         string
		informed, late *corev1.Service // as the informer and the API server have it
	}{
		"no trouble told":     {"", serviceWithoutAddress(), serviceWithoutAddress()},
		"the Service's fault": {contract.ReasonInvalidService, serviceWithoutAddress(), serviceWithoutAddress()},
		"without a finalizer": {unavailable, unfinalized, unfinalized},
		"made anew since":     {unavailable, serviceWithoutAddress(), anew},
		"made to stay":        {unavailable, plain, serviceWithoutAddress()},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.late)
			w.inform(tc.informed)
			if tc.reason != "" {
				w.setOutcome(serviceWithoutAddress(), tc.reason)
			}
			require.NoError(t, w.syncService())
			assert.Empty(t, w.takeWrites())
		})
	}
}

// Of an invalid Service the targets are repaired, once for each difference, and nothing else.
func TestTargetsOfAnInvalidServiceAreRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := serviceWithAddress()
		svc.Annotations[annotations.Prefix+annotations.ProxyProtocol] = "v9"
		w := newWorld(t, svc, node("fakecloud://i-1"))
		lb, ensured := built(t), 0
		lb.Listeners = nil
		w.memory.set(lb)
		w.balancers.ensure = func(*corev1.Service) (*corev1.LoadBalancerStatus, error) {
			ensured++
			lb.Targets = api.Targets{{InstanceID: "i-1"}}
			w.memory.set(lb)
			return nil, because(contract.ReasonInvalidService)
		}
		syncAfter := func(waits ...time.Duration) {
			for _, wait := range waits {
				advanceTime(wait)
				require.NoError(t, w.syncService())
			}
		}
		syncAfter(0, overdueDelay-time.Second)
		require.Zero(t, ensured, "upstream is given a minute")
		syncAfter(time.Second, time.Hour)
		require.Equal(t, 1, ensured, "nothing else is repaired")
		w.memory.set()
		syncAfter(0, time.Hour)
		require.Equal(t, 1, ensured, "nor created anew")
	})
}
