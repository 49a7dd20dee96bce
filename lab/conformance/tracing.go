package conformance

// The cloud in a test's hands: what the test does to it is in the test's timeline. Questions are
// left out: tests ask many times a second.

import (
	"context"
	"fmt"
	"sync"

	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// withTrace is the suite with a cloud whose use is in a test's timeline.
func (s *Suite) withTrace(trace *record.Trace) *Suite {
	if trace == nil {
		return s
	}
	traced := *s
	traced.Cloud = tracingCloud{Cloud: s.Cloud, trace: trace}
	return &traced
}

// tracingCloud records what is done to a Cloud. It has the roles that the driver has: As finds
// them behind it and traceRole has them record, too.
type tracingCloud struct {
	Cloud
	trace *record.Trace
}

// traceRole replaces a role, given by a pointer to it, by one that records what is done by it. A
// role that only looks stays as it is.
func (c tracingCloud) traceRole(role any) {
	switch role := role.(type) {
	case *InstanceBatcher:
		*role = tracingInstanceBatcher{*role, c.trace}
	case *AddressChanger:
		*role = tracingAddressChanger{*role, c.trace}
	case *BalancerRenamer:
		*role = tracingBalancerRenamer{*role, c.trace}
	case *BalancerChanger:
		*role = tracingBalancerChanger{*role, c.trace}
	case *ForeignBalancerCreator:
		*role = tracingForeignBalancerCreator{*role, c.trace}
	case *NamesakeBalancerCreator:
		*role = tracingNamesakeBalancerCreator{*role, c.trace}
	case *AddressReserver:
		*role = tracingAddressReserver{*role, c.trace}
	case *RouteTable:
		*role = tracingRouteTable{*role, c.trace}
	case *RouteDiverter:
		*role = tracingRouteDiverter{*role, c.trace}
	case *ForeignRouteCreator:
		*role = tracingForeignRouteCreator{*role, c.trace}
	case *NamesakeRouteCreator:
		*role = tracingNamesakeRouteCreator{*role, c.trace}
	case *RouteLimiter:
		*role = tracingRouteLimiter{*role, c.trace}
	case *FaultInjector:
		*role = tracingFaultInjector{*role, c.trace}
	case *ZoneOutageInjector:
		*role = tracingZoneOutageInjector{*role, c.trace}
	case *CredentialExpirer:
		*role = tracingCredentialExpirer{*role, c.trace}
	case *CredentialSwapper:
		*role = tracingCredentialSwapper{*role, c.trace}
	}
}

// traceAction does something and records it.
func traceAction(trace *record.Trace, what string, do func() error) error {
	ended := trace.Begin(what)
	err := do()
	ended(err, "")
	return err
}

// traceInjection does something that can be lifted, and records both.
func traceInjection(
	trace *record.Trace, what, lifting string, inject func() (Injection, error),
) (Injection, error) {
	ended := trace.Begin(what)
	injection, err := inject()
	ended(err, "")
	if err != nil {
		return injection, err
	}
	return &tracingInjection{Injection: injection, trace: trace, lifting: lifting}, nil
}

// tracingInjection records when it is first lifted.
type tracingInjection struct {
	Injection
	trace   *record.Trace
	lifting string
	first   sync.Once
}

func (i *tracingInjection) Lift(ctx context.Context) (err error) {
	ended := func(error, string) {}
	i.first.Do(func() { ended = i.trace.Begin(i.lifting) })
	err = i.Injection.Lift(ctx)
	ended(err, "")
	return err
}

func (c tracingCloud) CreateInstance(ctx context.Context, spec InstanceSpec) (Instance, error) {
	ended := c.trace.Begin("creating instance " + spec.Name)
	i, err := c.Cloud.CreateInstance(ctx, spec)
	c.trace.Learn(i.ID, spec.Name)
	ended(err, i.ID)
	return i, err
}

func (c tracingCloud) StopInstance(ctx context.Context, id string) error {
	return traceAction(c.trace, "stopping instance "+id, func() error { return c.Cloud.StopInstance(ctx, id) })
}

func (c tracingCloud) StartInstance(ctx context.Context, id string) error {
	return traceAction(c.trace, "starting instance "+id, func() error { return c.Cloud.StartInstance(ctx, id) })
}

func (c tracingCloud) TerminateInstance(ctx context.Context, id string) error {
	return traceAction(c.trace, "terminating instance "+id, func() error { return c.Cloud.TerminateInstance(ctx, id) })
}

// ListBalancers records nothing, and learns whose balancers they are by their Services.
func (c tracingCloud) ListBalancers(ctx context.Context) ([]Balancer, error) {
	all, err := c.Cloud.ListBalancers(ctx)
	for _, b := range all {
		c.trace.LearnOwned(b.ID, string(b.Service))
	}
	return all, err
}

func (c tracingCloud) DeleteBalancer(ctx context.Context, id string) error {
	return traceAction(c.trace, "deleting balancer "+id, func() error { return c.Cloud.DeleteBalancer(ctx, id) })
}

type tracingInstanceBatcher struct {
	InstanceBatcher
	trace *record.Trace
}

func (c tracingInstanceBatcher) CreateInstances(ctx context.Context, specs []InstanceSpec) ([]Instance, error) {
	ended := c.trace.Begin(fmt.Sprintf("creating instances: %d", len(specs)))
	all, err := c.InstanceBatcher.CreateInstances(ctx, specs)
	for _, i := range all {
		c.trace.Learn(i.ID, i.Name)
	}
	ended(err, "")
	return all, err
}

func (c tracingInstanceBatcher) TerminateInstances(ctx context.Context, ids []string) error {
	return traceAction(c.trace, fmt.Sprintf("terminating instances: %d", len(ids)), func() error {
		return c.InstanceBatcher.TerminateInstances(ctx, ids)
	})
}

type tracingAddressChanger struct {
	AddressChanger
	trace *record.Trace
}

func (c tracingAddressChanger) ChangeAddresses(ctx context.Context, instanceID string) (Instance, error) {
	ended := c.trace.Begin("changing the addresses of instance " + instanceID)
	i, err := c.AddressChanger.ChangeAddresses(ctx, instanceID)
	ended(err, fmt.Sprint(i.InternalIPs, i.ExternalIPs))
	return i, err
}

type tracingBalancerRenamer struct {
	BalancerRenamer
	trace *record.Trace
}

func (c tracingBalancerRenamer) RenameBalancer(ctx context.Context, id, name string) error {
	return traceAction(c.trace, fmt.Sprintf("renaming balancer %s to %s", id, name), func() error {
		return c.BalancerRenamer.RenameBalancer(ctx, id, name)
	})
}

type tracingBalancerChanger struct {
	BalancerChanger
	trace *record.Trace
}

func (c tracingBalancerChanger) ChangeBalancer(
	ctx context.Context, id string, listeners []Listener, targets []string,
) error {
	what := fmt.Sprintf("changing balancer %s: listeners %v, targets %v", id, listeners, targets)
	return traceAction(c.trace, what, func() error {
		return c.BalancerChanger.ChangeBalancer(ctx, id, listeners, targets)
	})
}

type tracingForeignBalancerCreator struct {
	ForeignBalancerCreator
	trace *record.Trace
}

func (c tracingForeignBalancerCreator) CreateForeignBalancer(ctx context.Context, name string) (Balancer, error) {
	ended := c.trace.Begin("creating a stranger's balancer " + name)
	b, err := c.ForeignBalancerCreator.CreateForeignBalancer(ctx, name)
	c.trace.Learn(b.ID, "a stranger's")
	ended(err, b.ID)
	return b, err
}

type tracingNamesakeBalancerCreator struct {
	NamesakeBalancerCreator
	trace *record.Trace
}

func (c tracingNamesakeBalancerCreator) CreateNamesakeBalancer(ctx context.Context, name string) (Balancer, error) {
	ended := c.trace.Begin("creating a balancer " + name + " of another cluster of the same name")
	b, err := c.NamesakeBalancerCreator.CreateNamesakeBalancer(ctx, name)
	c.trace.Learn(b.ID, "another cluster's")
	ended(err, b.ID)
	return b, err
}

type tracingAddressReserver struct {
	AddressReserver
	trace *record.Trace
}

func (c tracingAddressReserver) ReserveAddress(ctx context.Context) (string, func(context.Context) error, error) {
	ended := c.trace.Begin("reserving an address")
	address, release, err := c.AddressReserver.ReserveAddress(ctx)
	ended(err, address)
	if err != nil {
		return address, release, err
	}
	return address, func(ctx context.Context) error {
		return traceAction(c.trace, "releasing address "+address, func() error { return release(ctx) })
	}, nil
}

type tracingRouteTable struct {
	RouteTable
	trace *record.Trace
}

func (c tracingRouteTable) DeleteRoute(ctx context.Context, id string) error {
	return traceAction(c.trace, "deleting route "+id, func() error { return c.RouteTable.DeleteRoute(ctx, id) })
}

type tracingRouteDiverter struct {
	RouteDiverter
	trace *record.Trace
}

func (c tracingRouteDiverter) DivertRoute(ctx context.Context, id, instanceID string) error {
	return traceAction(c.trace, fmt.Sprintf("diverting route %s to instance %s", id, instanceID), func() error {
		return c.RouteDiverter.DivertRoute(ctx, id, instanceID)
	})
}

type tracingForeignRouteCreator struct {
	ForeignRouteCreator
	trace *record.Trace
}

func (c tracingForeignRouteCreator) CreateForeignRoute(
	ctx context.Context, destination, instanceID string,
) (Route, error) {
	ended := c.trace.Begin(fmt.Sprintf("creating a stranger's route for %s to instance %s", destination, instanceID))
	r, err := c.ForeignRouteCreator.CreateForeignRoute(ctx, destination, instanceID)
	c.trace.Learn(r.ID, "a stranger's")
	ended(err, r.ID)
	return r, err
}

type tracingNamesakeRouteCreator struct {
	NamesakeRouteCreator
	trace *record.Trace
}

func (c tracingNamesakeRouteCreator) CreateNamesakeRoute(
	ctx context.Context, destination, instanceID string,
) (Route, error) {
	ended := c.trace.Begin(fmt.Sprintf(
		"creating a route for %s to instance %s, of another cluster of the same name", destination, instanceID,
	))
	r, err := c.NamesakeRouteCreator.CreateNamesakeRoute(ctx, destination, instanceID)
	c.trace.Learn(r.ID, "another cluster's")
	ended(err, r.ID)
	return r, err
}

type tracingRouteLimiter struct {
	RouteLimiter
	trace *record.Trace
}

func (c tracingRouteLimiter) LimitRoutes(ctx context.Context) (func(context.Context) error, error) {
	ended := c.trace.Begin("limiting routes")
	lift, err := c.RouteLimiter.LimitRoutes(ctx)
	ended(err, "")
	if err != nil {
		return lift, err
	}
	return func(ctx context.Context) error {
		return traceAction(c.trace, "limiting routes no more", func() error { return lift(ctx) })
	}, nil
}

type tracingFaultInjector struct {
	FaultInjector
	trace *record.Trace
}

func (c tracingFaultInjector) InjectFault(ctx context.Context, f Fault) (Injection, error) {
	what := string(f.Kind)
	for i, thing := range f.On {
		what += []string{" on ", ", "}[min(i, 1)] + string(thing)
	}
	return traceInjection(c.trace, "injecting fault "+what, "lifting fault "+what, func() (Injection, error) {
		return c.FaultInjector.InjectFault(ctx, f)
	})
}

type tracingZoneOutageInjector struct {
	ZoneOutageInjector
	trace *record.Trace
}

func (c tracingZoneOutageInjector) InjectZoneOutage(ctx context.Context, zone string) (Injection, error) {
	return traceInjection(c.trace, "losing zone "+zone, "zone "+zone+" comes back", func() (Injection, error) {
		return c.ZoneOutageInjector.InjectZoneOutage(ctx, zone)
	})
}

type tracingCredentialExpirer struct {
	CredentialExpirer
	trace *record.Trace
}

func (c tracingCredentialExpirer) ExpireCredentials(ctx context.Context) (Expiry, error) {
	var expiry Expiry
	injection, err := traceInjection(
		c.trace, "the CCM's credentials expire", "the CCM's credentials are accepted again",
		func() (_ Injection, err error) {
			expiry, err = c.CredentialExpirer.ExpireCredentials(ctx)
			return expiry, err
		})
	if err != nil {
		return expiry, err
	}
	return tracingExpiry{injection, expiry, c.trace}, nil
}

type tracingExpiry struct {
	Injection
	expiry Expiry
	trace  *record.Trace
}

func (e tracingExpiry) Renew(ctx context.Context) error {
	return traceAction(e.trace, "giving the CCM new credentials", func() error { return e.expiry.Renew(ctx) })
}

type tracingCredentialSwapper struct {
	CredentialSwapper
	trace *record.Trace
}

func (c tracingCredentialSwapper) SwapCredentials(ctx context.Context) (Injection, error) {
	return traceInjection(
		c.trace, "giving the CCM another project's credentials", "giving the CCM its own credentials back",
		func() (Injection, error) { return c.CredentialSwapper.SwapCredentials(ctx) })
}

// tracingReplica is another CCM in a test's hands.
type tracingReplica struct {
	Replica
	trace  *record.Trace
	number int
}

func (r tracingReplica) traceAction(what string, do func() error) error {
	return traceAction(r.trace, fmt.Sprintf("%s replica %d of the CCM", what, r.number), do)
}

func (r tracingReplica) Start(ctx context.Context) error {
	return r.traceAction("starting", func() error { return r.Replica.Start(ctx) })
}

func (r tracingReplica) Stop(ctx context.Context) error {
	return r.traceAction("stopping", func() error { return r.Replica.Stop(ctx) })
}

func (r tracingReplica) Kill(ctx context.Context) error {
	return r.traceAction("killing", func() error { return r.Replica.Kill(ctx) })
}

func (r tracingReplica) Freeze() error { return r.traceAction("freezing", r.Replica.Freeze) }

func (r tracingReplica) Thaw() error { return r.traceAction("thawing", r.Replica.Thaw) }
