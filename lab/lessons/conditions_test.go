package lessons

import (
	"errors"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
