package faults

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// problems are the offending fields found so far.
type problems []cloud.Field

// add adds an offending field.
func (p *problems) add(path, format string, args ...any) {
	*p = append(*p, cloud.Field{Path: path, Message: fmt.Sprintf(format, args...)})
}

// check refuses rules that make no sense, with the names of the fields: above all, rules
// that can never match or never do anything.
func (r *Rules) check(ctx context.Context, s api.FaultCreate, now time.Time) error {
	var p problems
	checkEffect(s.Effect, &p)
	if ofLifeCycles(s.Effect) {
		r.checkLifeCycle(s, &p)
	} else {
		r.checkCalls(s, &p)
	}
	checkWhen(s, now, &p)
	if key, _, _ := strings.Cut(s.Match.Tag, "="); s.Match.Tag != "" && key == "" {
		p.add("match.tag", "has no key: give key=value, or key")
	}
	if s.Match.Project != "" {
		known, err := r.cloud.HasProject(ctx, s.Match.Project)
		if err != nil {
			return err
		}
		if !known {
			p.add("match.project", "is no project's ID")
		}
	}
	return p.refuse()
}

// refuse makes one refusal of all problems; nil if there are none.
func (p *problems) refuse() error {
	if len(*p) == 0 {
		return nil
	}
	var messages []string
	for _, f := range *p {
		messages = append(messages, f.Path+" "+f.Message)
	}
	return &cloud.Error{
		Code: cloud.InvalidRequest, Message: "this fault makes no sense: " + strings.Join(messages, "; "), Fields: *p,
	}
}

func (r *Rules) checkCalls(s api.FaultCreate, p *problems) {
	m, e := s.Match, s.Effect
	if len(m.Kinds) > 0 {
		p.add("match.kinds", "is for effect.stuck and effect.fail only: name match.operations instead")
	}
	ops := slices.Collect(maps.Values(r.operations))
	if len(m.Operations) > 0 {
		ops = nil
	}
	for i, id := range m.Operations {
		path := fmt.Sprintf("match.operations.%d", i)
		op, known := r.operations[id]
		ops = append(ops, op)
		if !known {
			p.add(
				path, "is %q, which is no operation that faults can touch; GET /openapi.yaml has their operationIds",
				id,
			)
		} else if why := unsuitedReason(e, op); why != "" {
			p.add(path, "is %q, which %s", id, why)
		}
	}
	for _, f := range []struct {
		path, value, never string
		about              func(Operation) bool
	}{
		{"match.resource", m.Resource, "none of the operations is about a resource with such an ID", func(op Operation) bool {
			return op.Resource != "" && strings.HasPrefix(m.Resource, op.Resource)
		}},
		{"match.tag", m.Tag, "none of the operations is about one resource that has tags", func(op Operation) bool {
			return op.Tags
		}},
	} {
		switch {
		case f.value == "":
		case e.EmptyList:
			p.add(f.path, "never matches a list, which effect.emptyList is for")
		case e.PartialList > 0:
			p.add(f.path, "never matches a list, which effect.partialList is for")
		case !slices.ContainsFunc(ops, f.about):
			p.add(f.path, "never matches: %s", f.never)
		}
	}
	r.checkOmitted(s, p)
	r.checkDialectCode(e.DialectCode, p)
}

// checkDialectCode finds an error that no dialect has.
func (r *Rules) checkDialectCode(code string, p *problems) {
	known := map[string]bool{"": true}
	for _, op := range r.operations {
		for its := range op.Codes {
			known[its] = true
		}
	}
	if !known[code] {
		p.add("effect.dialectCode", "is %q, which no dialect of this cloud has: choose of%s", code,
			strings.Join(slices.Sorted(maps.Keys(known)), " "))
	}
}

// unsuitedReason says why calls of the operation cannot have the effect; it is empty if
// they can.
func unsuitedReason(e api.FaultEffect, op Operation) string {
	switch {
	case suitsOperation(e, op):
		return ""
	case e.EmptyList:
		return "does not list: effect.emptyList is for those that do"
	case e.PartialList > 0 && !op.Lists:
		return "does not list: effect.partialList is for those that do"
	case e.CarryOut:
		return "changes nothing: effect.carryOut is for those that do"
	case op.Streams && (e.Stale || e.CarryOut):
		return "answers with a stream, which cannot be kept"
	case op.Streams && (e.DelayMilliseconds > 0 || e.JitterMilliseconds > 0):
		return "answers with a stream: effect.omitFields is for its events, which cannot be delayed"
	case e.Stale:
		return "does not read: effect.stale is for those that do"
	}
	return "answers with none of effect.omitFields"
}

