package cli

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A missing argument is reported in the command's own words.
func TestMissingArguments(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"explain"}, "explain what? want node/NAME or service/[NAMESPACE/]NAME, one at a time"},
		{[]string{"explain", "node", "a", "b"}, "explain what? want node/NAME"},
		{[]string{"compare"}, "compare which two labs? want `lab compare A B`; `lab list` shows what there is"},
		{[]string{"compare", "one"}, "compare which two labs?"},
		{[]string{"compare", "one", "two", "three"}, "compare which two labs?"},
	} {
		root := newRoot()
		root.SetArgs(c.args)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		err := root.ExecuteContext(t.Context())
		require.ErrorContains(t, err, c.says)
		assert.ErrorAs(t, err, &usageError{}, "%q is a mistake in the command line", c.args)
	}
}
