package cloud

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	maxIdle            = 24 * 60 * 60 // seconds
	maxDrain           = 24 * 60 * 60
	maxCookieLifetime  = 365 * 24 * 60 * 60
	maxConnectionLimit = 1_000_000
)

func (lb *LoadBalancer) checkOptions() error {
	errs := []error{checkBalancerType(lb.Type)}
	if lb.Scheme != api.SchemePublic && lb.Scheme != api.SchemeInternal {
		errs = append(errs, refuse(InvalidRequest, "no scheme %q: choose public or internal", lb.Scheme).
			withField("scheme", "is unknown"))
	}
	if has := algorithmsOf(lb.Kind); !slices.Contains(has, lb.Algorithm) {
		errs = append(errs, refuse(
			InvalidRequest, "no algorithm %q of a %s load balancer: choose one of %q", lb.Algorithm, lb.Kind, has,
		).withField("algorithm", "is not available for the kind"))
	}
	return joinRefusals(append(errs,
		inRange("client affinity", "clientAffinitySeconds", lb.ClientAffinitySeconds, maxAffinity),
		inRange("an idle timeout", "idleTimeoutSeconds", lb.IdleTimeoutSeconds, maxIdle),
		inRange("draining", "drainSeconds", lb.DrainSeconds, maxDrain))...)
}

func inRange(what, field string, s, most api.Seconds) error {
	if s < 0 || s > most {
		return refuse(InvalidRequest, "%s of %s: want at least 0 and at most %s", what, s.Duration(), most.Duration()).
			withField(field, "is out of range")
	}
	return nil
}

// replaceOptions replaces the fields given that can be changed one by one.
func (lb *LoadBalancer) replaceOptions(u api.LoadBalancerUpdate) {
	replaceIfGiven(&lb.Type, u.Type)
	if u.Kind != nil {
		lb.setKind(*u.Kind)
	}
	replaceIfGiven(&lb.Scheme, u.Scheme)
	replaceIfGiven(&lb.Algorithm, u.Algorithm)
	replaceIfGiven(&lb.ClientAffinitySeconds, u.ClientAffinitySeconds)
	replaceIfGiven(&lb.IdleTimeoutSeconds, u.IdleTimeoutSeconds)
	replaceIfGiven(&lb.DrainSeconds, u.DrainSeconds)
	replaceIfGiven(&lb.DeletionProtection, u.DeletionProtection)
}

func replaceIfGiven[T any](has, by *T) {
	if by != nil {
		*has = *by
	}
}

// checkDrain refuses draining for a balancer that has listeners, but none of TCP. If it has none
// at all, connections of those that it had may still drain.
func checkDrain(drain api.Seconds, listeners []Listener) error {
	isTCP := func(l Listener) bool { return l.Protocol != api.ProtocolUDP }
	if drain > 0 && len(listeners) > 0 && !slices.ContainsFunc(listeners, isTCP) {
		return refuse(
			InvalidRequest, "draining is for tcp connections, and the balancer has no tcp listener: leave it 0",
		).withField("drainSeconds", "is for tcp only")
	}
	return nil
}

// checkHTTPOptions refuses what only some protocols of a listener can do.
func checkHTTPOptions(l Listener, prefix string) error {
	var errs []error
	want := func(ok bool, field, format string) {
		if !ok {
			errs = append(errs, refuse(InvalidRequest, "port %d: %s "+format, l.Port, field).withField(prefix+field, "%s", format))
		}
	}
	want(l.RedirectPort == 0 || l.Protocol == api.ProtocolHTTP, "redirectPort", "is for http only")
	want(l.RedirectPort == 0 || validPort(l.RedirectPort), "redirectPort", "must be from 1 to 65535")
	want(l.StickyCookie == "" || l.Protocol.IsHTTP() && l.RedirectPort == 0, "stickyCookie",
		"is for http and https, and not with redirectPort")
	want(l.StickyCookieSeconds == 0 || l.StickyCookie != "", "stickyCookieSeconds", "needs a stickyCookie")
	return joinRefusals(append(errs,
		inRange("a cookie's lifetime", prefix+"stickyCookieSeconds", l.StickyCookieSeconds, maxCookieLifetime),
		inRange("an idle timeout", prefix+"idleTimeoutSeconds", l.IdleTimeoutSeconds, maxIdle))...)
}

func checkConnectionLimit(l Listener, field string) error {
	if l.ConnectionLimit < 0 || l.ConnectionLimit > maxConnectionLimit {
		return refuse(
			InvalidRequest, "port %d: want a connection limit from 1 to %d, or 0 for none", l.Port, maxConnectionLimit,
		).withField(field, "is out of range")
	}
	return nil
}

// ExpectsStatus tells whether a target that answers with the status is healthy by the check.
func ExpectsStatus(h HealthCheck, status int) bool {
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
