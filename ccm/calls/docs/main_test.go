package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/ccm/calls"
)

func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../METRICS.md")
	require.NoError(t, err)
	assert.Equal(t, calls.Markdown(), string(text), "run make generate")
}
