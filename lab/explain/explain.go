// Package explain answers why a Node or a Service is not ready, or that all is
// well. A Source queries the cloud, the CCM's Events, the cluster and the lab's
// processes for facts (gather.go). Node and Service draw conclusions from facts
// and query nothing; they begin in node.go and service.go. A fact that could not
// be queried is listed as missing, and nothing is concluded from its absence.
package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// Kinds of what can be explained.
const (
	KindNode    = "node"
	KindService = "service"
)

// State is the answer in one word.
type State string

// Values of State. A Degraded object serves clients and is not as it should be.
// Unknown means that the component that knows does not answer.
const (
	Ready    State = "ready"
	Degraded State = "degraded"
	NotReady State = "not-ready"
	Unknown  State = "unknown"
)

// Values of Fact.Where: where a fact was observed.
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

// Serves tells whether the object serves clients, even if it is degraded.
func (x Explanation) Serves() bool { return x.State == Ready || x.State == Degraded }

// Fact is one observation.
type Fact struct {
	Where string `json:"where"`
	What  string `json:"what"`
}

// Step is one thing that a person can do next.
type Step struct {
	Do string `json:"do"`
	// Command is for copying; "" where waiting is all there is to do.
	Command string `json:"command,omitempty"`
}

// finding is one thing that is not as it should be. verdict continues a sentence
// that begins with the object's name.
type finding struct {
	state   State
	verdict string
	facts   []Fact
	next    []Step
}

func (f *finding) addFact(where, format string, args ...any) *finding {
	f.facts = append(f.facts, Fact{where, fmt.Sprintf(format, args...)})
	return f
}

func (f *finding) addStep(do, format string, args ...any) *finding {
	f.next = append(f.next, Step{do, fmt.Sprintf(format, args...)})
	return f
}

// addWait adds a step without a command: the problem goes away by itself.
func (f *finding) addWait(what string) *finding {
	f.next = append(f.next, Step{Do: what})
	return f
}

func newFinding(state State, format string, args ...any) *finding {
	return &finding{state: state, verdict: fmt.Sprintf(format, args...)}
}

// addCause adds the facts and steps of a cause, which may be nil.
func (f *finding) addCause(cause *finding) *finding {
	if cause != nil {
		f.facts, f.next = append(f.facts, cause.facts...), append(f.next, cause.next...)
	}
	return f
}

// conclude makes the worst finding the verdict, and adds the facts and steps of
// all others.
func (x Explanation) conclude(a LabFacts, findings ...*finding) Explanation {
	findings = slices.DeleteFunc(findings, func(f *finding) bool { return f == nil })
	severity := map[State]int{NotReady: 0, Unknown: 1, Degraded: 2, Ready: 3}
	slices.SortStableFunc(findings, func(a, b *finding) int {
		return cmp.Compare(severity[a.state], severity[b.state])
	})
	x.State, x.Missing = findings[0].state, a.Missing
	x.Verdict = fmt.Sprintf("%s %s %s.", strings.ToUpper(x.Kind[:1])+x.Kind[1:], x.displayName(), findings[0].verdict)
	x.Because, x.Next = []Fact{}, []Step{}
	for _, f := range findings {
		for _, fact := range f.facts {
			if !slices.Contains(x.Because, fact) {
				x.Because = append(x.Because, fact)
			}
		}
		for _, step := range f.next {
			if !slices.ContainsFunc(x.Next, func(s Step) bool {
				return s == step || s.Command != "" && s.Command == step.Command
			}) {
				x.Next = append(x.Next, step)
			}
		}
	}
	return x
}

// displayName is the name that a user of kubectl would type, with the namespace
// unless that is "default".
func (x Explanation) displayName() string {
	if x.Namespace == "" || x.Namespace == "default" {
		return x.Name
	}
	return x.Namespace + "/" + x.Name
}

