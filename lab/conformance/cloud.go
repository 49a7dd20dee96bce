package conformance

// What the suite knows of a cloud. A driver implements Cloud over whatever its
// cloud offers; no test looks further.

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// Cloud is a cloud with one cluster in it. Methods that change something
// return when the cloud says that it is so; what the CCM makes of it is for the
// tests to await. A method whose Feature the driver does not declare may return
// errors.ErrUnsupported.
type Cloud interface {
	// Features are what this cloud, and the way to it, can do.
	Features() []Feature

	// CreateInstance returns when the instance runs.
	CreateInstance(ctx context.Context, spec InstanceSpec) (Instance, error)
	// CreateInstances does it for many, and returns them in their order when all
	// run. What was made before an error is returned with it.
	CreateInstances(ctx context.Context, specs []InstanceSpec) ([]Instance, error)
	// StopInstance shuts it down; it can be started again.
	StopInstance(ctx context.Context, id string) error
	// StartInstance returns when a stopped instance runs.
	StartInstance(ctx context.Context, id string) error
	// TerminateInstance ends it for good. One that has ended already is no error.
	TerminateInstance(ctx context.Context, id string) error
	// TerminateInstances does it for many.
	TerminateInstances(ctx context.Context, ids []string) error

	// Balancers are those that the cloud holds for this cluster's Services, by
	// the cloud's own data, those still being made or deleted among them.
	Balancers(ctx context.Context) ([]Balancer, error)
	// Balancer is one of any owner; false when it is gone.
	Balancer(ctx context.Context, id string) (Balancer, bool, error)
	// DeleteBalancer deletes one behind the CCM's back, and returns when it is
	// gone. One that is gone already is no error.
	DeleteBalancer(ctx context.Context, id string) error
	// RenameBalancer gives it another name behind the CCM's back.
	// FeatureRenameBalancer.
	RenameBalancer(ctx context.Context, id, name string) error
	// ChangeBalancer gives it these listeners and targets, instances' IDs, behind
	// the CCM's back. FeatureChangeBalancer.
	ChangeBalancer(ctx context.Context, id string, listeners []Listener, targets []string) error
	// ReserveAddress keeps an address that a balancer can be asked to have, and
	// returns what gives it back. FeatureReservedAddresses.
	ReserveAddress(ctx context.Context) (address string, release func(context.Context) error, err error)
	// CreateStranger makes a balancer of this name that is no Service's.
	// FeatureStrangers.
	CreateStranger(ctx context.Context, name string) (Balancer, error)
	// Connections counts what a balancer has accepted so far, on each of its
	// ports: TCP connections or UDP flows. FeatureTraffic.
	Connections(ctx context.Context, id string) (map[int32]int64, error)
	// Routes are those that the cloud holds for this cluster. FeatureRoutes.
	Routes(ctx context.Context) ([]Route, error)
	// Route is one of any owner; false when it is gone. FeatureRoutes.
	Route(ctx context.Context, id string) (Route, bool, error)
	// DeleteRoute deletes one of any owner behind the CCM's back, and returns when
	// it is gone. One that is gone already is no error. FeatureRoutes.
	DeleteRoute(ctx context.Context, id string) error
	// DivertRoute has a route of the cluster lead to another instance, behind the
	// CCM's back. It may become another route by that. FeatureDivertRoutes.
	DivertRoute(ctx context.Context, id, instanceID string) error
	// CreateStrangerRoute makes a route that is somebody else's, though it leads to
	// an instance of the cluster. FeatureStrangerRoutes.
	CreateStrangerRoute(ctx context.Context, destination, instanceID string) (Route, error)
	// LimitRoutes has the cloud refuse to make routes, as one does whose quota is
	// used up, until that is lifted. FeatureRouteQuota.
	LimitRoutes(ctx context.Context) (lift func(context.Context) error, err error)

	// Inject makes the cloud misbehave towards the CCM, and towards nobody
	// else, until the injection is lifted. The feature of its kind.
	Inject(ctx context.Context, f Fault) (Injection, error)
	// Calls counts the calls that the CCM has made so far.
	// FeatureCalls.
	Calls(ctx context.Context) (Calls, error)

	// Zones are those that an instance can be asked to be in, several of them.
	// FeatureZoneOutage.
	Zones(ctx context.Context) ([]string, error)
	// LoseZone has all instances of a zone fail at once. It returns when they
	// have; Lift, when they run again. FeatureZoneOutage.
	LoseZone(ctx context.Context, zone string) (Injection, error)
	// ExpireCredentials has the cloud refuse the credentials that the CCM has, on
	// every call. FeatureExpiry.
	ExpireCredentials(ctx context.Context) (Expiry, error)
	// SwapCredentials puts good credentials of another project, or account, in
	// which there is nothing, where the CCM has its own. Hits are the calls about
	// instances that are made with them. FeatureOtherProject.
	SwapCredentials(ctx context.Context) (Injection, error)
}

// Expiry is credentials that are not accepted any more. Hits are calls that were
// refused. Lift gives the CCM back what it had before, and has it accepted again.
type Expiry interface {
	Injection
	// Renew puts new credentials where the CCM has its own. Those from before stay
	// refused.
	Renew(ctx context.Context) error
}

// InstanceSpec says which instance to create.
type InstanceSpec struct {
	// Name is that of its Node.
	Name string
	// Machine asks for an instance that boots and joins the cluster with a
	// kubelet of its own. FeatureMachines.
	Machine bool
	// Zone is where it is to be, "" for wherever there is room; never in one that
	// is lost. FeatureZoneOutage.
	Zone string
	// External asks for an external address, where the cloud has such a thing.
	External bool
}

