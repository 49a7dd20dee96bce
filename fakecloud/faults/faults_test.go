package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// operations are those that the rules here know of.
var operations = map[string]faults.Operation{
	"getThing":   {Reads: true, Resource: "t-", Tags: true, Answers: hasColour},
	"makeThing":  {Answers: hasColour},
	"endThing":   {Resource: "t-", Tags: true, Answers: hasColour},
	"listThings": {Reads: true, Lists: true, Answers: hasColour},
	"getPlain":   {Reads: true, Resource: "x-", Answers: hasColour},
	"follow":     {Reads: true, Streams: true, Answers: hasColour},
}

func hasColour(field string) bool { return field == "colour" }

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world is a cloud of two projects, and its rules.
type world struct {
	*faults.Rules
	cloud   *cloud.Cloud
	clock   *clockwork.FakeClock
	end     func()
	project string // the ID of the one
	other   string
}

// fakePlane forwards nothing.
type fakePlane struct{}

func (fakePlane) Apply(cloud.Forwarding) error            { return nil }
func (fakePlane) CanForward(cloud.LoadBalancerKind) error { return nil }
func (fakePlane) Remove(string)                           {}
func (fakePlane) Stats(string) api.LoadBalancerStats      { return api.LoadBalancerStats{} }
func (fakePlane) Health(string) []api.TargetHealth        { return nil }
func (fakePlane) Condition(string) (string, bool)         { return "", true }
func (fakePlane) Notify(func(string))                     {}

func openWorld(t *testing.T, path string, clock *clockwork.FakeClock) *world {
	st := must.Do(store.Open(context.Background(), path))(t)
	w := &world{clock: clock}
	cfg := cloud.Config{Store: st, DataPlane: fakePlane{}, Profile: cloud.Profiles[1], Clock: w.clock}
	w.cloud = must.Do(cloud.New(cfg))(t)
	for i, id := range []*string{&w.project, &w.other} {
		p := must.Do(w.cloud.EnsureProject(context.Background(), fmt.Sprintf("p%d", i), nil))(t)
		*id = p.ID
	}
	w.reopen(t)
	w.end = func() {
		w.Close()
		assert.NoError(t, st.Close())
	}
	return w
}

func newWorld(t *testing.T) *world {
	w := openWorld(t, store.Memory, clockwork.NewFakeClockAt(epoch))
	t.Cleanup(w.end)
	return w
}

// withoutRules is the world without rules: a new one for each of many checks takes
// too long.
func (w *world) withoutRules(t require.TestingT) *world {
	require.NoError(t, w.DeleteAll(context.Background(), w.project))
	return w
}

// reopen gives the rules that another process would find.
func (w *world) reopen(t require.TestingT) {
	if w.Rules != nil {
		w.Close()
	}
	w.Rules = must.Do(faults.Open(context.Background(), w.cloud, operations, slog.New(slog.DiscardHandler)))(t)
}

func (w *world) make(t require.TestingT, s api.FaultCreate) api.Fault {
	return must.Do(w.Create(context.Background(), w.project, s))(t)
}

// applyTo applies the rules to a call.
func applyTo(t assert.TestingT, r *faults.Rules, c faults.Call) *faults.Hit {
	hit, err := r.Apply(c)
	assert.NoError(t, err)
	return hit
}

func TestTagsThatCannotBeReadApplyNoRule(t *testing.T) {
	w := newWorld(t)
	f := w.make(t, unavailable(api.FaultMatch{Tag: "role=worker"}))
	call := faults.Call{Project: w.project, Operation: "getThing", Resource: "t-1"}
	unreadable := errors.New("the disk is gone")
	call.Tags = func() (map[string]string, error) { return nil, unreadable }
	hit, err := w.Apply(call)
	require.ErrorIs(t, err, unreadable)
	assert.Nil(t, hit)
	assert.Zero(t, must.Do(w.Get(w.project, f.ID))(t).Matched)
	call.Tags = func() (map[string]string, error) { return map[string]string{"role": "worker"}, nil }
	assert.NotNil(t, applyTo(t, w.Rules, call))
}

