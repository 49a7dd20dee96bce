// This file answers: is the right call hit, and no more often than asked?

package faults_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
)

// operations are those that the rules here know of, and whether they list.
var operations = map[string]bool{"getThing": false, "makeThing": false, "listThings": true}

const project = "p-1"

func unavailable(m faults.Match) faults.Spec {
	return faults.Spec{Match: m, Effect: faults.Effect{Status: 503}}
}

func TestWhatARuleMatches(t *testing.T) {
	get := faults.Call{Project: project, Token: "ccm", Operation: "getThing", Resource: "t-1"}
	list := faults.Call{Project: project, Token: "ccm", Operation: "listThings"}
	empty := faults.Spec{Effect: faults.Effect{EmptyList: true}}
	for name, tc := range map[string]struct {
		spec faults.Spec
		call faults.Call
		hit  bool
	}{
		"everything":          {unavailable(faults.Match{}), get, true},
		"the token":           {unavailable(faults.Match{Token: "ccm"}), get, true},
		"another token":       {unavailable(faults.Match{Token: "cc"}), get, false},
		"the operation":       {unavailable(faults.Match{Operations: []string{"makeThing", "getThing"}}), get, true},
		"other operations":    {unavailable(faults.Match{Operations: []string{"makeThing", "listThings"}}), get, false},
		"the resource":        {unavailable(faults.Match{Resource: "t-1"}), get, true},
		"another resource":    {unavailable(faults.Match{Resource: "t-2"}), get, false},
		"no resource":         {unavailable(faults.Match{Resource: "t-1"}), list, false},
		"all that is given":   {unavailable(faults.Match{Token: "ccm", Operations: []string{"getThing"}, Resource: "t-1"}), get, true},
		"not all":             {unavailable(faults.Match{Token: "ccm", Operations: []string{"getThing"}, Resource: "t-2"}), get, false},
		"another project":     {unavailable(faults.Match{}), faults.Call{Project: "p-2", Token: "ccm", Operation: "getThing"}, false},
		"what is not touched": {unavailable(faults.Match{}), faults.Call{Project: project, Token: "ccm", Operation: "deleteFault"}, false},
		"a list":              {empty, list, true},
		"no list":             {empty, get, false},
	} {
		r := faults.New(operations)
		f, err := r.Create(project, tc.spec)
		require.NoError(t, err, name)
		hit := r.Apply(tc.call)
		assert.Equal(t, tc.hit, hit != nil, name)
		f, err = r.Get(project, f.ID)
		require.NoError(t, err, name)
		assert.Equal(t, tc.hit, f.Hits == 1, name)
	}
}

func TestWhatMakesNoSense(t *testing.T) {
	garbage := ""
	for _, tc := range []struct {
		spec  faults.Spec
		field string // "" makes sense
	}{
		{faults.Spec{}, "effect"},
		{faults.Spec{Effect: faults.Effect{Delay: time.Second}}, ""},
		{faults.Spec{Effect: faults.Effect{Delay: -1}}, "effect.delayMilliseconds"},
		{faults.Spec{Effect: faults.Effect{Delay: time.Second, Hang: true}}, ""},
		{faults.Spec{Effect: faults.Effect{Drop: true}, Times: 1}, ""},
		{faults.Spec{Effect: faults.Effect{Drop: true}, Times: -1}, "times"},
		{faults.Spec{Effect: faults.Effect{Hang: true, Drop: true}}, "effect.drop"},
		{faults.Spec{Effect: faults.Effect{Status: 503, EmptyList: true}}, "effect.emptyList"},
		{faults.Spec{Effect: faults.Effect{Status: 200}}, "effect.status"},
		{faults.Spec{Effect: faults.Effect{Status: 404, Project: "p", RetryAfter: time.Second}}, ""},
		{faults.Spec{Effect: faults.Effect{Status: 403, Project: "p"}}, "effect.project"},
		{faults.Spec{Effect: faults.Effect{Project: "p"}}, "effect.project"},
		{faults.Spec{Effect: faults.Effect{Hang: true, RetryAfter: time.Second}}, "effect.retryAfterSeconds"},
		{faults.Spec{Effect: faults.Effect{Body: &garbage, ContentType: "x"}}, ""},
		{faults.Spec{Effect: faults.Effect{Hang: true, Body: &garbage}}, "effect.body"},
		{faults.Spec{Effect: faults.Effect{Hang: true, ContentType: "x"}}, "effect.contentType"},
		{faults.Spec{Effect: faults.Effect{EmptyList: true}, Match: faults.Match{Operations: []string{"listThings"}}}, ""},
		{faults.Spec{Effect: faults.Effect{EmptyList: true}, Match: faults.Match{Operations: []string{"listThings", "getThing"}}}, "match.operations.1"},
		{faults.Spec{Effect: faults.Effect{EmptyList: true}, Match: faults.Match{Resource: "t-1"}}, "match.resource"},
		{faults.Spec{Effect: faults.Effect{Hang: true}, Match: faults.Match{Operations: []string{"deleteFault"}}}, "match.operations.0"},
	} {
		_, err := faults.New(operations).Create(project, tc.spec)
		if tc.field == "" {
			assert.NoError(t, err, "%+v", tc.spec)
			continue
		}
		var refused *cloud.Error
		require.ErrorAs(t, err, &refused, "%+v", tc.spec)
		assert.Equal(t, cloud.InvalidRequest, refused.Code)
		var named []string
		for _, f := range refused.Fields {
			named = append(named, f.Path)
			assert.Contains(t, refused.Message, f.Path+" "+f.Message)
		}
		assert.Contains(t, named, tc.field, "%+v", tc.spec)
	}
}

