package conformance

// How a test calls the cloud. The test's timeline has what it changes there, and not what it reads: tests read
// many times a second.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// Driver answers the protocol's operations: a Server, or a program of its own.
type Driver interface {
	// Features are those that the driver names, RoleInstanceBatches and RoleCallJournal among them.
	Features() []Feature
	// Call has an operation carried out, given by its operationId in openapi.yaml. argument is the
	// parameter that its path or its query has, body what is sent, and answer what is read into; each may
	// be none. ErrNotFound is the error for one thing that is not there.
	Call(ctx context.Context, operation, argument string, body, answer any) error
}

// Proxy stands between the CCM and the cloud, and does what a driver does not do itself.
type Proxy interface {
	FaultInjector
	CallCounter
	CallJournal
}

// Client calls a driver. It has the methods of all roles; its features say which of them the driver
// answers.
type Client struct {
	driver Driver
	proxy  Proxy         // nil for none
	trace  *record.Trace // what is done goes into it; may be nil
	// onFault, unless nil, is told when the cloud is made to misbehave.
	onFault func(*tracedInjection)
}

// NewClient calls a driver.
func NewClient(d Driver) *Client { return &Client{driver: d} }

// clientOf calls the driver of a cloud, in this process unless it is one that is called already.
func clientOf(c Cloud) *Client {
	if remote, ok := c.(interface{ client() *Client }); ok {
		return remote.client()
	}
	return NewClient(NewServer(c))
}

func (c *Client) client() *Client { return c }

// forTest returns a client that records in one test's timeline what it changes.
func (c *Client) forTest(trace *record.Trace, onFault func(*tracedInjection)) *Client {
	mine := *c
	mine.trace, mine.onFault = trace, onFault
	return &mine
}

// UseProxy has a proxy count the CCM's calls, and make the faults that the driver does not make itself.
func (c *Client) UseProxy(p Proxy) { c.proxy = p }

// named tells whether the driver names a feature.
func (c *Client) named(f Feature) bool { return slices.Contains(c.driver.Features(), f) }

// byProxy tells whether the proxy does what the driver does not name. The driver goes first: it knows its
// cloud better.
func (c *Client) byProxy(f Feature) bool { return c.proxy != nil && !c.named(f) }

// Features implements Cloud. Those that follow from roles are among them.
func (c *Client) Features() []Feature {
	features := slices.Clone(c.driver.Features())
	if c.proxy != nil {
		features = append(features, FeatureCalls)
		for _, kind := range c.proxy.FaultKinds() {
			features = append(features, FaultFeature(kind))
		}
	}
	slices.Sort(features)
	return slices.DeleteFunc(slices.Compact(features), func(f Feature) bool {
		return f == RoleInstanceBatches || f == RoleCallJournal
	})
}

// call has an operation carried out whose feature the driver names. A test that uses another fails: it
// would have to need the feature.
func (c *Client) call(ctx context.Context, id, argument string, body, answer any) error {
	i := slices.IndexFunc(operations, func(o operation) bool { return o.id == id })
	if f := operations[i].feature; f != "" && !c.named(f) {
		return fmt.Errorf("%s: the cloud's driver does not have %s: %w", id, f, errors.ErrUnsupported)
	}
	return c.driver.Call(ctx, id, argument, body, answer)
}

// ask has an operation carried out that has an answer.
func ask[A any](ctx context.Context, c *Client, operation, argument string, body any) (A, error) {
	var answer A
	err := c.call(ctx, operation, argument, body, &answer)
	return answer, err
}

// find asks for one thing, which may not exist.
func find[A any](ctx context.Context, c *Client, operation, id string) (answer A, found bool, err error) {
	answer, err = ask[A](ctx, c, operation, id, nil)
	if errors.Is(err, ErrNotFound) {
		return answer, false, nil
	}
	return answer, err == nil, err
}

// do has an operation carried out that answers nothing, and records it as what.
func (c *Client) do(ctx context.Context, what, operation, argument string, body any) error {
	return traceAction(c.trace, what, func() error {
		return c.call(ctx, operation, argument, body, nil)
	})
}

// CreateInstance implements Cloud.
func (c *Client) CreateInstance(ctx context.Context, spec InstanceSpec) (Instance, error) {
	ended := c.trace.Begin("creating instance " + spec.Name)
	i, err := ask[Instance](ctx, c, "createInstance", "", spec)
	c.trace.Learn(i.ID, spec.Name)
	ended(err, i.ID)
	return i, err
}

