// Package faults makes calls and life cycles go wrong. It keeps the rules that say which
// ones, how often and how, and finds the rule that applies to a call or a resource. It does
// not apply it: package server does so to a call, and package cloud to a resource. It knows
// of HTTP what an answer is made of, and nothing of routes. Begin with Open and
// Rules.Apply.
package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults/effects"
)

// maxRules bounds how many rules of one project there are.
const maxRules = 100

// Operation is what rules must know of an operation of the API.
type Operation struct {
	// Reads tells that it changes nothing, Lists that its answer has items.
	Reads, Lists bool
	// Streams tells that its answer does not end by itself.
	Streams bool
	// Resource is the prefix of the ID in its path, such as "i-"; empty if there is no ID.
	Resource string
	// Tags tells that the resource of that ID can have tags.
	Tags bool
	// Codes are the errors of a dialect, by their names there, with their statuses; nil of calls that are of none.
	Codes map[string]int
	// Answers tells whether its answer, each item of a list or each event of a stream can have
	// the field of a dotted path.
	Answers func(path string) bool
}

// Call is what a rule can tell calls apart by.
type Call struct {
	Project string // its ID
	Token   string // its name
	// Operation is the operationId of the API's spec.
	Operation string
	Resource  string // the ID in the path, or ""
	// Tags reads the resource's tags. It is called only if a rule needs them, and
	// may be nil.
	Tags func() (map[string]string, error)
	// Has is of an event that an open stream is about to send: it tells whether the event has the
	// field of a dotted path. It is nil for the call itself.
	Has func(path string) bool
	// Within is the operation of a dialect's call that makes this one, or "". A rule that names
	// no call in particular takes the two as one call, which is the dialect's.
	Within string
}

// ofLifeCycles tells whether the effect is on resources, not on calls.
func ofLifeCycles(e api.FaultEffect) bool {
	return e.Stuck || e.Fail != "" || e.Crash || e.ZoneOutage != ""
}

// Hit is a rule's effect on one call.
type Hit struct {
	Fault string // the rule's ID
	// Effect has the drawn delay, for a throttle a status and when to try again, and for a dialect's code its status.
	Effect api.FaultEffect
	// Lifted is closed when the rule is deleted.
	Lifted <-chan struct{}
	// Answers are those that a stale rule has captured.
	Answers *effects.Answers
}

type rule struct {
	api.Fault
	owner     string // the ID of the project that made it
	phase     cloud.FaultPhase
	lifted    chan struct{}
	answers   effects.Answers
	bucket    throttleBucket
	held      map[string]bool // resources that are stuck
	dirty     bool            // counts differ from those stored
	suspended bool            // out of force, while it is being lifted
}

// projectID is the project whose calls and resources the rule is about.
func (r *rule) projectID() string {
	if r.Match.Project != "" {
		return r.Match.Project
	}
	return r.owner
}

func (r *rule) isSpent(now time.Time) bool {
	return r.Times > 0 && r.Hits >= r.Times || r.Until != nil && !now.Before(*r.Until)
}

func (r *rule) isInForce(now time.Time) bool {
	return !r.suspended && !r.isSpent(now) && (r.From == nil || !now.Before(*r.From))
}

// Rules are the faults of all projects. Safe for concurrent use.
type Rules struct {
	cloud      *cloud.Cloud
	clock      clockwork.Clock
	log        *slog.Logger
	operations map[string]Operation

	// change orders what is made and lifted. It is taken before mu, and before
	// any transaction; mu may be taken within one.
	change sync.Mutex
	// writing orders what brings counts into the store.
	writing sync.Mutex

	mu         sync.Mutex
	rules      []*rule // oldest first
	flushTimer *time.Timer
	closed     bool
}

// Open brings the stored rules of a cloud back into force, for calls of these operations.
func Open(ctx context.Context, c *cloud.Cloud, operations map[string]Operation, log *slog.Logger) (*Rules, error) {
	r := &Rules{cloud: c, clock: c.Clock(), log: log, operations: operations}
	return r, r.loadStored(ctx)
}

// loadStored brings the stored rules into force, and releases what other rules held. The
// cloud may already run: it sees the rules only when all of them are loaded.
func (r *Rules) loadStored(ctx context.Context) error {
	r.change.Lock()
	defer r.change.Unlock()
	stored, err := r.cloud.StoredFaults(ctx)
	if err != nil {
		return err
	}
	var stuck []string
	for _, f := range stored {
		back := newRule(f.Project, api.Fault{})
		if err := json.Unmarshal(f.Spec, &back.Fault); err != nil {
			return fmt.Errorf("stored fault %s: %w", f.ID, err)
		}
		back.ID, back.CreatedAt, back.phase = f.ID, f.CreatedAt, f.Phase
		back.Matched, back.Hits = int(f.Matched), int(f.Hits)
		r.rules = append(r.rules, back)
		if back.Effect.Stuck {
			stuck = append(stuck, back.projectID())
		}
	}
	r.cloud.SetFaults(r)
	return r.cloud.ReleaseOrphans(ctx, stuck)
}

