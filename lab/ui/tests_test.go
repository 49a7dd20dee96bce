package ui

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newTests prints to a builder, which is to be read once the Tests are closed.
func newTests(tty bool, total int) (*Tests, *strings.Builder) {
	var out strings.Builder
	return &Tests{
		w: &out, tty: tty, color: tty, width: func() int { return 40 }, total: total, running: map[string]time.Time{},
	}, &out
}

func TestTestsWithoutTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown, out := newTests(false, 6)
		shown.End("skipped", Skip, 0, "it needs machines")
		shown.Begin("slow")
		shown.Begin("fine")
		time.Sleep(time.Second)
		shown.End("fine", Pass, 1200*time.Millisecond, "")
		time.Sleep(longSilence + time.Second)
		shown.Begin("late")
		time.Sleep(longSilence)
		shown.End("slow", Fail, time.Minute, "waited for this\nand that")
		shown.End("late", Tolerated, time.Second, "no UDP")
		shown.End("never-begun", Fail, 0, "the CCM is not started any more")
		shown.End("blocked", Block, 0, "by slow")
		lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
		line := func(mark, id, seconds, note string) string {
			return fmt.Sprintf(" %s %-58s %7s%s", mark, id, seconds, note)
		}
		assert.Equal(t, []string{
			line("–", "skipped", "0.0s", ""),
			"     it needs machines",
			line("✓", "fine", "1.2s", ""),
			" … 2/6, still running: slow (31s)",
			" … 2/6, still running: slow, late (1m1s)",
			line("✗", "slow", "60.0s", ""),
			"     waited for this",
			"     and that",
			line("✗", "late", "1.0s", "  not required"),
			"     no UDP",
			line("✗", "never-begun", "0.0s", ""),
			"     the CCM is not started any more",
			line("⊘", "blocked", "0.0s", "  by slow"),
		}, lines)
		assert.NotContains(t, out.String(), "\x1b")
	})
}

// finalScreen is what a terminal shows in the end, without the lines that were overwritten.
func finalScreen(out string) []string {
	lines := strings.Split(out, "\n")
	for i, line := range lines {
		lines[i] = line[strings.LastIndex(line, "\r\x1b[K")+1:]
		lines[i] = strings.TrimPrefix(lines[i], "\x1b[K")
	}
	return lines
}

func TestTestsOnTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown, out := newTests(true, 3)
		shown.Begin("first")
		shown.Begin("second-with-a-very-long-name-that-does-not-fit")
		time.Sleep(2 * time.Second)
		shown.End("first", Fail, time.Second, "no")
		time.Sleep(time.Second)
		shown.mu.Lock()
		lines := finalScreen(out.String())
		shown.mu.Unlock()
		require.Len(t, lines, 3)
		assert.Contains(t, lines[0], "\x1b[31m✗\x1b[0m first")
		assert.Equal(t, "     no", lines[1])
		assert.Equal(t, " … 1/3, 1 failed, 3s: second-with-a-ve…", lines[2])
		assert.Len(t, []rune(lines[2]), 39, "narrower than the terminal")

		shown.Close()
		shown.Close()
		assert.Equal(t, "", finalScreen(out.String())[2], "nothing is left of the line")
		shown.End("second", Pass, time.Second, "") // A test that ends after Close is shown all the same.
		assert.Contains(t, out.String(), "\x1b[32m✓\x1b[0m second")
	})
}

// The display is closed when the last test ends.
func TestLastTestCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown, out := newTests(true, 1)
		shown.Begin("only")
		shown.End("only", Pass, time.Second, "")
		assert.Nil(t, shown.stop)
		assert.Equal(t, "", finalScreen(out.String())[1])
	})
}

func TestColorOnlyOnTerminal(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	shown := NewTests(file, 1)
	shown.Begin("a")
	shown.End("a", Pass, time.Second, "")
	data, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf(" ✓ %-58s    1.0s\n", "a"), string(data))
	require.NoError(t, file.Close())
}
