package lessons

import (
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/ui"
)

func TestAllAreSound(t *testing.T) {
	all, err := All()
	require.NoError(t, err)
	require.NotEmpty(t, all)
	for _, l := range all {
		found, err := Find(l.ID)
		require.NoError(t, err)
		assert.Same(t, l, found)
		assert.NotEmpty(t, l.Opening, l.ID)
		assert.NotEmpty(t, l.Trainer, l.ID)
	}
	_, err = Find("nonsense")
	assert.ErrorContains(t, err, "nonsense")
}

// A seat's instances are shared by the labs of a lesson. What a setup creates without machines comes on top.
func TestInstancesOfALesson(t *testing.T) {
	quotas := func() []int {
		var all []int
		for _, id := range []string{"taint", "two-clusters", "budget"} {
			l, err := Find(id)
			require.NoError(t, err)
			all = append(all, l.labOptions(DefaultName, l.Lab).InstanceQuota)
		}
		return all
	}
	assert.Equal(t, []int{0, 0, 0}, quotas(), "outside a classroom")
	t.Setenv(state.SeatInstancesVariable, "10")
	assert.Equal(t, []int{10, 5, 1010}, quotas())
}

// Texts say the name of the lab that is in use.
func TestTextsNameTheLab(t *testing.T) {
	for _, name := range []string{DefaultName, "mine"} {
		l, err := findFor(reader{lab: name}, "two-clusters")
		require.NoError(t, err)
		assert.Contains(t, l.Opening, `eval "$(lab env --name `+name+`)"`)
		assert.Contains(t, l.Opening, "`"+name+"-plain`")
		again, err := findFor(reader{lab: name}, "two-clusters")
		require.NoError(t, err)
		assert.Same(t, l, again)
	}
	require.NoError(t, fs.WalkDir(content, "content", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := content.ReadFile(name)
		assert.NotRegexp(t, "(--name |`|')"+DefaultName+"\\b|\\b"+DefaultName+"-plain", string(data), name)
		return err
	}))
}

// countedRE matches a number of tests, which changes as the suite grows.
var countedRE = regexp.MustCompile(
	`(?i)(^|\s)(\d+|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty(-\w+)?|(a )?hundred)` +
		`\s([^.,;:]{0,30}\s)?(tests|of them core)\b`,
)

func TestNoTextCountsTheSuitesTests(t *testing.T) {
	for _, counted := range []string{"The ten *doubt* tests", "twenty-nine\ntests", "it has 13 core tests", "six of them core"} {
		assert.Regexp(t, countedRE, counted)
	}
	require.NoError(t, fs.WalkDir(content, "content", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := content.ReadFile(name)
		assert.NotRegexp(t, countedRE, string(data), name)
		return err
	}))
}

const (
	soundYAML = `
title: A title
summary: A summary.
minutes: 5
part: write
lab: {nodes: 1}
tasks:
  - {id: one, title: One, do: Do it., until: "'n' in nodes", seen: "'n is there'", hints: [h], solution: "true"}
  - {id: two, title: Two, do: Do it., saw: "e.what == 'x'", hints: [h], solution: "true"}
`
	soundText = "Opening.\n\n::task one\n\n    kubectl get nodes\n\nAfter one.\n\n::task two\n"
)

func lessonIn(yaml, text string) fstest.MapFS {
	return fstest.MapFS{
		"content/01-a/lesson.yaml": {Data: []byte(yaml)},
		"content/01-a/lesson.md":   {Data: []byte(text)},
		"content/01-a/trainer.md":  {Data: []byte("Notes.")},
		"content/01-a/ways.yaml":   {Data: []byte("one: {wrong: [{name: n, script: s, says: a}]}\n")},
	}
}

func TestTextIsCutAtItsTasks(t *testing.T) {
	all, err := loadLessons(lessonIn(soundYAML, soundText), "content", reader{lab: DefaultName})
	require.NoError(t, err)
	l := all[0]
	assert.Equal(t, "a", l.ID)
	assert.Equal(t, "Opening.", l.Opening)
	assert.Equal(t, "    kubectl get nodes\n\nAfter one.", l.Task("one").After, "what is indented is code")
	assert.Empty(t, l.Task("two").After)
	assert.Nil(t, l.Task("three"))
}

// What a learner types differs from seat to seat, and the printed lesson has the first of
// each.
func TestValuesOfASeat(t *testing.T) {
	varies := Variation{
		Values:  map[string][]any{"port": {9090, 9191, 9292}},
		Choices: map[string][]string{"bug": {"all", "empty", "slow"}},
	}
	const text = "port {port}, answer {bug.empty}, lab {lab}:\n\n- **{bug.all}** All\n  of them.\n" +
		"- **{bug.empty}** Empty.\n- **{bug.slow}** Slow.\n\nEnd.\n"
	printed := reader{lab: "x"}.fillIn("l", varies, text)
	assert.Equal(t, "port 9090, answer b, lab x:\n\n- **a** All\n  of them.\n- **b** Empty.\n- **c** Slow.\n\nEnd.\n", printed)

	ports, answers, before := map[string]bool{}, map[string]bool{}, ""
	for n := range 20 {
		at := reader{lab: "x", seat: fmt.Sprintf("seat-%02d", n)}.fillIn("l", varies, text)
		port, answer := at[5:9], at[18:19]
		assert.NotEqual(t, before, port, "neighbours")
		assert.Contains(t, at, "- **"+answer+"** Empty.")
		assert.Regexp(t, `(?s)\*\*a\*\*.*\*\*b\*\*.*\*\*c\*\*.*End`, at)
		assert.Contains(t, at, "All\n  of them.")
		ports[port], answers[answer], before = true, true, port
	}
	assert.Len(t, ports, 3)
	assert.Len(t, answers, 3)
}

