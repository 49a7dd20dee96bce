package lessons

import (
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// Texts say the name of the lab that is in use.
func TestTextsNameTheLab(t *testing.T) {
	for _, name := range []string{DefaultName, "mine"} {
		l, err := FindFor(name, "two-clusters")
		require.NoError(t, err)
		assert.Contains(t, l.Opening, `eval "$(lab env --name `+name+`)"`)
		assert.Contains(t, l.Opening, "`"+name+"-plain`")
		again, err := FindFor(name, "two-clusters")
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
	}
}

func TestTextIsCutAtItsTasks(t *testing.T) {
	all, err := loadLessons(lessonIn(soundYAML, soundText), "content", DefaultName)
	require.NoError(t, err)
	l := all[0]
	assert.Equal(t, "a", l.ID)
	assert.Equal(t, "Opening.", l.Opening)
	assert.Equal(t, "    kubectl get nodes\n\nAfter one.", l.Task("one").After, "what is indented is code")
	assert.Empty(t, l.Task("two").After)
	assert.Nil(t, l.Task("three"))
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
		"a way without name":   {task("saw: 'true', mustNot: [{script: x}]"), text, "mustNot wants a name"},
		"a dead end, why":      {task("saw: 'true', deadEnd: {when: 'true', script: x}"), text, "deadEnd wants when, why"},
		"a dead end, when":     {task("saw: 'true', deadEnd: {when: 'noodle', why: w, script: x}"), text, "undeclared"},
		"a task not in text":   {task("saw: 'true'"), "Nothing.\n", "lesson.md has the tasks"},
		"another's role":       {task("saw: 'plain.nodes.size() > 1'"), text, "undeclared reference"},
		"of two in one": {
			soundYAML + "  - {id: two, title: T, do: D, saw: 'true', hints: [h], solution: x}\n",
			soundText + "::task two\n", "no other has",
		},
	} {
		_, err := loadLessons(lessonIn(c.yaml, c.text), "content", DefaultName)
		assert.ErrorContains(t, err, c.want, name)
	}
}
