package site

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/lessons"
)

var (
	linked  = regexp.MustCompile(`(?:href|src)="([^"]+)"`)
	command = regexp.MustCompile(`hidden>copy</button><pre[^>]*><code>([^<]*)`)
	// typed matches what begins with a command, or with a variable or a comment.
	typed = regexp.MustCompile(`^(#|!|\(|[A-Za-z_]+(=|\(\))|(kubectl|lab|fakecloud|curl|eval|docker|kill|watch|go|for|true|` +
		`while|until|cat|cp|sed|set)\b)`)
	loaded = regexp.MustCompile(`<(?:link|script|img)[^>]+(?:href|src)="([^"]+)"`)
)

func TestTheSiteIsWhole(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "site")
	all, err := lessons.All()
	require.NoError(t, err)
	require.NoError(t, Write(dir, all))
	require.NoError(t, Write(dir, all), "over an older one")
	files, err := filepath.Glob(filepath.Join(dir, "*.html"))
	require.NoError(t, err)
	assert.Len(t, files, len(all)+5)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range linked.FindAllStringSubmatch(string(data), -1) {
			if !strings.HasPrefix(m[1], "https://") {
				assert.FileExists(t, filepath.Join(dir, m[1]), "linked from %s", file)
			}
		}
		for _, m := range loaded.FindAllStringSubmatch(string(data), -1) {
			assert.NotContains(t, m[1], ":", "%s loads something from elsewhere", file)
		}
	}
	for _, l := range all {
		data, err := os.ReadFile(filepath.Join(dir, l.ID+".html"))
		require.NoError(t, err)
		for _, task := range l.Tasks {
			assert.Contains(t, string(data), `data-task="`+task.ID+`"`)
		}
		assert.NotContains(t, string(data), "bin/lab lesson", "it is read where lab is in PATH")
		for _, m := range command.FindAllStringSubmatch(string(data), -1) {
			assert.Regexp(t, typed, m[1], "%s: only what is typed is a command; fence output without a language", l.ID)
		}
		if after := l.Tasks[0].After; after != "" {
			assert.Contains(t, string(data), `<details class="after">`, l.ID)
		}
	}
	for _, name := range []string{"print.html", "trainer.html"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.NotContains(t, string(data), `class="after"`, "%s hides nothing", name)
	}
}

func TestBlocks(t *testing.T) {
	for text, want := range map[string][]string{
		"    a < b\n":                      {`class="typed"`, "a &lt; b</code>", `class="copy"`},
		"```sh\nls\n```\n":                 {`class="typed"`, "ls</code>"},
		"```\nshown & said\n```\n":         {`class="shown"`, `tabindex="0"`, "shown &amp; said"},
		"```goat\n+--+\n|<&|\n+--+\n```\n": {"<svg", "&lt;", "&amp;", `aria-label="`},
		"| a |\n|---|\n| b |\n":            {`class="wide" tabindex="0" role="region"`, "<table>", "</table></div>"},
		"a<script>b":                       {"a", "b"},
	} {
		out, err := renderMarkdown(text)
		require.NoError(t, err)
		for _, w := range want {
			assert.Contains(t, string(out), w, text)
		}
		assert.NotContains(t, string(out), "<script>")
	}
}

// A guide has the text of what was done and of what is to be done, and of what comes the title only.
func TestGuide(t *testing.T) {
	g, err := NewGuide(&lessons.Status{
		Lesson: &lessons.Lesson{Title: "L", Opening: "It *begins*. <script>x</script>"},
		Tasks: []lessons.TaskStatus{
			{Task: &lessons.Task{Title: "one", Do: "*first*"}, Done: &lessons.Done{Seen: "<b>"}},
			{Task: &lessons.Task{Title: "two", Do: "*second*"}, Current: true},
			{Task: &lessons.Task{Title: "three", Do: "*third*"}},
		},
		Problem: lessons.NotYet("it has not happened"),
	})
	require.NoError(t, err)
	assert.Contains(t, string(g.Opening), "<em>begins</em>")
	assert.NotContains(t, string(g.Opening), "<script>")
	assert.Equal(t, []GuideTask{
		{Title: "one", Do: "<p><em>first</em></p>\n", Done: true, Seen: "<b>"},
		{Title: "two", Do: "<p><em>second</em></p>\n", Current: true},
		{Title: "three"},
	}, g.Tasks)
	assert.Equal(t, "it has not happened", g.Problem)
}
