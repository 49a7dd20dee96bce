package conformance

// Roles of a cloud beyond what every driver does. A driver has a role by implementing it, and the
// feature that tests need follows from that.

import (
	"context"
	"errors"
	"slices"

	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// InstanceBatcher makes many instances at little cost: the profile Budget has up to a thousand.
// Without it they are made and terminated by Cloud's own methods, several at a time. No feature
// follows from it.
type InstanceBatcher interface {
	// CreateInstances returns instances in the order of specs when all run. What was made before an
	// error is returned with it.
	CreateInstances(ctx context.Context, specs []InstanceSpec) ([]Instance, error)
	// TerminateInstances ends them for good. One that has ended already is no error.
	TerminateInstances(ctx context.Context, ids []string) error
}

// AddressChanger shows FeatureChangeAddresses.
type AddressChanger interface {
	// ChangeAddresses gives a running instance addresses that are not those from before, internal
	// or external ones, and returns the instance as it is then.
	ChangeAddresses(ctx context.Context, instanceID string) (Instance, error)
}

// InstanceRenamer shows FeatureRenameInstance.
type InstanceRenamer interface {
	// RenameInstance gives a running instance another name.
	RenameInstance(ctx context.Context, id, name string) error
}

// InstanceRebooter shows FeatureRebootInstance.
type InstanceRebooter interface {
	// RebootInstance returns when the instance runs again.
	RebootInstance(ctx context.Context, id string) error
}

// BalancerRenamer shows FeatureRenameBalancer.
type BalancerRenamer interface {
	// RenameBalancer gives a balancer another name behind the CCM's back.
	RenameBalancer(ctx context.Context, id, name string) error
}

// BalancerChanger shows FeatureChangeBalancer.
type BalancerChanger interface {
	// ChangeBalancer gives a balancer these listeners and targets, instances' IDs,
	// behind the CCM's back.
	ChangeBalancer(ctx context.Context, id string, listeners []Listener, targets []string) error
}

// BalancerResetter shows FeatureResetBalancer.
type BalancerResetter interface {
	// ResetBalancer takes a balancer's health check, source ranges and client affinity away behind the
	// CCM's back, and returns the balancer without them.
	ResetBalancer(ctx context.Context, id string) (Balancer, error)
}

// BalancerTagger shows FeatureTagBalancer.
type BalancerTagger interface {
	// TagBalancer adds a tag of this name to a balancer behind the CCM's back.
	TagBalancer(ctx context.Context, id, name string) error
}

// ForeignBalancerCreator shows FeatureStrangers.
type ForeignBalancerCreator interface {
	// CreateForeignBalancer makes a balancer of this name that is no Service's of the cluster.
	CreateForeignBalancer(ctx context.Context, name string) (Balancer, error)
}

// NamesakeBalancerCreator shows FeatureNamesakeBalancers.
type NamesakeBalancerCreator interface {
	// CreateNamesakeBalancer makes a balancer of this name as the CCM of another cluster does
	// that is in the same project, or account, and has the same name as the cluster.
	CreateNamesakeBalancer(ctx context.Context, name string) (Balancer, error)
}

// TwinBalancerCreator shows FeatureTwinBalancers.
type TwinBalancerCreator interface {
	// CreateTwinBalancer makes a second balancer that says, as the first one does, that it is that
	// Service's.
	CreateTwinBalancer(ctx context.Context, id string) (Balancer, error)
}

// BalancerLimiter shows FeatureBalancerQuota.
type BalancerLimiter interface {
	// LimitBalancers has the cloud refuse to make balancers, as one does whose quota is used up, until
	// that is lifted.
	LimitBalancers(ctx context.Context) (lift func(context.Context) error, err error)
}

// NamesakeInstanceCreator shows FeatureNamesakeInstances.
type NamesakeInstanceCreator interface {
	// CreateNamesakeInstance makes a running instance of this name as another cluster in the same project,
	// or account, has it. It is terminated as any other.
	CreateNamesakeInstance(ctx context.Context, name string) (Instance, error)
}

// AddressReserver shows FeatureReservedAddresses.
type AddressReserver interface {
	// ReserveAddress keeps an address that a balancer can be asked to have, and
	// returns what gives it back.
	ReserveAddress(ctx context.Context) (address string, release func(context.Context) error, err error)
}

// ConnectionCounter is needed for FeatureTraffic. A driver must declare that feature as well, because pods must
// run, too.
type ConnectionCounter interface {
	// CountConnections counts what a balancer has accepted so far, on each of its
	// ports: TCP connections or UDP flows. The error is ErrNotCounted if its kind counts nothing.
	CountConnections(ctx context.Context, id string) (map[int32]int64, error)
}

// ErrNotCounted tells that a balancer, such as a floating IP, counts no connections. Nothing but its address is
// proof then that an answer came by it.
var ErrNotCounted = errors.New("balancers of this kind count no connections")

// RouteTable shows FeatureRoutes.
type RouteTable interface {
	// ListRoutes lists the routes that the cloud holds for this cluster.
	ListRoutes(ctx context.Context) ([]Route, error)
	// GetRoute finds a route of any owner; false when it is gone.
	GetRoute(ctx context.Context, id string) (Route, bool, error)
	// DeleteRoute deletes a route of any owner behind the CCM's back, and returns when it is gone. One that is
	// gone already is no error.
	DeleteRoute(ctx context.Context, id string) error
}

// RouteDiverter shows FeatureDivertRoutes.
type RouteDiverter interface {
	// DivertRoute has a route of the cluster lead to another instance, behind the
	// CCM's back. It may become another route by that.
	DivertRoute(ctx context.Context, id, instanceID string) error
}

// ForeignRouteCreator shows FeatureStrangerRoutes.
type ForeignRouteCreator interface {
	// CreateForeignRoute makes a route that is somebody else's, though it leads to
	// an instance of the cluster.
	CreateForeignRoute(ctx context.Context, destination, instanceID string) (Route, error)
}

// NamesakeRouteCreator shows FeatureNamesakeRoutes.
type NamesakeRouteCreator interface {
	// CreateNamesakeRoute makes a route as the CCM of another cluster does that is in the same
	// project, or account, and has the same name as the cluster. ListRoutes leaves it out.
	CreateNamesakeRoute(ctx context.Context, destination, instanceID string) (Route, error)
}

// RouteLimiter shows FeatureRouteQuota.
type RouteLimiter interface {
	// LimitRoutes has the cloud refuse to make routes, as one does whose quota is
	// used up, until that is lifted.
	LimitRoutes(ctx context.Context) (lift func(context.Context) error, err error)
}

// FaultInjector shows FaultFeature of each of its kinds.
type FaultInjector interface {
	// FaultKinds lists the kinds that can be injected.
	FaultKinds() []FaultKind
	// InjectFault makes the cloud misbehave towards the CCM, and towards nobody
	// else, until the injection is lifted.
	InjectFault(ctx context.Context, f Fault) (Injection, error)
}

// CallCounter shows FeatureCalls.
type CallCounter interface {
	// CountCalls counts the calls that the CCM has made so far.
	CountCalls(ctx context.Context) (Calls, error)
}

// CallJournal knows which calls the CCM makes. The tests' timelines have them, and no verdict depends on them. No
// feature follows from it.
type CallJournal = record.Journal

// ZoneOutageInjector shows FeatureZoneOutage.
type ZoneOutageInjector interface {
	// ListZones lists the zones in which an instance can be created, several of them.
	ListZones(ctx context.Context) ([]string, error)
	// InjectZoneOutage has all instances of a zone fail at once. It returns when they
	// have; Lift, when they run again.
	InjectZoneOutage(ctx context.Context, zone string) (Injection, error)
}

// CredentialExpirer shows FeatureExpiry.
type CredentialExpirer interface {
	// ExpireCredentials has the cloud refuse the credentials that the CCM has, on
	// every call.
	ExpireCredentials(ctx context.Context) (Expiry, error)
}

// CredentialSwapper shows FeatureOtherProject.
type CredentialSwapper interface {
	// SwapCredentials puts good credentials of another project, or account, in
	// which there is nothing, where the CCM has its own. Hits are the calls about
	// instances that are made with them.
	SwapCredentials(ctx context.Context) (Injection, error)
}

// CARenewer shows FeatureCARenewal.
type CARenewer interface {
	// RenewCA has the CCM shown a certificate that a new CA signed, and puts that CA where the CCM has the
	// former one. Open connections break. Hits are connections on which the CCM accepted the new certificate.
	RenewCA(ctx context.Context) (Injection, error)
}

// Expiry is an Injection that has the CCM's credentials refused. Hits counts the calls that were refused. Lift
// gives the CCM its former credentials back, and has them accepted again.
type Expiry interface {
	Injection
	// Renew puts new credentials where the CCM has its own. The former ones stay refused.
	Renew(ctx context.Context) error
}

func hasRole[R any](c Cloud) bool {
	_, ok := As[R](c)
	return ok
}

// As finds a role of a cloud. A driver has it by implementing it. Whoever wraps a driver returns it
// from a method Unwrap() Cloud: the wrapper then has the roles that the driver has, and no others.
func As[R any](c Cloud) (R, bool) {
	for {
		if role, ok := c.(R); ok {
			return role, true
		}
		wrapper, ok := c.(interface{ Unwrap() Cloud })
		if !ok {
			var none R
			return none, false
		}
		c = wrapper.Unwrap()
	}
}

// FeaturesOf lists what a cloud can do: what its driver declares, and what follows from its roles.
// A feature whose role is missing does not count, declared or not.
func FeaturesOf(c Cloud) []Feature {
	if remote, ok := As[interface{ client() *Client }](c); ok {
		return remote.client().Features()
	}
	var features []Feature
	for _, f := range c.Features() {
		if slices.Contains(declaredFeatures, f) && (f != FeatureTraffic || hasRole[ConnectionCounter](c)) {
			features = append(features, f)
		}
	}
	for _, o := range operations {
		if isRoleFeature(o.feature) && o.hasRole(c) && !slices.Contains(features, o.feature) {
			features = append(features, o.feature)
		}
	}
	if faults, ok := As[FaultInjector](c); ok {
		for _, kind := range faults.FaultKinds() {
			features = append(features, FaultFeature(kind))
		}
	}
	return features
}

// HasFeature tells whether the cloud has a feature, and nobody has declared it unsupported.
func (s *Suite) HasFeature(f Feature) bool { return !s.unsupported.Lacks(f, s.Cloud.Features()) }
