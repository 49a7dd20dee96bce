package cli_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// workload creates an instance with an address and a route, and deletes some. It repeats calls
// that were not answered, with the same idempotency key, so it can go on after a restart of
// the cloud.
type workload struct {
	name, destination        string
	withAddress, ends        bool
	instance, address, route string // the IDs, once they are known
	attaching, attached      bool
	ended                    bool
}

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
	if e.ends && !e.ended {
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
	_, err := c.AttachAddress(ctx, e.address, e.instance)
	e.attached = err == nil
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
				withAddress: n%4 == 0 && n < 200, ends: r.random.IntN(3) == 0,
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
	instances, err := c.ListInstances(ctx, client.InstanceFilter{})
	require.NoError(t, err)
	addresses, err := c.ListAddresses(ctx, client.AddressFilter{})
	require.NoError(t, err)
	routes, err := c.ListRoutes(ctx, client.RouteFilter{})
	require.NoError(t, err)
	operations, err := c.ListOperations(ctx, client.OperationFilter{})
	require.NoError(t, err)
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
		want[fmt.Sprint(e.instance, " ", e.name, " ", in)]++
		want[fmt.Sprint(e.route, " ", e.name, " ", route)]++
		if e.withAddress {
			want[fmt.Sprint(e.address, " ", e.name, " ", address)]++
		}
	}
	require.Equal(t, want, got)
}

// stateGone is the state of a resource that does not exist any more.
const stateGone = ""

// finalStates are the states in which each resource of the crash test may end, by ID: one, or
// two if the last call about it was not answered.
type finalStates map[string][]string

// makeRandomChanges creates, changes and deletes instances and balancers until the cloud does
// not answer. A refusal is an error.
func makeRandomChanges(ctx context.Context, c *client.Client, r *rand.Rand) (finalStates, error) {
	all := finalStates{}
	var refused *client.Error
	var lb *api.LoadBalancer
	for {
		err := makeRandomChange(ctx, c, r, all, &lb)
		switch {
		case errors.As(err, &refused):
			return all, err
		case err != nil:
			return all, nil //nolint:nilerr // The cloud was killed, as intended.
		}
	}
}

func makeRandomChange(
	ctx context.Context,
	c *client.Client,
	r *rand.Rand,
	all finalStates,
	lb **api.LoadBalancer,
) error {
	in, err := c.CreateInstance(ctx, api.InstanceCreate{})
	if err != nil {
		return err
	}
	all[in.ID] = []string{"running"}
	targets := []api.Target{{InstanceID: in.ID}}
	switch {
	case *lb == nil:
		listeners := []api.Listener{{Protocol: api.ProtocolTCP, Port: 18084, TargetPort: 30080}}
		if *lb, err = c.CreateLoadBalancer(
			ctx, api.LoadBalancerCreate{Name: "for-" + in.ID, Listeners: listeners, Targets: &targets},
		); err != nil {
			return err
		}
		all[(*lb).ID] = []string{"active"}
	case r.IntN(4) > 0:
		if _, err = c.UpdateLoadBalancer(ctx, (*lb).ID, api.LoadBalancerUpdate{Targets: &targets}); err != nil {
			return err
		}
	default:
		id := (*lb).ID
		*lb = nil
		all[id] = []string{"active", stateGone}
		if _, err := c.DeleteLoadBalancer(ctx, id); err != nil {
			return err
		}
		all[id] = []string{stateGone}
	}
	if r.IntN(3) == 0 {
		return nil
	}
	all[in.ID] = []string{"running", "terminated"}
	if _, err := c.TerminateInstance(ctx, in.ID); err != nil {
		return err
	}
	all[in.ID] = []string{"terminated"}
	return nil
}

func TestSIGKILLLosesNothing(t *testing.T) {
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	want := finalStates{}
	p := startServe(t, dir)
	lb, err := p.client.CreateLoadBalancer(
		t.Context(),
		api.LoadBalancerCreate{Name: "web", Listeners: []api.Listener{{Protocol: "tcp", Port: 18080, TargetPort: 1}}},
	)
	require.NoError(t, err)
	for range 4 {
		var mu sync.Mutex
		var workers sync.WaitGroup
		for i := range 3 {
			workers.Go(func() {
				done, err := makeRandomChanges(t.Context(), p.client, rand.New(rand.NewPCG(uint64(i), 7)))
				assert.NoError(t, err, "what is asked here is never refused")
				mu.Lock()
				defer mu.Unlock()
				maps.Copy(want, done)
			})
		}
		// Run until there is something to lose; then kill at any moment.
		require.Eventually(t, func() bool {
			items, err := p.client.ListInstances(
				t.Context(), client.InstanceFilter{States: []api.InstanceState{api.InstanceTerminating}},
			)
			return err == nil && len(items) > 0
		}, testTimeout, time.Duration(1+r.IntN(20))*time.Millisecond)
		p.kill()
		workers.Wait()

		p = startServe(t, dir)
		requireFinalStates(t, p.client, want)
		requireEventLog(t, p.client, want)
		found, err := p.client.GetLoadBalancer(t.Context(), lb.ID)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			c, err := net.Dial("tcp4", net.JoinHostPort(found.Address, "18080"))
			if err == nil {
				_ = c.Close()
			}
			return err == nil || errors.Is(err, syscall.ECONNRESET)
		}, testTimeout, 10*time.Millisecond, "the balancer listens again")
	}
	require.NotEmpty(t, want)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-p.exited, "SIGTERM ends it in good order")
}

func requireFinalStates(t *testing.T, c *client.Client, want finalStates) {
	t.Helper()
	require.EventuallyWithT(t, func(ct *assert.CollectT) {
		instances, err := c.ListInstances(t.Context(), client.InstanceFilter{})
		require.NoError(ct, err)
		balancers, err := c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{})
		require.NoError(ct, err)
		got := map[string]string{}
		for _, in := range instances {
			got[in.ID] = string(in.State)
		}
		for _, lb := range balancers {
			got[lb.ID] = string(lb.State)
		}
		for id, finals := range want {
			assert.Contains(ct, finals, got[id], id)
		}
	}, testTimeout, 20*time.Millisecond)
}

// requireEventLog requires each resource's events to be a possible sequence, ending with the
// resource's present state.
func requireEventLog(t *testing.T, c *client.Client, want finalStates) {
	t.Helper()
	last := map[string]string{}
	require.NoError(t, c.Watch(t.Context(), 0, false, func(e api.Event) error {
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
	for id, finals := range want {
		require.Contains(t, finals, last[id], id)
	}
}
