package conformance

// The cloud in a test's hands: what the test asks of it is in its timeline.

import (
	"context"
	"fmt"
	"strings"
	"sync"
)

// recorded notes what is asked of a Cloud. Questions are left out: tests ask
// many times a second.
type recorded struct {
	Cloud
	trace *trace
}

func (c recorded) CreateInstance(ctx context.Context, spec InstanceSpec) (Instance, error) {
	ended := c.trace.begin("creating instance " + spec.Name)
	i, err := c.Cloud.CreateInstance(ctx, spec)
	c.trace.learn(i.ID, spec.Name)
	ended(err, i.ID)
	return i, err
}

// act does something and notes it.
func (c recorded) act(what string, do func() error) error {
	ended := c.trace.begin(what)
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
	c.trace.learnBalancers(all)
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
	ended := c.trace.begin("reserving an address")
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
	ended := c.trace.begin("creating a stranger's balancer " + name)
	b, err := c.Cloud.CreateStranger(ctx, name)
	c.trace.learn(b.ID, "a stranger's")
	ended(err, b.ID)
	return b, err
}

func (c recorded) Inject(ctx context.Context, f Fault) (Injection, error) {
	what := string(f.Kind)
	for i, thing := range f.On {
		what += []string{" on ", ", "}[min(i, 1)] + string(thing)
	}
	ended := c.trace.begin("injecting fault " + what)
	injected, err := c.Cloud.Inject(ctx, f)
	ended(err, "")
	if err != nil {
		return injected, err
	}
	return &recordedInjection{Injection: injected, cloud: c, what: strings.TrimSpace(what)}, nil
}

type recordedInjection struct {
	Injection
	cloud recorded
	what  string
	first sync.Once
}

func (i *recordedInjection) Lift(ctx context.Context) (err error) {
	ended := func(error, string) {}
	i.first.Do(func() { ended = i.cloud.trace.begin("lifting fault " + i.what) })
	err = i.Injection.Lift(ctx)
	ended(err, "")
	return err
}
