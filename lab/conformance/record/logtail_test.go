package record

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// When a line was said, whoever wrote it.
func TestLines(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("here", 3600))
	read := now.Add(-time.Minute)
	for line, want := range map[string]struct {
		ago    time.Duration
		text   string
		failed bool
	}{
		"I0301 11:59:30.500000   77 a.go:1] hello":         {29500 * time.Millisecond, "I a.go:1] hello", false},
		"E0301 03:59:59.000000   77 a.go:1] another zone":  {time.Second, "E a.go:1] another zone", true},
		"W0301 12:00:30.000000   77 a.go:1] clocks differ": {0, "W a.go:1] clocks differ", false},
		"I0301 11:53:30.000000   77 a.go:1] clocks differ": {time.Minute, "I a.go:1] clocks differ", false},
		"F1399 99:99:99.000000   77 a.go:1] no time":       {0, "F a.go:1] no time", true},
		`time=2026-03-01T10:59:50Z level=ERROR msg="slog"`: {
			10 * time.Second, `time=2026-03-01T10:59:50Z level=ERROR msg="slog"`, true,
		},
		`{"level":"error","ts":1772362790.25,"msg":"zap"}`: {
			9750 * time.Millisecond, `{"level":"error","ts":1772362790.25,"msg":"zap"}`, true,
		},
		`{"ts":"2026-03-01T11:59:59.5+01:00","msg":"zap, ISO"}`: {
			500 * time.Millisecond, `{"ts":"2026-03-01T11:59:59.5+01:00","msg":"zap, ISO"}`, false,
		},
		"plain": {0, "plain", false},
		"":      {0, "", false},
	} {
		e := (&logTail{read: read}).entryOf([]byte(line), now)
		assert.Equal(t, want.text, e.Text)
		assert.Equal(t, want.ago, now.Sub(e.At), line)
		assert.Equal(t, want.failed, e.Failed, line)
	}
	// What has no time is of the line before.
	x := &logTail{read: read}
	first := x.entryOf([]byte("E0301 11:59:30.000000 77 a.go:1] panic"), now)
	assert.Equal(t, first.At, x.entryOf([]byte("goroutine 1"), now).At)
}

// A file that is cut, or comes later, or has no end of a line yet.
func TestTail(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	x := &logTail{}
	next := func(write string) (lines []string) {
		if write != "" {
			require.NoError(t, os.WriteFile(file, []byte(write), 0o600))
		}
		for _, line := range x.nextLines(file) {
			lines = append(lines, string(line))
		}
		return lines
	}
	assert.Empty(t, next(""))
	assert.Equal(t, []string{"a"}, next("a\nb"))
	assert.Equal(t, []string{"bc"}, next("a\nbc\n"))
	assert.Equal(t, []string{"x"}, next("x\n"), "it was begun anew")
}
