package conformance

// What the suite knows of a cloud, and what every driver implements. No test looks further.

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// Cloud is a cloud with one cluster in it: what every driver implements. What else a cloud can do
// are roles (roles.go), interfaces of one or a few methods that a driver implements beside this one.
//
// Methods that change something return when the cloud says that it is so; what the CCM makes of it
// is for the tests to await.
type Cloud interface {
	// Features are what this cloud, and the way to it, can do that no role shows:
	// the first group in feature.go.
	Features() []Feature

	// CreateInstance returns when the instance runs. With FeatureNodeNames, its Node is called as
	// spec says.
	CreateInstance(ctx context.Context, spec InstanceSpec) (Instance, error)
	// StopInstance shuts it down; it can be started again.
	StopInstance(ctx context.Context, id string) error
	// StartInstance returns when a stopped instance runs.
	StartInstance(ctx context.Context, id string) error
	// TerminateInstance ends it for good. One that has ended already is no error.
	TerminateInstance(ctx context.Context, id string) error

	// ListBalancers lists those that the cloud holds for this cluster's Services, by
	// the cloud's own data, those still being made or deleted among them.
	ListBalancers(ctx context.Context) ([]Balancer, error)
	// GetBalancer finds one of any owner; false when it is gone.
	GetBalancer(ctx context.Context, id string) (Balancer, bool, error)
	// DeleteBalancer deletes one behind the CCM's back, and returns when it is
	// gone. One that is gone already is no error.
	DeleteBalancer(ctx context.Context, id string) error
}

// InstanceSpec says which instance to create.
type InstanceSpec struct {
	// Name is that of its Node, where that can be chosen: see FeatureNodeNames.
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
	// NodeName is what its Node is called, where that is not Name: the ID, in clouds
	// whose kubelets take it for their host name.
	NodeName string
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
	Active bool
	// Listeners are the ports that it listens on. FeatureListeners.
	Listeners []Listener
	// Targets are the IDs of the instances it sends traffic to.
	// FeatureTargets.
	Targets []string
	// SourceRanges are the CIDRs it serves, none for everybody.
	// FeatureSourceRanges.
	SourceRanges []string
	// Affinity tells whether it sends a client to the same target. FeatureAffinity.
	Affinity bool
	// AffinitySeconds is for how long; 0 without Affinity. FeatureAffinityTimeout.
	AffinitySeconds int32
	// HealthChecked tells whether it checks its targets, in whichever way.
	// FeatureHealthCheck.
	HealthChecked bool
	// HealthCheckPort is the port of each target that its HTTP health check
	// asks; 0 for none. FeatureHealthCheck.
	HealthCheckPort int32
}

// Listener is a port that a balancer listens on.
type Listener struct {
	Protocol string // "TCP" or "UDP"
	Port     int32
	// TargetPort is the port of each target that it sends to. FeatureNodePorts.
	TargetPort int32
}

// Route leads packets for Destination, a CIDR, to an instance. ID is what the cloud,
// or its driver, knows it by.
type Route struct{ ID, Destination, InstanceID string }
