package conformance

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Profile is a group of tests that are worth a verdict of their own.
type Profile string

// The profiles.
const (
	Node         Profile = "Node"
	Lifecycle    Profile = "Lifecycle"
	LoadBalancer Profile = "LoadBalancer"
	Routing      Profile = "Route"
	HA           Profile = "HA"
	Resilience   Profile = "Resilience"
	Budget       Profile = "Budget"
)

// Profiles are all of them, in the order in which they are reported.
var Profiles = []Profile{Node, Lifecycle, LoadBalancer, Routing, HA, Resilience, Budget}

// Level says for whom a test counts.
type Level string

const (
	// Core is required of every CCM.
	Core Level = "core"
	// Extended is required of a CCM that claims the test's capability.
	Extended Level = "extended"
)

// Test is one behaviour.
type Test struct {
	// ID names it for good: reports, skips and mutants refer to it.
	ID string
	// Requires says in one sentence what is required.
	Requires string
	Profile  Profile
	Level    Level
	// Capability is the CCM's that an extended test is about.
	Capability Capability
	// Needs are the cloud's features without which it cannot be run.
	Needs []Feature
	// Compares are features that let the test check more. It runs without them, too.
	Compares []Feature
	// Source is where the requirement comes from: an interface's comment, a
	// KEP, the documentation.
	Source string
	// Alone runs it while no other test runs: it breaks the cloud, or stops the
	// CCM.
	Alone bool
	// BuildsOn are the IDs of tests of behaviours that this one takes for granted, as it waits for them
	// on its way. It is begun when these have been seen; where one has failed it is blocked, and not run.
	BuildsOn []string
	// Priority, unless 0, has it begun before or after others of its kind.
	Priority Priority
	// Bound is how long it may take; DefaultBound when 0.
	Bound time.Duration
	Run   func(t *T)
	// Incident, unless nil, is what happened to users of CCMs and is played
	// here: every test of Resilience has one, others may.
	Incident *Incident
}

// Incident is a failure that users of CCMs have met, to be played alone and
// watched. Its sentences are for a person who sees the cluster and not the code.
type Incident struct {
	// Name is what it is called on a command line: lower-case words with hyphens.
	Name string
	// Title is a few words for a list.
	Title string
	// Happened tells what the cloud, or somebody, does, and what a careless CCM
	// makes of it.
	Happened string
	// Danger says whom that hurts, and how.
	Danger string
	// Watch says where to look while it plays.
	Watch string
	// Right is what a CCM that behaves does.
	Right string
	// Known are places where it was told of: addresses of issues and accounts.
	Known []string
}

// DefaultBound is generous: a machine that builds beside the suite is slow.
const DefaultBound = 2 * time.Minute

// validateTests returns an error when a table of tests contradicts itself.
func validateTests(tests []Test) error {
	seen, played := map[string]bool{}, map[string]bool{}
	for _, t := range tests {
		switch {
		case !regexp.MustCompile(`^[a-z][a-z0-9-]*$`).MatchString(t.ID):
			return fmt.Errorf("test %q: an ID is lower-case words with hyphens", t.ID)
		case seen[t.ID]:
			return fmt.Errorf("two tests have the ID %s", t.ID)
		case t.Requires == "" || t.Source == "" || t.Run == nil:
			return fmt.Errorf("test %s: Requires, Source and Run are needed", t.ID)
		case !slices.Contains(Profiles, t.Profile):
			return fmt.Errorf("test %s: there is no profile %q", t.ID, t.Profile)
		case (t.Level == Extended) != (t.Capability != "") || t.Level != Core && t.Level != Extended:
			return fmt.Errorf("test %s: it is core, or extended with a capability", t.ID)
		case t.Profile == Resilience && t.Incident == nil:
			return fmt.Errorf("test %s: a test of %s plays an incident", t.ID, Resilience)
		}
		if err := t.Incident.validate(); err != nil {
			return fmt.Errorf("test %s: %w", t.ID, err)
		}
		if t.Incident != nil {
			if played[t.Incident.Name] {
				return fmt.Errorf("two tests play incident %s", t.Incident.Name)
			}
			played[t.Incident.Name] = true
		}
		seen[t.ID] = true
	}
	return validateFoundations(tests)
}

// validateFoundations returns an error when tests build on each other, or one on what less is required
// of. Foundations that are not among the tests were not selected.
func validateFoundations(tests []Test) error {
	listed := map[string]Test{}
	for _, t := range tests {
		listed[t.ID] = t
	}
	for _, t := range tests {
		for id := range foundationsOf(t, listed) {
			switch {
			case id == t.ID:
				return fmt.Errorf("test %s builds on itself", t.ID)
			case !isAtLeastAsRequired(listed[id], t):
				return fmt.Errorf("test %s builds on %s, which is not required wherever it is", t.ID, id)
			}
		}
	}
	return nil
}

// isAtLeastAsRequired tells whether a test is required of every CCM that another is required of.
func isAtLeastAsRequired(t, other Test) bool {
	return t.Level == Core || other.Level == Extended && !slices.ContainsFunc(capabilitiesOf(t), func(c Capability) bool {
		return !slices.Contains(capabilitiesOf(other), c)
	})
}

// foundationsOf are the IDs of all listed tests that a test builds on, be it by way of others.
func foundationsOf(t Test, listed map[string]Test) map[string]bool {
	found := map[string]bool{}
	next := slices.Clone(t.BuildsOn)
	for len(next) > 0 {
		id := next[0]
		next = next[1:]
		if foundation, known := listed[id]; known && !found[id] {
			found[id] = true
			next = append(next, foundation.BuildsOn...)
		}
	}
	return found
}

// validate returns an error when something is left out. No incident at all is none.
func (i *Incident) validate() error {
	if i != nil && (i.Name == "" || i.Title == "" || i.Happened == "" || i.Danger == "" || i.Watch == "" ||
		i.Right == "") {
		return fmt.Errorf("incident %q: Name, Title, Happened, Danger, Watch and Right are needed", i.Name)
	}
	return nil
}

// Select chooses the tests of these profiles, all when there are none, whose ID
// focus matches, unless it is nil.
func Select(tests []Test, profiles []Profile, focus *regexp.Regexp) []Test {
	var chosen []Test
	for _, t := range tests {
		if (len(profiles) == 0 || slices.Contains(profiles, t.Profile)) && (focus == nil || focus.MatchString(t.ID)) {
			chosen = append(chosen, t)
		}
	}
	return chosen
}

// ProfileNamed finds a profile, whatever the case of its letters.
func ProfileNamed(name string) (Profile, error) {
	var names []string
	for _, p := range Profiles {
		if strings.EqualFold(string(p), name) {
			return p, nil
		}
		names = append(names, string(p))
	}
	return "", fmt.Errorf("there is no profile %q: choose from %s", name, strings.Join(names, ", "))
}