// StopInstance implements Cloud.
func (c *Client) StopInstance(ctx context.Context, id string) error {
	return c.do(ctx, "stopping instance "+id, "stopInstance", id, nil)
}

// StartInstance implements Cloud.
func (c *Client) StartInstance(ctx context.Context, id string) error {
	return c.do(ctx, "starting instance "+id, "startInstance", id, nil)
}

// TerminateInstance implements Cloud.
func (c *Client) TerminateInstance(ctx context.Context, id string) error {
	return c.do(ctx, "terminating instance "+id, "terminateInstance", id, nil)
}

// instancesAtOnce is how many instances are made or terminated side by side.
const instancesAtOnce = 16

// CreateInstances implements InstanceBatcher. A driver that is none makes them one by one.
func (c *Client) CreateInstances(ctx context.Context, specs []InstanceSpec) ([]Instance, error) {
	if !c.named(RoleInstanceBatches) {
		instances := make([]Instance, len(specs))
		err := Each(ctx, instancesAtOnce, len(specs), func(ctx context.Context, i int) (err error) {
			instances[i], err = c.CreateInstance(ctx, specs[i])
			return err
		})
		return slices.DeleteFunc(instances, func(i Instance) bool { return i.ID == "" }), err
	}
	ended := c.trace.Begin(fmt.Sprintf("creating instances: %d", len(specs)))
	made, err := ask[protocol.InstanceBatch](
		ctx, c, "createInstances", "", protocol.InstanceSpecs{Instances: listed(specs)})
	if err == nil && made.Problem != nil {
		err = errors.New("the driver: " + made.Problem.Detail)
	}
	for _, i := range made.Instances {
		c.trace.Learn(i.ID, i.Name)
	}
	ended(err, "")
	return made.Instances, err
}

// TerminateInstances implements InstanceBatcher. It goes on when one cannot be terminated.
func (c *Client) TerminateInstances(ctx context.Context, ids []string) error {
	if !c.named(RoleInstanceBatches) {
		errs := make([]error, len(ids))
		err := Each(ctx, instancesAtOnce, len(ids), func(ctx context.Context, i int) error {
			errs[i] = c.TerminateInstance(ctx, ids[i])
			return nil
		})
		return errors.Join(append(errs, err)...)
	}
	what := fmt.Sprintf("terminating instances: %d", len(ids))
	return c.do(ctx, what, "terminateInstances", "", protocol.IDs{IDs: listed(ids)})
}

// ChangeAddresses implements AddressChanger.
func (c *Client) ChangeAddresses(ctx context.Context, instanceID string) (Instance, error) {
	ended := c.trace.Begin("changing the addresses of instance " + instanceID)
	i, err := ask[Instance](ctx, c, "changeAddresses", instanceID, nil)
	ended(err, fmt.Sprint(i.InternalIPs, i.ExternalIPs))
	return i, err
}

// RenameInstance implements InstanceRenamer.
func (c *Client) RenameInstance(ctx context.Context, id, name string) error {
	what := fmt.Sprintf("renaming instance %s to %s", id, name)
	return c.do(ctx, what, "renameInstance", id, protocol.Name{Name: name})
}

// RebootInstance implements InstanceRebooter.
func (c *Client) RebootInstance(ctx context.Context, id string) error {
	return c.do(ctx, "rebooting instance "+id, "rebootInstance", id, nil)
}

// ListBalancers implements Cloud. It records nothing, and learns whose balancers they are by their Services.
func (c *Client) ListBalancers(ctx context.Context) ([]Balancer, error) {
	list, err := ask[protocol.BalancerList](ctx, c, "listBalancers", "", nil)
	for _, b := range list.Balancers {
		c.trace.LearnOwned(b.ID, string(b.Service))
	}
	return list.Balancers, err
}

// GetBalancer implements Cloud.
func (c *Client) GetBalancer(ctx context.Context, id string) (Balancer, bool, error) {
	return find[Balancer](ctx, c, "getBalancer", id)
}

// DeleteBalancer implements Cloud.
func (c *Client) DeleteBalancer(ctx context.Context, id string) error {
	return c.do(ctx, "deleting balancer "+id, "deleteBalancer", id, nil)
}

// RenameBalancer implements BalancerRenamer.
func (c *Client) RenameBalancer(ctx context.Context, id, name string) error {
	what := fmt.Sprintf("renaming balancer %s to %s", id, name)
	return c.do(ctx, what, "renameBalancer", id, protocol.Name{Name: name})
}

