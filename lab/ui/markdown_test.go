package ui

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Output to a file or a pipe has no escape sequences for terminals.
func TestMarkdownWithoutTerminal(t *testing.T) {
	var out strings.Builder
	require.NoError(t, Markdown(&out, "See [the docs](https://kubernetes.io/docs/).\n\n    kubectl get nodes\n"))
	assert.NotContains(t, out.String(), "\x1b")
	assert.NotContains(t, out.String(), " \n")
	for _, want := range []string{"the docs", "https://kubernetes.io/docs/", "kubectl get nodes"} {
		assert.Contains(t, out.String(), want)
	}
}

// Commands are not broken at hyphens: they would be other commands.
func TestMarkdownWraps(t *testing.T) {
	const page = "https://kubernetes.io/docs/concepts/architecture/cloud-controller/#node-controller"
	for pad := range maxColumns {
		var out strings.Builder
		require.NoError(t, Markdown(&out, strings.Repeat("x", pad)+" *so it is* [cloud-controllers]("+page+
			"), `--leader-elect=false` with `kube-apiserver\n--v=2`\n\n    kubectl get nodes "+
			strings.Repeat("-a", maxColumns)+"\n"))
		for _, want := range []string{
			page, "`--leader-elect=false`", "kube-apiserver", "--v=2", strings.Repeat("-a", maxColumns),
		} {
			assert.Contains(t, out.String(), want)
		}
		assert.NotContains(t, out.String(), "*")
	}
}