func newRule(owner string, f api.Fault) *rule {
	return &rule{Fault: f, owner: owner, lifted: make(chan struct{}), held: map[string]bool{}}
}

func (r *Rules) now() time.Time { return r.clock.Now().UTC().Truncate(time.Millisecond) }

// Create adds a rule that a project makes. Rules that make no sense are refused, with the
// names of the fields, and so is one rule too many.
func (r *Rules) Create(ctx context.Context, project string, s api.FaultCreate) (api.Fault, error) {
	now := r.now()
	if err := r.check(ctx, s, now); err != nil {
		return api.Fault{}, err
	}
	made := newRule(project, newFault(s, now))
	if err := r.addRule(ctx, made); err != nil {
		return api.Fault{}, err
	}
	if s.Effect.Crash || s.Effect.ZoneOutage != "" {
		// What begins at once has happened when Create returns.
		if err := r.cloud.SweepFaults(ctx); err != nil {
			r.log.Error("what a fault begins with will be tried again", "fault", made.ID, "err", err)
		}
	}
	return r.Get(project, made.ID)
}

func (r *Rules) addRule(ctx context.Context, made *rule) error {
	r.change.Lock()
	defer r.change.Unlock()
	if len(r.List(made.owner)) >= maxRules {
		return &cloud.Error{Code: cloud.TooManyFaults, Message: fmt.Sprintf(
			"the project has %d faults already, which is the limit: delete some first, spent ones for instance",
			maxRules,
		)}
	}
	spec, err := json.Marshal(made.Fault)
	if err != nil {
		return err
	}
	if err := r.cloud.SaveFault(
		ctx, cloud.StoredFault{ID: made.ID, Project: made.owner, Spec: spec, CreatedAt: made.CreatedAt},
	); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = append(r.rules, made)
	r.cloud.FaultsChanged()
	return nil
}

// List gives the rules that a project made, oldest first.
func (r *Rules) List(project string) []api.Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []api.Fault{}
	for _, one := range r.rules {
		if one.owner == project && !one.suspended {
			all = append(all, r.toFault(one))
		}
	}
	return all
}

func (r *Rules) toFault(one *rule) api.Fault {
	f := one.Fault
	f.Spent = one.isSpent(r.now())
	return f
}

// Get gives one rule that a project made.
func (r *Rules) Get(project, id string) (api.Fault, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.rules {
		if one.owner == project && one.ID == id && !one.suspended {
			return r.toFault(one), nil
		}
	}
	return api.Fault{}, &cloud.Error{Code: cloud.NotFound, Message: fmt.Sprintf("the project has no fault %q", id)}
}

// Delete lifts a rule and releases what it holds.
func (r *Rules) Delete(ctx context.Context, project, id string) error {
	lifted, err := r.liftRules(ctx, func(one *rule) bool { return one.owner == project && one.ID == id })
	if err == nil && lifted == 0 {
		_, err = r.Get(project, id)
	}
	return err
}

// DeleteAll lifts the rules that a project made.
func (r *Rules) DeleteAll(ctx context.Context, project string) error {
	_, err := r.liftRules(ctx, func(one *rule) bool { return one.owner == project })
	return err
}

// liftRules takes rules out of force before it undoes what they did, so that none of them
// holds a resource again.
func (r *Rules) liftRules(ctx context.Context, which func(*rule) bool) (int, error) {
	r.change.Lock()
	defer r.change.Unlock()
	ids, finish := r.suspendRules(which)
	err := r.cloud.LiftFaults(ctx, ids)
	finish(err == nil)
	return len(ids), err
}

// Suspend implements cloud.Faults.
func (r *Rules) Suspend(project string) (ids []string, finish func(remove bool)) {
	return r.suspendRules(func(one *rule) bool { return one.owner == project || one.projectID() == project })
}

