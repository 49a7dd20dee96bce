package conformance

// How a test calls the cloud. The test's timeline has what it changes there, and not what it reads: tests read
// many times a second.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// What drivers see and steer. openapi.yaml of package protocol says what each field is, and which feature
// it belongs to: a driver leaves empty those whose feature it does not have.
type (
	// InstanceSpec says which instance to create.
	InstanceSpec = protocol.InstanceSpec
	// Instance is a running one.
	Instance = protocol.Instance
	// Balancer is a load balancer.
	Balancer = protocol.Balancer
	// Listener is a port that a balancer listens on.
	Listener = protocol.Listener
	// Route leads packets for Destination, a CIDR, to an instance.
	Route = protocol.Route
	// Fault is one way to misbehave.
	Fault = protocol.Fault
	// FaultKind is what a call gets instead of its answer.
	FaultKind = protocol.FaultKind
	// Call is one call of the cloud's API.
	Call = protocol.Call
	// Thing is what a call of the cloud's API is about.
	Thing = protocol.Thing
	// Name is what something is to be called.
	Name = protocol.Name
	// BalancerChange has the listeners and targets that a balancer is to have, instances' IDs.
	BalancerChange = protocol.BalancerChange
	// ForeignRoute is a route that is somebody else's.
	ForeignRoute = protocol.ForeignRoute
	// RouteDiversion says where a route is to lead.
	RouteDiversion = protocol.RouteDiversion
)

// Features that no test needs: a driver names them to be asked for an operation.
const (
	// RoleInstanceBatches: many instances are made at little cost. The profile Budget has up to a thousand.
	RoleInstanceBatches Feature = "instance-batches"
	// RoleCallJournal: the tests' timelines have the CCM's calls.
	RoleCallJournal Feature = "call-journal"
)

// Proxy stands between the CCM and the cloud, and does what a driver does not do itself.
type Proxy interface {
	// FaultKinds lists the kinds that can be injected.
	FaultKinds() []FaultKind
	// InjectFault makes the cloud misbehave towards the CCM, and towards nobody else, until the injection is lifted.
	InjectFault(ctx context.Context, f Fault) (Injection, error)
	// CountCalls counts the calls that the CCM has made so far.
	CountCalls(ctx context.Context) (Calls, error)
	record.Journal
}

// Client is a cloud with one cluster in it, behind a driver. It asks for the operations of those features that the
// driver names. Operations that change something return when the cloud says that it is so; what the CCM makes of it
// is for the tests to await.
type Client struct {
	protocol.Client // whose calls are Client's
	driver          protocol.Caller
	described       protocol.Driver
	proxy           Proxy         // nil for none
	trace           *record.Trace // what is done goes into it; may be nil
	// onFault, unless nil, is told when the cloud is made to misbehave.
	onFault func(*tracedInjection)
}

// Connect asks a driver what it can do.
func Connect(ctx context.Context, driver protocol.Caller, hello protocol.Hello) (*Client, error) {
	c := &Client{driver: driver}
	c.Caller = c
	hello.Protocols, hello.Features = []string{protocol.Version}, knownFeatures()
	described, err := protocol.Client{Caller: driver}.Hello(ctx, hello)
	if err == nil && described.Protocol != protocol.Version {
		err = fmt.Errorf(
			"the driver %s speaks version %q of the protocol, and this suite %q: one of them must be of another release",
			described.Name, described.Protocol, protocol.Version)
	}
	c.described = described
	return c, err
}

// InProcess connects to a driver that is in this process.
func InProcess(ctx context.Context, driver protocol.Operations, hello protocol.Hello) (*Client, error) {
	return Connect(ctx, &protocol.Connection{
		Transport: protocol.InProcess(driver), Host: "driver", Timeout: protocol.DefaultTimeout,
	}, hello)
}

