package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Action is one thing that is done to the lab. It names what it is done to, and not what is there at that
// time, so that a plan means the same when it is carried out again, whole or in parts.
type Action struct {
	// At is when in its round, For how long what it does lasts; 0 for what is done once.
	At  time.Duration `json:"at"`
	For time.Duration `json:"for,omitempty"`
	Do  Deed          `json:"do"`
	To  string        `json:"to,omitempty"`
	How string        `json:"how,omitempty"`
}

// String is for people.
func (a Action) String() string {
	text := fmt.Sprintf("%5.1f s: %s", a.At.Seconds(), strings.Join([]string{string(a.Do), a.To, a.How}, " "))
	if a.For > 0 {
		text += fmt.Sprintf(", for %.1f s", a.For.Seconds())
	}
	return text
}

// Deed is what an action does.
type Deed string

// All deeds.
const (
	Kill       Deed = "kill"   // a component, by SIGKILL
	Freeze     Deed = "freeze" // a component, by SIGSTOP
	FailCalls  Deed = "fail-calls"
	FailBuilds Deed = "fail-builds" // of instances and balancers
	ZoneOutage Deed = "zone-outage"
	FillDisk   Deed = "fill-disk" // the cloud's

	CreateInstance    Deed = "create-instance"
	StopInstance      Deed = "stop-instance"
	StartInstance     Deed = "start-instance"
	RebootInstance    Deed = "reboot-instance"
	CrashInstance     Deed = "crash-instance"
	TerminateInstance Deed = "terminate-instance"

	CreateService Deed = "create-service"
	DeleteService Deed = "delete-service"
	ChangePort    Deed = "change-port"
	ChangeType    Deed = "change-type" // LoadBalancer or ClusterIP
	ChangePolicy  Deed = "change-policy"
	ChangeCheck   Deed = "change-health-check" // an annotation

	LabelNode   Deed = "label-node"
	ExcludeNode Deed = "exclude-node" // from balancers
	ScalePods   Deed = "scale-pods"
)

// acting is how long a round acts before it rests.
const acting = 40 * time.Second

// What actions choose among. More than one instance that ends in a round would be what the CCM's mass-deletion
// guard waits for a person for.
var (
	nodes      = []string{"node-1", "node-2", "node-3", "node-4"}
	services   = []string{"chaos-1", "chaos-2", "chaos-3", "chaos-4", "chaos-5"}
	components = []string{
		"fakecloud", "fakecloud", "fakecloud", "ccm", "ccm", "ccm", "kube-apiserver", "etcd", "kube-controller-manager",
		"kube-scheduler", "lab-agent", "node/node-1", "node/node-2",
	}
	callFaults  = []string{"500", "503", "429", "drop", "lost", "slow", "hang"}
	buildFaults = []string{"fail", "stuck"}
	zones       = []string{"nebula-1a", "nebula-1b", "nebula-1c"}
)

// deedWeights are how often each deed is done, compared with the others.
var deedWeights = map[Deed]int{
	Kill: 6, Freeze: 4, FailCalls: 5, FailBuilds: 2, ZoneOutage: 1, FillDisk: 1,
	StopInstance: 2, StartInstance: 3, RebootInstance: 1, CrashInstance: 1, CreateInstance: 2,
	CreateService: 5, DeleteService: 3, ChangePort: 3, ChangeType: 2, ChangePolicy: 1, ChangeCheck: 1,
	LabelNode: 2, ExcludeNode: 2, ScalePods: 1,
}

// plan is what a round does, by its seed. The same seed and round give the same actions.
func plan(seed uint64, round int) []Action {
	r := rand.New(rand.NewPCG(seed, uint64(round))) //nolint:gosec // It is to come out the same again.
	var deeds []Deed
	for d, weight := range deedWeights {
		deeds = append(deeds, slices.Repeat([]Deed{d}, weight)...)
	}
	slices.Sort(deeds)
	actions := []Action{{Do: TerminateInstance, To: pick(r, nodes), At: between(r, acting/2, acting)}}
	for range 12 + r.IntN(20) {
		actions = append(actions, actionOf(r, pick(r, deeds)))
	}
	for i, name := range services[:2] { // Something is there to be broken.
		actions = append(actions, Action{Do: CreateService, To: name, At: time.Duration(i) * time.Second})
	}
	for _, name := range nodes {
		actions = append(actions, Action{Do: CreateInstance, To: name}, Action{Do: StartInstance, To: name})
	}
	slices.SortStableFunc(actions, func(a, b Action) int { return int(a.At - b.At) })
	return actions
}

func actionOf(r *rand.Rand, d Deed) Action {
	a := Action{Do: d, At: between(r, time.Second, acting)}
	switch d {
	case Kill:
		a.To = pick(r, components)
	case Freeze:
		a.To, a.For = pick(r, components), between(r, time.Second, 8*time.Second)
	case FailCalls:
		a.To, a.How, a.For = pick(r, []string{"", "ccm"}), pick(r, callFaults), between(r, time.Second, 10*time.Second)
	case FailBuilds:
		a.How, a.For = pick(r, buildFaults), between(r, time.Second, 10*time.Second)
	case ZoneOutage:
		a.To, a.For = pick(r, zones), between(r, time.Second, 10*time.Second)
	case FillDisk:
		a.For = between(r, time.Second, 10*time.Second)
	case CreateService, DeleteService, ChangeType, ChangePolicy, ChangeCheck:
		a.To = pick(r, services)
	case ChangePort:
		a.To, a.How = pick(r, services), fmt.Sprint(8080+r.IntN(100))
	case ScalePods:
		a.How = fmt.Sprint(1 + r.IntN(4))
	case StopInstance, StartInstance, RebootInstance, CrashInstance, CreateInstance, LabelNode, ExcludeNode:
		a.To = pick(r, nodes)
	case TerminateInstance: // Once a round, see plan.
	}
	return a
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return (from + time.Duration(r.Int64N(int64(to-from)))).Round(time.Millisecond)
}
