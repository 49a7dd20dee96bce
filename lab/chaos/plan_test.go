package main

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestPlanIsThatOfItsSeed(t *testing.T) {
	seen := map[Deed]bool{}
	for round := range 50 {
		actions := plan(1, round)
		assert.Equal(t, actions, plan(1, round))
		assert.NotEqual(t, actions, plan(2, round))
		ends := 0
		for _, a := range actions {
			seen[a.Do] = true
			assert.LessOrEqual(t, a.At, acting)
			if a.Do == TerminateInstance {
				ends++
			}
		}
		assert.Equal(t, 1, ends, "two are for the mass-deletion guard")
	}
	for d := range deedWeights {
		assert.True(t, seen[d], d)
	}
}

// What makes it fail is left, and nothing else, whatever it is and as long as there is time.
func TestShrink(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []Action
		for i := range rapid.IntRange(1, 40).Draw(t, "actions") {
			all = append(all, Action{To: fmt.Sprint(i)})
		}
		causes := rapid.SliceOfNDistinct(rapid.SampledFrom(all), 1, min(3, len(all)), func(a Action) string { return a.To }).
			Draw(t, "causes")
		tries := rapid.IntRange(0, 500).Draw(t, "tries")
		cut := false
		left := shrink(slices.Clone(all), func(some []Action) (bool, error) {
			if tries--; tries < 0 {
				cut = true
				return false, errors.New("no time")
			}
			return !slices.ContainsFunc(causes, func(c Action) bool { return !slices.Contains(some, c) }), nil
		})
		for _, c := range causes {
			assert.Contains(t, left, c)
		}
		if !cut {
			assert.Len(t, left, len(causes))
		}
	})
}
