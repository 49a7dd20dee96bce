package api

// What a fault is, in words of the CLI's flags.

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// joinNonEmpty joins the parts that are not empty.
func joinNonEmpty(parts ...string) string {
	var there []string
	for _, p := range parts {
		if p != "" {
			there = append(there, p)
		}
	}
	return strings.Join(there, " ")
}

// nameValue is name=value, or empty for the zero value.
func nameValue[T comparable](name string, value T) string {
	var zero T
	if value == zero {
		return ""
	}
	return fmt.Sprintf("%s=%v", name, value)
}

// nameIfSet is the name, or empty if it is not set.
func nameIfSet(name string, set bool) string {
	if !set {
		return ""
	}
	return name
}

// Text names what a fault applies to; "" is everything.
func (m FaultMatch) Text() string {
	var kinds []string
	for _, k := range m.Kinds {
		kinds = append(kinds, string(k))
	}
	return joinNonEmpty(
		nameValue("token", m.Token), nameValue("operation", strings.Join(m.Operations, "|")),
		nameValue("resource", m.Resource), nameValue("tag", m.Tag), nameValue("kind", strings.Join(kinds, "|")),
		nameValue("project", m.Project),
	)
}

// Text says in a few words what a fault does.
func (e FaultEffect) Text() string {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	throttle := ""
	if e.Throttle != nil {
		throttle = fmt.Sprintf("throttle=%g/s", e.Throttle.PerSecond)
	}
	return joinNonEmpty(nameValue("delay", ms(e.DelayMilliseconds)), nameValue(
		"jitter", ms(e.JitterMilliseconds),
	), nameIfSet("carry-out", e.CarryOut),
		nameValue("status", e.Status), nameValue("dialect-code", e.DialectCode),
		nameValue("retry-after", time.Duration(e.RetryAfterSeconds)*time.Second),
		nameValue("project", e.Project),
		nameIfSet("hang", e.Hang), nameIfSet("drop", e.Drop), nameIfSet("body", e.Body != nil),
		nameIfSet("empty-list", e.EmptyList), throttle,
		nameIfSet("stale", e.Stale), nameValue("partial-list", e.PartialList),
		nameValue("omit-field", strings.Join(e.OmitFields, "|")),
		nameIfSet("stuck", e.Stuck), nameIfSet("fail", e.Fail != ""), nameIfSet("crash", e.Crash),
		nameValue("zone-outage", e.ZoneOutage))
}

// TurnsText says when a fault applies.
func (f Fault) TurnsText() string {
	at := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.UTC().Format("15:04:05")
	}
	return cmp.Or(joinNonEmpty(nameValue("skip", f.Skip), nameValue("every", f.Every), nameValue(
		"probability", f.Probability,
	), nameValue("seed", f.Seed),
		nameValue("from", at(f.From)), nameValue("until", at(f.Until)), nameIfSet("spent", f.Spent)), "always")
}
