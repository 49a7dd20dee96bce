package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// beginLesson records in a folder of labs that a lesson was begun at a seat.
func beginLesson(t *testing.T, home, seat, lesson string) {
	t.Helper()
	doTask(t, home, seat, lesson, "")
}

// doTask records that one task of it is done, too, unless that is "".
func doTask(t *testing.T, home, seat, lesson, task string) {
	t.Helper()
	done := ""
	if task != "" {
		done = `, "done": {"` + task + `": {"at": "2026-01-02T03:05:05Z", "seen": "it"}}`
	}
	require.NoError(t, os.MkdirAll(filepath.Join(home, ".lessons"), 0o700))
	progress := `{"current": "` + lesson + `", "lessons": {"` + lesson + `": {"started": "2026-01-02T03:04:05Z"` + done + `}}}`
	require.NoError(t, os.WriteFile(filepath.Join(home, ".lessons", seat+".json"), []byte(progress), 0o600))
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

// What has to be there is in the list, for people and programs.
func TestLessonsThatNeedGo(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	t.Setenv("LAB_NAME", "")
	out, _, _ := runCommandLine(t.Context(), "lesson", "list")
	assert.Regexp(t, `(?m)^own-nodes .* embedded +Go +3 `, out)
	assert.Regexp(t, `(?m)^taint .* embedded +- +4 `, out)
	out, _, _ = runCommandLine(t.Context(), "lesson", "list", "-o", "json")
	var list []listedLesson
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	for _, l := range list {
		assert.Equal(t, strings.HasPrefix(l.ID, "own-") || l.ID == "register", l.NeedsGo, l.ID)
	}
}

// Without an ID it is what the learner read last and does now, and nothing of what comes.
func TestLessonTextFromTheCurrentTask(t *testing.T) {
	home := t.TempDir()
	t.Setenv("CCMLAB_HOME", home)
	t.Setenv("LAB_NAME", "")
	_, stderr, code := runCommandLine(t.Context(), "lesson", "text")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, "no lesson was started")

	beginLesson(t, home, "lesson", "taint")
	text, _, _ := runCommandLine(t.Context(), "lesson", "text")
	assert.Contains(t, text, "This cluster has three Nodes")
	assert.Contains(t, text, "Task 1 of 4: Run a pod on a node that is not ready for it")
	assert.NotContains(t, text, "is a request to the scheduler")

	doTask(t, home, "lesson", "taint", "tolerate")
	text, _, _ = runCommandLine(t.Context(), "lesson", "text")
	assert.NotContains(t, text, "This cluster has three Nodes")
	assert.Contains(t, text, "The pod runs, although")
	assert.Contains(t, text, "Task 2 of 4: Lift one taint by hand")
	assert.NotContains(t, text, "Start the CCM")
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

// What --help says of --name is so, and the commands beside keep their own.
func TestHelpSaysTheNameThatIsTaken(t *testing.T) {
	for command, want := range map[string]string{
		"lesson start": "(default lesson, or LAB_NAME", "lesson verify": "(default verify)", "incident run": "(default a random one)",
		"conformance": "(default a random one)", "status": `(default "lab")`,
	} {
		help, _, code := runCommandLine(t.Context(), append(strings.Fields(command), "--help")...)
		assert.Zero(t, code)
		assert.Equal(t, 1, strings.Count(help, "--name string"), command)
		assert.Contains(t, help, want, command)
	}
}
