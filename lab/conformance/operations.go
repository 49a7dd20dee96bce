package conformance

// The protocol's operations, answered by a driver in Go.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// Roles from which no feature follows: a driver names them beside its features.
const (
	// RoleInstanceBatches is InstanceBatcher.
	RoleInstanceBatches Feature = "instance-batches"
	// RoleCallJournal is CallJournal.
	RoleCallJournal Feature = "call-journal"
)

// operation is one of the protocol's, which a driver in Go answers by one of its roles.
type operation struct {
	// id is its operationId in openapi.yaml.
	id string
	// feature is what a driver names if it answers the operation; "" for an operation that every driver answers,
	// and for injectFault, of which each kind of fault is a feature.
	feature Feature
	hasRole func(Cloud) bool
	answer  func(*request) (any, error)
}

// operations are all of them, but for hello. A driver in Go has a feature by having the role.
var operations = []operation{
	by("createInstance", "", withBody(func(c Cloud, r *request, spec InstanceSpec) (any, error) {
		return c.CreateInstance(r.ctx, spec)
	})),
	by("stopInstance", "", func(c Cloud, r *request) (any, error) {
		return nil, c.StopInstance(r.ctx, r.argument)
	}),
	by("startInstance", "", func(c Cloud, r *request) (any, error) {
		return nil, c.StartInstance(r.ctx, r.argument)
	}),
	by("terminateInstance", "", func(c Cloud, r *request) (any, error) {
		return nil, c.TerminateInstance(r.ctx, r.argument)
	}),
	by("createInstances", RoleInstanceBatches, withBody(
		func(c InstanceBatcher, r *request, body protocol.InstanceSpecs) (any, error) {
			made, err := c.CreateInstances(r.ctx, body.Instances)
			batch := protocol.InstanceBatch{Instances: listed(made)}
			if err != nil { // What was made comes with it.
				batch.Problem = &protocol.Problem{Detail: err.Error()}
			}
			return batch, nil
		})),
	by("terminateInstances", RoleInstanceBatches, withBody(
		func(c InstanceBatcher, r *request, body protocol.IDs) (any, error) {
			return nil, c.TerminateInstances(r.ctx, body.IDs)
		})),
	by("listBalancers", "", func(c Cloud, r *request) (any, error) {
		all, err := c.ListBalancers(r.ctx)
		return protocol.BalancerList{Balancers: listed(all)}, err
	}),
	by("getBalancer", "", func(c Cloud, r *request) (any, error) {
		return orNotFound(c.GetBalancer(r.ctx, r.argument))
	}),
	by("deleteBalancer", "", func(c Cloud, r *request) (any, error) {
		return nil, c.DeleteBalancer(r.ctx, r.argument)
	}),
	by("changeAddresses", FeatureChangeAddresses, func(c AddressChanger, r *request) (any, error) {
		return c.ChangeAddresses(r.ctx, r.argument)
	}),
	by("renameInstance", FeatureRenameInstance, withBody(
		func(c InstanceRenamer, r *request, body protocol.Name) (any, error) {
			return nil, c.RenameInstance(r.ctx, r.argument, body.Name)
		})),
	by("rebootInstance", FeatureRebootInstance, func(c InstanceRebooter, r *request) (any, error) {
		return nil, c.RebootInstance(r.ctx, r.argument)
	}),
	by("renameBalancer", FeatureRenameBalancer, withBody(
		func(c BalancerRenamer, r *request, body protocol.Name) (any, error) {
			return nil, c.RenameBalancer(r.ctx, r.argument, body.Name)
		})),
	by("changeBalancer", FeatureChangeBalancer, withBody(
		func(c BalancerChanger, r *request, body protocol.BalancerChange) (any, error) {
			return nil, c.ChangeBalancer(r.ctx, r.argument, body.Listeners, body.Targets)
		})),
	by("resetBalancer", FeatureResetBalancer, func(c BalancerResetter, r *request) (any, error) {
		return c.ResetBalancer(r.ctx, r.argument)
	}),
	by("tagBalancer", FeatureTagBalancer, withBody(func(c BalancerTagger, r *request, body protocol.Name) (any, error) {
		return nil, c.TagBalancer(r.ctx, r.argument, body.Name)
	})),
	by("createForeignBalancer", FeatureStrangers, withBody(
		func(c ForeignBalancerCreator, r *request, body protocol.Name) (any, error) {
			return c.CreateForeignBalancer(r.ctx, body.Name)
		})),
	by("createNamesakeBalancer", FeatureNamesakeBalancers, withBody(
		func(c NamesakeBalancerCreator, r *request, body protocol.Name) (any, error) {
			return c.CreateNamesakeBalancer(r.ctx, body.Name)
		})),
	by("createTwinBalancer", FeatureTwinBalancers, func(c TwinBalancerCreator, r *request) (any, error) {
		return c.CreateTwinBalancer(r.ctx, r.argument)
	}),
	by("limitBalancers", FeatureBalancerQuota, func(c BalancerLimiter, r *request) (any, error) {
		lift, err := c.LimitBalancers(r.ctx)
		return r.injected(liftable{lift}, err)
	}),
	by("createNamesakeInstance", FeatureNamesakeInstances, withBody(
		func(c NamesakeInstanceCreator, r *request, body protocol.Name) (any, error) {
			return c.CreateNamesakeInstance(r.ctx, body.Name)
		})),
	by("reserveAddress", FeatureReservedAddresses, func(c AddressReserver, r *request) (any, error) {
		address, release, err := c.ReserveAddress(r.ctx)
		if err != nil {
			return nil, err
		}
		return protocol.ReservedAddress{ID: r.server.hold(liftable{release}), Address: address}, nil
	}),
	by("releaseAddress", FeatureReservedAddresses, func(_ AddressReserver, r *request) (any, error) {
		return nil, r.server.lift(r.ctx, r.argument)
	}),
	by("countConnections", FeatureTraffic, func(c ConnectionCounter, r *request) (any, error) {
		byPort, err := c.CountConnections(r.ctx, r.argument)
		counts := protocol.ConnectionCounts{Ports: []protocol.PortConnections{}}
		for port, n := range byPort {
			counts.Ports = append(counts.Ports, protocol.PortConnections{Port: port, Connections: n})
		}
		return counts, err
	}),
	by("listRoutes", FeatureRoutes, func(c RouteTable, r *request) (any, error) {
		all, err := c.ListRoutes(r.ctx)
		return protocol.RouteList{Routes: listed(all)}, err
	}),
	by("getRoute", FeatureRoutes, func(c RouteTable, r *request) (any, error) {
		return orNotFound(c.GetRoute(r.ctx, r.argument))
	}),
	by("deleteRoute", FeatureRoutes, func(c RouteTable, r *request) (any, error) {
		return nil, c.DeleteRoute(r.ctx, r.argument)
	}),
	by("divertRoute", FeatureDivertRoutes, withBody(
		func(c RouteDiverter, r *request, body protocol.RouteDiversion) (any, error) {
			return nil, c.DivertRoute(r.ctx, r.argument, body.InstanceID)
		})),
	by("createForeignRoute", FeatureStrangerRoutes, withBody(
		func(c ForeignRouteCreator, r *request, body protocol.ForeignRoute) (any, error) {
			return c.CreateForeignRoute(r.ctx, body.Destination, body.InstanceID)
		})),
	by("createNamesakeRoute", FeatureNamesakeRoutes, withBody(
		func(c NamesakeRouteCreator, r *request, body protocol.ForeignRoute) (any, error) {
			return c.CreateNamesakeRoute(r.ctx, body.Destination, body.InstanceID)
		})),
	by("limitRoutes", FeatureRouteQuota, func(c RouteLimiter, r *request) (any, error) {
		lift, err := c.LimitRoutes(r.ctx)
		return r.injected(liftable{lift}, err)
	}),
	by("injectFault", "", withBody(func(c FaultInjector, r *request, fault Fault) (any, error) {
		return r.injected(c.InjectFault(r.ctx, fault))
	})),
	by("countCalls", FeatureCalls, func(c CallCounter, r *request) (any, error) {
		return c.CountCalls(r.ctx)
	}),
	by("listCalls", RoleCallJournal, func(c CallJournal, r *request) (any, error) {
		since, err := time.Parse(time.RFC3339Nano, r.argument)
		if err != nil {
			return nil, fmt.Errorf("%w: since: %w", ErrMalformed, err)
		}
		calls, err := c.CallsSince(r.ctx, since)
		return protocol.CallList{Calls: listed(calls)}, err
	}),
	by("listZones", FeatureZoneOutage, func(c ZoneOutageInjector, r *request) (any, error) {
		zones, err := c.ListZones(r.ctx)
		return protocol.ZoneList{Zones: listed(zones)}, err
	}),
	by("injectZoneOutage", FeatureZoneOutage, func(c ZoneOutageInjector, r *request) (any, error) {
		return r.injected(c.InjectZoneOutage(r.ctx, r.argument))
	}),
	by("expireCredentials", FeatureExpiry, func(c CredentialExpirer, r *request) (any, error) {
		return r.injected(c.ExpireCredentials(r.ctx))
	}),
	by("swapCredentials", FeatureOtherProject, func(c CredentialSwapper, r *request) (any, error) {
		return r.injected(c.SwapCredentials(r.ctx))
	}),
	by("renewCA", FeatureCARenewal, func(c CARenewer, r *request) (any, error) {
		return r.injected(c.RenewCA(r.ctx))
	}),
	by("getInjection", "", func(_ Cloud, r *request) (any, error) {
		held, ok := r.server.heldInjection(r.argument)
		if !ok {
			return nil, ErrNotFound
		}
		hits, err := held.Hits(r.ctx)
		return protocol.Hits{Hits: hits}, err
	}),
	by("liftInjection", "", func(_ Cloud, r *request) (any, error) {
		return nil, r.server.lift(r.ctx, r.argument)
	}),
	by("renewCredentials", "", func(_ Cloud, r *request) (any, error) {
		held, _ := r.server.heldInjection(r.argument)
		expiry, ok := held.(Expiry)
		if !ok {
			return nil, ErrNotFound
		}
		return nil, expiry.Renew(r.ctx)
	}),
}

