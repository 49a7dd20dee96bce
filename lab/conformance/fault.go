package conformance

// Ways in which a cloud can be made to misbehave.

import (
	"context"
	"slices"
)

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
// not exist, in our own project or account. On must say about which things. A cloud whose 404 does
// not say in which project it looked has neither this one nor FaultForeignNotFound.
const FaultNotFound FaultKind = "not-found"

// Answers that are true in part, or come late, and refusals of changes alone. None of them is in FaultKinds: what
// each is to prove is a matter of the test that uses it.
const (
	FaultConflict     FaultKind = "409"           // what changes something is refused, as another change is under way
	FaultPrecondition FaultKind = "412"           // what changes something is refused, as something changed meanwhile
	FaultPartialList  FaultKind = "partial-list"  // success, with lists from which all but the first is missing
	FaultMissingField FaultKind = "missing-field" // success, without the fields that say what state a thing is in
	// what is read is as it was when it was first asked for under the fault
	FaultStale FaultKind = "stale"
	FaultSlow  FaultKind = "slow" // the answer takes half a minute
	FaultLost  FaultKind = "lost" // what changes something is carried out, and never answered
)

// What befalls things rather than answers: the cloud answers truly, and takes long over what is
// being made, or fails to make it. Hits counts the things that it befell. On must say which.
const (
	// FaultStuck: what is being made is not done until the fault is lifted: a balancer that is
	// built, an instance that boots. A driver's createInstance does not return before that; the CCM
	// sees the instance meanwhile.
	FaultStuck FaultKind = "stuck"
	// FaultBuildFails: a balancer that is being made ends in the state that says that it failed.
	FaultBuildFails FaultKind = "build-fails"
)

// FaultKinds are all doubtful answers.
var FaultKinds = []FaultKind{
	FaultUnauthorized, FaultForbidden, FaultForeignNotFound, FaultThrottled, FaultServerError, FaultUnavailable,
	FaultTimeout, FaultReset, FaultRefused, FaultGarbage, FaultEmptyList,
}

// AllFaultKinds lists the doubtful answers and all other faults.
func AllFaultKinds() []FaultKind {
	return append(slices.Clone(FaultKinds),
		FaultNotFound, FaultConflict, FaultPrecondition, FaultPartialList, FaultMissingField, FaultStale, FaultSlow,
		FaultLost, FaultStuck, FaultBuildFails)
}

// Injection is a fault that is in force.
type Injection interface {
	// Hits is how many calls it has met so far.
	Hits(ctx context.Context) (int, error)
	// Lift ends it. A second call does nothing.
	Lift(ctx context.Context) error
}