// forTest returns a client that records in one test's timeline what it changes.
func (c *Client) forTest(trace *record.Trace, onFault func(*tracedInjection)) *Client {
	mine := *c
	mine.Caller = &mine
	mine.trace, mine.onFault = trace, onFault
	return &mine
}

// UseProxy has a proxy count the CCM's calls, and make the faults that the driver does not make itself.
func (c *Client) UseProxy(p Proxy) { c.proxy = p }

// Described is what the driver says of itself.
func (c *Client) Described() protocol.Driver { return c.described }

// knownFeatures are all that a driver can name.
func knownFeatures() []string {
	return namesOf(append(AllFeatures(), RoleInstanceBatches, RoleCallJournal))
}

// UnknownFeatures are those that the driver names, or has an answer of its proxy for, and this suite does not know.
func (c *Client) UnknownFeatures() []string {
	named := slices.Clone(c.described.Features)
	if proxy := c.described.Proxy; proxy != nil {
		for _, kind := range slices.Sorted(maps.Keys(proxy.Answers)) {
			named = append(named, string(FaultFeature(FaultKind(kind))))
		}
	}
	return slices.DeleteFunc(named, func(name string) bool { return slices.Contains(knownFeatures(), name) })
}

// hasFeature tells whether the driver names a feature.
func (c *Client) hasFeature(f Feature) bool { return slices.Contains(c.described.Features, string(f)) }

// byProxy tells whether the proxy does what the driver does not name. The driver goes first: it knows its
// cloud better.
func (c *Client) byProxy(f Feature) bool { return c.proxy != nil && !c.hasFeature(f) }

// Features lists what the driver and the proxy can do. What a driver of a later release can do beyond what this suite
// knows is not among it.
func (c *Client) Features() (features []Feature) {
	for _, f := range AllFeatures() {
		kind, isFault := strings.CutPrefix(string(f), faultFeaturePrefix)
		byProxy := c.proxy != nil && (f == FeatureCalls || isFault && slices.Contains(c.proxy.FaultKinds(), FaultKind(kind)))
		if byProxy || c.hasFeature(f) {
			features = append(features, f)
		}
	}
	return features
}

// Call implements protocol.Caller: it has an operation carried out whose feature the driver names, and records what
// openapi.yaml has a text for. A test that uses another feature fails: it would have to need it.
func (c *Client) Call(ctx context.Context, operation, argument string, body, answer any) error {
	o := protocol.OperationNamed(operation)
	if o.Feature != "" && !c.hasFeature(Feature(o.Feature)) {
		return fmt.Errorf("%s: the cloud's driver does not have %s: %w", operation, o.Feature, errors.ErrUnsupported)
	}
	if o.Timeline == "" {
		return c.driver.Call(ctx, operation, argument, body, answer)
	}
	fill := fillerOf(argument, body)
	ended := c.trace.Begin(fill(o.Timeline))
	err := c.driver.Call(ctx, operation, argument, body, answer)
	detail := ""
	switch made := answer.(type) {
	case *protocol.ReservedAddress:
		detail = made.Address
	case *Instance:
		detail = c.learnName(made.ID, fill(o.TimelineName))
		if o.Feature == string(FeatureChangeAddresses) {
			detail = fmt.Sprint(made.InternalIPs, made.ExternalIPs)
		}
	case *Balancer:
		detail = c.learnName(made.ID, fill(o.TimelineName))
	case *Route:
		c.learnName(made.ID, fill(o.TimelineName))
	}
	ended(err, detail)
	return err
}

// learnName has the timeline know what was made, unless it has no name, and returns its ID.
func (c *Client) learnName(id, name string) string {
	if name == "" {
		return ""
	}
	c.trace.Learn(id, name)
	return id
}

