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

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/ring"
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
	call := func(method string, svc *corev1.Service, next func(context.Context) error) {
		assert.NoError(t, w.observeCall(t.Context(), ring.Call{Method: method, Object: svc}, next))
	}
	var running atomic.Int32
	var calls sync.WaitGroup
	done := func(context.Context) error { return nil }
	for range 20 {
		calls.Go(func() {
			call("EnsureLoadBalancer", one, func(context.Context) error {
				assert.EqualValues(t, 1, running.Add(1))
				call("EnsureLoadBalancer", another, done)
				call("GetLoadBalancer", one, done)
				running.Add(-1)
				return nil
			})
		})
	}
	calls.Wait()
}

// changer is a cloud that makes a balancer and changes it.
type changer struct{ builder }

func (c *changer) UpdateLoadBalancer(
	_ context.Context, _ string, u api.LoadBalancerUpdate,
) (*api.LoadBalancer, error) {
	c.made.Version++
	c.made.IdleTimeoutSeconds = *u.IdleTimeoutSeconds
	return c.made, nil
}

// What this process writes, or finds right, is no change out of band; neither is a new state.
func TestSettings(t *testing.T) {
	w := newWorld(t).Watch
	cloud := w.Note(&changer{})
	lb, err := cloud.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Targets: &api.Targets{}, Tags: &api.Tags{}, SourceRanges: &api.SourceRanges{},
	})
	require.NoError(t, err)
	lb, err = cloud.UpdateLoadBalancer(t.Context(), lb.ID, api.LoadBalancerUpdate{IdleTimeoutSeconds: new(7)})
	require.NoError(t, err)
	later := *lb
	later.Version, later.State = 2, api.LoadBalancerError
	assert.False(t, w.isChangedOutOfBand(&later))
	later.IdleTimeoutSeconds = 8
	assert.True(t, w.isChangedOutOfBand(&later))
	older := later
	older.Version = 0
	assert.False(t, w.isChangedOutOfBand(&older), "what is late says nothing")
	w.recordSettings(&later)
	assert.False(t, w.isChangedOutOfBand(&later))
	w.settings.Delete(lb.ID)
	later.Version, later.IdleTimeoutSeconds = 3, 9
	assert.False(t, w.isChangedOutOfBand(&later), "nothing is known of it")
}