// Instance is a running one.
type Instance struct {
	ID, Name string
	// ProviderID is what spec.providerID of its Node must be.
	ProviderID string
	// InternalIPs and ExternalIPs are its addresses: one internal one at least,
	// two with FeatureSeveralAddresses.
	InternalIPs, ExternalIPs []string
	// Type is what the well-known label must say. FeatureInstanceTypes.
	Type string
	// Zone and Region likewise; one of them may be "", where the cloud has no
	// such thing. FeatureZones.
	Zone, Region string
}

// Balancer is a load balancer. Of the fields, those whose feature the driver
// does not declare are left empty.
type Balancer struct {
	ID, Name string
	// Service is the UID of the Service it is for; "" for a stranger's.
	Service types.UID
	// Address is an IP address or a host name.
	Address string
	// Active is false while it is being made, changed or deleted.
	Active    bool
	Listeners []Listener
	// Targets are the IDs of the instances it sends traffic to.
	// FeatureTargets.
	Targets []string
	// SourceRanges are the CIDRs it serves, none for everybody.
	// FeatureSourceRanges.
	SourceRanges []string
	// AffinitySeconds is how long it sends a client to the same target; 0 for
	// not at all. FeatureAffinity.
	AffinitySeconds int32
	// HealthCheckPort is the port of each target that its HTTP health check
	// asks; 0 for none. FeatureHealthCheck.
	HealthCheckPort int32
}

// Listener is a port that a balancer listens on.
type Listener struct {
	Protocol string // "TCP" or "UDP"
	Port     int32
	// TargetPort is the port of each target that it sends to.
	TargetPort int32
}

// Route leads packets for Destination, a CIDR, to an instance. ID is what the cloud,
// or its driver, knows it by.
type Route struct{ ID, Destination, InstanceID string }

// Calls is how many calls of the cloud's API were made.
type Calls struct {
	Count
	// Of are those of them that are about each thing. What is about no thing that
	// the suite knows, as a look at the account, is among none.
	Of map[Thing]Count
}

// Count of calls.
type Count struct {
	// Reads change nothing; Writes create, change or delete something.
	Reads, Writes int
}

// Fault is one way to misbehave.
type Fault struct {
	Kind FaultKind
	// On narrows it to calls about these things; all calls when empty.
	On []Thing
}

// Thing is what a call of the cloud's API is about.
type Thing string

// What calls are about.
const (
	Instances Thing = "instances"
	Balancers Thing = "balancers"
	Routes    Thing = "routes"
)

// FaultKind is what a call gets instead of its answer.
type FaultKind string

// Doubtful answers: none of them says that an instance does not exist.
const (
	FaultUnauthorized    FaultKind = "401"        // the credentials are not accepted
	FaultForbidden       FaultKind = "403"        // the credentials do not suffice
	FaultForeignNotFound FaultKind = "404"        // not found, but in another project or account than ours
	FaultThrottled       FaultKind = "429"        // too many calls
	FaultServerError     FaultKind = "500"        // the cloud failed
	FaultUnavailable     FaultKind = "503"        // the cloud is not there for the moment
	FaultTimeout         FaultKind = "timeout"    // the call is taken and never answered
	FaultReset           FaultKind = "reset"      // the connection breaks
	FaultRefused         FaultKind = "refused"    // nobody listens
	FaultGarbage         FaultKind = "garbage"    // success, with a body that makes no sense
	FaultEmptyList       FaultKind = "empty-list" // success, with lists that have nothing in them
)

// FaultNotFound is no doubtful answer but a wrong one, of a cloud that has lost
// its data: lists with nothing in them, and that what is asked for by its ID does
// not exist, in our own project or account. On must say about which things.
const FaultNotFound FaultKind = "not-found"

// Answers that are true in part, or come late. None of them is in FaultKinds: what
// each is to prove is a matter of the test that uses it.
const (
	FaultPartialList  FaultKind = "partial-list"  // success, with lists from which all but the first is missing
	FaultMissingField FaultKind = "missing-field" // success, without the fields that say what state a thing is in
	FaultStale        FaultKind = "stale"         // what is read is as it was when it was first asked for under the fault
	FaultSlow         FaultKind = "slow"          // the answer takes half a minute
	FaultLost         FaultKind = "lost"          // what changes something is carried out, and never answered
)

// FaultKinds are all doubtful answers.
var FaultKinds = []FaultKind{
	FaultUnauthorized, FaultForbidden, FaultForeignNotFound, FaultThrottled, FaultServerError, FaultUnavailable,
	FaultTimeout, FaultReset, FaultRefused, FaultGarbage, FaultEmptyList,
}

// Injection is a fault that is in force.
type Injection interface {
	// Hits is how many calls it has met so far.
	Hits(ctx context.Context) (int, error)
	// Lift ends it. A second call does nothing.
	Lift(ctx context.Context) error
}

// Journal is for a Cloud to implement that knows which calls the CCM makes: they go into the
// tests' timelines, and into no verdict.
type Journal = record.Journal

// Call is one call of the cloud's API, as a Journal has it.
type Call = record.Call

// As is the driver behind a Cloud as another interface, if it implements that: who
// wraps a Cloud, so as to tell what is asked of it, gives it back by Unwrap.
func As[I any](c Cloud) (I, bool) {
	for {
		if as, ok := c.(I); ok {
			return as, true
		}
		wrapped, ok := c.(interface{ Unwrap() Cloud })
		if !ok {
			var none I
			return none, false
		}
		c = wrapped.Unwrap()
	}
}