// fillerOf returns a function that fills in a text's names in braces: "id" with the argument, others with the fields of
// the body.
func fillerOf(argument string, body any) func(string) string {
	var fields map[string]any
	if text, err := json.Marshal(body); err == nil {
		_ = json.Unmarshal(text, &fields) // A body that is none has no fields.
	}
	pairs := []string{"{id}", argument}
	for name, value := range fields {
		pairs = append(pairs, "{"+name+"}", fmt.Sprint(value))
	}
	return strings.NewReplacer(pairs...).Replace
}

// recordAction does what is no operation of its own in the timeline, and records it as what.
func (c *Client) recordAction(what string, act func() error) error {
	return traceAction(c.trace, what, act)
}

// Methods below hide those of protocol.Client that have the same names: a test wants more than the driver's answer.

// instancesAtOnce is how many instances are made or terminated side by side.
const instancesAtOnce = 16

// CreateInstances makes many instances. A driver without RoleInstanceBatches makes them one by one. It returns what was
// made with an error, too.
func (c *Client) CreateInstances(ctx context.Context, specs []InstanceSpec) ([]Instance, error) {
	if !c.hasFeature(RoleInstanceBatches) {
		instances := make([]Instance, len(specs))
		err := Each(ctx, instancesAtOnce, len(specs), func(ctx context.Context, i int) (err error) {
			instances[i], err = c.CreateInstance(ctx, specs[i])
			return err
		})
		return slices.DeleteFunc(instances, func(i Instance) bool { return i.ID == "" }), err
	}
	ended := c.trace.Begin(fmt.Sprintf("creating instances: %d", len(specs)))
	made, err := c.Client.CreateInstances(ctx, protocol.InstanceSpecs{Instances: specs})
	if err == nil && made.Problem != nil {
		err = errors.New("the driver: " + made.Problem.Detail)
	}
	for _, i := range made.Instances {
		c.trace.Learn(i.ID, i.Name)
	}
	ended(err, "")
	return made.Instances, err
}

// TerminateInstances terminates many instances. It goes on when one cannot be terminated.
func (c *Client) TerminateInstances(ctx context.Context, ids []string) error {
	if !c.hasFeature(RoleInstanceBatches) {
		errs := make([]error, len(ids))
		err := Each(ctx, instancesAtOnce, len(ids), func(ctx context.Context, i int) error {
			errs[i] = c.TerminateInstance(ctx, ids[i])
			return nil
		})
		return errors.Join(append(errs, err)...)
	}
	return c.recordAction(fmt.Sprintf("terminating instances: %d", len(ids)), func() error {
		return c.Client.TerminateInstances(ctx, protocol.IDs{IDs: ids})
	})
}

// ListBalancers lists those that the cloud holds for this cluster's Services. It records nothing, and learns whose they
// are by their Services.
func (c *Client) ListBalancers(ctx context.Context) ([]Balancer, error) {
	list, err := c.Client.ListBalancers(ctx)
	for _, b := range list.Balancers {
		c.trace.LearnOwned(b.ID, string(b.Service))
	}
	return list.Balancers, err
}

// GetBalancer finds one of any owner; false when it is gone.
func (c *Client) GetBalancer(ctx context.Context, id string) (b Balancer, found bool, err error) {
	b, err = c.Client.GetBalancer(ctx, id)
	return b, err == nil, unlessNotFound(err)
}

// GetRoute finds a route of any owner; false when it is gone.
func (c *Client) GetRoute(ctx context.Context, id string) (r Route, found bool, err error) {
	r, err = c.Client.GetRoute(ctx, id)
	return r, err == nil, unlessNotFound(err)
}

func unlessNotFound(err error) error {
	if errors.Is(err, protocol.ErrNotFound) {
		return nil
	}
	return err
}

// ReserveAddress keeps an address that a balancer can be asked to have, and returns what gives it back.
func (c *Client) ReserveAddress(ctx context.Context) (string, func(context.Context) error, error) {
	kept, err := c.Client.ReserveAddress(ctx)
	return kept.Address, func(ctx context.Context) error {
		return c.recordAction("releasing address "+kept.Address, func() error { return c.ReleaseAddress(ctx, kept.ID) })
	}, err
}

