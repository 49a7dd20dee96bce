// Package faults makes calls go wrong: it keeps the rules that say which calls,
// how often and how, and finds the one that a call is to feel. Applying it is
// the server's part.
package faults

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// limit bounds the rules of one project.
const limit = 100

// Call is what a rule can tell calls apart by.
type Call struct {
	Project string // its ID
	Token   string // its name
	// Operation is the operationId of the API's spec.
	Operation string
	Resource  string // the ID in the path, or ""
}

// Match says which calls; what is empty matches every call.
type Match struct {
	Token      string
	Operations []string
	Resource   string
}

// Effect is what becomes of a call: the delay, then at most one of the others.
type Effect struct {
	Delay  time.Duration
	Status int // 400 to 599, or 0
	// RetryAfter goes with Status, in whole seconds; 0 for none.
	RetryAfter time.Duration
	// Project goes with status 404: the ID that the answer names instead of the
	// caller's project.
	Project    string
	Hang, Drop bool
	// Body is the answer's, with status 200; nil for none.
	Body        *string
	ContentType string // of Body
	EmptyList   bool
}

// Spec is what a rule is made of.
type Spec struct {
	Match  Match
	Effect Effect
	// Times bounds how many calls it is applied to; 0 does not.
	Times int
}

// Fault is a rule.
type Fault struct {
	ID        string
	CreatedAt time.Time
	Spec
	// Hits is to how many calls it was applied.
	Hits int
}

// Spent tells whether the rule matches nothing any more.
func (f Fault) Spent() bool { return f.Times > 0 && f.Hits >= f.Times }

// Hit is a rule's effect on one call.
type Hit struct {
	Fault  string // the rule's ID
	Effect Effect
	// Lifted is closed when the rule is deleted.
	Lifted <-chan struct{}
}

type rule struct {
	Fault
	lifted chan struct{}
}

// Rules are the faults of all projects. Safe for concurrent use.
type Rules struct {
	lists map[string]bool

	mu        sync.Mutex
	byProject map[string][]*rule // oldest first
}

// New makes rules for calls of these operations; true are those that list.
func New(operations map[string]bool) *Rules {
	return &Rules{lists: operations, byProject: map[string][]*rule{}}
}

// Create adds a rule to a project. What makes no sense is refused, with the
// names of the fields; so is one rule too many.
func (r *Rules) Create(project string, s Spec) (Fault, error) {
	if err := r.check(s); err != nil {
		return Fault{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byProject[project]) >= limit {
		return Fault{}, &cloud.Error{Code: cloud.TooManyFaults, Message: fmt.Sprintf("the project has %d faults already, which is the limit: delete some first, spent ones for instance", limit)}
	}
	s.Match.Operations = slices.Clone(s.Match.Operations)
	added := &rule{lifted: make(chan struct{}), Fault: Fault{
		ID: "f-" + strings.ToLower(ulid.Make().String()), CreatedAt: time.Now().UTC().Truncate(time.Millisecond), Spec: s,
	}}
	r.byProject[project] = append(r.byProject[project], added)
	return added.Fault, nil
}

// List gives a project's rules, oldest first.
func (r *Rules) List(project string) []Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []Fault{}
	for _, rule := range r.byProject[project] {
		all = append(all, rule.Fault)
	}
	return all
}

// Get gives one rule of a project.
func (r *Rules) Get(project, id string) (Fault, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, err := r.find(project, id)
	if err != nil {
		return Fault{}, err
	}
	return r.byProject[project][i].Fault, nil
}

// Delete lifts a rule, and lets go of the calls that it holds.
func (r *Rules) Delete(project, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, err := r.find(project, id)
	if err != nil {
		return err
	}
	close(r.byProject[project][i].lifted)
	r.byProject[project] = slices.Delete(r.byProject[project], i, i+1)
	return nil
}

func (r *Rules) find(project, id string) (int, error) {
	i := slices.IndexFunc(r.byProject[project], func(r *rule) bool { return r.ID == id })
	if i < 0 {
		return 0, &cloud.Error{Code: cloud.NotFound, Message: fmt.Sprintf("the project has no fault %q", id)}
	}
	return i, nil
}

// Apply finds the oldest rule that matches the call and is not spent, and counts
// the hit; nil if there is none.
func (r *Rules) Apply(c Call) *Hit {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rule := range r.byProject[c.Project] {
		if rule.Spent() || !r.matches(rule.Spec, c) {
			continue
		}
		rule.Hits++
		return &Hit{Fault: rule.ID, Effect: rule.Effect, Lifted: rule.lifted}
	}
	return nil
}

func (r *Rules) matches(s Spec, c Call) bool {
	lists, known := r.lists[c.Operation]
	m := s.Match
	return known &&
		(m.Token == "" || m.Token == c.Token) &&
		(len(m.Operations) == 0 || slices.Contains(m.Operations, c.Operation)) &&
		(m.Resource == "" || m.Resource == c.Resource) &&
		(!s.Effect.EmptyList || lists)
}
