package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// beginLesson records in a folder of labs that a lesson was begun at a seat.
func beginLesson(t *testing.T, home, seat, lesson string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(home, ".lessons"), 0o700))
	require.NoError(t, os.WriteFile(
		filepath.Join(home, ".lessons", seat+".json"),
		[]byte(`{"current": "`+lesson+`", "lessons": {"`+lesson+`": {"started": "2026-01-02T03:04:05Z"}}}`), 0o600,
	))
}

// Single tests are those of the lesson, by name.
func TestLessonJudge(t *testing.T) {
	home := t.TempDir()
	t.Setenv("CCMLAB_HOME", home)
	t.Setenv("LAB_NAME", "")
	beginLesson(t, home, "lesson", "own-nodes")
	out, _, _ := runCommandLine(t.Context(), "__complete", "lesson", "judge", "node-zone-and-region", "")
	assert.Contains(t, out, "node-addresses-changed\n")
	assert.NotContains(t, out, "node-zone-and-region\n", "it is given already")
	assert.NotContains(t, out, "lb-created\n")
	_, stderr, code := runCommandLine(t.Context(), "lesson", "judge", "node-adresses")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, stderr, "did you mean node-addresses")
	_, stderr, code = runCommandLine(t.Context(), "lesson", "judge")
	assert.Equal(t, exitUsage, code, stderr)

	beginLesson(t, home, "lesson", "taint")
	_, stderr, code = runCommandLine(t.Context(), "lesson", "judge", "node-addresses")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, "in lesson taint no CCM of yours is judged")
}

// A shell's LAB_NAME names the seat, and texts say it; where it is for a lab beside the
// lessons', it does not.
func TestLessonOfLabName(t *testing.T) {
	home := t.TempDir()
	t.Setenv("CCMLAB_HOME", home)
	beginLesson(t, home, "lesson", "taint")
	beginLesson(t, home, "mine", "node")
	require.NoError(t, os.Mkdir(filepath.Join(home, "up"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, "up", "lab.json"), []byte(`{"name": "up"}`), 0o600))
	for labName, want := range map[string]string{
		"": "lesson taint", "mine": "lesson node", "mine-plain": "lesson node", "lesson-plain": "lesson taint",
		"up": "lesson taint", "new": "no lesson was started", "Bad_Name": "lab name \"Bad_Name\"",
	} {
		t.Setenv("LAB_NAME", labName)
		_, stderr, _ := runCommandLine(t.Context(), "lesson", "judge", "node-addresses")
		assert.Contains(t, stderr, want, labName)
	}
	t.Setenv("LAB_NAME", "mine")
	text, _, _ := runCommandLine(t.Context(), "lesson", "text", "two-clusters")
	assert.Contains(t, text, "lab env --name mine-plain")
	_, stderr, _ := runCommandLine(t.Context(), "lesson", "judge", "x", "--name", "lesson")
	assert.Contains(t, stderr, "lesson taint", "the flag is stronger")
}
