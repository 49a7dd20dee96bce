package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// action is one thing that is done to the lab. It names its object, and not what is there at that time, so that a
// history means the same when it is carried out again, whole or in parts.
type action struct {
	At time.Duration `json:"at"` // since the round began
	Do string        `json:"do"` // a command of a kind
}

// history is what one round does, in the order of time.
type history []action

// GoString is how rapid prints a history: an action a line.
func (h history) GoString() string {
	text := &strings.Builder{}
	for _, a := range h {
		fmt.Fprintf(text, "\n  %4.1f s: %s", a.At.Seconds(), a.Do)
	}
	return text.String()
}

const (
	// phaseLength and mostPhases bound a history: it acts for 40 seconds at most, and then the lab rests.
	phaseLength = 8 * time.Second
	mostPhases  = 5
	// mostActions bounds a phase. Five are drawn on average.
	mostActions = 12
	// step is between two times at which actions may begin.
	step = 500 * time.Millisecond
)

// histories draws a history as phases, each of them a list of actions: when rapid looks for a shorter history, it tries
// to leave out each phase as a whole before it tries that with the phase's actions one by one. Of the instances that are terminated, one is: the CCM's
// mass-deletion guard would wait for a person if there were more.
var histories = rapid.Custom(func(t *rapid.T) history {
	var h history
	terminated := false
	for i, phase := range rapid.SliceOfN(rapid.SliceOfN(actions, 1, mostActions), 1, mostPhases).Draw(t, "phases") {
		for _, a := range phase {
			if isTermination(a) && terminated {
				continue
			}
			terminated = terminated || isTermination(a)
			a.At += time.Duration(i) * phaseLength
			h = append(h, a)
		}
	}
	slices.SortStableFunc(h, func(a, b action) int { return int(a.At - b.At) })
	return h
})

func isTermination(a action) bool { return strings.HasPrefix(a.Do, "terminate ") }

// actions draws one action of a phase.
var actions = rapid.Custom(func(t *rapid.T) action {
	var weighted []kind
	for _, k := range kinds {
		weighted = append(weighted, slices.Repeat([]kind{k}, k.weight)...)
	}
	k := rapid.SampledFrom(weighted).Draw(t, "kind")
	at := rapid.IntRange(0, int(phaseLength/step)-1).Draw(t, "at")
	var chosen []any
	for _, choices := range k.choices {
		chosen = append(chosen, rapid.SampledFrom(choices).Draw(t, "choice"))
	}
	return action{At: time.Duration(at) * step, Do: fmt.Sprintf(k.command, chosen...)}
})

// beginning is done in each round before its history, so that there is something to break.
func beginning() (h history) {
	for _, name := range nodes {
		h = append(h, action{Do: fmt.Sprintf(createInstance, name)}, action{Do: fmt.Sprintf(startInstance, name)})
	}
	for _, name := range services[:2] {
		h = append(h, action{Do: fmt.Sprintf(createService, name)})
	}
	return h
}

func TestHistoryIsThatOfItsSeed(t *testing.T) {
	all := ""
	for seed := range 100 {
		h := histories.Example(seed)
		assert.Equal(t, h, histories.Example(seed))
		assert.NotEqual(t, h, histories.Example(seed+1))
		for _, a := range h {
			assert.Less(t, a.At, mostPhases*phaseLength)
		}
		assert.LessOrEqual(t, strings.Count(h.GoString(), ": terminate "), 1, "two are for the mass-deletion guard")
		all += h.GoString()
	}
	for _, k := range kinds {
		command, _, _ := strings.Cut(k.command, "%")
		assert.Contains(t, all, command)
	}
	assert.NotContains(t, all, "%!", "each kind has as many choices as its command has places")
}
