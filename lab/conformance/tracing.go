package conformance

// The cloud in a test's hands: what the test asks of it is in its timeline.

import (
	"context"
	"fmt"
	"sync"

	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// recorded notes what is asked of a Cloud. Questions are left out: tests ask
// many times a second.
type recorded struct {
	Cloud
	trace *record.Trace
}

// traced is the suite with a cloud whose use is in a test's timeline.
func (s *Suite) traced(trace *record.Trace) *Suite {
	if trace == nil {
		return s
	}
	mine := *s
	mine.Cloud = recorded{Cloud: s.Cloud, trace: trace}
	return &mine
}

// Unwrap is for As.
func (c recorded) Unwrap() Cloud { return c.Cloud }

func (c recorded) CreateInstance(ctx context.Context, spec InstanceSpec) (Instance, error) {
	ended := c.trace.Begin("creating instance " + spec.Name)
	i, err := c.Cloud.CreateInstance(ctx, spec)
	c.trace.Learn(i.ID, spec.Name)
	ended(err, i.ID)
	return i, err
}

func (c recorded) CreateInstances(ctx context.Context, specs []InstanceSpec) ([]Instance, error) {
	ended := c.trace.Begin(fmt.Sprintf("creating instances: %d", len(specs)))
	all, err := c.Cloud.CreateInstances(ctx, specs)
	for _, i := range all {
		c.trace.Learn(i.ID, i.Name)
	}
	ended(err, "")
	return all, err
}

func (c recorded) TerminateInstances(ctx context.Context, ids []string) error {
	return c.act(fmt.Sprintf("terminating instances: %d", len(ids)), func() error { return c.Cloud.TerminateInstances(ctx, ids) })
}

func (c recorded) DeleteRoute(ctx context.Context, id string) error {
	return c.act("deleting route "+id, func() error { return c.Cloud.DeleteRoute(ctx, id) })
}

func (c recorded) DivertRoute(ctx context.Context, id, instanceID string) error {
	return c.act(fmt.Sprintf("diverting route %s to instance %s", id, instanceID), func() error { return c.Cloud.DivertRoute(ctx, id, instanceID) })
}

func (c recorded) CreateStrangerRoute(ctx context.Context, destination, instanceID string) (Route, error) {
	ended := c.trace.Begin(fmt.Sprintf("creating a stranger's route for %s to instance %s", destination, instanceID))
	r, err := c.Cloud.CreateStrangerRoute(ctx, destination, instanceID)
	c.trace.Learn(r.ID, "a stranger's")
	ended(err, r.ID)
	return r, err
}

func (c recorded) LimitRoutes(ctx context.Context) (func(context.Context) error, error) {
	ended := c.trace.Begin("limiting routes")
	lift, err := c.Cloud.LimitRoutes(ctx)
	ended(err, "")
	if err != nil {
		return lift, err
	}
	return func(ctx context.Context) error {
		return c.act("limiting routes no more", func() error { return lift(ctx) })
	}, nil
}

// act does something and notes it.
func (c recorded) act(what string, do func() error) error {
	ended := c.trace.Begin(what)
	err := do()
	ended(err, "")
	return err
}

func (c recorded) StopInstance(ctx context.Context, id string) error {
	return c.act("stopping instance "+id, func() error { return c.Cloud.StopInstance(ctx, id) })
}

func (c recorded) StartInstance(ctx context.Context, id string) error {
	return c.act("starting instance "+id, func() error { return c.Cloud.StartInstance(ctx, id) })
}

func (c recorded) TerminateInstance(ctx context.Context, id string) error {
	return c.act("terminating instance "+id, func() error { return c.Cloud.TerminateInstance(ctx, id) })
}

func (c recorded) Balancers(ctx context.Context) ([]Balancer, error) {
	all, err := c.Cloud.Balancers(ctx)
	for _, b := range all {
		c.trace.LearnOwned(b.ID, string(b.Service))
	}
	return all, err
}

func (c recorded) DeleteBalancer(ctx context.Context, id string) error {
	return c.act("deleting balancer "+id, func() error { return c.Cloud.DeleteBalancer(ctx, id) })
}

func (c recorded) RenameBalancer(ctx context.Context, id, name string) error {
	return c.act(fmt.Sprintf("renaming balancer %s to %s", id, name), func() error { return c.Cloud.RenameBalancer(ctx, id, name) })
}

func (c recorded) ChangeBalancer(ctx context.Context, id string, listeners []Listener, targets []string) error {
	return c.act(fmt.Sprintf("changing balancer %s: listeners %v, targets %v", id, listeners, targets), func() error {
		return c.Cloud.ChangeBalancer(ctx, id, listeners, targets)
	})
}

func (c recorded) ReserveAddress(ctx context.Context) (string, func(context.Context) error, error) {
	ended := c.trace.Begin("reserving an address")
	address, release, err := c.Cloud.ReserveAddress(ctx)
	ended(err, address)
	if err != nil {
		return address, release, err
	}
	return address, func(ctx context.Context) error {
		return c.act("releasing address "+address, func() error { return release(ctx) })
	}, nil
}

func (c recorded) CreateStranger(ctx context.Context, name string) (Balancer, error) {
	ended := c.trace.Begin("creating a stranger's balancer " + name)
	b, err := c.Cloud.CreateStranger(ctx, name)
	c.trace.Learn(b.ID, "a stranger's")
	ended(err, b.ID)
	return b, err
}

func (c recorded) Inject(ctx context.Context, f Fault) (Injection, error) {
	what := string(f.Kind)
	for i, thing := range f.On {
		what += []string{" on ", ", "}[min(i, 1)] + string(thing)
	}
	return c.inject("injecting fault "+what, "lifting fault "+what, func() (Injection, error) { return c.Cloud.Inject(ctx, f) })
}

// inject does something that can be lifted, and notes both.
func (c recorded) inject(what, lifting string, do func() (Injection, error)) (Injection, error) {
	ended := c.trace.Begin(what)
	injected, err := do()
	ended(err, "")
	if err != nil {
		return injected, err
	}
	return &recordedInjection{Injection: injected, cloud: c, lifting: lifting}, nil
}

func (c recorded) LoseZone(ctx context.Context, zone string) (Injection, error) {
	return c.inject("losing zone "+zone, "zone "+zone+" comes back", func() (Injection, error) { return c.Cloud.LoseZone(ctx, zone) })
}

func (c recorded) SwapCredentials(ctx context.Context) (Injection, error) {
	return c.inject("giving the CCM another project's credentials", "giving the CCM its own credentials back", func() (Injection, error) { return c.Cloud.SwapCredentials(ctx) })
}

func (c recorded) ExpireCredentials(ctx context.Context) (Expiry, error) {
	var expired Expiry
	injected, err := c.inject("the CCM's credentials expire", "the CCM's credentials are accepted again", func() (_ Injection, err error) {
		expired, err = c.Cloud.ExpireCredentials(ctx)
		return expired, err
	})
	if err != nil {
		return expired, err
	}
	return recordedExpiry{injected, expired, c}, nil
}

type recordedExpiry struct {
	Injection
	expired Expiry
	cloud   recorded
}

func (e recordedExpiry) Renew(ctx context.Context) error {
	return e.cloud.act("giving the CCM new credentials", func() error { return e.expired.Renew(ctx) })
}

type recordedInjection struct {
	Injection
	cloud   recorded
	lifting string
	first   sync.Once
}

func (i *recordedInjection) Lift(ctx context.Context) (err error) {
	ended := func(error, string) {}
	i.first.Do(func() { ended = i.cloud.trace.Begin(i.lifting) })
	err = i.Injection.Lift(ctx)
	ended(err, "")
	return err
}

// recordedReplica is another CCM in a test's hands.
type recordedReplica struct {
	Replica
	trace  *record.Trace
	number int
}

func (r recordedReplica) act(what string, do func() error) error {
	ended := r.trace.Begin(fmt.Sprintf("%s replica %d of the CCM", what, r.number))
	err := do()
	ended(err, "")
	return err
}

func (r recordedReplica) Start(ctx context.Context) error {
	return r.act("starting", func() error { return r.Replica.Start(ctx) })
}

func (r recordedReplica) Stop(ctx context.Context) error {
	return r.act("stopping", func() error { return r.Replica.Stop(ctx) })
}

func (r recordedReplica) Kill(ctx context.Context) error {
	return r.act("killing", func() error { return r.Replica.Kill(ctx) })
}

func (r recordedReplica) Freeze() error { return r.act("freezing", r.Replica.Freeze) }

func (r recordedReplica) Thaw() error { return r.act("thawing", r.Replica.Thaw) }
