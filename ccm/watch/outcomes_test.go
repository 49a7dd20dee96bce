package watch

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ccmlab/ccmlab/ccm/ring"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// What is remembered of calls: the last failure, that one is over and the work is not done, and that a balancer
// refuses clients.
func TestOutcomes(t *testing.T) {
	w, svc := newWorld(t).Watch, serviceWithAddress()
	call := func(method string, err error) string {
		assert.Equal(t, err, w.observeCall(t.Context(), ring.Call{Method: method, Object: svc}, func(context.Context) error {
			return err
		}))
		return w.reasonOf(svc.UID)
	}
	const failed = contract.ReasonQuotaExceeded
	assert.Empty(t, call("EnsureLoadBalancer", errPending), "nothing was wrong")
	assert.Equal(t, failed, call("EnsureLoadBalancer", because(failed)))
	assert.Equal(t, failed, call("UpdateLoadBalancer", nil), "it is about the targets alone")
	assert.Equal(t, failed, call("GetLoadBalancer", nil), "nothing is done yet")
	assert.Equal(t, reasonPending, call("EnsureLoadBalancer", errPending))
	assert.Equal(t, contract.ReasonCloudUnavailable, call("GetLoadBalancer", errors.New("503")))
	w.recordOutcome(svc.UID, nil, contract.ReasonLoadBalancerDegraded)
	assert.Equal(t, contract.ReasonLoadBalancerDegraded, w.reasonOf(svc.UID))
	assert.Empty(t, call("EnsureLoadBalancerDeleted", nil))
	assert.Empty(t, call("EnsureLoadBalancer", cloudprovider.ImplementedElsewhere), "it is another's")
	_, known := w.reasons.Load(svc.UID)
	assert.False(t, known)
}

// Upstream's controller and ours call for one Service one after the other, and for two beside each other. A look at a
// balancer waits for nobody.
func TestOneCallAtATimeForAService(t *testing.T) {
	w, one, another := newWorld(t).Watch, serviceWithAddress(), serviceWithAddress()
	another.UID = "another"
	call := func(method string, svc *corev1.Service, next func()) {
		_ = w.observeCall(t.Context(), ring.Call{Method: method, Object: svc}, func(context.Context) error {
			next()
			return nil
		})
	}
	var running atomic.Int32
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			call("EnsureLoadBalancer", one, func() {
				assert.EqualValues(t, 1, running.Add(1))
				call("EnsureLoadBalancer", another, func() {})
				call("GetLoadBalancer", one, func() {})
				for range 1000 { // The others have their chance to come in between.
					runtime.Gosched()
				}
				running.Add(-1)
			})
		})
	}
	calls.Wait()
}

// What this process writes, or finds right, is no change out of band; neither is a new state.
func TestSettings(t *testing.T) {
	w := newWorld(t).Watch
	cloud := w.Note(&builder{})
	lb, err := cloud.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Targets: api.Targets{}, Tags: api.Tags{}, SourceRanges: api.SourceRanges{},
	})
	require.NoError(t, err)
	isChanged := func(version int64, idleTimeout api.Seconds, state api.LoadBalancerState) bool {
		lb.Version, lb.IdleTimeoutSeconds, lb.State = version, idleTimeout, state
		return w.isChangedOutOfBand(lb)
	}
	created := lb.IdleTimeoutSeconds
	assert.False(t, isChanged(1, created, api.LoadBalancerError))
	assert.True(t, isChanged(1, created+1, api.LoadBalancerActive))
	w.recordSettings(lb)
	assert.False(t, isChanged(2, created+1, api.LoadBalancerActive))
	assert.False(t, isChanged(1, created, api.LoadBalancerActive), "what is late says nothing")
	lb, err = cloud.UpdateLoadBalancer(t.Context(), lb.ID, api.LoadBalancerUpdate{IdleTimeoutSeconds: new(api.Seconds(7))})
	require.NoError(t, err)
	assert.False(t, isChanged(3, 7, api.LoadBalancerActive))
	w.settings.Delete(lb.ID)
	assert.False(t, isChanged(4, 9, api.LoadBalancerActive), "nothing is known of it")
}
