package onfakecloud

// How each fault that the suite knows is made: by a rule of the cloud's own, or,
// where the cloud must not be there at all, at the gate.

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// foreignProject is one that the cloud does not have.
const foreignProject = "p-00000000000000000000000000"

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
		rule.Match.Operations = without(rule.Match.Operations, isNoWrite)
	}
	if f.Kind == conformance.FaultNotFound {
		return c.injectDataLoss(ctx, f, rule)
	}
	return c.createRule(ctx, rule)
}

func (c *Cloud) createRule(ctx context.Context, rule api.FaultCreate) (protocol.Injected, error) {
	made, err := c.API.CreateFault(ctx, rule)
	if err != nil {
		return nil, err
	}
	return injection{api: c.API, id: made.ID}, nil
}

// lifeCycleKinds are the things that have a life cycle.
var lifeCycleKinds = map[conformance.Thing]api.ResourceKind{
	conformance.Instances: api.ResourceInstance,
	conformance.Balancers: api.ResourceLoadBalancer,
}

// injectLifeCycleFault makes a rule about the things themselves, whoever has made them.
func (c *Cloud) injectLifeCycleFault(ctx context.Context, f conformance.Fault) (protocol.Injected, error) {
	rule := api.FaultCreate{Effect: effectOf(f.Kind)}
	for _, thing := range f.On {
		rule.Match.Kinds = append(rule.Match.Kinds, lifeCycleKinds[thing])
	}
	return c.createRule(ctx, rule)
}

// operationsUnder are those about a thing that a fault of this kind can meet: a
// rule that could never be applied to one of its operations is refused. What is lost, or takes long, is what makes
// a balancer: where that is a load balancer, its addresses are made as always, which may come first.
func (c *Cloud) operationsUnder(kind conformance.FaultKind, thing conformance.Thing) []string {
	operations := operations[thing]
	if !c.balancersAreAddresses() && (kind == conformance.FaultLost || kind == conformance.FaultSlow) {
		operations = without(operations, isOfAddress)
	}
	if slices.Contains(conformance.MissingFieldKinds(conformance.Balancers), kind) {
		operations = without(operations, func(op string) bool { return isOfAddress(op) != c.balancersAreAddresses() })
	}
	switch kind {
	case conformance.FaultEmptyList, conformance.FaultPartialList:
		return without(operations, func(op string) bool { return !isList(op) })
	case conformance.FaultLost, conformance.FaultConflict, conformance.FaultPrecondition:
		return without(operations, isNoWrite)
	}
	if kind == conformance.FaultStale || len(omittedFields[kind]) > 0 {
		return without(operations, isWrite)
	}
	return operations
}

// without returns the operations but for those that are left out.
func without(operations []string, leftOut func(string) bool) []string {
	return slices.DeleteFunc(slices.Clone(operations), leftOut)
}

func isNoWrite(operation string) bool { return !isWrite(operation) }

func isList(operation string) bool { return strings.HasPrefix(operation, "list") }

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
	rule.Match.Operations = without(rule.Match.Operations, isList)
	made, err := c.createRule(ctx, rule)
	if err != nil {
		return nil, errors.Join(err, empty.Lift(context.WithoutCancel(ctx)))
	}
	return pairedInjection{made, empty}, nil
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
		return api.FaultEffect{Body: new(conformance.Garbage), ContentType: "text/html"}
	case conformance.FaultPartialList:
		return api.FaultEffect{PartialList: 1}
	case conformance.FaultStale:
		return api.FaultEffect{Stale: true}
	case conformance.FaultSlow:
		return api.FaultEffect{DelayMilliseconds: int(conformance.SlowDelay.Milliseconds())}
	case conformance.FaultLost:
		return api.FaultEffect{Hang: true, CarryOut: true}
	case conformance.FaultStuck:
		return api.FaultEffect{Stuck: true}
	case conformance.FaultBuildFails:
		return api.FaultEffect{Fail: "the conformance suite has it fail"}
	case conformance.FaultForeignNotFound:
		return api.FaultEffect{Status: conformance.FaultStatuses[k], Project: foreignProject}
	case conformance.FaultThrottledFor, conformance.FaultUnavailableFor:
		return api.FaultEffect{Status: conformance.FaultStatuses[k], RetryAfterSeconds: int(conformance.RetryAfter.Seconds())}
	default:
		return api.FaultEffect{Status: conformance.FaultStatuses[k]}
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
	return unlessNotFound(i.api.DeleteFault(ctx, i.id))
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