// formatAge formats the time from then to now for people.
func formatAge(now, then time.Time) string {
	d := max(0, now.Sub(then))
	if d < time.Second {
		return "under 1s"
	}
	if d >= 10*time.Minute {
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return d.Round(time.Second).String()
}

// formatCount returns "1 pod", "2 pods".
func formatCount(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// maxShown is how many objects of a kind a fact names.
const maxShown = 5

// stateInSentence returns a resource's state as it ends a sentence: "its instance
// is ...".
func stateInSentence[State ~string](state State) string {
	if state == "error" {
		return "in error"
	}
	return string(state)
}

// reasonSuffix returns ": why", or "" if no reason is known.
func reasonSuffix(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// explainBound bounds an explanation when something does not answer. processesBound is
// the part of it for listing the components, for which a container engine may be asked.
const (
	explainBound   = 5 * time.Second
	processesBound = time.Second
)

// OfLab says why the Node or the Service (kind is KindNode or KindService) is not
// ready, or that it is. A namespace is for Services.
func OfLab(ctx context.Context, l *lab.Lab, kind, namespace, name string) (Explanation, error) {
	ctx, cancel := context.WithTimeout(ctx, explainBound)
	defer cancel()
	source, err := newSource(ctx, l)
	if err != nil {
		return Explanation{}, err
	}
	if kind == KindNode {
		source.Removed = nodeRemovals(l)
		return source.Node(ctx, name), nil
	}
	return source.Service(ctx, namespace, name), nil
}

// Names are the names of a kind that there are.
func Names(ctx context.Context, l *lab.Lab, kind string) ([]string, error) {
	source, err := newSource(ctx, l)
	if err != nil {
		return nil, err
	}
	return source.Names(ctx, kind)
}

func newSource(ctx context.Context, l *lab.Lab) (Source, error) {
	source := Source{LabFacts: LabFacts{LabName: l.State.Name, NoProvider: l.Cluster.Traits().NoCloudProvider}}
	var err error
	bounded, cancel := context.WithTimeout(ctx, processesBound)
	defer cancel()
	if source.Components, err = l.Components(bounded); err != nil {
		source.Missing = append(source.Missing, fmt.Sprintf("%s: which components run: %v", Lab, err))
	} else if err := l.CheckNotStopped(source.Components); err != nil {
		return source, err
	}
	source.Processes = runningProcesses(l)
	if other, err := l.OtherCCM(); err != nil {
		source.Missing = append(source.Missing, fmt.Sprintf("%s: which program is the CCM: %v", Lab, err))
	} else if other != nil {
		source.OtherCCM, source.NoBalancers = other.Path, other.WithoutBalancers
	}
	if !source.NoProvider {
		source.CCMRefusal = l.CCMRefusal(bounded)
	}
	if source.Kube, err = l.Cluster.Observer(); err != nil {
		return source, err
	}
	// The person's own token: fault rules are for admins to see.
	source.Cloud, err = l.Cluster.Cloud().Client(cluster.CallerOperator)
	return source, err
}

// runningProcesses are the lab's processes on this machine, by component; nil if they
// cannot be listed, which is no reason not to explain.
func runningProcesses(l *lab.Lab) map[string]Process {
	running, err := l.Host.Running()
	if err != nil {
		return nil
	}
	all := map[string]Process{}
	for name, p := range running {
		short, _, _ := strings.Cut(name, "@")
		all[short] = Process{PID: p.PID, Began: p.Started(), Paused: p.Paused()}
	}
	return all
}

// nodeRemovals is when the timeline last saw each Node deleted.
func nodeRemovals(l *lab.Lab) map[string]time.Time {
	entries, err := l.Timeline().Read()
	if err != nil {
		return nil
	}
	all := map[string]time.Time{}
	for _, e := range entries {
		if name, node := strings.CutPrefix(e.Subject, "node/"); node && e.Source == timeline.SourceCluster &&
			e.What == "removed" {
			all[name] = e.Time
		}
	}
	return all
}