func TestMistakesInALesson(t *testing.T) {
	task := func(fields string) string {
		return "title: T\nsummary: S\nminutes: 5\npart: write\nlab: {}\ntasks:\n  - {id: one, title: One, do: Do., hints: [h], solution: x, " +
			fields + "}\n"
	}
	const text = "::task one\n"
	for name, c := range map[string]struct{ yaml, text, want string }{
		"no part":              {strings.Replace(soundYAML, "part: write", "", 1), soundText, "want one of [understand operate debug write]"},
		"builds on a later":    {soundYAML + "buildsOn: [b]\n", soundText, "a lesson that comes before"},
		"unknown field":        {task("unti: 'true'"), text, "unti"},
		"no condition":         {task("seen: \"'x'\""), text, "one of until, saw, called and suite"},
		"two conditions":       {task("saw: 'true', called: 'true'"), text, "one of until, saw, called and suite"},
		"a state without seen": {task("until: 'true'"), text, "want seen"},
		"an unknown variable":  {task("saw: 'noodles.size() > 1'"), text, "undeclared reference"},
		"no expression":        {task("saw: 'e.what =='"), text, "Syntax error"},
		"an answer, say":       {task("saw: 'true', answers: [{when: 'true'}]"), text, "an answer wants say"},
		"an answer, when":      {task("saw: 'true', answers: [{when: 'noodle', say: w}]"), text, "undeclared"},
		"two conditions of it": {task("saw: 'true', answers: [{when: 'true', saw: 'true', say: w}]"), text, "at most one of"},
		"ways of no task":      {strings.Replace(soundYAML, "id: one", "id: uno", 1), soundText, `ways.yaml has task "one"`},
		"a task not in text":   {task("saw: 'true'"), "Nothing.\n", "lesson.md has the tasks"},
		"another's role":       {task("saw: 'plain.nodes.size() > 1'"), text, "undeclared reference"},
		"of two in one": {
			soundYAML + "  - {id: two, title: T, do: D, saw: 'true', hints: [h], solution: x}\n",
			soundText + "::task two\n", "no other has",
		},
	} {
		_, err := loadLessons(lessonIn(c.yaml, c.text), "content", reader{lab: DefaultName})
		assert.ErrorContains(t, err, c.want, name)
	}
}

// Who has no Go hears it before anything is brought up, and what to do.
func TestALessonThatNeedsGo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	l, err := Find("taint")
	require.NoError(t, err)
	require.NoError(t, l.Fits(t.Context()))
	home := t.TempDir()
	t.Setenv("CCMLAB_HOME", home)
	s, err := Take("someone")
	require.NoError(t, err)
	l, err = Find("own-nodes")
	require.NoError(t, err)
	require.ErrorContains(t, s.Start(t.Context(), l, ui.Discard()), "lesson own-nodes has you write Go")
	there, err := os.ReadDir(home)
	require.NoError(t, err)
	assert.Empty(t, there)

	_, err = (&toolchain{goCommand: "go"}).version(t.Context())
	require.ErrorContains(t, err, "Install Go (https://go.dev/doc/install)")
	require.ErrorContains(t, err, "lab lesson --bundle FILE")
}

// The suite judges a wrong way by the test that it is to fail.
func TestAWrongWayFailsATestOfItsTask(t *testing.T) {
	task := &Task{ID: "one", tests: []string{"node-addresses"}}
	for fails, want := range map[string]string{
		"node-addresses": "", "lb-created": `fails "lb-created" is no test of the task`, "": `fails "" is no test`,
	} {
		task.Ways.Wrong = []Way{{Name: "w", Script: "x", Fails: fails}}
		if err := task.validateWays(); want == "" {
			assert.NoError(t, err)
		} else {
			assert.ErrorContains(t, err, want)
		}
	}
}

// Each task has two wrong ways, which say how they are answered, and another right one; and what is typed differs from
// seat to seat, except where the suite judges all tasks.
func TestEveryTaskHasWays(t *testing.T) {
	all, err := All()
	require.NoError(t, err)
	for _, l := range all {
		hasAll, varies := true, len(l.Values)+len(l.Choices) > 0
		for _, task := range l.Tasks {
			hasAll = hasAll && len(task.Ways.Wrong) >= 2 && len(task.Ways.Right) >= 1 && (varies || len(task.tests) > 0)
			for _, way := range task.Ways.Wrong {
				hasAll = hasAll && way.Says+way.Fails != ""
			}
		}
		assert.True(t, hasAll, l.ID)
	}
}