// by returns the operation of this ID, which clouds with role R answer.
func by[R any](id string, feature Feature, answer func(R, *request) (any, error)) operation {
	return operation{id, feature, hasRole[R], func(r *request) (any, error) {
		role, ok := As[R](r.server.cloud)
		if !ok {
			return nil, fmt.Errorf("the cloud is no %T: %w", (*R)(nil), errors.ErrUnsupported)
		}
		return answer(role, r)
	}}
}

// withBody decodes the request's body, and passes it to answer.
func withBody[R, B any](answer func(R, *request, B) (any, error)) func(R, *request) (any, error) {
	return func(role R, r *request) (any, error) {
		var body B
		if err := json.Unmarshal(r.body, &body); err != nil {
			return nil, fmt.Errorf("%w: the request's body: %w", ErrMalformed, err)
		}
		return answer(role, r, body)
	}
}

// orNotFound returns ErrNotFound if nothing was found.
func orNotFound[A any](a A, found bool, err error) (any, error) {
	if err == nil && !found {
		err = ErrNotFound
	}
	return a, err
}

// listed returns a list that is not nil: in JSON, it is [] and not null.
func listed[A any](all []A) []A { return append([]A{}, all...) }

// isRoleFeature tells whether a feature follows from a role alone.
func isRoleFeature(f Feature) bool {
	return f != "" && f != RoleInstanceBatches && f != RoleCallJournal && !slices.Contains(declaredFeatures, f)
}

