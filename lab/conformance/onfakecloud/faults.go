package onfakecloud

// How each fault that the suite knows is made: by a rule of the cloud's own, or,
// where the cloud must not be there at all, at the gate.

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// slowDelay is how long an answer takes under FaultSlow.
const slowDelay = 30 * time.Second

// foreignProject is one that the cloud does not have.
const foreignProject = "p-00000000000000000000000000"

// statuses of the faults that are answers.
var statuses = map[conformance.FaultKind]int{
	conformance.FaultUnauthorized:    http.StatusUnauthorized,
	conformance.FaultForbidden:       http.StatusForbidden,
	conformance.FaultForeignNotFound: http.StatusNotFound,
	conformance.FaultNotFound:        http.StatusNotFound, // It names the caller's own project.
	conformance.FaultConflict:        http.StatusConflict,
	conformance.FaultPrecondition:    http.StatusPreconditionFailed,
	conformance.FaultThrottled:       http.StatusTooManyRequests,
	conformance.FaultServerError:     http.StatusInternalServerError,
	conformance.FaultUnavailable:     http.StatusServiceUnavailable,
	conformance.FaultThrottledFor:    http.StatusTooManyRequests,
	conformance.FaultUnavailableFor:  http.StatusServiceUnavailable,
}

// omittedFields are those that a fault leaves out.
var omittedFields = map[conformance.FaultKind][]string{
	conformance.FaultMissingField:             {"state"},
	conformance.FaultMissingInstanceAddresses: {"addresses"},
	conformance.FaultMissingInstanceZone:      {"zone", "region"},
	conformance.FaultMissingInstanceType:      {"type"},
	conformance.FaultMissingInstanceTags:      {"tags"},
	conformance.FaultMissingBalancerAddress:   {"address"},
	conformance.FaultMissingBalancerListener:  {"listeners"},
	conformance.FaultMissingRouteInstance:     {"instanceId"},
	conformance.FaultMissingRouteDestination:  {"destination"},
}

// operations that are about a thing. Some CCMs' balancers are attached addresses.
var operations = map[conformance.Thing][]string{
	conformance.Instances: {"listInstances", "getInstance"},
	conformance.Balancers: {
		"listLoadBalancers", "getLoadBalancer", "createLoadBalancer", "updateLoadBalancer", "deleteLoadBalancer",
		"listAddresses", "getAddress", "reserveAddress", "attachAddress", "detachAddress", "releaseAddress",
	},
	conformance.Routes: {"listRoutes", "getRoute", "createRoute", "updateRoute", "deleteRoute"},
}

// lists among them: all that an empty list can be the answer to.
var lists = map[conformance.Thing][]string{
	conformance.Instances: {"listInstances"},
	conformance.Balancers: {"listLoadBalancers", "listAddresses"},
	conformance.Routes:    {"listRoutes"},
}

// faultFeatures are the features that say which faults can be injected. An address takes no time to build, and has no listeners.
func (c *Cloud) faultFeatures() (features []conformance.Feature) {
	for _, k := range conformance.AllFaultKinds() {
		switch k {
		case conformance.FaultStuck, conformance.FaultBuildFails, conformance.FaultMissingBalancerListener:
			if c.balancersAreAddresses() {
				continue
			}
		case conformance.FaultRefused:
			if c.Gate == nil {
				continue
			}
		}
		features = append(features, conformance.FaultFeature(k))
	}
	return features
}

// InjectFault implements protocol.Operations.
func (c *Cloud) InjectFault(ctx context.Context, f conformance.Fault) (protocol.Injection, error) {
	return c.Hold(c.makeFault(ctx, f))
}

func (c *Cloud) makeFault(ctx context.Context, f conformance.Fault) (protocol.Injected, error) {
	switch f.Kind {
	case conformance.FaultRefused:
		return c.Gate.Refuse()
	case conformance.FaultStuck, conformance.FaultBuildFails:
		return c.injectLifeCycleFault(ctx, f)
	}
	rule := api.FaultCreate{Match: api.FaultMatch{Token: c.Token}, Effect: effectOf(f.Kind)}
	rule.Effect.DelayMilliseconds += f.DelayMilliseconds
	if f.Kind == conformance.FaultMissingBalancerAddress && c.balancersAreAddresses() {
		rule.Effect.OmitFields = []string{"ip"}
	}
	for _, thing := range f.On {
		rule.Match.Operations = append(rule.Match.Operations, c.operationsUnder(f.Kind, thing)...)
	}
	if f.Writes {
		rule.Match.Operations = slices.DeleteFunc(slices.Clone(rule.Match.Operations), isNoWrite)
	}
	if f.Kind == conformance.FaultNotFound {
		return c.injectDataLoss(ctx, f, rule)
	}
	made, err := c.API.CreateFault(ctx, rule)
	if err != nil {
		return nil, err
	}
	return injection{api: c.API, id: made.ID}, nil
}

