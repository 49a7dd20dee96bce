package faults

import (
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

var _ cloud.Faults = (*Rules)(nil)

// matchesSubject tells whether a rule on life cycles matches the resource.
func (r *rule) matchesSubject(s cloud.Subject) bool {
	m := r.Match
	return r.projectID() == s.Project &&
		(m.Resource == "" || m.Resource == s.ID) &&
		(m.Tag == "" || cloud.ParseTagFilter(m.Tag).Matches(s.Tags)) &&
		(len(m.Kinds) == 0 || slices.Contains(m.Kinds, s.Kind))
}

// firstHit finds the first rule that has the effect, is in force, matches the resource and
// applies to this match. It counts the match in each rule up to that one.
func (r *Rules) firstHit(s cloud.Subject, now time.Time, undo func(func()), has func(*rule) bool) *rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.rules {
		if !has(one) || !one.isInForce(now) || !one.matchesSubject(s) {
			continue
		}
		r.countMatch(one)
		hit := one.isTurn()
		if hit {
			one.Hits++
		}
		r.onUndo(undo, one, hit, "")
		if hit {
			return one
		}
	}
	return nil
}

// onUndo takes a match and its hit out of the counts if the transaction fails in which it
// was counted.
func (r *Rules) onUndo(undo func(func()), one *rule, hit bool, held string) {
	if undo == nil {
		return
	}
	undo(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		one.Matched--
		if hit {
			one.Hits--
		}
		delete(one.held, held)
		r.scheduleFlush(one)
	})
}

// Stuck implements cloud.Faults. A resource that is held counts once.
func (r *Rules) Stuck(s cloud.Subject, now time.Time, undo func(func())) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.rules {
		if !one.Effect.Stuck || !one.isInForce(now) || !one.matchesSubject(s) {
			continue
		}
		if !one.held[s.ID] {
			one.held[s.ID] = true
			r.countMatch(one)
			one.Hits++
			r.onUndo(undo, one, true, s.ID)
		}
		return true
	}
	return false
}

// Fail implements cloud.Faults.
func (r *Rules) Fail(s cloud.Subject, now time.Time, undo func(func())) (string, bool) {
	one := r.firstHit(s, now, undo, func(one *rule) bool { return one.Effect.Fail != "" })
	if one == nil {
		return "", false
	}
	return one.Effect.Fail, true
}

// Crash implements cloud.Faults.
func (r *Rules) Crash(s cloud.Subject, now time.Time, id string, undo func(func())) bool {
	return r.firstHit(s, now, undo, func(one *rule) bool {
		return one.Effect.Crash && (id == "" || one.ID == id)
	}) != nil
}

// Outage implements cloud.Faults.
func (r *Rules) Outage(project, zone string, now time.Time) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.rules {
		if one.Effect.ZoneOutage == zone && one.projectID() == project && one.isInForce(now) {
			return one.ID, true
		}
	}
	return "", false
}

// Sweeps implements cloud.Faults.
func (r *Rules) Sweeps(now time.Time) (due []cloud.FaultSweep, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.rules {
		if one.suspended {
			continue
		}
		to, at := one.nextPhase()
		switch {
		case at == nil:
		case !at.After(now):
			if one.isSpent(now) {
				to = cloud.FaultEnded // All of its window passed while no process ran.
			}
			due = append(
				due, cloud.FaultSweep{Rule: one.ID, Project: one.projectID(), To: to, Zone: one.Effect.ZoneOutage},
			)
		case next.IsZero() || at.Before(next):
			next = *at
		}
	}
	return due, next
}

// nextPhase is the next phase of the rule's window, and when it begins; nil if there is
// none.
func (r *rule) nextPhase() (cloud.FaultPhase, *time.Time) {
	e := r.Effect
	switch {
	case r.phase == cloud.FaultNew && (e.Crash || e.ZoneOutage != ""):
		begin := &r.CreatedAt
		if r.From != nil {
			begin = r.From
		}
		return cloud.FaultBegun, begin
	case r.phase != cloud.FaultEnded && (e.Stuck || e.ZoneOutage != ""):
		return cloud.FaultEnded, r.Until
	}
	return 0, nil
}

// Swept implements cloud.Faults.
func (r *Rules) Swept(s cloud.FaultSweep, took int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.rules {
		if one.ID != s.Rule {
			continue
		}
		one.phase = s.To
		if s.Zone != "" && s.To == cloud.FaultBegun {
			one.Matched += took
			one.Hits += took
			r.scheduleFlush(one)
		}
	}
}