// ChangeBalancer implements BalancerChanger.
func (c *Client) ChangeBalancer(ctx context.Context, id string, listeners []Listener, targets []string) error {
	what := fmt.Sprintf("changing balancer %s: listeners %v, targets %v", id, listeners, targets)
	return c.do(ctx, what, "changeBalancer", id,
		protocol.BalancerChange{Listeners: listed(listeners), Targets: listed(targets)})
}

// ResetBalancer implements BalancerResetter.
func (c *Client) ResetBalancer(ctx context.Context, id string) (Balancer, error) {
	ended := c.trace.Begin("resetting balancer " + id)
	b, err := ask[Balancer](ctx, c, "resetBalancer", id, nil)
	ended(err, "")
	return b, err
}

// TagBalancer implements BalancerTagger.
func (c *Client) TagBalancer(ctx context.Context, id, name string) error {
	return c.do(ctx, "tagging balancer "+id+" with "+name, "tagBalancer", id, protocol.Name{Name: name})
}

// CreateForeignBalancer implements ForeignBalancerCreator.
func (c *Client) CreateForeignBalancer(ctx context.Context, name string) (Balancer, error) {
	return c.createBalancer(ctx, "creating a stranger's balancer "+name, "a stranger's",
		"createForeignBalancer", "", protocol.Name{Name: name})
}

// CreateNamesakeBalancer implements NamesakeBalancerCreator.
func (c *Client) CreateNamesakeBalancer(ctx context.Context, name string) (Balancer, error) {
	return c.createBalancer(ctx, "creating a balancer "+name+" of another cluster of the same name", "another cluster's",
		"createNamesakeBalancer", "", protocol.Name{Name: name})
}

// CreateTwinBalancer implements TwinBalancerCreator.
func (c *Client) CreateTwinBalancer(ctx context.Context, id string) (Balancer, error) {
	return c.createBalancer(ctx, "creating a second balancer that is the Service's of balancer "+id, "the twin of "+id,
		"createTwinBalancer", id, nil)
}

// createBalancer asks for a balancer, which the timeline calls by whose it is.
func (c *Client) createBalancer(
	ctx context.Context, what, whose, operation, argument string, body any,
) (Balancer, error) {
	ended := c.trace.Begin(what)
	b, err := ask[Balancer](ctx, c, operation, argument, body)
	c.trace.Learn(b.ID, whose)
	ended(err, b.ID)
	return b, err
}

// CreateNamesakeInstance implements NamesakeInstanceCreator.
func (c *Client) CreateNamesakeInstance(ctx context.Context, name string) (Instance, error) {
	ended := c.trace.Begin("creating an instance " + name + " of another cluster")
	i, err := ask[Instance](ctx, c, "createNamesakeInstance", "", protocol.Name{Name: name})
	c.trace.Learn(i.ID, "another cluster's")
	ended(err, i.ID)
	return i, err
}

// ReserveAddress implements AddressReserver.
func (c *Client) ReserveAddress(ctx context.Context) (string, func(context.Context) error, error) {
	ended := c.trace.Begin("reserving an address")
	kept, err := ask[protocol.ReservedAddress](ctx, c, "reserveAddress", "", nil)
	ended(err, kept.Address)
	return kept.Address, func(ctx context.Context) error {
		return c.do(ctx, "releasing address "+kept.Address, "releaseAddress", kept.ID, nil)
	}, err
}

// CountConnections implements ConnectionCounter.
func (c *Client) CountConnections(ctx context.Context, id string) (map[int32]int64, error) {
	counts, err := ask[protocol.ConnectionCounts](ctx, c, "countConnections", id, nil)
	byPort := map[int32]int64{}
	for _, count := range counts.Ports {
		byPort[count.Port] += count.Connections
	}
	return byPort, err
}

// ListRoutes implements RouteTable.
func (c *Client) ListRoutes(ctx context.Context) ([]Route, error) {
	list, err := ask[protocol.RouteList](ctx, c, "listRoutes", "", nil)
	return list.Routes, err
}

// GetRoute implements RouteTable.
func (c *Client) GetRoute(ctx context.Context, id string) (Route, bool, error) {
	return find[Route](ctx, c, "getRoute", id)
}

// DeleteRoute implements RouteTable.
func (c *Client) DeleteRoute(ctx context.Context, id string) error {
	return c.do(ctx, "deleting route "+id, "deleteRoute", id, nil)
}