// checkOmitted finds fields to omit that no answer has.
func (r *Rules) checkOmitted(s api.FaultCreate, p *problems) {
	ids := s.Match.Operations
	if len(ids) == 0 {
		ids = slices.Collect(maps.Keys(r.operations))
	}
	for i, field := range s.Effect.OmitFields {
		has := slices.ContainsFunc(ids, func(id string) bool {
			op, known := r.operations[id]
			return known && op.Answers(field)
		})
		if !has {
			p.add(fmt.Sprintf("effect.omitFields.%d", i), "is %q, which is in none of the answers", field)
		}
	}
}

func (r *Rules) checkLifeCycle(s api.FaultCreate, p *problems) {
	m, e := s.Match, s.Effect
	if m.Token != "" {
		p.add("match.token", "is about calls, and the effect is on life cycles")
	}
	if len(m.Operations) > 0 {
		p.add("match.operations", "is about calls, and the effect is on life cycles")
	}
	kinds := []cloud.Resource{api.ResourceInstance, api.ResourceLoadBalancer}
	switch {
	case e.Crash || e.ZoneOutage != "":
		kinds = kinds[:1]
		if len(m.Kinds) > 0 {
			p.add("match.kinds", "is for effect.stuck and effect.fail only: this effect is on instances")
		}
	case len(m.Kinds) > 0:
		kinds = m.Kinds
	}
	if m.Resource != "" && !slices.ContainsFunc(kinds, func(k cloud.Resource) bool {
		return strings.HasPrefix(m.Resource, idPrefixes[k])
	}) {
		p.add("match.resource", "is %q, which is none of what the effect is for: %s", m.Resource, joinKinds(kinds))
	}
	if e.ZoneOutage == "" {
		return
	}
	zones := r.cloud.Zones()
	if !slices.ContainsFunc(zones, func(z cloud.Zone) bool { return z.Name == e.ZoneOutage }) {
		var names []string
		for _, z := range zones {
			names = append(names, z.Name)
		}
		p.add("effect.zoneOutage", "is %q, which is no zone: choose one of %s", e.ZoneOutage, strings.Join(names, ", "))
	}
	if m.Resource != "" {
		p.add("match.resource", "cannot go with effect.zoneOutage, which takes the whole zone")
	}
	if m.Tag != "" {
		p.add("match.tag", "cannot go with effect.zoneOutage, which takes the whole zone")
	}
}

// idPrefixes of the IDs of what has a life cycle.
var idPrefixes = map[cloud.Resource]string{api.ResourceInstance: "i-", api.ResourceLoadBalancer: "lb-"}

