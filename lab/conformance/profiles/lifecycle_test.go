package profiles

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

func TestEveryFaultHasWords(t *testing.T) {
	for _, kind := range conformance.FaultKinds {
		assert.NotEmpty(t, doubts[kind], "what lifecycle-doubt-%s requires would be half a sentence", kind)
	}
	assert.Len(t, doubts, len(conformance.FaultKinds))
}
