package conformance

// Ways in which a cloud can be made to misbehave.

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"
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

// Answers from which something is missing that says what a thing is. A driver says by feature which of them its cloud
// can give, or by ProxyRule.fields where an answer has what is left out.
const (
	FaultMissingInstanceAddresses FaultKind = "missing-instance-addresses" // success, without an instance's addresses
	FaultMissingInstanceZone      FaultKind = "missing-instance-zone"      // success, without its zone and region
	FaultMissingInstanceType      FaultKind = "missing-instance-type"      // success, without its type
	// success, without the tags or labels by which an instance is known to be the cluster's
	FaultMissingInstanceTags     FaultKind = "missing-instance-tags"
	FaultMissingBalancerAddress  FaultKind = "missing-balancer-address"   // success, without a balancer's address
	FaultMissingBalancerListener FaultKind = "missing-balancer-listeners" // success, without a balancer's listeners
	FaultMissingRouteInstance    FaultKind = "missing-route-instance"     // success, without the instance of a route
	FaultMissingRouteDestination FaultKind = "missing-route-destination"  // success, without a route's destination
)

// Refusals that say when to ask again: in RetryAfter.
const (
	FaultThrottledFor   FaultKind = "429-retry-after" // too many calls, with Retry-After
	FaultUnavailableFor FaultKind = "503-retry-after" // the cloud is not there for the moment, with Retry-After
)

// RetryAfter is what FaultThrottledFor and FaultUnavailableFor say in their answers' Retry-After.
const RetryAfter = 6 * time.Second

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

// FaultStatuses are those of the faults that are answers.
var FaultStatuses = map[FaultKind]int{
	FaultUnauthorized:    http.StatusUnauthorized,
	FaultForbidden:       http.StatusForbidden,
	FaultForeignNotFound: http.StatusNotFound,
	FaultNotFound:        http.StatusNotFound, // It names the caller's own project.
	FaultConflict:        http.StatusConflict,
	FaultPrecondition:    http.StatusPreconditionFailed,
	FaultThrottled:       http.StatusTooManyRequests,
	FaultServerError:     http.StatusInternalServerError,
	FaultUnavailable:     http.StatusServiceUnavailable,
	FaultThrottledFor:    http.StatusTooManyRequests,
	FaultUnavailableFor:  http.StatusServiceUnavailable,
}

const (
	// SlowDelay is how long an answer takes under FaultSlow.
	SlowDelay = 30 * time.Second
	// Garbage is the body of an answer under FaultGarbage, as HTML.
	Garbage = "<html><body>Welcome to this network. Please accept our terms.</body></html>"
)

// AllFaultKinds lists the doubtful answers and all other faults.
func AllFaultKinds() []FaultKind {
	return slices.Concat(FaultKinds, []FaultKind{
		FaultNotFound, FaultConflict, FaultPrecondition, FaultPartialList, FaultMissingField, FaultStale, FaultSlow,
		FaultLost, FaultStuck, FaultBuildFails, FaultThrottledFor, FaultUnavailableFor,
	}, MissingFieldKinds(Instances), MissingFieldKinds(Balancers), MissingFieldKinds(Routes))
}

// MissingFieldKinds lists the faults that leave a group of fields out of answers about a thing.
func MissingFieldKinds(thing Thing) []FaultKind {
	switch thing {
	case Instances:
		return []FaultKind{
			FaultMissingInstanceAddresses, FaultMissingInstanceZone, FaultMissingInstanceType, FaultMissingInstanceTags,
		}
	case Balancers:
		return []FaultKind{FaultMissingBalancerAddress, FaultMissingBalancerListener}
	case Routes:
		return []FaultKind{FaultMissingRouteInstance, FaultMissingRouteDestination}
	}
	return nil
}

// FieldGroup returns what a fault of MissingFieldKinds(thing) leaves out, as ProxyRule.fields calls it: its last word.
func FieldGroup(kind FaultKind) string { return string(kind[strings.LastIndex(string(kind), "-")+1:]) }

// isAvoidable tells whether a CCM that does all of its work may make no call that such a fault changes: it may ask for
// each thing by its ID and list nothing, or remember what it has read.
func isAvoidable(kind FaultKind) bool {
	return kind == FaultEmptyList || kind == FaultPartialList || kind == FaultStale
}

// Injection is a fault that is in force.
type Injection interface {
	// Hits is how many calls it has met so far; for a fault that leaves something out of answers, how many answers
	// had it.
	Hits(ctx context.Context) (int, error)
	// Lift ends it. A second call does nothing.
	Lift(ctx context.Context) error
}
