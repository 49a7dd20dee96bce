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
)

// workload creates an instance with an address, a route and a balancer, and deletes some. It repeats calls
// that were not answered, with the same idempotency key, so it can go on after a restart of
// the cloud.
type workload struct {
	name, destination        string
	withAddress, ends        bool
	withBalancer             bool
	instance, address, route string // the IDs, once they are known
	balancer                 string
	attaching, attached      bool
	targeted, deleting       bool // of the balancer
	ended                    bool
}

// balancerPort is where the balancers of all workloads listen, each on its own address.
const balancerPort = 18084

func (e *workload) run(ctx context.Context, c *client.Client) error {
	if e.instance == "" {
		in, err := c.CreateInstance(e.withKey(ctx, "instance"), api.InstanceCreate{Name: &e.name})
		if err != nil {
			return err
		}
		e.instance = in.ID
	}
	if e.withAddress {
		if err := e.attachAddress(ctx, c); err != nil {
			return err
		}
	}
	if e.route == "" {
		r, err := c.CreateRoute(
			e.withKey(ctx, "route"), api.RouteCreate{Name: e.name, Destination: e.destination, InstanceID: e.instance},
		)
		if err != nil {
			return err
		}
		e.route = r.ID
	}
	if e.withBalancer {
		if err := e.createBalancer(ctx, c); err != nil {
			return err
		}
	}
	if e.ends && !e.ended {
		if err := e.deleteBalancer(ctx, c); err != nil {
			return err
		}
		if _, err := c.TerminateInstance(ctx, e.instance); err != nil {
			return err
		}
		e.ended = true
	}
	return nil
}

// withKey gives the create of what its idempotency key.
func (e *workload) withKey(ctx context.Context, what string) context.Context {
	return client.IdempotencyKey(ctx, e.name+"-"+what)
}

func (e *workload) attachAddress(ctx context.Context, c *client.Client) error {
	if e.address == "" {
		a, err := c.ReserveAddress(e.withKey(ctx, "address"), api.ReservedAddressCreate{Name: &e.name})
		if err != nil {
			return err
		}
		e.address = a.ID
	}
	if e.attaching && !e.attached { // It may have been attached, and is refused then.
		a, err := c.GetAddress(ctx, e.address)
		if err != nil {
			return err
		}
		e.attached = a.State == api.AddressHeld
	}
	if e.attached {
		return nil
	}
	e.attaching = true
	_, err := c.AttachAddress(ctx, e.address, api.AddressAttach{InstanceID: e.instance})
	e.attached = err == nil
	return err
}

func (e *workload) createBalancer(ctx context.Context, c *client.Client) error {
	if e.balancer == "" {
		lb, err := c.CreateLoadBalancer(e.withKey(ctx, "balancer"), api.LoadBalancerCreate{
			Name: e.name, Listeners: []api.Listener{{Protocol: "tcp", Port: balancerPort, TargetPort: 30080}},
		})
		if err != nil {
			return err
		}
		e.balancer = lb.ID
	}
	if e.targeted {
		return nil
	}
	targets := []api.Target{{InstanceID: e.instance}}
	_, err := c.UpdateLoadBalancer(ctx, e.balancer, api.LoadBalancerUpdate{Targets: &targets})
	e.targeted = err == nil
	return err
}

func (e *workload) deleteBalancer(ctx context.Context, c *client.Client) error {
	if e.balancer == "" {
		return nil
	}
	again := e.deleting // It may have been deleted, and be gone.
	e.deleting = true
	if _, err := c.DeleteLoadBalancer(ctx, e.balancer); err != nil && (!again || !client.IsNotFound(err)) {
		return err
	}
	return nil
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
				withAddress: n%4 == 0 && n < 200, ends: r.random.IntN(3) == 0, withBalancer: n%4 == 2 && n < 40,
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
		from, to := "", ""
		if e.From != nil {
			from = *e.From
		}
		if e.To != nil {
			to = *e.To
		}
		if last[e.ID] != from {
			return fmt.Errorf("event %d: %s went from %q, but was %q", e.Seq, e.ID, from, last[e.ID])
		}
		last[e.ID] = to
		return nil
	}))
	for _, in := range must(c.ListInstances(t.Context(), client.InstanceFilter{}))(t) {
		require.Equal(t, string(in.State), last[in.ID], in.ID)
	}
	for _, lb := range must(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t) {
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
		running, err := c.ListOperations(
			ctx, client.OperationFilter{States: []api.OperationState{api.OperationRunning}},
		)
		require.NoError(ct, err)
		assert.Empty(ct, running)
	}, testTimeout, 20*time.Millisecond)
	instances := must(c.ListInstances(ctx, client.InstanceFilter{}))(t)
	addresses := must(c.ListAddresses(ctx, client.AddressFilter{}))(t)
	routes := must(c.ListRoutes(ctx, client.RouteFilter{}))(t)
	balancers := must(c.ListLoadBalancers(ctx, client.LoadBalancerFilter{}))(t)
	operations := must(c.ListOperations(ctx, client.OperationFilter{}))(t)
	got, want := map[string]int{}, map[string]int{}
	for _, in := range instances {
		got[fmt.Sprint(in.ID, " ", in.Name, " ", in.State)]++
	}
	for _, a := range addresses {
		got[fmt.Sprint(a.ID, " ", a.Name, " ", a.State)]++
	}
	for _, r := range routes {
		got[fmt.Sprint(r.ID, " ", r.Name, " ", r.State)]++
	}
	for _, lb := range balancers {
		got[fmt.Sprint(lb.ID, " ", lb.Name, " ", lb.State, " ", lb.Targets)]++
		requireListening(t, lb.Address)
	}
	for _, op := range operations {
		got[op.ResourceID+" "+op.Type]++
		require.Contains(t, []api.OperationState{api.OperationDone, api.OperationSuperseded}, op.State)
	}
	for _, e := range slices.Concat(runners[0].all, runners[1].all, runners[2].all, runners[3].all) {
		in, address, route := api.InstanceRunning, api.AddressHeld, api.RouteActive
		want[e.instance+" createInstance"]++
		if e.ends {
			in, address, route = api.InstanceTerminated, api.AddressAvailable, api.RouteBlackhole
			want[e.instance+" terminateInstance"]++
		}
		if e.withBalancer {
			want[e.balancer+" createLoadBalancer"]++
			want[e.balancer+" updateLoadBalancer"]++
			if e.ends {
				want[e.balancer+" deleteLoadBalancer"]++
			} else {
				targets := []api.Target{{InstanceID: e.instance}}
				want[fmt.Sprint(e.balancer, " ", e.name, " ", api.LoadBalancerActive, " ", targets)]++
			}
		}
		want[fmt.Sprint(e.instance, " ", e.name, " ", in)]++
		want[fmt.Sprint(e.route, " ", e.name, " ", route)]++
		if e.withAddress {
			want[fmt.Sprint(e.address, " ", e.name, " ", address)]++
		}
	}
	require.Equal(t, want, got)
}