func joinKinds(kinds []cloud.Resource) string {
	var names []string
	for _, k := range kinds {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

// exclusiveEffects gives the names of the effects that exclude each other: those on calls,
// and those on life cycles.
func exclusiveEffects(e api.FaultEffect) (ends, cycles []string) {
	edits := ""
	switch {
	case e.PartialList != 0:
		edits = "partialList"
	case len(e.OmitFields) > 0:
		edits = "omitFields"
	}
	for _, kind := range []struct {
		name string
		set  bool
	}{
		{"status", e.Status != 0}, {"dialectCode", e.DialectCode != ""}, {"hang", e.Hang}, {"drop", e.Drop},
		{"body", e.Body != nil}, {"emptyList", e.EmptyList},
		{"throttle", e.Throttle != nil}, {"stale", e.Stale}, {edits, edits != ""},
	} {
		if kind.set {
			ends = append(ends, kind.name)
		}
	}
	for _, kind := range []struct {
		name string
		set  bool
	}{{"stuck", e.Stuck}, {"fail", e.Fail != ""}, {"crash", e.Crash}, {"zoneOutage", e.ZoneOutage != ""}} {
		if kind.set {
			cycles = append(cycles, kind.name)
		}
	}
	return ends, cycles
}

// EffectKind names the effect that ends a call, or that is on life cycles; "delay" if there is
// neither.
func EffectKind(e api.FaultEffect) string {
	ends, cycles := exclusiveEffects(e)
	if all := slices.Concat(ends, cycles); len(all) > 0 {
		return all[len(all)-1] // A throttle's hit has a status, too.
	}
	return "delay"
}

func checkEffect(e api.FaultEffect, p *problems) {
	ends, cycles := exclusiveEffects(e)
	switch {
	case len(cycles) > 1:
		p.add("effect."+cycles[1], "cannot go with effect.%s: make two faults", cycles[0])
	case len(cycles) == 1 && len(ends) > 0:
		p.add("effect."+ends[0], "is about calls, and effect.%s about life cycles: make two faults", cycles[0])
	case len(cycles) == 1 && (e.DelayMilliseconds != 0 || e.JitterMilliseconds != 0):
		p.add("effect.delayMilliseconds", "is about calls, and effect.%s about life cycles: make two faults", cycles[0])
	case len(ends) > 1:
		p.add("effect."+ends[1], "cannot go with effect.%s: a call can end in one way only", ends[0])
	case len(ends)+len(cycles) == 0 && e.DelayMilliseconds == 0 && e.JitterMilliseconds == 0 && !e.CarryOut:
		p.add(
			"effect",
			"does nothing: give a delay, or one of status, dialectCode, hang,"+
				" drop, body, emptyList, throttle, stale, partialList, omitFields, stuck, fail, crash and zoneOutage",
		)
	}
	losesAnswer := []string{"status", "dialectCode", "hang", "drop", "body"}
	if e.CarryOut && (len(ends) == 0 || !slices.Contains(losesAnswer, ends[0])) {
		p.add("effect.carryOut", "needs effect.status, dialectCode, hang, drop or body: the way in which the answer is lost")
	}
	for _, n := range []struct {
		path string
		bad  bool
	}{
		{"delayMilliseconds", e.DelayMilliseconds < 0}, {"jitterMilliseconds", e.JitterMilliseconds < 0}, {"partialList", e.PartialList < 0},
	} {
		if n.bad {
			p.add("effect."+n.path, "cannot be negative")
		}
	}
	if e.Throttle != nil && (!(e.Throttle.PerSecond > 0) || e.Throttle.Burst < 0) {
		p.add(
			"effect.throttle.perSecond",
			"must be above 0, and a burst at least 1: for no call at all, use effect.status 429",
		)
	}
	checkCompanions(e, p)
}

// checkCompanions checks fields that are of use only beside another field.
func checkCompanions(e api.FaultEffect, p *problems) {
	if e.Status != 0 && (e.Status < 400 || e.Status > 599) {
		p.add("effect.status", "must be from 400 to 599")
	}
	if e.RetryAfterSeconds != 0 && e.Status == 0 && e.DialectCode == "" {
		p.add("effect.retryAfterSeconds", "needs effect.status or effect.dialectCode")
	}
	if e.Project != "" && e.Status != 404 {
		p.add("effect.project", "needs effect.status 404")
	}
	if e.ContentType != "" && e.Body == nil {
		p.add("effect.contentType", "needs effect.body")
	}
}

func checkWhen(s api.FaultCreate, now time.Time, p *problems) {
	counts := []struct {
		path string
		n    int
	}{{"times", s.Times}, {"skip", s.Skip}, {"every", s.Every}}
	for _, c := range counts {
		if c.n < 0 {
			p.add(c.path, "cannot be negative")
		}
		if c.n != 0 && (s.Effect.Stuck || s.Effect.ZoneOutage != "") {
			p.add(c.path, "cannot go with an effect that lasts: give it an end with until or forSeconds")
		}
	}
	if s.Every == 1 {
		p.add("every", "is 1, which is each of them: leave it out")
	}
	if !(s.Probability >= 0 && s.Probability <= 1) {
		p.add("probability", "must be above 0 and at most 1")
	}
	if s.Probability != 0 && (s.Effect.Stuck || s.Effect.ZoneOutage != "") {
		p.add("probability", "cannot go with an effect that lasts: name what it is for with match")
	}
	if s.Seed < 0 || s.Seed > maxSeed {
		p.add("seed", "must be from 1 to %d", int64(maxSeed))
	}
	if s.Seed != 0 && s.Probability == 0 && s.Effect.JitterMilliseconds == 0 {
		p.add("seed", "draws nothing: it goes with probability or effect.jitterMilliseconds")
	}
	checkWindow(s, now, p)
}

func checkWindow(s api.FaultCreate, now time.Time, p *problems) {
	if s.AfterSeconds < 0 || s.From != nil && s.AfterSeconds != 0 {
		p.add("afterSeconds", "cannot be negative, or go with from: give one")
	}
	if s.ForSeconds < 0 || s.Until != nil && s.ForSeconds != 0 {
		p.add("forSeconds", "cannot be negative, or go with until: give one")
	}
	from, until := windowOf(s, now)
	switch {
	case until == nil:
	case !until.After(now):
		p.add("until", "is in the past: by the cloud's clock it is %s", now.Format(time.RFC3339))
	case from != nil && !until.After(*from):
		p.add("until", "must be after from")
	}
}