func TestDeletingLetsGo(t *testing.T) {
	r := faults.New(operations)
	f, err := r.Create(project, faults.Spec{Effect: faults.Effect{Hang: true}, Times: 1})
	require.NoError(t, err)
	hit := r.Apply(faults.Call{Project: project, Operation: "getThing"})
	require.NotNil(t, hit)
	select {
	case <-hit.Lifted:
		t.Fatal("let go too early")
	default:
	}
	assert.Nil(t, r.Apply(faults.Call{Project: project, Operation: "getThing"}), "spent while it holds")
	require.NoError(t, r.Delete(project, f.ID))
	_, open := <-hit.Lifted
	assert.False(t, open)
}

// Whatever is called, made and lifted: the oldest rule that matches and is not
// spent is applied, and no rule more often than it says.
func TestOldestLiveRuleWins(t *testing.T) {
	tokens := rapid.SampledFrom([]string{"", "a", "b"})
	names := rapid.SampledFrom([]string{"getThing", "makeThing", "listThings"})
	rapid.Check(t, func(t *rapid.T) {
		r := faults.New(operations)
		var model []faults.Fault
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				spec := unavailable(faults.Match{Token: tokens.Draw(t, "token"), Operations: rapid.SliceOfNDistinct(names, 0, 2, rapid.ID).Draw(t, "operations")})
				spec.Times = rapid.IntRange(0, 3).Draw(t, "times")
				f, err := r.Create(project, spec)
				if len(model) == 100 {
					require.Error(t, err)
					return
				}
				require.NoError(t, err)
				model = append(model, f)
			},
			"delete": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("none")
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
				require.NoError(t, r.Delete(project, model[i].ID))
				model = append(model[:i:i], model[i+1:]...)
			},
			"call": func(t *rapid.T) {
				c := faults.Call{Project: project, Token: tokens.Draw(t, "token"), Operation: names.Draw(t, "operation")}
				want := ""
				for i, f := range model {
					if (f.Match.Token == "" || f.Match.Token == c.Token) && (f.Times == 0 || f.Hits < f.Times) && (len(f.Match.Operations) == 0 || slices.Contains(f.Match.Operations, c.Operation)) {
						model[i].Hits++
						want = f.ID
						break
					}
				}
				got := ""
				if hit := r.Apply(c); hit != nil {
					got = hit.Fault
				}
				require.Equal(t, want, got)
			},
			"": func(t *rapid.T) {
				require.Equal(t, append([]faults.Fault{}, model...), r.List(project))
			},
		})
	})
}

// However many call at once, as many are hit as the rules say.
func TestTimesHoldUnderConcurrency(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := faults.New(operations)
		times := rapid.SliceOfN(rapid.IntRange(1, 30), 1, 4).Draw(t, "times")
		sum := 0
		for _, n := range times {
			sum += n
			_, err := r.Create(project, faults.Spec{Effect: faults.Effect{Drop: true}, Times: n})
			require.NoError(t, err)
		}
		callers, each := rapid.IntRange(2, 8).Draw(t, "callers"), rapid.IntRange(1, 20).Draw(t, "each")
		hits := make([]int, callers)
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for range each {
					if r.Apply(faults.Call{Project: project, Operation: "getThing"}) != nil {
						hits[i]++
					}
				}
			})
		}
		wg.Wait()
		felt, counted := 0, 0
		for _, n := range hits {
			felt += n
		}
		for i, f := range r.List(project) {
			counted += f.Hits
			require.LessOrEqual(t, f.Hits, times[i])
		}
		require.Equal(t, min(sum, callers*each), felt)
		require.Equal(t, felt, counted)
	})
}
