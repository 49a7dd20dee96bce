package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// beginLesson records in a new folder of labs that a lesson was begun at a seat.
func beginLesson(t *testing.T, seat, lesson string) {
	t.Helper()
	home := t.TempDir()
	t.Setenv("CCMLAB_HOME", home)
	require.NoError(t, os.Mkdir(filepath.Join(home, ".lessons"), 0o700))
	require.NoError(t, os.WriteFile(
		filepath.Join(home, ".lessons", seat+".json"),
		[]byte(`{"current": "`+lesson+`", "lessons": {"`+lesson+`": {"started": "2026-01-02T03:04:05Z"}}}`), 0o600,
	))
}

// Single tests are those of the lesson, by name.
func TestLessonJudge(t *testing.T) {
	beginLesson(t, "lesson", "own-nodes")
	out, _, _ := runCommandLine(t.Context(), "__complete", "lesson", "judge", "node-zone-and-region", "")
	assert.Contains(t, out, "node-addresses-changed\n")
	assert.NotContains(t, out, "node-zone-and-region\n", "it is given already")
	assert.NotContains(t, out, "lb-created\n")
	_, stderr, code := runCommandLine(t.Context(), "lesson", "judge", "node-adresses")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, stderr, "did you mean node-addresses")
	_, stderr, code = runCommandLine(t.Context(), "lesson", "judge")
	assert.Equal(t, exitUsage, code, stderr)

	beginLesson(t, "lesson", "taint")
	_, stderr, code = runCommandLine(t.Context(), "lesson", "judge", "node-addresses")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, "in lesson taint no CCM of yours is judged")
}
