// Package explain answers why a Node or a Service is not ready, or that all is
// well, from what the cloud, the CCM, the cluster and the lab's own processes
// say. Gather asks; Node and Service conclude, and ask nothing: what could not
// be found out is said to be missing, and nothing is concluded from it.
package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kinds of what can be explained.
const (
	KindNode    = "node"
	KindService = "service"
)

// State is the answer in one word.
type State string

// What State can be. Degraded serves and is not as it should be; unknown is when
// what would tell cannot be asked.
const (
	Ready    State = "ready"
	Degraded State = "degraded"
	NotReady State = "not-ready"
	Unknown  State = "unknown"
)

// Where a fact was seen.
const (
	Cloud   = "cloud"
	CCM     = "CCM"
	Cluster = "cluster"
	Lab     = "lab"
)

// Explanation is why something is as it is. Its JSON is a contract: fields are
// added, never renamed.
type Explanation struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	State     State  `json:"state"`
	// Verdict is the answer in one sentence.
	Verdict string `json:"verdict"`
	Because []Fact `json:"because"`
	Next    []Step `json:"next"`
	// Missing is what could not be found out, and why.
	Missing []string `json:"missing,omitempty"`
}

// Serves tells whether it is ready, be it degraded.
func (x Explanation) Serves() bool { return x.State == Ready || x.State == Degraded }

// Fact is one thing that was seen.
type Fact struct {
	Where string `json:"where"`
	What  string `json:"what"`
}

// Step is what a person can do.
type Step struct {
	Do string `json:"do"`
	// Command is for copying; "" where waiting is all there is to do.
	Command string `json:"command,omitempty"`
}

// finding is one thing that is not as it should be. what goes on after the
// object's name.
type finding struct {
	state State
	what  string
	facts []Fact
	next  []Step
}

func (f *finding) fact(where, format string, args ...any) *finding {
	f.facts = append(f.facts, Fact{where, fmt.Sprintf(format, args...)})
	return f
}

func (f *finding) step(do, format string, args ...any) *finding {
	f.next = append(f.next, Step{do, fmt.Sprintf(format, args...)})
	return f
}

// due says that what is missing comes by itself.
func (f *finding) due(what string) *finding {
	f.next = append(f.next, Step{Do: what})
	return f
}

func found(state State, format string, args ...any) *finding {
	return &finding{state: state, what: fmt.Sprintf(format, args...)}
}

// with takes over the facts and steps of a cause, which may be nil.
func (f *finding) with(cause *finding) *finding {
	if cause != nil {
		f.facts, f.next = append(f.facts, cause.facts...), append(f.next, cause.next...)
	}
	return f
}

// conclude makes the worst finding the verdict, and keeps what the others add.
func (x Explanation) conclude(a Around, findings ...*finding) Explanation {
	findings = slices.DeleteFunc(findings, func(f *finding) bool { return f == nil })
	severity := map[State]int{NotReady: 0, Unknown: 1, Degraded: 2, Ready: 3}
	slices.SortStableFunc(findings, func(a, b *finding) int { return cmp.Compare(severity[a.state], severity[b.state]) })
	x.State, x.Missing = findings[0].state, a.Missing
	x.Verdict = fmt.Sprintf("%s %s %s.", strings.ToUpper(x.Kind[:1])+x.Kind[1:], x.title(), findings[0].what)
	x.Because, x.Next = []Fact{}, []Step{}
	for _, f := range findings {
		for _, fact := range f.facts {
			if !slices.Contains(x.Because, fact) {
				x.Because = append(x.Because, fact)
			}
		}
		for _, step := range f.next {
			if !slices.ContainsFunc(x.Next, func(s Step) bool { return s == step || s.Command != "" && s.Command == step.Command }) {
				x.Next = append(x.Next, step)
			}
		}
	}
	return x
}

// title names it as kubectl's user would, with the namespace unless that is the
// usual one.
func (x Explanation) title() string {
	if x.Namespace == "" || x.Namespace == "default" {
		return x.Name
	}
	return x.Namespace + "/" + x.Name
}

// age is how long ago something was, for people.
func age(now, then time.Time) string {
	d := max(0, now.Sub(then))
	if d < time.Second {
		return "under 1s"
	}
	if d >= 10*time.Minute {
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return d.Round(time.Second).String()
}

// count is "1 pod", "2 pods".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// maxShown is how many of a kind are told of.
const maxShown = 5

// shown is the first few of a list that may be long.
func shown(all []string) string {
	if len(all) > maxShown {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:maxShown], ", "), len(all)-maxShown)
	}
	return strings.Join(all, ", ")
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// in is a resource's state as the end of a sentence: its instance is ...
func in[State ~string](state State) string {
	if state == "error" {
		return "in error"
	}
	return string(state)
}

// because is ": why", or nothing where nobody says why.
func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}