// suspendRules takes rules out of force. finish then removes them, or puts them back.
func (r *Rules) suspendRules(which func(*rule) bool) (ids []string, finish func(remove bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	suspended := map[*rule]bool{}
	for _, one := range r.rules {
		if !one.suspended && which(one) {
			one.suspended, suspended[one] = true, true
			ids = append(ids, one.ID)
		}
	}
	return ids, func(remove bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		var remaining []*rule
		for _, one := range r.rules {
			if suspended[one] && remove {
				close(one.lifted)
				continue
			}
			one.suspended = one.suspended && !suspended[one]
			remaining = append(remaining, one)
		}
		r.rules = remaining
	}
}

// Apply finds the oldest rule that matches the call and whose turn it is, and
// counts the hit; nil if there is none. An error means that the resource's tags
// cannot be read: no rule has been applied, and none has counted the call.
func (r *Rules) Apply(c Call) (*Hit, error) {
	var tags map[string]string
	if c.Tags != nil && c.Resource != "" && r.needsTags(c) {
		var err error
		if tags, err = c.Tags(); err != nil {
			return nil, fmt.Errorf("tags of %s, for faults: %w", c.Resource, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, one := range r.rules {
		if !one.isInForce(now) || !r.matchesCall(one, c, tags) {
			continue
		}
		r.countMatch(one)
		if !one.isTurn() {
			continue
		}
		e := one.Effect
		if e.Throttle != nil {
			wait := one.bucket.take(now, *e.Throttle)
			if wait == 0 {
				continue
			}
			e.Status, e.RetryAfterSeconds = 429, wait
		}
		if e.DialectCode != "" {
			e.Status = r.codesOf(c)[e.DialectCode]
		}
		e.DelayMilliseconds += one.drawJitter()
		one.Hits++
		return &Hit{Fault: one.ID, Effect: e, Lifted: one.lifted, Answers: &one.answers}, nil
	}
	return nil, nil
}

// needsTags tells whether a rule about the call's project matches by tags. Tags are read
// from the store, so they are not read without need.
func (r *Rules) needsTags(c Call) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.rules, func(one *rule) bool {
		return one.Match.Tag != "" && one.projectID() == c.Project && !ofLifeCycles(one.Effect)
	})
}

func (r *Rules) matchesCall(one *rule, c Call, tags map[string]string) bool {
	op, known := r.operations[c.Operation]
	m := one.Match
	return known && !ofLifeCycles(one.Effect) && one.projectID() == c.Project &&
		(m.Token == "" || m.Token == c.Token) &&
		(len(m.Operations) == 0 || slices.Contains(m.Operations, c.Operation)) &&
		(m.Resource == "" || m.Resource == c.Resource) &&
		(m.Tag == "" || cloud.ParseTagFilter(m.Tag).Matches(tags)) &&
		(one.Effect.DialectCode == "" || r.codesOf(c)[one.Effect.DialectCode] != 0) &&
		suitsOperation(one.Effect, op) && suitsEvent(one.Effect, op, c) && !r.suitsOuter(one, c)
}

// codesOf gives the errors of the dialect that a call is of, or that makes it; nil if there is none.
func (r *Rules) codesOf(c Call) map[string]int {
	if c.Within != "" {
		return r.operations[c.Within].Codes
	}
	return r.operations[c.Operation].Codes
}

// suitsEvent tells whether the effect is for an event, if the call is one, or for the call. Of a
// stream, fields are left out of its events, and any other effect is for the call that opens it.
func suitsEvent(e api.FaultEffect, op Operation, c Call) bool {
	isOfEvents := op.Streams && len(e.OmitFields) > 0
	if c.Has == nil {
		return !isOfEvents
	}
	return isOfEvents && slices.ContainsFunc(e.OmitFields, c.Has)
}

// suitsOuter tells whether a rule is for the dialect's call that makes a call, and not for that
// one.
func (r *Rules) suitsOuter(one *rule, c Call) bool {
	outer, known := r.operations[c.Within]
	m := one.Match
	return known && len(m.Operations) == 0 && m.Resource == "" && m.Tag == "" && suitsOperation(one.Effect, outer)
}

// suitsOperation tells whether calls of the operation can have the effect.
func suitsOperation(e api.FaultEffect, op Operation) bool {
	switch {
	case e.EmptyList:
		return op.Lists
	case e.PartialList > 0 && !op.Lists, e.Stale && !op.Reads, e.CarryOut && op.Reads:
		return false
	case e.Stale, e.CarryOut:
		return !op.Streams
	case len(e.OmitFields) > 0:
		isHeldUp := e.DelayMilliseconds > 0 || e.JitterMilliseconds > 0
		return (!op.Streams || !isHeldUp) && slices.ContainsFunc(e.OmitFields, op.Answers)
	}
	return true
}

// countMatch counts a match. mu is held.
func (r *Rules) countMatch(one *rule) {
	one.Matched++
	r.scheduleFlush(one)
}
