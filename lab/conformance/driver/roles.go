package driver

// Roles that a driver names.

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// As finds a role for conformance.As: role points to a variable of the role's type, which is set if the
// driver names what shows the role.
func (c *Cloud) As(role any) bool {
	var has any
	switch shown := featureOf(role); {
	case shown != "" && c.declares(shown): // The driver's own before the proxy's: it knows its cloud better.
		has = remoteRoles{c}
	case c.proxy != nil && (shown == conformance.FeatureCalls || shown == RoleCallJournal):
		has = c.proxy
	}
	if faults, wanted := role.(*conformance.FaultInjector); wanted {
		*faults = faultInjector{c}
		return len((*faults).FaultKinds()) > 0
	}
	if has == nil {
		return false
	}
	reflect.ValueOf(role).Elem().Set(reflect.ValueOf(has))
	return true
}

// featureOf is the name by which a driver shows a role, given by a pointer to it; "" for FaultInjector,
// which several show, and for what is no role.
func featureOf(role any) conformance.Feature {
	switch role.(type) {
	case *conformance.InstanceBatcher:
		return RoleInstanceBatches
	case *conformance.AddressChanger:
		return conformance.FeatureChangeAddresses
	case *conformance.BalancerRenamer:
		return conformance.FeatureRenameBalancer
	case *conformance.BalancerChanger:
		return conformance.FeatureChangeBalancer
	case *conformance.ForeignBalancerCreator:
		return conformance.FeatureStrangers
	case *conformance.NamesakeBalancerCreator:
		return conformance.FeatureNamesakeBalancers
	case *conformance.NamesakeRouteCreator:
		return conformance.FeatureNamesakeRoutes
	case *conformance.AddressReserver:
		return conformance.FeatureReservedAddresses
	case *conformance.ConnectionCounter:
		return conformance.FeatureTraffic
	case *conformance.RouteTable:
		return conformance.FeatureRoutes
	case *conformance.RouteDiverter:
		return conformance.FeatureDivertRoutes
	case *conformance.ForeignRouteCreator:
		return conformance.FeatureStrangerRoutes
	case *conformance.RouteLimiter:
		return conformance.FeatureRouteQuota
	case *conformance.CallCounter:
		return conformance.FeatureCalls
	case *conformance.CallJournal:
		return RoleCallJournal
	case *conformance.ZoneOutageInjector:
		return conformance.FeatureZoneOutage
	case *conformance.CredentialExpirer:
		return conformance.FeatureExpiry
	case *conformance.CredentialSwapper:
		return conformance.FeatureOtherProject
	}
	return ""
}

// remoteRoles has the methods of all roles: As says which of them the driver answers.
type remoteRoles struct{ *Cloud }

// CreateInstances implements conformance.InstanceBatcher.
func (c remoteRoles) CreateInstances(
	ctx context.Context, specs []conformance.InstanceSpec,
) ([]conformance.Instance, error) {
	made, err := ask[protocol.InstanceBatch](ctx, &c.connection, func(ctx context.Context) (*http.Response, error) {
		return c.client.CreateInstances(ctx, protocol.InstanceSpecs{Instances: listed(convert(specs, fromInstanceSpec))})
	})
	if err == nil && made.Problem != nil {
		err = errors.New("the driver: " + made.Problem.Detail)
	}
	return convert(made.Instances, toInstance), err
}

// TerminateInstances implements conformance.InstanceBatcher.
func (c remoteRoles) TerminateInstances(ctx context.Context, ids []string) error {
	return c.tell(ctx, func(ctx context.Context) (*http.Response, error) {
		return c.client.TerminateInstances(ctx, protocol.IDs{IDs: listed(ids)})
	})
}

// ChangeAddresses implements conformance.AddressChanger.
func (c remoteRoles) ChangeAddresses(ctx context.Context, instanceID string) (conformance.Instance, error) {
	changed, err := ask[protocol.Instance](ctx, &c.connection, func(ctx context.Context) (*http.Response, error) {
		return c.client.ChangeAddresses(ctx, instanceID)
	})
	return toInstance(changed), err
}

// RenameBalancer implements conformance.BalancerRenamer.
func (c remoteRoles) RenameBalancer(ctx context.Context, id, name string) error {
	return c.tell(ctx, func(ctx context.Context) (*http.Response, error) {
		return c.client.RenameBalancer(ctx, id, protocol.Name{Name: name})
	})
}

// ChangeBalancer implements conformance.BalancerChanger.
func (c remoteRoles) ChangeBalancer(
	ctx context.Context, id string, listeners []conformance.Listener, targets []string,
) error {
	return c.tell(ctx, func(ctx context.Context) (*http.Response, error) {
		return c.client.ChangeBalancer(ctx, id, protocol.BalancerChange{
			Listeners: listed(convert(listeners, fromListener)), Targets: listed(targets),
		})
	})
}