// CountCalls counts the calls that the CCM has made.
func (c *Client) CountCalls(ctx context.Context) (Calls, error) {
	if c.byProxy(FeatureCalls) {
		return c.proxy.CountCalls(ctx)
	}
	var calls Calls
	err := c.Call(ctx, "countCalls", "", nil, &calls)
	return calls, err
}

// ErrNotCounted tells that a balancer, such as a floating IP, counts no connections. Nothing but its address is
// proof then that an answer came by it.
var ErrNotCounted = errors.New("balancers of this kind count no connections")

// CountConnections counts what a balancer has accepted so far, on each of its ports: TCP connections or UDP flows. The
// error is ErrNotCounted if its kind counts nothing.
func (c *Client) CountConnections(ctx context.Context, id string) (map[int32]int64, error) {
	counts, err := c.Client.CountConnections(ctx, id)
	if counts.Uncounted {
		return nil, ErrNotCounted
	}
	byPort := map[int32]int64{}
	for _, count := range counts.Ports {
		byPort[count.Port] += count.Connections
	}
	return byPort, err
}

// ListRoutes lists the routes that the cloud holds for this cluster.
func (c *Client) ListRoutes(ctx context.Context) ([]Route, error) {
	list, err := c.Client.ListRoutes(ctx)
	return list.Routes, err
}

// CallsSince implements record.Journal.
func (c *Client) CallsSince(ctx context.Context, since time.Time) ([]Call, error) {
	if c.byProxy(RoleCallJournal) {
		return c.proxy.CallsSince(ctx, since)
	}
	list, err := c.ListCalls(ctx, since)
	return list.Calls, err
}

// callJournal returns the client if the driver or the proxy knows the CCM's calls, and nil otherwise.
func (c *Client) callJournal() record.Journal {
	if c.proxy == nil && !c.hasFeature(RoleCallJournal) {
		return nil
	}
	return c
}

// Methods below make the cloud misbehave, and hold what the driver has injected until it is lifted.

// LimitRoutes has the cloud refuse to make routes, as one does whose quota is used up.
func (c *Client) LimitRoutes(ctx context.Context) (Injection, error) {
	return c.inject(ctx, "limiting routes", "limiting routes no more", "", c.Client.LimitRoutes)
}

// LimitBalancers has the cloud refuse to make balancers, as one does whose quota is used up.
func (c *Client) LimitBalancers(ctx context.Context) (Injection, error) {
	return c.inject(ctx, "limiting balancers", "limiting balancers no more", "", c.Client.LimitBalancers)
}

// FaultKinds lists the kinds that can be injected.
func (c *Client) FaultKinds() (kinds []FaultKind) {
	for _, f := range c.Features() {
		if kind, ok := strings.CutPrefix(string(f), faultFeaturePrefix); ok {
			kinds = append(kinds, FaultKind(kind))
		}
	}
	return kinds
}

// InjectFault makes the cloud misbehave towards the CCM, and towards nobody else.
func (c *Client) InjectFault(ctx context.Context, f Fault) (Injection, error) {
	what := string(f.Kind)
	for i, thing := range f.On {
		what += []string{" on ", ", "}[min(i, 1)] + string(thing)
	}
	evidence := "fault " + what
	if isAvoidable(f.Kind) {
		evidence = ""
	}
	if c.byProxy(FaultFeature(f.Kind)) {
		return c.hold("injecting fault "+what, "lifting fault "+what, evidence, func() (Injection, error) {
			return c.proxy.InjectFault(ctx, f)
		})
	}
	inject := func(ctx context.Context) (protocol.Injection, error) { return c.Client.InjectFault(ctx, f) }
	return c.inject(ctx, "injecting fault "+what, "lifting fault "+what, evidence, inject)
}

