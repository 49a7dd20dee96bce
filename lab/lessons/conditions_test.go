package lessons

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// fixed is a state that does not change.
type fixed map[string]any

func (f fixed) Parent() cel.Activation { return nil }
func (f fixed) ResolveName(name string) (any, bool) {
	v, ok := f[name]
	if err, failed := v.(error); failed {
		return types.WrapErr(err), true
	}
	return v, ok
}

func TestConditions(t *testing.T) {
	down := &fetchError{"services", errors.New("connection refused")}
	activation := fixed{
		"nodes": map[string]any{"n": map[string]any{
			"spec": map[string]any{"taints": []any{map[string]any{"key": "a"}}},
			"status": map[string]any{
				"conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
				"addresses":  []any{map[string]any{"type": "InternalIP", "address": "10.0.0.1"}},
			},
		}},
		"pods": map[string]any{}, "services": down, "plain.nodes": map[string]any{"m": map[string]any{}},
		"e": map[string]any{"what": "ready"},
	}
	speaks, err := newCELLanguage([]string{"plain"})
	require.NoError(t, err)
	for source, want := range map[string]bool{
		"tainted(nodes.n, 'a')": true, "tainted(nodes.n, 'b')": false,
		"tainted(nodes['n'], 'a') && !tainted(plain.nodes.m, 'a')": true,
		"ready(nodes.n)": true, "ready(plain.nodes.m)": false,
		"address(nodes.n, 'InternalIP') == '10.0.0.1'": true, "address(nodes.n, 'ExternalIP') == ''": true,
		"nodes.other.spec.x == 1": false, "nodes.n.spec.taints[3].key == 'a'": false, // What is missing is not so.
		"!has(nodes.n.spec.providerID)": true, "nodes.exists(k, k == 'n')": true, "pods.size() == 0": true,
		"e.what == 'ready'": true, "nodes[?'x'].?spec.?y.orValue('none') == 'none'": true,
	} {
		x, err := speaks.compileExpression(source)
		require.NoError(t, err, source)
		holds, err := x.evalBool(activation)
		require.NoError(t, err, source)
		assert.Equal(t, want, holds, source)
	}

	x, err := speaks.compileExpression("services.size() > 0")
	require.NoError(t, err)
	_, err = x.evalBool(activation)
	require.ErrorIs(t, err, down.err, "what cannot be looked at is neither so nor not so")
	assert.NotContains(t, err.Error(), x.source, "a learner is not to read the task's answer")
	x, err = speaks.compileExpression("1 + 1")
	require.NoError(t, err)
	_, err = x.evalBool(activation)
	assert.ErrorContains(t, err, "neither true nor false")
}

// Each kind of object that is listed is also a variable.
func TestObjectsAreVariables(t *testing.T) {
	for name := range objects {
		assert.Contains(t, variables, name)
	}
}

// A dead end is told before anything else, then the first answer that applies.
func TestWhyATaskIsNotDone(t *testing.T) {
	yaml := strings.Replace(soundYAML, "saw:", `answers: [
      {say: "{'a': 'a is wrong', 'b': 'b is wrong'}[configmaps.verdict.data.bug]"},
      {when: "configmaps.verdict.data.call == ''", say: "'no proof'"},
      {saw: "e.what == 'x'", say: "'saw ' + e.detail"},
      {when: own, say: "'it is over'", deadEnd: true},
    ], saw:`, 1)
	l, err := loadLesson(lessonIn(yaml, soundText), "content/01-a", "a", reader{lab: DefaultName})
	require.NoError(t, err)
	task := l.Task("two")
	began := time.Now()
	explain := func(data map[string]any, own bool, entries ...timeline.Entry) error {
		return task.explainNotDone(&labsActivation{
			have:    map[string]any{"own": own, "configmaps": map[string]any{"verdict": map[string]any{"data": data}}},
			entries: map[bool][]timeline.Entry{false: entries},
		}, began)
	}
	entry := func(after time.Duration, detail string) timeline.Entry {
		return timeline.Entry{Time: began.Add(after), Change: timeline.Change{What: "x", Detail: detail}}
	}
	bug := map[string]any{"bug": "b", "call": ""}
	require.NoError(t, explain(nil, false), "there is no verdict yet")
	require.Equal(t, NotYet("b is wrong"), explain(bug, false))
	require.Equal(t, NotYet("no proof"), explain(map[string]any{"bug": "x", "call": ""}, false))
	require.Equal(t, DeadEndError("it is over"), explain(bug, true))
	require.NoError(t, explain(nil, false, entry(-time.Second, "early")), "that was in the task before")
	require.Equal(t, NotYet("saw later"), explain(nil, false, entry(time.Second, "1"), entry(2*time.Second, "later")))

	dead := &Status{Tasks: []TaskStatus{{Task: task, Current: true}}, Problem: DeadEndError("it is over")}
	require.ErrorContains(t, dead.findDeadEnd(), `"`+task.Title+`" can no longer be done`)
	require.ErrorContains(t, dead.findDeadEnd(), "`lab lesson reset`")
	require.NoError(t, (&Status{Problem: NotYet("x")}).findDeadEnd())

	way := Way{Says: "b is"}
	assert.True(t, (&Status{Problem: NotYet("b is wrong")}).hasAnswerTo(way))
	assert.False(t, (&Status{Problem: NotYet("a is wrong")}).hasAnswerTo(way))
	assert.False(t, (&Status{Problem: errors.New("b is not to be reached")}).hasAnswerTo(way), "that is no answer")
}