// DivertRoute implements RouteDiverter.
func (c *Client) DivertRoute(ctx context.Context, id, instanceID string) error {
	what := fmt.Sprintf("diverting route %s to instance %s", id, instanceID)
	return c.do(ctx, what, "divertRoute", id, protocol.RouteDiversion{InstanceID: instanceID})
}

// CreateForeignRoute implements ForeignRouteCreator.
func (c *Client) CreateForeignRoute(ctx context.Context, destination, instanceID string) (Route, error) {
	ended := c.trace.Begin(fmt.Sprintf("creating a stranger's route for %s to instance %s", destination, instanceID))
	body := protocol.ForeignRoute{Destination: destination, InstanceID: instanceID}
	r, err := ask[Route](ctx, c, "createForeignRoute", "", body)
	c.trace.Learn(r.ID, "a stranger's")
	ended(err, r.ID)
	return r, err
}

// CreateNamesakeRoute implements NamesakeRouteCreator.
func (c *Client) CreateNamesakeRoute(ctx context.Context, destination, instanceID string) (Route, error) {
	ended := c.trace.Begin(fmt.Sprintf(
		"creating a route for %s to instance %s, of another cluster of the same name", destination, instanceID,
	))
	body := protocol.ForeignRoute{Destination: destination, InstanceID: instanceID}
	r, err := ask[Route](ctx, c, "createNamesakeRoute", "", body)
	c.trace.Learn(r.ID, "another cluster's")
	ended(err, r.ID)
	return r, err
}

// CountCalls implements CallCounter.
func (c *Client) CountCalls(ctx context.Context) (Calls, error) {
	if c.byProxy(FeatureCalls) {
		return c.proxy.CountCalls(ctx)
	}
	return ask[Calls](ctx, c, "countCalls", "", nil)
}

// CallsSince implements CallJournal.
func (c *Client) CallsSince(ctx context.Context, since time.Time) ([]Call, error) {
	if c.byProxy(RoleCallJournal) {
		return c.proxy.CallsSince(ctx, since)
	}
	list, err := ask[protocol.CallList](ctx, c, "listCalls", since.Format(time.RFC3339Nano), nil)
	return list.Calls, err
}

// journal returns the client if the driver or the proxy knows the CCM's calls, and nil otherwise.
func (c *Client) journal() CallJournal {
	if c.proxy == nil && !c.named(RoleCallJournal) {
		return nil
	}
	return c
}

// LimitRoutes implements RouteLimiter.
func (c *Client) LimitRoutes(ctx context.Context) (lift func(context.Context) error, err error) {
	return c.limitQuota(ctx, "routes", "limitRoutes")
}

// LimitBalancers implements BalancerLimiter.
func (c *Client) LimitBalancers(ctx context.Context) (lift func(context.Context) error, err error) {
	return c.limitQuota(ctx, "balancers", "limitBalancers")
}

func (c *Client) limitQuota(ctx context.Context, what, operation string) (lift func(context.Context) error, err error) {
	limit, err := c.inject("limiting "+what, "limiting "+what+" no more", "", c.asks(ctx, operation, "", nil))
	if err != nil {
		return nil, err
	}
	return limit.Lift, nil
}

// FaultKinds implements FaultInjector.
func (c *Client) FaultKinds() (kinds []FaultKind) {
	for _, f := range c.Features() {
		if kind, ok := strings.CutPrefix(string(f), faultFeaturePrefix); ok {
			kinds = append(kinds, FaultKind(kind))
		}
	}
	return kinds
}

// InjectFault implements FaultInjector.
func (c *Client) InjectFault(ctx context.Context, f Fault) (Injection, error) {
	what := string(f.Kind)
	for i, thing := range f.On {
		what += []string{" on ", ", "}[min(i, 1)] + string(thing)
	}
	inject := c.asks(ctx, "injectFault", "", f)
	if c.byProxy(FaultFeature(f.Kind)) {
		inject = func() (Injection, error) { return c.proxy.InjectFault(ctx, f) }
	}
	evidence := "fault " + what
	if isAvoidable(f.Kind) {
		evidence = ""
	}
	return c.inject("injecting fault "+what, "lifting fault "+what, evidence, inject)
}

// ListZones implements ZoneOutageInjector.
func (c *Client) ListZones(ctx context.Context) ([]string, error) {
	list, err := ask[protocol.ZoneList](ctx, c, "listZones", "", nil)
	return list.Zones, err
}

