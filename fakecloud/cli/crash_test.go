package cli_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// workload creates an instance, a route and perhaps a balancer to it, and deletes some. It repeats calls that were not
// answered, with the same idempotency key, so it can go on after a restart of the cloud.
type workload struct {
	name, destination         string
	withBalancer, ends        bool
	instance, route, balancer string // the IDs, once they are known
	targeted, deleting, ended bool
}

// balancerPort is where the balancers of all workloads listen, each on its own address.
const balancerPort = 18084

func (w *workload) run(ctx context.Context, c *client.Client) error {
	if w.instance == "" {
		in, err := c.CreateInstance(client.IdempotencyKey(ctx, w.name+"-instance"), api.InstanceCreate{Name: w.name})
		if err != nil {
			return err
		}
		w.instance = in.ID
	}
	if w.route == "" {
		route := api.RouteCreate{Name: w.name, Destination: w.destination, InstanceID: w.instance}
		r, err := c.CreateRoute(client.IdempotencyKey(ctx, w.name+"-route"), route)
		if err != nil {
			return err
		}
		w.route = r.ID
	}
	if w.withBalancer {
		if err := w.runBalancer(ctx, c); err != nil {
			return err
		}
	}
	if w.ends && !w.ended {
		if _, err := c.TerminateInstance(ctx, w.instance); err != nil {
			return err
		}
		w.ended = true
	}
	return nil
}

// runBalancer creates the balancer, gives it its target, and deletes it if the workload ends.
func (w *workload) runBalancer(ctx context.Context, c *client.Client) error {
	if w.balancer == "" {
		lb, err := c.CreateLoadBalancer(client.IdempotencyKey(ctx, w.name+"-balancer"), api.LoadBalancerCreate{
			Name: w.name, Listeners: []api.Listener{{Protocol: "tcp", Port: balancerPort, TargetPort: 30080}},
		})
		if err != nil {
			return err
		}
		w.balancer = lb.ID
	}
	if !w.targeted {
		targets := []api.Target{{InstanceID: w.instance}}
		if _, err := c.UpdateLoadBalancer(ctx, w.balancer, api.LoadBalancerUpdate{Targets: &targets}); err != nil {
			return err
		}
		w.targeted = true
	}
	if !w.ends {
		return nil
	}
	again := w.deleting // It may have been deleted, and be gone.
	w.deleting = true
	_, err := c.DeleteLoadBalancer(ctx, w.balancer)
	if again && client.IsNotFound(err) {
		return nil
	}
	return err
}

// workloadRunner runs one workload after another.
type workloadRunner struct {
	number int
	random *rand.Rand
	all    []*workload // the last one may not be finished
	done   bool        // the last one is finished
}

// run runs workloads until the cloud does not answer or, with only, until the workload that
// was begun is done. A refusal is an error.
func (r *workloadRunner) run(ctx context.Context, c *client.Client, only bool, counts *atomic.Int64) error {
	for {
		if len(r.all) == 0 || r.done {
			if only {
				return nil
			}
			n := len(r.all)
			r.all = append(r.all, &workload{
				name:        fmt.Sprintf("e-%d-%d", r.number, n),
				destination: fmt.Sprintf("10.%d.%d.%d/32", r.number, n/256, n%256),
				ends:        r.random.IntN(3) == 0, withBalancer: n%4 == 2 && n < 40,
			})
			r.done = false
		}
		err := r.all[len(r.all)-1].run(ctx, c)
		var refused *client.Error
		switch {
		case errors.As(err, &refused):
			return err
		case err != nil && only:
			return err
		case err != nil:
			return nil //nolint:nilerr // The cloud was killed, as intended.
		}
		r.done = true
		counts.Add(1)
	}
}

func TestSIGKILLUnderLoad(t *testing.T) {
	const kills = 10
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(3, 4))
	var runners []*workloadRunner
	for i := range 4 {
		runners = append(runners, &workloadRunner{number: i, random: rand.New(rand.NewPCG(uint64(i), 5))})
	}
	var done atomic.Int64
	var seen []int64
	p := startServe(t, dir)
	for kill := range kills + 1 {
		follower, leave := context.WithCancel(t.Context())
		followed := make(chan struct{})
		go func() {
			defer close(followed)
			_ = p.client.Watch(follower, lastSeq(seen), true, func(e api.Event) error {
				seen = append(seen, e.Seq)
				return nil
			})
		}()
		var busy sync.WaitGroup
		for _, r := range runners {
			busy.Go(func() { assert.NoError(t, r.run(t.Context(), p.client, kill == kills, &done)) })
		}
		if kill == kills {
			busy.Wait()
			requireWorkloadsDone(t, p.client, runners)
			requireEventsFollowed(t, p.client, &seen, leave, followed)
			requireEventsMatchStates(t, p.client)
			break
		}
		enough := done.Load() + 1 + int64(random.IntN(60))
		require.Eventually(
			t, func() bool { return done.Load() >= enough }, testTimeout,
			time.Duration(1+random.IntN(9))*time.Millisecond,
		)
		p.kill()
		busy.Wait()
		<-followed
		leave()
		p = startServe(t, dir)
	}
}