// CreateForeignBalancer implements conformance.ForeignBalancerCreator.
func (c remoteRoles) CreateForeignBalancer(ctx context.Context, name string) (conformance.Balancer, error) {
	made, err := ask[protocol.Balancer](ctx, &c.connection, func(ctx context.Context) (*http.Response, error) {
		return c.client.CreateForeignBalancer(ctx, protocol.Name{Name: name})
	})
	return toBalancer(made), err
}

// CreateNamesakeBalancer implements conformance.NamesakeBalancerCreator.
func (c remoteRoles) CreateNamesakeBalancer(ctx context.Context, name string) (conformance.Balancer, error) {
	made, err := ask[protocol.Balancer](ctx, &c.connection, func(ctx context.Context) (*http.Response, error) {
		return c.client.CreateNamesakeBalancer(ctx, protocol.Name{Name: name})
	})
	return toBalancer(made), err
}

// CreateNamesakeRoute implements conformance.NamesakeRouteCreator.
func (c remoteRoles) CreateNamesakeRoute(
	ctx context.Context, destination, instanceID string,
) (conformance.Route, error) {
	made, err := ask[protocol.Route](ctx, &c.connection, func(ctx context.Context) (*http.Response, error) {
		return c.client.CreateNamesakeRoute(ctx, protocol.ForeignRoute{Destination: destination, InstanceID: instanceID})
	})
	return toRoute(made), err
}

// ReserveAddress implements conformance.AddressReserver.
func (c remoteRoles) ReserveAddress(ctx context.Context) (string, func(context.Context) error, error) {
	kept, err := ask[protocol.ReservedAddress](ctx, &c.connection, func(ctx context.Context) (*http.Response, error) {
		return c.client.ReserveAddress(ctx)
	})
	return kept.Address, func(ctx context.Context) error {
		return c.tell(ctx, func(ctx context.Context) (*http.Response, error) {
			return c.client.ReleaseAddress(ctx, kept.ID)
		})
	}, err
}

// CountConnections implements conformance.ConnectionCounter.
func (c remoteRoles) CountConnections(ctx context.Context, id string) (map[int32]int64, error) {
	counts, err := ask[protocol.ConnectionCounts](ctx, &c.connection, func(ctx context.Context) (*http.Response, error) {
		return c.client.CountConnections(ctx, id)
	})
	byPort := map[int32]int64{}
	for _, count := range counts.Ports {
		byPort[count.Port] += count.Connections
	}
	return byPort, err
}

// ListRoutes implements conformance.RouteTable.
func (c remoteRoles) ListRoutes(ctx context.Context) ([]conformance.Route, error) {
	list, err := ask[protocol.RouteList](ctx, &c.connection, func(ctx context.Context) (*http.Response, error) {
		return c.client.ListRoutes(ctx)
	})
	return convert(list.Routes, toRoute), err
}

// GetRoute implements conformance.RouteTable.
func (c remoteRoles) GetRoute(ctx context.Context, id string) (conformance.Route, bool, error) {
	got, err := ask[protocol.Route](ctx, &c.connection, func(ctx context.Context) (*http.Response, error) {
		return c.client.GetRoute(ctx, id)
	})
	found, err := foundUnless404(err)
	return toRoute(got), found, err
}

// DeleteRoute implements conformance.RouteTable.
func (c remoteRoles) DeleteRoute(ctx context.Context, id string) error {
	return c.tell(ctx, func(ctx context.Context) (*http.Response, error) { return c.client.DeleteRoute(ctx, id) })
}

// DivertRoute implements conformance.RouteDiverter.
func (c remoteRoles) DivertRoute(ctx context.Context, id, instanceID string) error {
	return c.tell(ctx, func(ctx context.Context) (*http.Response, error) {
		return c.client.DivertRoute(ctx, id, protocol.RouteDiversion{InstanceID: instanceID})
	})
}

// CreateForeignRoute implements conformance.ForeignRouteCreator.
func (c remoteRoles) CreateForeignRoute(
	ctx context.Context, destination, instanceID string,
) (conformance.Route, error) {
	made, err := ask[protocol.Route](ctx, &c.connection, func(ctx context.Context) (*http.Response, error) {
		return c.client.CreateForeignRoute(ctx, protocol.ForeignRoute{Destination: destination, InstanceID: instanceID})
	})
	return toRoute(made), err
}

// LimitRoutes implements conformance.RouteLimiter.
func (c remoteRoles) LimitRoutes(ctx context.Context) (lift func(context.Context) error, err error) {
	limit, err := c.inject(ctx, func(ctx context.Context) (*http.Response, error) { return c.client.LimitRoutes(ctx) })
	if err != nil {
		return nil, err
	}
	return limit.Lift, nil
}

