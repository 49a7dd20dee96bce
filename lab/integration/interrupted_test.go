package integration

// A CCM that ends, or loses its lease, at the worst moment: after the cloud has
// done what it was asked, and before the cluster knows.

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

var errSeen = errors.New("seen")

// awaitBuilding returns as soon as the cloud has begun to build a balancer.
func (w *world) awaitBuilding(after int64) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, bound)
	defer cancel()
	err := w.Cloud().Watch(ctx, after, true, func(ev api.Event) error {
		if ev.LoadBalancer != nil && ev.Type == api.EventCreated {
			return errSeen
		}
		return nil
	}, client.EventFilter{Resources: []api.ResourceKind{api.ResourceLoadBalancer}})
	require.ErrorIs(w.t, err, errSeen, "the CCM asks for a balancer")
}

// Another CCM finds what the first one began: no second balancer, and no leak.
func TestInterruptedBetweenTheCloudsCreateAndTheStatus(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(t *testing.T, first *testbed.CCM){
		"killed": func(t *testing.T, first *testbed.CCM) { require.NoError(t, first.Kill()) },
		// It is still there, and believes that it leads.
		"lost its lease": func(t *testing.T, first *testbed.CCM) { require.NoError(t, first.Signal(syscall.SIGSTOP)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, testbed.Options{})
			first := w.startCCM(testbed.CCMOptions{})
			w.addNode("node-1")
			after, err := w.Cloud().NewestEvent(w.ctx)
			require.NoError(t, err)
			// No balancer is ready until its owner has ended.
			_, lift := w.fault(api.FaultCreate{
				Match:  api.FaultMatch{Kinds: []api.FaultMatchKinds{api.FaultLoadBalancer}},
				Effect: api.FaultEffect{Stuck: true},
			})
			svc := w.create(service("web", 8080))
			w.awaitBuilding(after)
			interrupt(t, first)
			assert.Empty(
				t, w.get(svc).Status.LoadBalancer.Ingress, "the first CCM was to be interrupted before it knew",
			)
			lift()

			w.startCCM(testbed.CCMOptions{})
			address := w.awaitAddress(svc, "")
			if first.Alive() {
				require.NoError(t, first.Signal(syscall.SIGCONT))
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				defer cancel()
				require.NoError(t, first.Wait(ctx), "one that has lost its lease ends")
			}
			found := w.balancers(svc)
			require.Len(t, found, 1, "one Service, one balancer")
			assert.Equal(t, address, found[0].Address)

			w.remove(svc)
			w.awaitServiceGone(svc)
			w.awaitNoBalancer(svc)
		})
	}
}

// The cloud has made the balancer, and its answer is lost on the way.
func TestAnAnswerThatIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	w.startCCM(testbed.CCMOptions{})
	w.addNode("node-1")
	for name, op := range map[string]string{"create": "createLoadBalancer", "delete": "deleteLoadBalancer"} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			id, lift := w.fault(api.FaultCreate{
				Match:  api.FaultMatch{Operations: []string{op}},
				Effect: api.FaultEffect{Drop: true, CarryOut: true}, Times: 1,
			})
			svc := w.create(service("lost-"+name, 8080))
			w.awaitAddress(svc, "")
			assert.Len(t, w.balancers(svc), 1)
			w.remove(svc)
			w.awaitServiceGone(svc)
			w.awaitNoBalancer(svc)
			w.awaitHits(id, 1)
			lift()
		})
	}
}