// roleFeatures lists the features that follow from a role alone.
func roleFeatures() (features []Feature) {
	for _, o := range operations {
		if isRoleFeature(o.feature) && !slices.Contains(features, o.feature) {
			features = append(features, o.feature)
		}
	}
	return features
}

// Errors of operations that are not carried out, besides the driver's own.
var (
	ErrNotFound  = errors.New("there is none of this ID")
	ErrMalformed = errors.New("not of the protocol")
)

// Server answers the protocol's operations for a driver in Go.
type Server struct {
	cloud Cloud

	mu     sync.Mutex
	serial int
	held   map[string]Injection // by ID
}

// NewServer answers for a cloud.
func NewServer(c Cloud) *Server { return &Server{cloud: c, held: map[string]Injection{}} }

// request is a request to a driver in Go.
type request struct {
	server   *Server
	ctx      context.Context
	argument string
	body     []byte
}

// Features implements Driver.
func (s *Server) Features() []Feature {
	features := FeaturesOf(s.cloud)
	if hasRole[InstanceBatcher](s.cloud) {
		features = append(features, RoleInstanceBatches)
	}
	if hasRole[CallJournal](s.cloud) {
		features = append(features, RoleCallJournal)
	}
	return features
}

// Answer carries out an operation. argument is the parameter that its path or its query has; body is
// JSON. The answer is nil where the protocol has none.
func (s *Server) Answer(ctx context.Context, id, argument string, body []byte) (any, error) {
	i := slices.IndexFunc(operations, func(o operation) bool { return o.id == id })
	if i < 0 {
		return nil, fmt.Errorf("operation %s: %w", id, errors.ErrUnsupported)
	}
	return operations[i].answer(&request{server: s, ctx: ctx, argument: argument, body: body})
}

// Call implements Driver. What passes is JSON, as to and from a driver that is a program of its own.
func (s *Server) Call(ctx context.Context, id, argument string, body, answer any) error {
	asked, err := json.Marshal(body)
	if err != nil {
		return err
	}
	got, err := s.Answer(ctx, id, argument, asked)
	if err != nil || answer == nil {
		return err
	}
	answered, err := json.Marshal(got)
	if err != nil {
		return err
	}
	return json.Unmarshal(answered, answer)
}

// hold keeps an injection until it is lifted, and returns its ID.
func (s *Server) hold(i Injection) (id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	id = strconv.Itoa(s.serial)
	s.held[id] = i
	return id
}

// injected holds what was injected.
func (r *request) injected(i Injection, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return protocol.Injection{ID: r.server.hold(i)}, nil
}

func (s *Server) heldInjection(id string) (Injection, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.held[id]
	return i, ok
}

// lift ends an injection. One that is not held has been lifted before.
func (s *Server) lift(ctx context.Context, id string) error {
	i, ok := s.heldInjection(id)
	if !ok {
		return nil
	}
	if err := i.Lift(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, id)
	return nil
}

// liftable is an Injection that counts no hits.
type liftable struct {
	lift func(context.Context) error
}

// Hits implements Injection.
func (liftable) Hits(context.Context) (int, error) { return 0, nil }

// Lift implements Injection.
func (l liftable) Lift(ctx context.Context) error { return l.lift(ctx) }