// callsOf matches the calls of some operations.
func callsOf(operations ...string) api.FaultMatch { return api.FaultMatch{Operations: operations} }

func unavailable(m api.FaultMatch) api.FaultCreate {
	return api.FaultCreate{Match: m, Effect: api.FaultEffect{Status: 503}}
}

func TestWhatARuleMatches(t *testing.T) {
	type (
		spec   = api.FaultCreate
		effect = api.FaultEffect
		match  = api.FaultMatch
		call   = faults.Call
	)
	w := newWorld(t)
	project := w.project
	get := call{Project: project, Token: "ccm", Operation: "getThing", Resource: "t-1"}
	list := call{Project: project, Token: "ccm", Operation: "listThings"}
	make := call{Project: project, Operation: "makeThing"}
	follow := call{Project: project, Operation: "follow"}
	event := call{Project: project, Operation: "follow", Has: func(path string) bool { return path == "colour" }}
	colourless := call{Project: project, Operation: "follow", Has: func(string) bool { return false }}
	tagged := get
	tagged.Tags = func() (map[string]string, error) { return map[string]string{"role": "worker"}, nil }
	empty := spec{Effect: effect{EmptyList: true}}
	for name, tc := range map[string]struct {
		spec spec
		call call
		hit  bool
	}{
		"everything":       {unavailable(match{}), get, true},
		"the token":        {unavailable(match{Token: "ccm"}), get, true},
		"another token":    {unavailable(match{Token: "cc"}), get, false},
		"the operation":    {unavailable(callsOf("makeThing", "getThing")), get, true},
		"other operations": {unavailable(callsOf("makeThing", "listThings")), get, false},
		"the resource":     {unavailable(match{Resource: "t-1"}), get, true},
		"another resource": {unavailable(match{Resource: "t-2"}), get, false},
		"no resource":      {unavailable(match{Resource: "t-1"}), list, false},
		"all that is given": {
			unavailable(match{Token: "ccm", Operations: []string{"getThing"}, Resource: "t-1"}), get, true,
		},
		"not all":         {unavailable(match{Token: "ccm", Operations: []string{"getThing"}, Resource: "t-2"}), get, false},
		"another project": {unavailable(match{}), call{Project: w.other, Token: "ccm", Operation: "getThing"}, false},
		"the project named": {
			unavailable(match{Project: w.other}), call{Project: w.other, Operation: "getThing"}, true,
		},
		"its own no more":      {unavailable(match{Project: w.other}), get, false},
		"the tag":              {unavailable(match{Tag: "role=worker"}), tagged, true},
		"the tag's key":        {unavailable(match{Tag: "role"}), tagged, true},
		"another value":        {unavailable(match{Tag: "role=work"}), tagged, false},
		"another key":          {unavailable(match{Tag: "rol"}), tagged, false},
		"a tag, and a list":    {unavailable(match{Tag: "role"}), list, false},
		"part of a list":       {spec{Effect: effect{PartialList: 1}}, list, true},
		"part of no list":      {spec{Effect: effect{PartialList: 1}}, get, false},
		"an old read":          {spec{Effect: effect{Stale: true}}, get, true},
		"no read":              {spec{Effect: effect{Stale: true}}, make, false},
		"an old stream":        {spec{Effect: effect{Stale: true}}, follow, false},
		"a change carried out": {spec{Effect: effect{CarryOut: true, Drop: true}}, make, true},
		"a read carried out":   {spec{Effect: effect{CarryOut: true, Drop: true}}, get, false},
		"a field":              {spec{Effect: effect{OmitFields: []string{"colour"}}}, get, true},
		"a stream's field":     {spec{Effect: effect{OmitFields: []string{"colour"}}}, follow, false},
		"an event's field":     {spec{Effect: effect{OmitFields: []string{"colour"}}}, event, true},
		"another field":        {spec{Effect: effect{OmitFields: []string{"colour"}}}, colourless, false},
		"a stream, not events": {unavailable(match{}), event, false},
		"a life cycle":         {spec{Effect: effect{Crash: true}}, get, false},
		"what is not touched": {
			unavailable(match{}), call{Project: project, Token: "ccm", Operation: "deleteFault"}, false,
		},
		"a list":  {empty, list, true},
		"no list": {empty, get, false},
	} {
		f := must.Do(w.Create(t.Context(), project, tc.spec))(t, name)
		hit := applyTo(t, w.Rules, tc.call)
		assert.Equal(t, tc.hit, hit != nil, name)
		f = must.Do(w.Get(project, f.ID))(t, name)
		assert.Equal(t, tc.hit, f.Hits == 1, name)
		assert.Equal(t, tc.hit, f.Matched == 1, name)
		require.NoError(t, w.DeleteAll(t.Context(), project))
	}
}