// InjectZoneOutage implements ZoneOutageInjector.
func (c *Client) InjectZoneOutage(ctx context.Context, zone string) (Injection, error) {
	return c.inject("losing zone "+zone, "zone "+zone+" comes back", "", c.asks(ctx, "injectZoneOutage", zone, nil))
}

// ExpireCredentials implements CredentialExpirer.
func (c *Client) ExpireCredentials(ctx context.Context) (Expiry, error) {
	var id string
	i, err := c.inject("the CCM's credentials expire", "the CCM's credentials are accepted again", "expired credentials",
		func() (Injection, error) {
			made, err := ask[protocol.Injection](ctx, c, "expireCredentials", "", nil)
			id = made.ID
			return driverInjection{c, id}, err
		})
	if err != nil {
		return nil, err
	}
	return expiry{i, c, id}, nil
}

// expiry is an injection whose credentials can be renewed.
type expiry struct {
	Injection
	c  *Client
	id string
}

// Renew implements Expiry.
func (e expiry) Renew(ctx context.Context) error {
	return e.c.do(ctx, "giving the CCM new credentials", "renewCredentials", e.id, nil)
}

// SwapCredentials implements CredentialSwapper.
func (c *Client) SwapCredentials(ctx context.Context) (Injection, error) {
	// A CCM that has noticed whose they are may ask for nothing.
	return c.inject("giving the CCM another project's credentials", "giving the CCM its own credentials back", "",
		c.asks(ctx, "swapCredentials", "", nil))
}

// RenewCA implements CARenewer.
func (c *Client) RenewCA(ctx context.Context) (Injection, error) {
	return c.inject("renewing the CA of the cloud's certificate", "the former CA's certificate is back", "",
		c.asks(ctx, "renewCA", "", nil))
}

// inject makes the cloud misbehave. It records that, and later that the injection is lifted. A test passes only if
// the injection has met something, unless evidence, which names it for that message, is "".
func (c *Client) inject(
	what, lifting, evidence string, inject func() (Injection, error),
) (_ Injection, err error) {
	made := &tracedInjection{trace: c.trace, lifting: lifting, evidence: evidence}
	if c.onFault != nil {
		c.onFault(made)
	}
	ended := c.trace.Begin(what)
	made.Injection, err = inject()
	ended(err, "")
	if err != nil {
		return nil, err
	}
	return made, nil
}

// asks returns a function by which the driver injects something, with an operation.
func (c *Client) asks(ctx context.Context, operation, argument string, body any) func() (Injection, error) {
	return func() (Injection, error) {
		made, err := ask[protocol.Injection](ctx, c, operation, argument, body)
		return driverInjection{c, made.ID}, err
	}
}

// driverInjection is an Injection that the driver keeps.
type driverInjection struct {
	c  *Client
	id string
}

// Hits implements Injection.
func (d driverInjection) Hits(ctx context.Context) (int, error) {
	got, err := ask[protocol.Hits](ctx, d.c, "getInjection", d.id, nil)
	return got.Hits, err
}

// Lift implements Injection. That a second call does nothing is for the driver to see to.
func (d driverInjection) Lift(ctx context.Context) error {
	return d.c.call(ctx, "liftInjection", d.id, nil, nil)
}

// tracedInjection records when it is first lifted.
type tracedInjection struct {
	Injection
	trace    *record.Trace
	lifting  string
	evidence string // its name, if it must have met something; see inject
	first    sync.Once
	notMade  error // why it proves nothing, as it was when it was lifted
}

// Lift implements Injection.
func (t *tracedInjection) Lift(ctx context.Context) (err error) {
	ended := func(error, string) {}
	t.first.Do(func() {
		t.notMade = t.checkMade(ctx)
		ended = t.trace.Begin(t.lifting)
	})
	err = t.Injection.Lift(ctx)
	ended(err, "")
	return err
}

// checkMade returns an error if nothing has met the injection, although something must have.
func (t *tracedInjection) checkMade(ctx context.Context) error {
	if t.evidence == "" {
		return nil
	}
	hits, err := t.Hits(ctx)
	if err == nil && hits == 0 {
		err = errors.New("nothing that the CCM did has met it")
	}
	if err != nil {
		return fmt.Errorf("the fault was not made, so that nothing is proved: %s: %w", t.evidence, err)
	}
	return nil
}
