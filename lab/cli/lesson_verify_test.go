package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A name that no lab can have is refused, however many lessons are verified at once.
func TestLessonVerifyRefusesNames(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	for _, parallel := range []string{"1", "2"} {
		_, stderr, code := runCommandLine(
			t.Context(), "lesson", "verify", "--parallel", parallel, "--name", "Bad_Name", "taint", "node",
		)
		assert.NotZero(t, code, parallel)
		assert.Contains(t, stderr, "Bad_Name", parallel)
	}
}
