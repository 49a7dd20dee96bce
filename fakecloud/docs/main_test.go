package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestReplaceBlocks(t *testing.T) {
	const text = "a\n<!-- generated: one -->\nold\n<!-- end -->\nb\n"
	out, err := replaceBlocks(text, map[string]string{"one": "new\n"})
	require.NoError(t, err)
	assert.Equal(t, "a\n<!-- generated: one -->\nnew\n<!-- end -->\nb\n", out)

	again, err := replaceBlocks(out, map[string]string{"one": "new\n"})
	require.NoError(t, err)
	assert.Equal(t, out, again)

	_, err = replaceBlocks(text, map[string]string{"two": "new\n"})
	require.ErrorContains(t, err, `nothing generates "one"`)
	require.ErrorContains(t, err, `no place for "two"`)
}

func TestDiagramHasEveryTransition(t *testing.T) {
	assert.Equal(t, "```mermaid\nstateDiagram-v2\n    [*] --> b: create\n    b --> [*]: elapsed, delete\n```\n",
		stateDiagram([]cloud.Rule[api.InstanceState]{
			{On: cloud.Create, To: "b", Wait: cloud.DelayPending},
			{From: "b", On: cloud.Start, Same: true},
			{From: "b", On: cloud.Elapsed},
			{From: "b", On: cloud.Delete},
		}))
}
