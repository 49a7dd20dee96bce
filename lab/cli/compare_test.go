package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/compare"
	"github.com/ccmlab/ccmlab/lab/state"
)

func newComparison(rows ...compare.Row) *compare.Comparison {
	return &compare.Comparison{
		Labs: [2]*compare.Facts{{Name: "plain"}, {Name: "a-name-as-long-as-any-lab-may-ever-have-01"}}, Rows: rows,
	}
}

var (
	taintsRow = compare.Row{
		Section: "nodes", What: "taints", Differs: true,
		Values: [2]string{"none", "node.cloudprovider.kubernetes.io/uninitialized:NoSchedule on 3 of 3"},
		Why:    []string{"plain: a kubelet sets no such taint.", "full: " + strings.Repeat("a long reason ", 20)},
		Source: "k8s.io/" + strings.Repeat("long/path", 20),
	}
	readyRow = compare.Row{Section: "nodes", What: "Ready", Values: [2]string{"3 of 3 Ready", "3 of 3 Ready"}}
)

func TestPrintComparison(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printComparison(&out, newComparison(readyRow, taintsRow), false))
	text := out.String()
	for line := range strings.Lines(text) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 100, "%q", line)
	}
	assert.NotContains(t, text, "\033", "no colour where there is no terminal")
	for _, want := range []string{
		"\nNODES\n",
		"\n  Ready                   3 of 3 Ready                          3 of 3 Ready\n",
		"\n≠ taints                  none                                  node.cloudprovider.kubernetes.io/\n",
		"\n                                                                uninitialized:NoSchedule on 3 of 3\n",
		"\n≠ taints\n    plain: a kubelet sets no such taint.\n    full: a long reason",
		"\n    (k8s.io/long/",
	} {
		assert.Contains(t, text, want)
	}

	out.Reset()
	require.NoError(t, printComparison(&out, newComparison(readyRow), false))
	assert.Contains(t, out.String(), "Nothing differs that is compared here.")
	out.Reset()
	require.NoError(t, printComparison(&out, newComparison(taintsRow), true))
	assert.Contains(t, out.String(), "\033[33m≠ taints")
}

func TestWrapLines(t *testing.T) {
	for text, want := range map[string][]string{
		"":                       nil,
		"one two":                {"one two"},
		"one two three":          {"one two", "three"},
		"a/very-long/word":       {"a/", "very-long/", "word"},
		"unbreakable-as-it-is":   {"unbreakabl", "e-as-it-is"},
		"first unbreakable-word": {"first", "unbreakabl", "e-word"},
		"zwölfäöüßé einzeln":     {"zwölfäöüßé", "einzeln"},
	} {
		assert.Equal(t, want, wrapLines(text, 10), "%q", text)
	}
}

func TestCompareArguments(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	for name, tc := range map[string]struct {
		args  []string
		usage bool
		want  string
	}{
		"one":       {[]string{"a"}, true, "compare which two labs?"},
		"the same":  {[]string{"a", "a"}, true, "a and a are one lab"},
		"a bad one": {[]string{"a", "B"}, true, `lab name "B"`},
		"a format":  {[]string{"a", "b", "-o", "xml"}, true, "want one of table, json, yaml"},
		"none such": {[]string{"a", "b"}, false, "no such lab"},
	} {
		t.Run(name, func(t *testing.T) {
			root := newRoot()
			root.SetArgs(append([]string{"compare"}, tc.args...))
			err := root.ExecuteContext(t.Context())
			require.ErrorContains(t, err, tc.want)
			var usage clikit.UsageError
			assert.Equal(t, tc.usage, errors.As(err, &usage))
		})
	}
}

func TestLabNamesComplete(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	for _, name := range []string{"plain", "full"} {
		l, err := state.Create(name)
		require.NoError(t, err)
		require.NoError(t, l.Save())
		l.Unlock()
	}
	complete := completeLabs(2)
	names, _ := complete(nil, nil, "")
	assert.Equal(t, []string{"full", "plain"}, names)
	names, _ = complete(nil, []string{"full"}, "")
	assert.Equal(t, []string{"plain"}, names, "not the one that is there already")
	names, _ = complete(nil, []string{"full", "plain"}, "")
	assert.Empty(t, names)
}