func TestWhatMakesNoSense(t *testing.T) {
	type (
		spec     = api.FaultCreate
		effect   = api.FaultEffect
		match    = api.FaultMatch
		throttle = api.FaultThrottle
	)
	w := newWorld(t)
	garbage := ""
	past, soon, later := epoch.Add(-time.Second), epoch.Add(time.Second), epoch.Add(time.Minute)
	crash := effect{Crash: true}
	instances, balancers := []cloud.Resource{api.ResourceInstance}, []cloud.Resource{api.ResourceLoadBalancer}
	get, list := callsOf("getThing"), callsOf("listThings")
	drop := effect{Drop: true}
	for _, tc := range []struct {
		spec  spec
		field string // "" makes sense
	}{
		{spec{}, "effect"},
		{spec{Effect: effect{DelayMilliseconds: 1000}}, ""},
		{spec{Effect: effect{DelayMilliseconds: -1}}, "effect.delayMilliseconds"},
		{spec{Effect: effect{DelayMilliseconds: 1000, Hang: true}}, ""},
		{spec{Effect: effect{Drop: true}, Times: 1}, ""},
		{spec{Effect: effect{Drop: true}, Times: -1}, "times"},
		{spec{Effect: effect{Hang: true, Drop: true}}, "effect.drop"},
		{spec{Effect: effect{Status: 503, EmptyList: true}}, "effect.emptyList"},
		{spec{Effect: effect{Status: 200}}, "effect.status"},
		{spec{Effect: effect{Status: 404, Project: "p", RetryAfterSeconds: 1}}, ""},
		{spec{Effect: effect{Status: 403, Project: "p"}}, "effect.project"},
		{spec{Effect: effect{Project: "p"}}, "effect.project"},
		{spec{Effect: effect{Hang: true, RetryAfterSeconds: 1}}, "effect.retryAfterSeconds"},
		{spec{Effect: effect{Body: &garbage, ContentType: "x"}}, ""},
		{spec{Effect: effect{Hang: true, Body: &garbage}}, "effect.body"},
		{spec{Effect: effect{Hang: true, ContentType: "x"}}, "effect.contentType"},
		{spec{Effect: effect{EmptyList: true}, Match: callsOf("listThings")}, ""},
		{spec{Effect: effect{EmptyList: true}, Match: callsOf("listThings", "getThing")}, "match.operations.1"},
		{spec{Effect: effect{EmptyList: true}, Match: match{Resource: "t-1"}}, "match.resource"},
		{spec{Effect: effect{Hang: true}, Match: callsOf("deleteFault")}, "match.operations.0"},

		{spec{Effect: drop, Skip: -1}, "skip"},
		{spec{Effect: drop, Every: 1}, "every"},
		{spec{Effect: drop, Every: 2, Skip: 3, Times: 4, Probability: 1, Seed: 5}, ""},
		{spec{Effect: drop, Probability: 1.5}, "probability"},
		{spec{Effect: drop, Probability: -1}, "probability"},
		{spec{Effect: drop, Probability: math.NaN()}, "probability"},
		{spec{Effect: drop, Seed: 5}, "seed"},
		{spec{Effect: effect{JitterMilliseconds: 1000}, Seed: 5}, ""},
		{spec{Effect: drop, Until: &past}, "until"},
		{spec{Effect: drop, From: &later, Until: &soon}, "until"},
		{spec{Effect: drop, From: &past, ForSeconds: 1}, "until"},
		{spec{Effect: drop, From: &soon, Until: &later}, ""},
		{spec{Effect: drop, From: &soon, AfterSeconds: 1}, "afterSeconds"},
		{spec{Effect: drop, Until: &later, ForSeconds: 1}, "forSeconds"},

		{spec{Effect: drop, Match: match{Project: "p-none"}}, "match.project"},
		{spec{Effect: drop, Match: match{Tag: "=x"}}, "match.tag"},
		{spec{Effect: drop, Match: match{Tag: "x", Operations: []string{"listThings", "makeThing"}}}, "match.tag"},
		{spec{Effect: drop, Match: match{Resource: "x", Operations: []string{"listThings"}}}, "match.resource"},
		{spec{Effect: drop, Match: match{Tag: "x", Operations: []string{"listThings", "getThing"}}}, ""},
		{spec{Effect: drop, Match: match{Kinds: instances}}, "match.kinds"},
		{spec{Effect: effect{EmptyList: true}, Match: match{Tag: "x"}}, "match.tag"},
		{spec{Effect: effect{PartialList: 1}, Match: match{Tag: "x"}}, "match.tag"},
		{spec{Effect: effect{PartialList: 1}, Match: get}, "match.operations.0"},
		{spec{Effect: effect{PartialList: -1}}, "effect.partialList"},
		{spec{Effect: effect{PartialList: 1, OmitFields: []string{"colour"}}, Match: list}, ""},
		{spec{Effect: effect{OmitFields: []string{"colour", "smell"}}}, "effect.omitFields.1"},
		{spec{Effect: effect{Stale: true}, Match: callsOf("makeThing")}, "match.operations.0"},
		{spec{Effect: effect{Stale: true}, Match: callsOf("follow")}, "match.operations.0"},
		{spec{Effect: effect{Stale: true, EmptyList: true}}, "effect.stale"},
		{spec{Effect: effect{Throttle: &throttle{PerSecond: 1}}}, ""},
		{spec{Effect: effect{Throttle: &throttle{}}}, "effect.throttle.perSecond"},
		{spec{Effect: effect{Throttle: &throttle{PerSecond: 1}, Status: 429}}, "effect.throttle"},
		{spec{Effect: effect{CarryOut: true}}, "effect.carryOut"},
		{spec{Effect: effect{CarryOut: true, DelayMilliseconds: 1}}, "effect.carryOut"},
		{spec{Effect: effect{CarryOut: true, EmptyList: true}}, "effect.carryOut"},
		{spec{Effect: effect{CarryOut: true, Hang: true}, Match: get}, "match.operations.0"},
		{spec{Effect: effect{CarryOut: true, Hang: true}}, ""},

		{spec{Effect: crash}, ""},
		{spec{Effect: crash, Match: match{Token: "x"}}, "match.token"},
		{spec{Effect: crash, Match: get}, "match.operations"},
		{spec{Effect: crash, Match: match{Resource: "lb-1"}}, "match.resource"},
		{spec{Effect: crash, Match: match{Resource: "i-1"}}, ""},
		{spec{Effect: crash, Match: match{Kinds: balancers}}, "match.kinds"},
		{spec{Effect: effect{Crash: true, Stuck: true}}, "effect.crash"},
		{spec{Effect: effect{Crash: true, Status: 503}}, "effect.status"},
		{spec{Effect: effect{Crash: true, DelayMilliseconds: 1}}, "effect.delayMilliseconds"},
		{spec{Effect: effect{Stuck: true}, Match: match{Resource: "lb-1"}}, ""},
		{spec{Effect: effect{Stuck: true}, Match: match{Resource: "r-1"}}, "match.resource"},
		{spec{Effect: effect{Stuck: true}, Match: match{Resource: "lb-1", Kinds: instances}}, "match.resource"},
		{spec{Effect: effect{Stuck: true}, Times: 1}, "times"},
		{spec{Effect: effect{Stuck: true}, Probability: 0.5}, "probability"},
		{spec{Effect: effect{Fail: "no disk"}, Times: 1}, ""},
		{spec{Effect: effect{ZoneOutage: "nebula-1a"}}, ""},
		{spec{Effect: effect{ZoneOutage: "nebula-1z"}}, "effect.zoneOutage"},
		{spec{Effect: effect{ZoneOutage: "nebula-1a"}, Match: match{Tag: "x"}}, "match.tag"},
	} {
		_, err := w.Create(t.Context(), w.project, tc.spec)
		w.withoutRules(t)
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
	r := newWorld(t)
	project := r.project
	f := r.make(t, api.FaultCreate{Effect: api.FaultEffect{Hang: true}, Times: 1})
	hit := applyTo(t, r.Rules, faults.Call{Project: project, Operation: "getThing"})
	require.NotNil(t, hit)
	select {
	case <-hit.Lifted:
		t.Fatal("let go too early")
	default:
	}
	assert.Nil(t, applyTo(t, r.Rules, faults.Call{Project: project, Operation: "getThing"}), "spent while it holds")
	require.NoError(t, r.Delete(t.Context(), project, f.ID))
	_, open := <-hit.Lifted
	assert.False(t, open)
}

// Whatever is called, made and lifted: the oldest rule that matches and is not
// spent is applied, and no rule more often than it says.
func TestOldestLiveRuleWins(t *testing.T) {
	tokens := rapid.SampledFrom([]string{"", "a", "b"})
	names := rapid.SampledFrom([]string{"getThing", "makeThing", "listThings"})
	w := newWorld(t)
	project := w.project
	rapid.Check(t, func(t *rapid.T) {
		r := w.withoutRules(t)
		var model []api.Fault
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				spec := unavailable(api.FaultMatch{
					Token:      tokens.Draw(t, "token"),
					Operations: append([]string(nil), rapid.SliceOfNDistinct(names, 0, 2, rapid.ID).Draw(t, "operations")...),
				})
				spec.Times = rapid.IntRange(0, 3).Draw(t, "times")
				f, err := r.Create(t.Context(), project, spec)
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
				require.NoError(t, r.Delete(t.Context(), project, model[i].ID))
				model = append(model[:i:i], model[i+1:]...)
			},
			"call": func(t *rapid.T) {
				c := faults.Call{
					Project: project, Token: tokens.Draw(t, "token"), Operation: names.Draw(t, "operation"),
				}
				want := ""
				for i, f := range model {
					if (f.Match.Token == "" || f.Match.Token == c.Token) && (f.Times == 0 || f.Hits < f.Times) &&
						(len(f.Match.Operations) == 0 || slices.Contains(f.Match.Operations, c.Operation)) {
						model[i].Hits++
						model[i].Matched++
						model[i].Spent = f.Times == f.Hits+1
						want = f.ID
						break
					}
				}
				got := ""
				if hit := applyTo(t, r.Rules, c); hit != nil {
					got = hit.Fault
				}
				require.Equal(t, want, got)
			},
			"restart": func(t *rapid.T) { r.reopen(t) },
			"":        func(t *rapid.T) { require.Equal(t, append([]api.Fault{}, model...), r.List(project)) },
		})
	})
}