func lastSeq(seen []int64) int64 {
	if len(seen) == 0 {
		return client.FromOldest
	}
	return seen[len(seen)-1]
}

// requireEventsFollowed requires the follower to have got each event of the log once, in order.
func requireEventsFollowed(t *testing.T, c *client.Client, seen *[]int64, leave func(), followed <-chan struct{}) {
	t.Helper()
	var log []int64
	require.NoError(t, c.Watch(t.Context(), client.FromOldest, false, func(e api.Event) error {
		log = append(log, e.Seq)
		return nil
	}))
	leave()
	<-followed
	// Nothing changes any more; the follower gets the rest of the events.
	require.NoError(t, c.Watch(t.Context(), lastSeq(*seen), false, func(e api.Event) error {
		*seen = append(*seen, e.Seq)
		return nil
	}))
	require.Equal(t, log, *seen)
	for i := range log[1:] {
		require.Equal(t, log[i]+1, log[i+1], "no number is missing")
	}
}

// requireEventsMatchStates requires each resource's events to be a possible sequence, ending with
// the resource's present state.
func requireEventsMatchStates(t *testing.T, c *client.Client) {
	t.Helper()
	last := map[string]string{}
	require.NoError(t, c.Watch(t.Context(), client.FromOldest, false, func(e api.Event) error {
		if e.From != "" && last[e.ID] != e.From || e.From == "" && last[e.ID] != "" {
			return fmt.Errorf("event %d: %s went from %v, but was %q", e.Seq, e.ID, e.From, last[e.ID])
		}
		last[e.ID] = ""
		if e.To != "" {
			last[e.ID] = e.To
		}
		return nil
	}))
	for _, in := range must.Do(c.ListInstances(t.Context(), client.InstanceFilter{}))(t) {
		require.Equal(t, string(in.State), last[in.ID], in.ID)
	}
	for _, lb := range must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t) {
		require.Equal(t, string(lb.State), last[lb.ID], lb.ID)
	}
}

// requireListening requires a balancer to accept connections. One without a target that answers
// resets them.
func requireListening(t *testing.T, address string) {
	t.Helper()
	c, err := net.Dial("tcp4", net.JoinHostPort(address, fmt.Sprint(balancerPort)))
	if err == nil {
		_ = c.Close()
	}
	require.True(t, err == nil || errors.Is(err, syscall.ECONNRESET), "%v", err)
}

// requireWorkloadsDone requires everything that the runners made to exist once, as they left
// it, and every operation to end.
func requireWorkloadsDone(t *testing.T, c *client.Client, runners []*workloadRunner) {
	t.Helper()
	ctx := t.Context()
	require.EventuallyWithT(t, func(ct *assert.CollectT) {
		running, err := c.ListOperations(ctx, client.OperationFilter{States: []api.OperationState{api.OperationRunning}})
		require.NoError(ct, err)
		assert.Empty(ct, running)
	}, testTimeout, 20*time.Millisecond)
	got, want := map[string]int{}, map[string]int{}
	for _, in := range must.Do(c.ListInstances(ctx, client.InstanceFilter{}))(t) {
		got[fmt.Sprint(in.ID, " ", in.Name, " ", in.State)]++
	}
	for _, r := range must.Do(c.ListRoutes(ctx, client.RouteFilter{}))(t) {
		got[fmt.Sprint(r.ID, " ", r.Name, " ", r.State)]++
	}
	for _, lb := range must.Do(c.ListLoadBalancers(ctx, client.LoadBalancerFilter{}))(t) {
		got[fmt.Sprint(lb.ID, " ", lb.Name, " ", lb.State, " ", lb.Targets)]++
		requireListening(t, lb.Address)
	}
	for _, op := range must.Do(c.ListOperations(ctx, client.OperationFilter{}))(t) {
		got[op.ResourceID+" "+op.Type]++
		require.Contains(t, []api.OperationState{api.OperationDone, api.OperationSuperseded}, op.State)
	}
	for _, w := range slices.Concat(runners[0].all, runners[1].all, runners[2].all, runners[3].all) {
		in, route := api.InstanceRunning, api.RouteActive
		want[w.instance+" createInstance"]++
		if w.ends {
			in, route = api.InstanceTerminated, api.RouteBlackhole
			want[w.instance+" terminateInstance"]++
		}
		want[fmt.Sprint(w.instance, " ", w.name, " ", in)]++
		want[fmt.Sprint(w.route, " ", w.name, " ", route)]++
		if !w.withBalancer {
			continue
		}
		want[w.balancer+" createLoadBalancer"]++
		want[w.balancer+" updateLoadBalancer"]++
		if w.ends {
			want[w.balancer+" deleteLoadBalancer"]++
			continue
		}
		targets := []api.Target{{InstanceID: w.instance}}
		want[fmt.Sprint(w.balancer, " ", w.name, " ", api.LoadBalancerActive, " ", targets)]++
	}
	require.Equal(t, want, got)
}
