package mutants

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance/mutants/mutation"
)

// All mutants of our CCM compile, and the declaration of equivalent ones names none that there is not.
func TestGeneratedMutants(t *testing.T) {
	set, err := Generate(t.Context(), root)
	require.NoError(t, err)
	assert.Empty(t, set.Broken)
	counted, reaching := map[mutation.Kind]int{}, map[string]int{}
	for _, m := range set.Mutants {
		counted[m.Kind]++
		for _, i := range m.Interfaces {
			reaching[i]++
		}
	}
	t.Logf("%d mutants: %v, %v", len(set.Mutants), counted, reaching)
	for _, kind := range []mutation.Kind{mutation.Condition, mutation.Call, mutation.Error, mutation.Field} {
		assert.NotZero(t, counted[kind], kind)
	}
	for _, i := range []string{"InstancesV2", "LoadBalancer", "Routes"} {
		assert.NotZero(t, reaching[i], i)
	}
	equivalents, err := LoadEquivalents()
	require.NoError(t, err)
	assert.Empty(t, equivalents.Stale(set.Mutants),
		"no mutant is called so: `make mutants MUTANTS=\"-generated -list\"` prints them")
	for id, reason := range equivalents {
		assert.NotEmpty(t, reason, id)
	}
}

func TestEquivalents(t *testing.T) {
	e := Equivalents{"a.go:f:condition:1": "one", "a.go:*:error:*": "all errors", "b.go:*": "gone"}
	assert.Equal(t, "one", e.ReasonFor("a.go:f:condition:1"))
	assert.Equal(t, "all errors", e.ReasonFor("a.go:g:error:2"))
	assert.Empty(t, e.ReasonFor("a.go:f:condition:2"))
	assert.Equal(t, []string{"b.go:*"}, e.Stale([]mutation.Mutant{{ID: "a.go:f:condition:1"}, {ID: "a.go:g:error:2"}}))
}