// ListZones lists the zones in which an instance can be created, several of them.
func (c *Client) ListZones(ctx context.Context) ([]string, error) {
	list, err := c.Client.ListZones(ctx)
	return list.Zones, err
}

// InjectZoneOutage has all instances of a zone fail at once. It returns when they have; Lift, when they run again.
func (c *Client) InjectZoneOutage(ctx context.Context, zone string) (Injection, error) {
	inject := func(ctx context.Context) (protocol.Injection, error) { return c.Client.InjectZoneOutage(ctx, zone) }
	return c.inject(ctx, "losing zone "+zone, "zone "+zone+" comes back", "", inject)
}

// ExpireCredentials has the cloud refuse the credentials that the CCM has, on every call.
func (c *Client) ExpireCredentials(ctx context.Context) (Expiry, error) {
	var made protocol.Injection
	inject := func(ctx context.Context) (_ protocol.Injection, err error) {
		made, err = c.Client.ExpireCredentials(ctx)
		return made, err
	}
	i, err := c.inject(
		ctx, "the CCM's credentials expire", "the CCM's credentials are accepted again", "expired credentials", inject,
	)
	return expiry{i, c, made.ID}, err
}

// Expiry is an Injection that has the CCM's credentials refused. Hits counts the calls that were refused. Lift
// gives the CCM its former credentials back, and has them accepted again.
type Expiry interface {
	Injection
	// Renew puts new credentials where the CCM has its own. The former ones stay refused.
	Renew(ctx context.Context) error
}

type expiry struct {
	Injection
	c  *Client
	id string
}

// Renew implements Expiry.
func (e expiry) Renew(ctx context.Context) error {
	return e.c.recordAction("giving the CCM new credentials", func() error { return e.c.RenewCredentials(ctx, e.id) })
}

// SwapCredentials puts good credentials of another project, or account, in which there is nothing, where the CCM
// has its own. Hits are the calls about instances that are made with them.
func (c *Client) SwapCredentials(ctx context.Context) (Injection, error) {
	// A CCM that has noticed whose they are may ask for nothing.
	return c.inject(ctx, "giving the CCM another project's credentials", "giving the CCM its own credentials back", "",
		c.Client.SwapCredentials)
}

// RenewCA has the CCM shown a certificate that a new CA signed, and puts that CA where the CCM has the former one.
// Open connections break. Hits are connections on which the CCM accepted the new certificate.
func (c *Client) RenewCA(ctx context.Context) (Injection, error) {
	return c.inject(ctx, "renewing the CA of the cloud's certificate", "the former CA's certificate is back", "",
		c.Client.RenewCA)
}

// inject has the driver make the cloud misbehave: see hold.
func (c *Client) inject(
	ctx context.Context, what, lifting, evidence string, inject func(context.Context) (protocol.Injection, error),
) (Injection, error) {
	return c.hold(what, lifting, evidence, func() (Injection, error) {
		made, err := inject(ctx)
		return driverInjection{c, made.ID}, err
	})
}

// hold makes the cloud misbehave. It records that, and later that the injection is lifted. A test passes only if
// the injection has met something, unless evidence, which names it for that message, is "".
func (c *Client) hold(
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

// driverInjection is an Injection that the driver keeps.
type driverInjection struct {
	c  *Client
	id string
}

// Hits implements Injection.
func (d driverInjection) Hits(ctx context.Context) (int, error) {
	got, err := d.c.GetInjection(ctx, d.id)
	return got.Hits, err
}

// Lift implements Injection. That a second call does nothing is for the driver to see to.
func (d driverInjection) Lift(ctx context.Context) error {
	return d.c.LiftInjection(ctx, d.id)
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
		return notMade(fmt.Errorf("%s: %w", t.evidence, err))
	}
	return nil
}

// notMade is the reason of a test that proves nothing.
func notMade(why error) error {
	return fmt.Errorf("the fault was not made, so that nothing is proved: %w", why)
}
