package cli

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/explain"
)

func TestParseExplainTarget(t *testing.T) {
	for _, c := range []struct {
		args      []string
		namespace string
		want      explainTarget
	}{
		{[]string{"node/node-1"}, "", explainTarget{"node", "", "node-1"}},
		{[]string{"no", "node-1"}, "", explainTarget{"node", "", "node-1"}},
		{[]string{"Nodes"}, "", explainTarget{"node", "", ""}},
		{[]string{"service/web"}, "", explainTarget{"service", "default", "web"}},
		{[]string{"svc/web"}, "shop", explainTarget{"service", "shop", "web"}},
		{[]string{"svc/shop/web"}, "", explainTarget{"service", "shop", "web"}},
		{[]string{"svc", "shop/web"}, "shop", explainTarget{"service", "shop", "web"}},
		{[]string{"service"}, "", explainTarget{"service", "default", ""}},
	} {
		got, err := parseExplainTarget(c.args, c.namespace)
		require.NoError(t, err, c.args)
		assert.Equal(t, c.want, got, c.args)
	}
	for _, c := range []struct {
		args      []string
		namespace string
		says      string
	}{
		{[]string{"pod/web"}, "", `"pod/web" cannot be explained; want node/NAME or service/[NAMESPACE/]NAME`},
		{[]string{""}, "", "cannot be explained"},
		{[]string{"node/"}, "", "has no name; `lab explain node` lists what there is"},
		{[]string{"node", ""}, "", "has no name"},
		{[]string{"node/a", "node/b"}, "", "one thing at a time"},
		{[]string{"node/a/b"}, "", "nodes have no namespace"},
		{[]string{"node/a"}, "shop", "nodes have no namespace"},
		{[]string{"service/a/b/c"}, "", "want service/NAME or service/NAMESPACE/NAME"},
		{[]string{"service//b"}, "", "want service/NAME or service/NAMESPACE/NAME"},
		{[]string{"service/a/b"}, "c", `is not in namespace "c"`},
	} {
		_, err := parseExplainTarget(c.args, c.namespace)
		require.ErrorContains(t, err, c.says)
		assert.ErrorAs(t, err, &clikit.UsageError{}, "%q is a mistake in the command line", c.args)
	}
}

func TestPrintExplanation(t *testing.T) {
	x := explain.Explanation{
		Kind: "node", Name: "node-1", State: explain.NotReady, Verdict: "Node node-1 is cut off.",
		Because: []explain.Fact{
			{Where: explain.Cloud, What: "one line\nand another"}, {Where: explain.CCM, What: "a word"},
		},
		Next: []explain.Step{
			{Do: "mend it", Command: "kubectl mend"}, {Do: "wait"}, {Do: "look", Command: "lab status"},
		},
		Missing: []string{"cloud: quotas: refused"},
	}
	var out bytes.Buffer
	require.NoError(t, printExplanation(&out, x, true, "lab"))
	self := invokedAs()
	assert.Equal(t, `Node node-1 is cut off.

because
  cloud:   one line
           and another
  CCM:     a word

next
  mend it
      kubectl mend
  wait
  look
      `+self+` status

not known
  cloud: quotas: refused
`, out.String())

	out.Reset()
	require.NoError(t, printExplanation(&out, x, false, "two"))
	assert.Contains(t, out.String(), `eval "$(`+self+` env --name two)"`, "the shell does not speak to this lab yet")
	out.Reset()
	x.Next = nil
	require.NoError(t, printExplanation(&out, x, false, "two"))
	assert.NotContains(t, out.String(), "eval", "no command needs it")
}