// lifeCycleKinds are the things that have a life cycle.
var lifeCycleKinds = map[conformance.Thing]api.FaultMatchKinds{
	conformance.Instances: api.FaultInstance,
	conformance.Balancers: api.FaultLoadBalancer,
}

// injectLifeCycleFault makes a rule about the things themselves, whoever has made them.
func (c *Cloud) injectLifeCycleFault(ctx context.Context, f conformance.Fault) (protocol.Injected, error) {
	rule := api.FaultCreate{Effect: effectOf(f.Kind)}
	for _, thing := range f.On {
		rule.Match.Kinds = append(rule.Match.Kinds, lifeCycleKinds[thing])
	}
	made, err := c.API.CreateFault(ctx, rule)
	if err != nil {
		return nil, err
	}
	return injection{api: c.API, id: made.ID}, nil
}

// operationsUnder are those about a thing that a fault of this kind can meet: a
// rule that could never be applied to one of its operations is refused. What is lost, or takes long, is what makes
// a balancer: where that is a load balancer, its addresses are made as always, which may come first.
func (c *Cloud) operationsUnder(kind conformance.FaultKind, thing conformance.Thing) []string {
	operations := operations[thing]
	if !c.balancersAreAddresses() && (kind == conformance.FaultLost || kind == conformance.FaultSlow) {
		operations = slices.DeleteFunc(slices.Clone(operations), isOfAddress)
	}
	if slices.Contains(conformance.MissingFieldKinds(conformance.Balancers), kind) {
		operations = slices.DeleteFunc(slices.Clone(operations), func(op string) bool {
			return isOfAddress(op) != c.balancersAreAddresses()
		})
	}
	if len(omittedFields[kind]) > 0 {
		return slices.DeleteFunc(slices.Clone(operations), isWrite)
	}
	switch kind {
	case conformance.FaultEmptyList, conformance.FaultPartialList:
		return lists[thing]
	case conformance.FaultStale:
		return slices.DeleteFunc(slices.Clone(operations), isWrite)
	case conformance.FaultLost, conformance.FaultConflict, conformance.FaultPrecondition:
		return slices.DeleteFunc(slices.Clone(operations), isNoWrite)
	default:
		return operations
	}
}

func isNoWrite(operation string) bool { return !isWrite(operation) }

func isOfAddress(operation string) bool {
	return strings.HasSuffix(operation, "Address") || strings.HasSuffix(operation, "Addresses")
}

// injectDataLoss makes a cloud that has lost its data: lists have nothing in them, which
// is not counted, and what is asked for by its ID is not found.
func (c *Cloud) injectDataLoss(
	ctx context.Context,
	f conformance.Fault,
	rule api.FaultCreate,
) (protocol.Injected, error) {
	empty, err := c.makeFault(ctx, conformance.Fault{
		Kind: conformance.FaultEmptyList, On: f.On, DelayMilliseconds: f.DelayMilliseconds,
	})
	if err != nil {
		return nil, err
	}
	rule.Match.Operations = slices.DeleteFunc(rule.Match.Operations, func(op string) bool {
		return strings.HasPrefix(op, "list")
	})
	made, err := c.API.CreateFault(ctx, rule)
	if err != nil {
		return nil, errors.Join(err, empty.Lift(context.WithoutCancel(ctx)))
	}
	return pairedInjection{injection{api: c.API, id: made.ID}, empty}, nil
}

// pairedInjection is two rules. Its hits are the first rule's.
type pairedInjection struct {
	protocol.Injected
	other protocol.Injected
}

func (p pairedInjection) Lift(ctx context.Context) error {
	return errors.Join(p.Injected.Lift(ctx), p.other.Lift(ctx))
}

