package watch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// What is remembered of calls: the last failure, that one is over and the work is not done, and that a balancer
// refuses clients.
func TestOutcomes(t *testing.T) {
	w, svc := newTestWatch(), service()
	call := func(method string, err error, notices ...core.Notice) outcome {
		assert.Equal(t, err, w.observeCall(t.Context(), core.Call{Method: method, Object: svc}, func(context.Context) error {
			return err
		}))
		if len(notices) > 0 {
			w.outcomes.record(svc.UID, err, notices)
		}
		return w.outcomes.get(svc.UID)
	}
	quota, pending := because(contract.ReasonQuotaExceeded), cloudproviderapi.NewRetryError("it is made", retryPeriod)
	assert.Equal(t, outcome{}, call("EnsureLoadBalancer", pending), "nothing was wrong")
	assert.Equal(t, outcome{reason: "QuotaExceeded"}, call("EnsureLoadBalancer", quota))
	assert.Equal(t, outcome{reason: "QuotaExceeded"}, call("UpdateLoadBalancer", nil), "it is about the targets alone")
	assert.Equal(t, outcome{reason: "QuotaExceeded"}, call("GetLoadBalancer", nil), "nothing is done yet")
	assert.Equal(t, outcome{reason: reasonPending}, call("EnsureLoadBalancer", pending))
	assert.Equal(t, outcome{reason: "CloudUnavailable"}, call("GetLoadBalancer", errors.New("503")))
	degraded := core.Notice{Cause: core.Cause{Reason: contract.ReasonLoadBalancerDegraded}}
	assert.Equal(t, outcome{isDegraded: true}, call("EnsureLoadBalancer", nil, degraded))
	assert.Equal(t, outcome{}, call("EnsureLoadBalancerDeleted", nil))
	assert.Equal(t, outcome{}, call("EnsureLoadBalancer", cloudprovider.ImplementedElsewhere), "it is another's")
	assert.Empty(t, w.outcomes.byUID)
}

// Upstream's controller and ours call for one Service one after the other, and for two beside each other.
func TestOneCallAtATimeForAService(t *testing.T) {
	w, one, another := newTestWatch(), service(), service()
	another.UID = "another"
	call := func(svc *corev1.Service, next func(context.Context) error) {
		assert.NoError(t, w.observeCall(t.Context(), core.Call{Method: "EnsureLoadBalancer", Object: svc}, next))
	}
	var running atomic.Int32
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			call(one, func(context.Context) error {
				assert.EqualValues(t, 1, running.Add(1))
				call(another, func(context.Context) error { return nil }) // It waits for nobody but its like.
				running.Add(-1)
				return nil
			})
		})
	}
	calls.Wait()
}

// What this process writes, or finds right, is no change out of band; neither is a new state.
func TestSettings(t *testing.T) {
	w := newTestWatch()
	lb, err := w.Note(builder{}).CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Targets: &api.Targets{}, Tags: &api.Tags{}, SourceRanges: &api.SourceRanges{},
	})
	require.NoError(t, err)
	later := *lb
	later.Version, later.State = 2, api.LoadBalancerError
	assert.False(t, w.settings.isChangedOutOfBand(&later))
	later.IdleTimeoutSeconds = 7
	assert.True(t, w.settings.isChangedOutOfBand(&later))
	older := later
	older.Version = 0
	assert.False(t, w.settings.isChangedOutOfBand(&older), "what is late says nothing")
	w.settings.record(&later)
	assert.False(t, w.settings.isChangedOutOfBand(&later))
	w.settings.forget(lb.ID)
	later.Version, later.IdleTimeoutSeconds = 3, 8
	assert.False(t, w.settings.isChangedOutOfBand(&later), "nothing is known of it")
}
