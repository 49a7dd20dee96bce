package inventory_test

// Streams that the cloud refuses, and answers that it gives beside its lists.

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/ccm/inventory"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// A cloud that refuses the stream for long, as behind a proxy that knows none,
// is listed: slow lists come to their end, and are compared with those before.
func TestAStreamThatIsRefusedForLong(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		var refused atomic.Int32
		var version atomic.Int64
		version.Store(1)
		r.cloud.listInstances = func() ([]api.Instance, error) {
			time.Sleep(3 * time.Second)
			return []api.Instance{instance("i-1", version.Load(), api.InstanceRunning)}, nil
		}
		r.run()
		leave := make(chan struct{})
		var proxy sync.WaitGroup
		proxy.Go(func() {
			for {
				select {
				case r.cloud.stream <- func(func(api.Event) error, func(error)) error {
					refused.Add(1)
					return problem(api.Forbidden)
				}:
				case <-leave:
					return
				}
			}
		})
		patient, leaveIt := context.WithTimeout(r.t.Context(), time.Minute)
		defer leaveIt()
		_, err := r.Instance(patient, "i-1")
		require.NoError(t, err)
		assert.EqualValues(t, 1, r.cloud.lists.Load(), "a list is not thrown away")
		time.Sleep(10 * time.Minute)
		assert.LessOrEqual(t, refused.Load(), int32(30), "the cloud is asked less and less")
		version.Store(2)
		assert.EqualValues(t, 2, r.instanceVersion("i-1"))
		assert.Equal(t, []string{"listed anew", "i-1 v2 running"}, r.takeChanges())
		close(leave)
		proxy.Wait()
		r.cloud.openStream()
		assert.EqualValues(t, 2, r.instanceVersion("i-1"))
		assert.Equal(t, []string{"listed anew"}, r.takeChanges(), "what the stream did not tell meanwhile")
	})
}

// While the stream was refused the cloud may have got other data, as after a
// restore: its versions are not compared with those from before.
func TestOtherDataAfterARefusal(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.runWithInstances(instance("i-1", 9, api.InstanceRunning))
		r.cloud.refuseStream(api.Unauthenticated)
		r.cloud.setInstances(instance("i-1", 4, api.InstanceStopped))
		r.cloud.openStream()
		assert.EqualValues(t, 4, r.instanceVersion("i-1"))
	})
}

// What a list lacks by mistake is known again when the cloud has been asked.
func TestAnInstanceThatWasAskedFor(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.runWithInstances(instance("i-1", 3, api.InstanceRunning))
		r.cloud.setInstances()
		time.Sleep(inventory.DefaultResync)
		synctest.Wait()
		assert.Zero(t, r.instanceVersion("i-1"))
		r.takeChanges()
		r.NoteInstance(instance("i-1", 3, api.InstanceRunning))
		r.NoteInstance(instance("i-2", 1, api.InstanceRunning)) // It was in no list.
		assert.Equal(t, []string{"i-1 v3 running", "i-2 v1 running"}, r.takeChanges())
		lists := r.cloud.lists.Load()
		assert.EqualValues(t, 3, r.instanceVersion("i-1"))
		assert.EqualValues(t, 1, r.instanceVersion("i-2"))
		assert.Equal(t, lists, r.cloud.lists.Load())
		r.cloud.sendEvent(api.EventDeleted, instance("i-1", 4, api.InstanceTerminated))
		r.NoteInstance(instance("i-1", 3, api.InstanceRunning))
		assert.Zero(t, r.instanceVersion("i-1"), "an older answer")
	})
}