// CountCalls implements conformance.CallCounter.
func (c remoteRoles) CountCalls(ctx context.Context) (conformance.Calls, error) {
	counts, err := ask[protocol.CallCounts](ctx, &c.connection, func(ctx context.Context) (*http.Response, error) {
		return c.client.CountCalls(ctx)
	})
	return toCalls(counts), err
}

// CallsSince implements conformance.CallJournal.
func (c remoteRoles) CallsSince(ctx context.Context, since time.Time) ([]conformance.Call, error) {
	list, err := ask[protocol.CallList](ctx, &c.connection, func(ctx context.Context) (*http.Response, error) {
		return c.client.ListCalls(ctx, &protocol.ListCallsParams{Since: since})
	})
	return convert(list.Calls, toCall), err
}

// ListZones implements conformance.ZoneOutageInjector.
func (c remoteRoles) ListZones(ctx context.Context) ([]string, error) {
	list, err := ask[protocol.ZoneList](ctx, &c.connection, func(ctx context.Context) (*http.Response, error) {
		return c.client.ListZones(ctx)
	})
	return list.Zones, err
}

// InjectZoneOutage implements conformance.ZoneOutageInjector.
func (c remoteRoles) InjectZoneOutage(ctx context.Context, zone string) (conformance.Injection, error) {
	return asInjection(c.inject(ctx, func(ctx context.Context) (*http.Response, error) {
		return c.client.InjectZoneOutage(ctx, zone)
	}))
}

// ExpireCredentials implements conformance.CredentialExpirer.
func (c remoteRoles) ExpireCredentials(ctx context.Context) (conformance.Expiry, error) {
	made, err := c.inject(ctx, func(ctx context.Context) (*http.Response, error) {
		return c.client.ExpireCredentials(ctx)
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

// SwapCredentials implements conformance.CredentialSwapper.
func (c remoteRoles) SwapCredentials(ctx context.Context) (conformance.Injection, error) {
	return asInjection(c.inject(ctx, func(ctx context.Context) (*http.Response, error) {
		return c.client.SwapCredentials(ctx)
	}))
}

// faultInjector makes the driver's own faults, and the proxy's.
type faultInjector struct{ *Cloud }

// ownKinds are those that the driver makes itself.
func (f faultInjector) ownKinds() (kinds []conformance.FaultKind) {
	for _, name := range f.described.Features {
		if kind, ok := strings.CutPrefix(name, string(conformance.FaultFeature(""))); ok {
			kinds = append(kinds, conformance.FaultKind(kind))
		}
	}
	return kinds
}

// FaultKinds implements conformance.FaultInjector.
func (f faultInjector) FaultKinds() []conformance.FaultKind {
	kinds := f.ownKinds()
	if f.proxy != nil {
		kinds = append(kinds, f.proxy.FaultKinds()...)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// InjectFault implements conformance.FaultInjector. The driver knows its cloud better than the proxy.
func (f faultInjector) InjectFault(ctx context.Context, fault conformance.Fault) (conformance.Injection, error) {
	if f.proxy != nil && !slices.Contains(f.ownKinds(), fault.Kind) {
		return f.proxy.InjectFault(ctx, fault)
	}
	body := protocol.Fault{Kind: string(fault.Kind)}
	for _, thing := range fault.On {
		body.Things = append(body.Things, protocol.Thing(thing))
	}
	return asInjection(f.inject(ctx, func(ctx context.Context) (*http.Response, error) {
		return f.client.InjectFault(ctx, body)
	}))
}

// injection is one that a driver holds.
type injection struct {
	*Cloud
	id string
}

func (c *Cloud) inject(ctx context.Context, send sender) (*injection, error) {
	made, err := ask[protocol.Injection](ctx, &c.connection, send)
	if err != nil {
		return nil, err
	}
	return &injection{c, made.ID}, nil
}

// asInjection keeps a nil pointer from becoming an Injection.
func asInjection(i *injection, err error) (conformance.Injection, error) {
	if err != nil {
		return nil, err
	}
	return i, nil
}

// Hits implements conformance.Injection.
func (i *injection) Hits(ctx context.Context) (int, error) {
	got, err := ask[protocol.Hits](ctx, &i.connection, func(ctx context.Context) (*http.Response, error) {
		return i.client.GetInjection(ctx, i.id)
	})
	return got.Hits, err
}

// Lift implements conformance.Injection. That a second call does nothing is for the driver to see to.
func (i *injection) Lift(ctx context.Context) error {
	return i.tell(ctx, func(ctx context.Context) (*http.Response, error) { return i.client.LiftInjection(ctx, i.id) })
}

// Renew implements conformance.Expiry.
func (i *injection) Renew(ctx context.Context) error {
	return i.tell(ctx, func(ctx context.Context) (*http.Response, error) { return i.client.RenewCredentials(ctx, i.id) })
}