// However many call at once, as many are hit as the rules say.
func TestTimesHoldUnderConcurrency(t *testing.T) {
	w := newWorld(t)
	project := w.project
	rapid.Check(t, func(t *rapid.T) {
		r := w.withoutRules(t)
		times := rapid.SliceOfN(rapid.IntRange(1, 30), 1, 4).Draw(t, "times")
		sum := 0
		for _, n := range times {
			sum += n
			must.Do(r.Create(
				t.Context(), project, api.FaultCreate{Effect: api.FaultEffect{Drop: true}, Times: n},
			))(t)
		}
		callers, each := rapid.IntRange(2, 8).Draw(t, "callers"), rapid.IntRange(1, 20).Draw(t, "each")
		hits := make([]int, callers)
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for range each {
					if applyTo(t, r.Rules, faults.Call{Project: project, Operation: "getThing"}) != nil {
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

// What a rule is applied to follows from its seed and from how many matched
// before, whatever else happens, restarts included.
func TestTheSameSeedDrawsTheSame(t *testing.T) {
	w := newWorld(t)
	rapid.Check(t, func(t *rapid.T) {
		spec := api.FaultCreate{
			Effect: api.FaultEffect{JitterMilliseconds: 60000},
			Skip:   rapid.IntRange(0, 3).Draw(t, "skip"), Every: rapid.SampledFrom([]int{0, 2, 3}).Draw(t, "every"),
			Times: rapid.IntRange(0, 5).Draw(t, "times"), Seed: rapid.Int64Range(1, 1<<53-1).Draw(t, "seed"),
			Probability: rapid.Float64Range(0.05, 1).Draw(t, "probability"),
		}
		calls := rapid.SliceOfN(rapid.SampledFrom([]string{"call", "call", "call", "other", "restart"}), 1, 60).
			Draw(t, "calls")
		run := func(calls []string) (fates []string) {
			f := w.withoutRules(t).make(t, spec)
			for _, what := range calls {
				switch what {
				case "restart":
					w.reopen(t)
				case "other": // Matches nothing.
					require.Nil(t, applyTo(t, w.Rules, faults.Call{Project: w.other, Operation: "getThing"}))
				default:
					fate := "goes through"
					if hit := applyTo(t, w.Rules, faults.Call{Project: w.project, Operation: "getThing"}); hit != nil {
						fate = strconv.Itoa(hit.Effect.DelayMilliseconds)
					}
					fates = append(fates, fate)
				}
			}
			f = must.Do(w.Get(w.project, f.ID))(t)
			hits := len(slices.DeleteFunc(slices.Clone(fates), func(s string) bool { return s == "goes through" }))
			require.Equal(t, hits, f.Hits)
			require.Equal(t, spec.Times > 0 && hits == spec.Times, f.Spent)
			if !f.Spent {
				require.Equal(t, len(fates), f.Matched)
			}
			return fates
		}
		plain := slices.DeleteFunc(slices.Clone(calls), func(s string) bool { return s != "call" })
		require.Equal(t, run(plain), run(calls))
	})
}

func TestProbabilityIsAboutWhatItSays(t *testing.T) {
	w := newWorld(t)
	f := w.make(t, api.FaultCreate{Effect: api.FaultEffect{Drop: true}, Probability: 0.3})
	assert.Positive(t, f.Seed, "drawn, and shown")
	hits := 0
	for range 2000 {
		if applyTo(t, w.Rules, faults.Call{Project: w.project, Operation: "getThing"}) != nil {
			hits++
		}
	}
	assert.InDelta(t, 600, hits, 150)
}

func TestSkipAndEvery(t *testing.T) {
	w := newWorld(t)
	w.make(t, api.FaultCreate{Effect: api.FaultEffect{Drop: true}, Skip: 2, Every: 3, Times: 2})
	second := w.make(t, api.FaultCreate{Effect: api.FaultEffect{Status: 503}})
	var dropped []int
	for n := 1; n <= 12; n++ {
		if applyTo(t, w.Rules, faults.Call{Project: w.project, Operation: "getThing"}).Effect.Drop {
			dropped = append(dropped, n)
		}
	}
	assert.Equal(t, []int{5, 8}, dropped)
	assert.Equal(t, 10, must.Do(w.Get(w.project, second.ID))(t).Hits, "what one rule leaves alone, the next one takes")
}

func TestWindows(t *testing.T) {
	w := newWorld(t)
	f := w.make(t, api.FaultCreate{
		Effect: api.FaultEffect{Drop: true}, AfterSeconds: 10, ForSeconds: 5,
	})
	require.Equal(t, epoch.Add(10*time.Second), *f.From)
	require.Equal(t, epoch.Add(15*time.Second), *f.Until)
	var hits []int
	for second := range 20 {
		if applyTo(t, w.Rules, faults.Call{Project: w.project, Operation: "getThing"}) != nil {
			hits = append(hits, second)
		}
		w.clock.Advance(time.Second)
	}
	assert.Equal(t, []int{10, 11, 12, 13, 14}, hits)
	f = must.Do(w.Get(w.project, f.ID))(t)
	assert.True(t, f.Spent)
	assert.Equal(t, 5, f.Matched)
}

// A throttle's Retry-After is honest: whoever waits that long goes through, and
// no more do than the rate allows.
func TestThrottlesAreHonest(t *testing.T) {
	w := newWorld(t)
	rapid.Check(t, func(t *rapid.T) {
		begin := w.withoutRules(t).clock.Now()
		rate, burst := rapid.Float64Range(0.1, 20).Draw(t, "rate"), rapid.IntRange(1, 5).Draw(t, "burst")
		w.make(t, api.FaultCreate{Effect: api.FaultEffect{Throttle: &api.FaultThrottle{PerSecond: rate, Burst: burst}}})
		through, hits := 0, 0
		for range 40 {
			w.clock.Advance(time.Duration(rapid.IntRange(0, 300).Draw(t, "pause")) * time.Millisecond)
			hit := applyTo(t, w.Rules, faults.Call{Project: w.project, Operation: "getThing"})
			if hit == nil {
				through++
				continue
			}
			hits++
			require.Equal(t, 429, hit.Effect.Status)
			require.Positive(t, hit.Effect.RetryAfterSeconds)
			if rapid.Bool().Draw(t, "wait") {
				w.clock.Advance(api.Seconds(hit.Effect.RetryAfterSeconds).Duration())
				require.Nil(t, applyTo(t, w.Rules, faults.Call{Project: w.project, Operation: "getThing"}))
				through++
			}
		}
		passed := w.clock.Now().Sub(begin).Seconds()
		require.LessOrEqual(t, float64(through), float64(burst)+passed*rate+0.001)
		require.Equal(t, hits, w.List(w.project)[0].Hits)
		require.Equal(t, hits+through, w.List(w.project)[0].Matched)
	})
}

func TestRulesSurviveARestart(t *testing.T) {
	w := newWorld(t)
	body := "garbage"
	for _, s := range []api.FaultCreate{
		{
			Match:  api.FaultMatch{Token: "ccm", Operations: []string{"getThing"}, Tag: "a=b", Project: w.other},
			Effect: api.FaultEffect{DelayMilliseconds: 1000, Body: &body, ContentType: "text/plain"},
			Times:  3, ForSeconds: 3600,
		},
		{Effect: api.FaultEffect{Throttle: &api.FaultThrottle{PerSecond: 1.5, Burst: 3}, JitterMilliseconds: 1000}},
		{Effect: api.FaultEffect{OmitFields: []string{"colour"}, PartialList: 3}},
		{Effect: api.FaultEffect{Stuck: true}, Match: api.FaultMatch{Kinds: []cloud.Resource{api.ResourceInstance}}},
	} {
		w.make(t, s)
	}
	require.NotNil(t, applyTo(t, w.Rules, faults.Call{Project: w.project, Operation: "listThings"}))
	before := w.List(w.project)
	w.reopen(t)
	assert.Equal(t, before, w.List(w.project))
	require.NoError(t, w.DeleteAll(t.Context(), w.project))
	w.reopen(t)
	assert.Empty(t, w.List(w.project))
}
