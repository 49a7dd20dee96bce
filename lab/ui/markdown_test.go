package ui

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What goes into a file or a pipe has nothing in it for terminals.
func TestMarkdownForPaper(t *testing.T) {
	var out strings.Builder
	require.NoError(t, Markdown(&out, "See [the docs](https://kubernetes.io/docs/).\n\n    kubectl get nodes\n"))
	assert.NotContains(t, out.String(), "\x1b")
	for _, want := range []string{"the docs", "https://kubernetes.io/docs/", "kubectl get nodes"} {
		assert.Contains(t, out.String(), want)
	}
}