// A lease is held while somebody renews it.
func TestHeldLease(t *testing.T) {
	speaks, err := newCELLanguage(nil)
	require.NoError(t, err)
	held, err := speaks.compileExpression("held(leases.l)")
	require.NoError(t, err)
	for _, c := range []struct {
		holder string
		ago    time.Duration
		want   bool
	}{{"a", time.Second, true}, {"", time.Second, false}, {"a", time.Minute, false}} {
		renewed := time.Now().Add(-c.ago).Format(time.RFC3339Nano)
		is, err := held.evalBool(fixed{"leases": map[string]any{"l": map[string]any{"spec": map[string]any{
			"holderIdentity": c.holder, "leaseDurationSeconds": 15.0, "renewTime": renewed,
		}}}})
		require.NoError(t, err)
		assert.Equal(t, c.want, is, c)
	}
}

// A condition on one entry may look at the others, from before the lesson, too.
func TestTimelineVariable(t *testing.T) {
	speaks, err := newCELLanguage(nil)
	require.NoError(t, err)
	x, err := speaks.compileExpression("timeline.exists(x, x.what == 'frozen' && timestamp(x.time) < timestamp(e.time))")
	require.NoError(t, err)
	first := timeline.Entry{Time: time.Now(), Change: timeline.Change{What: "frozen"}}
	second := timeline.Entry{Time: first.Time.Add(time.Second), Change: timeline.Change{What: "ended"}}
	l := &labsActivation{
		ctx: t.Context(), labs: map[string]*lab.Lab{"": {}}, have: map[string]any{},
		entries: map[bool][]timeline.Entry{false: {first, second}},
	}
	for e, want := range map[*timeline.Entry]bool{&first: false, &second: true} {
		of, err := l.withEntry(*e)
		require.NoError(t, err)
		is, err := x.evalBool(of)
		require.NoError(t, err)
		assert.Equal(t, want, is, e.What)
	}
}

// A learner's own CCM is looked at, too, as it is now.
func TestProcessesAndLogVariables(t *testing.T) {
	l := &lab.Lab{State: state.InDir(t.TempDir(), "lab")}
	l.Host.Lab = l.State.Path()
	p, err := l.Host.Start(process.Spec{
		Component: lab.ComponentManualCCM, Path: "/bin/sh", Args: []string{"-c", "echo lost; exec sleep 1000"},
		LogFile: local.Site{Lab: l.State}.LogFile(local.ComponentCCM),
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, process.Stop(context.Background(), 0, p)) })
	speaks, err := newCELLanguage(nil)
	require.NoError(t, err)
	x, err := speaks.compileExpression(`processes['ccm-by-hand'].paused && log == ['lost']
		&& timestamp(processes['ccm-by-hand'].began) > timestamp('2020-01-01T00:00:00Z')`)
	require.NoError(t, err)
	holds := func() bool {
		is, err := x.evalBool(&labsActivation{ctx: t.Context(), labs: map[string]*lab.Lab{"": l}, have: map[string]any{}})
		require.NoError(t, err)
		return is
	}
	assert.False(t, holds())
	require.Eventually(t, func() bool {
		lines, err := process.Tail(p.LogFile, 1)
		return err == nil && len(lines) == 1
	}, time.Minute, 10*time.Millisecond)
	assert.False(t, holds(), "it is not stopped")
	require.NoError(t, p.Signal(syscall.SIGSTOP))
	assert.Eventually(t, holds, time.Minute, 10*time.Millisecond)
}

func TestLogBeforeTheFirstStart(t *testing.T) {
	speaks, err := newCELLanguage(nil)
	require.NoError(t, err)
	x, err := speaks.compileExpression("log.size() == 0")
	require.NoError(t, err)
	l := &lab.Lab{State: state.InDir(t.TempDir(), "lab")}
	is, err := x.evalBool(&labsActivation{ctx: t.Context(), labs: map[string]*lab.Lab{"": l}, have: map[string]any{}})
	require.NoError(t, err)
	assert.True(t, is)
}
