package conformance

// What the suite knows of a cloud, and what every driver implements. No test looks further.

import (
	"context"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// Cloud is a cloud with one cluster in it: what every driver in Go implements. What else a cloud can do
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
)
