package profiles

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// upstreamSource is what a core requirement rests on: a file of upstream's, an enhancement proposal,
// an issue, or a page of the documentation.
var upstreamSource = regexp.MustCompile(
	`https://|k8s\.io/[a-z-]+ [a-z]+[a-z/_.]*|KEP-\d+|kubernetes/[a-z-]+#\d+|kubernetes\.io: [A-Z]`,
)

// Core is what upstream's documentation or code requires. What has no such source is extended.
func TestCoreTestsCiteUpstream(t *testing.T) {
	for _, test := range All() {
		if test.Level == conformance.Core {
			assert.Regexp(t, upstreamSource, test.Source, test.ID)
		}
	}
}