func effectOf(k conformance.FaultKind) api.FaultEffect {
	if fields := omittedFields[k]; len(fields) > 0 {
		return api.FaultEffect{OmitFields: fields}
	}
	switch k {
	case conformance.FaultTimeout:
		return api.FaultEffect{Hang: true}
	case conformance.FaultReset:
		return api.FaultEffect{Drop: true}
	case conformance.FaultEmptyList:
		return api.FaultEffect{EmptyList: true}
	case conformance.FaultGarbage:
		body := "<html><body>Welcome to this network. Please accept our terms.</body></html>"
		return api.FaultEffect{Body: &body, ContentType: "text/html"}
	case conformance.FaultPartialList:
		return api.FaultEffect{PartialList: 1}
	case conformance.FaultStale:
		return api.FaultEffect{Stale: true}
	case conformance.FaultSlow:
		return api.FaultEffect{DelayMilliseconds: int(slowDelay.Milliseconds())}
	case conformance.FaultLost:
		return api.FaultEffect{Hang: true, CarryOut: true}
	case conformance.FaultStuck:
		return api.FaultEffect{Stuck: true}
	case conformance.FaultBuildFails:
		return api.FaultEffect{Fail: "the conformance suite has it fail"}
	case conformance.FaultForeignNotFound:
		return api.FaultEffect{Status: statuses[k], Project: foreignProject}
	case conformance.FaultThrottledFor, conformance.FaultUnavailableFor:
		return api.FaultEffect{Status: statuses[k], RetryAfterSeconds: int(conformance.RetryAfter.Seconds())}
	default:
		return api.FaultEffect{Status: statuses[k]}
	}
}

// injection is a rule in the cloud.
type injection struct {
	api *client.Client
	id  string
}

func (i injection) Hits(ctx context.Context) (int, error) {
	f, err := i.api.GetFault(ctx, i.id)
	if err != nil {
		return 0, err
	}
	return f.Hits, nil
}

func (i injection) Lift(ctx context.Context) error {
	if err := i.api.DeleteFault(ctx, i.id); err != nil && !client.IsNotFound(err) {
		return err
	}
	return nil
}

// ListZones implements protocol.Operations.
func (c *Cloud) ListZones(ctx context.Context) (protocol.ZoneList, error) {
	names, err := c.zoneNames(ctx)
	return protocol.ZoneList{Zones: names}, err
}

func (c *Cloud) zoneNames(ctx context.Context) ([]string, error) {
	all, err := c.API.ListZones(ctx)
	var names []string
	for _, z := range all {
		names = append(names, z.Name)
	}
	return names, err
}

// InjectZoneOutage implements protocol.Operations.
func (c *Cloud) InjectZoneOutage(ctx context.Context, zone string) (protocol.Injection, error) {
	return c.Hold(c.loseZone(ctx, zone))
}

func (c *Cloud) loseZone(ctx context.Context, zone string) (protocol.Injected, error) {
	there, err := c.idsIn(ctx, zone, api.InstanceRunning, api.InstancePending)
	if err != nil {
		return nil, err
	}
	rule, err := c.API.CreateFault(ctx, api.FaultCreate{Effect: api.FaultEffect{ZoneOutage: zone}})
	if err != nil {
		return nil, err
	}
	lost := zoneOutage{injection{api: c.API, id: rule.ID}, c, zone, there}
	if err := lost.awaitState(ctx, api.InstanceError); err != nil {
		return nil, errors.Join(err, lost.Lift(context.WithoutCancel(ctx)))
	}
	return lost, nil
}

// zoneOutage is the rule that has all instances of a zone fail.
type zoneOutage struct {
	injection
	c     *Cloud
	name  string
	taken []string
}

func (z zoneOutage) Lift(ctx context.Context) error {
	if err := z.injection.Lift(ctx); err != nil {
		return err
	}
	return z.awaitState(ctx, api.InstanceRunning)
}

// awaitState waits until the instances that failed are in that state, or in one that somebody else has brought
// them to.
func (z zoneOutage) awaitState(ctx context.Context, want api.InstanceState) error {
	notYet := slices.DeleteFunc([]api.InstanceState{api.InstanceRunning, api.InstancePending, api.InstanceError},
		func(s api.InstanceState) bool { return s == want })
	return pollUntil(ctx, func() (bool, error) {
		left, err := z.c.idsIn(ctx, z.name, notYet...)
		return !slices.ContainsFunc(z.taken, func(id string) bool { return slices.Contains(left, id) }), err
	})
}

// idsIn returns the IDs of the instances in a zone that are in one of these states.
func (c *Cloud) idsIn(ctx context.Context, zone string, states ...api.InstanceState) ([]string, error) {
	all, err := c.API.ListInstances(ctx, client.InstanceFilter{Zone: zone, States: states})
	var ids []string
	for _, i := range all {
		ids = append(ids, i.ID)
	}
	return ids, err
}
