package cloud

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Scheme says who a balancer is for.
type Scheme string

// The schemes. An internal balancer takes no reserved address. It serves on its private address
// alone if it has one, and otherwise on an address of the same pool as a public one's.
const (
	Public   Scheme = "public"
	Internal Scheme = "internal"
)

// Algorithm says which target a new connection goes to.
type Algorithm string

// The algorithms: the next in turn; the one with the fewest connections; one that follows from the
// client's address; and, for network balancers only, one that follows from the client's address and
// port.
const (
	RoundRobin       Algorithm = "round-robin"
	LeastConnections Algorithm = "least-connections"
	SourceHash       Algorithm = "source-hash"
	FlowHash         Algorithm = "flow-hash"
)

const (
	maxIdle            = 24 * time.Hour
	maxDrain           = 24 * time.Hour
	maxConnectionLimit = 1_000_000
)

// balancerOptions are the fields of a balancer that an update can change one by one.
type balancerOptions struct {
	balancerType          LoadBalancerType
	kind                  LoadBalancerKind
	scheme                Scheme
	algorithm             Algorithm
	affinity, idle, drain time.Duration
	deletionProtection    bool
}

func (o balancerOptions) checkOptions() error {
	errs := []error{checkBalancerType(o.balancerType)}
	if o.scheme != Public && o.scheme != Internal {
		errs = append(errs, refuse(InvalidRequest, "no scheme %q: choose public or internal", o.scheme).
			withField("scheme", "is unknown"))
	}
	if has := algorithmsOf(o.kind); !slices.Contains(has, o.algorithm) {
		errs = append(errs, refuse(
			InvalidRequest, "no algorithm %q of a %s load balancer: choose one of %q", o.algorithm, o.kind, has,
		).withField("algorithm", "is not available for the kind"))
	}
	return joinRefusals(append(errs,
		inRange("client affinity", "clientAffinitySeconds", o.affinity, maxAffinity),
		inRange("an idle timeout", "idleTimeoutSeconds", o.idle, maxIdle),
		inRange("draining", "drainSeconds", o.drain, maxDrain))...)
}

func inRange(what, field string, d, most time.Duration) error {
	if d < 0 || d > most {
		return refuse(InvalidRequest, "%s of %s: want at least 0 and at most %s", what, d, most).
			withField(field, "is out of range")
	}
	return nil
}

// optionsWithDefaults gives the options asked for, with defaults for those left zero.
func (spec LoadBalancerSpec) optionsWithDefaults() balancerOptions {
	kind := cmp.Or(spec.Kind, ProxyBalancer)
	return balancerOptions{
		cmp.Or(spec.Type, UnlimitedBalancer), kind,
		cmp.Or(spec.Scheme, Public), cmp.Or(spec.Algorithm, algorithmsOf(kind)[0]), spec.Affinity, spec.IdleTimeout, spec.Drain,
		spec.DeletionProtection,
	}
}

func (lb *LoadBalancer) currentOptions() balancerOptions {
	return balancerOptions{
		cmp.Or(lb.Type, UnlimitedBalancer), cmp.Or(lb.Kind, ProxyBalancer), lb.Scheme, lb.Algorithm, lb.Affinity, lb.IdleTimeout,
		lb.Drain, lb.DeletionProtection,
	}
}

func (lb *LoadBalancer) setOptions(o balancerOptions) {
	lb.Scheme, lb.Algorithm, lb.Affinity, lb.IdleTimeout, lb.Drain = o.scheme, o.algorithm, o.affinity, o.idle, o.drain
	lb.Type, lb.Kind, lb.DeletionProtection = o.balancerType, o.kind, o.deletionProtection
}

// withUpdate gives the options after an update.
func (o balancerOptions) withUpdate(u LoadBalancerUpdate) balancerOptions {
	replaceIfGiven(&o.balancerType, u.Type)
	if u.Kind != nil {
		o = o.withKind(*u.Kind)
	}
	replaceIfGiven(&o.scheme, u.Scheme)
	replaceIfGiven(&o.algorithm, u.Algorithm)
	replaceIfGiven(&o.affinity, u.Affinity)
	replaceIfGiven(&o.idle, u.IdleTimeout)
	replaceIfGiven(&o.drain, u.Drain)
	replaceIfGiven(&o.deletionProtection, u.DeletionProtection)
	return o
}

func replaceIfGiven[T any](has, by *T) {
	if by != nil {
		*has = *by
	}
}

// checkDrain refuses draining for a balancer that has listeners, but none of TCP. If it has none
// at all, connections of those that it had may still drain.
func checkDrain(drain time.Duration, listeners []Listener) error {
	isTCP := func(l Listener) bool { return l.Protocol != UDP }
	if drain > 0 && len(listeners) > 0 && !slices.ContainsFunc(listeners, isTCP) {
		return refuse(
			InvalidRequest, "draining is for tcp connections, and the balancer has no tcp listener: leave it 0",
		).withField("drainSeconds", "is for tcp only")
	}
	return nil
}

func checkConnectionLimit(l Listener, field string) error {
	if l.ConnectionLimit < 0 || l.ConnectionLimit > maxConnectionLimit {
		return refuse(
			InvalidRequest, "port %d: want a connection limit from 1 to %d, or 0 for none", l.Port, maxConnectionLimit,
		).withField(field, "is out of range")
	}
	return nil
}

// Expects tells whether a target that answers with the status is healthy.
func (h *HealthCheck) Expects(status int) bool {
	ranges, err := parseCodes(h.ExpectedCodes)
	return err == nil && slices.ContainsFunc(ranges, func(r codeRange) bool {
		return r.first <= status && status <= r.last
	})
}

type codeRange struct{ first, last int }

// parseCodes reads statuses such as "200-299,301". An empty string means 200.
func parseCodes(s string) ([]codeRange, error) {
	var all []codeRange
	for part := range strings.SplitSeq(cmp.Or(s, "200"), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || len(first) != 3 || len(last) != 3 || from < 200 || to > 599 || from > to {
			return nil, fmt.Errorf("%q is neither a status from 200 to 599 nor a range of them", part)
		}
		all = append(all, codeRange{from, to})
	}
	return all, nil
}
