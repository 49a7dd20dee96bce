package local

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/cluster"
)

func TestLogsHaveTheNamesOfStatus(t *testing.T) {
	dir := t.TempDir()
	for _, file := range []string{"etcd.log", "node-node-1.log", "lab-agent.log", "audit.jsonl"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), nil, 0o600))
	}
	logs, err := FileLogs(dir)
	require.NoError(t, err)
	var names []string
	for _, l := range logs {
		names = append(names, l.Name)
	}
	assert.Equal(t, []string{"etcd", "lab-agent", "node/node-1"}, names)
}

func fileLog(t *testing.T, content string) (cluster.Log, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.log")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	logs, err := FileLogs(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, logs, 1)
	return logs[0], file
}

func TestLastLines(t *testing.T) {
	long := strings.Repeat(strings.Repeat("x", 99)+"\n", 3000) // Several blocks.
	for _, tc := range []struct {
		content string
		last    int
		want    string
	}{
		{"", 3, ""},
		{"", 0, ""},
		{"a\nb\nc\n", 0, "a\nb\nc\n"},
		{"a\nb\nc\n", 1, "c\n"},
		{"a\nb\nc\n", 2, "b\nc\n"},
		{"a\nb\nc\n", 3, "a\nb\nc\n"},
		{"a\nb\nc\n", 9, "a\nb\nc\n"},
		{"a\nb\nnot ended", 2, "b\nnot ended\n"},
		{"\n\n\n", 2, "\n\n"},
		{long, 1500, long[:150000]},
		{long, 5000, long},
	} {
		log, _ := fileLog(t, tc.content)
		var out strings.Builder
		require.NoError(t, log.Copy(t.Context(), &out, tc.last, false))
		assert.Equal(t, tc.want, out.String(), "the last %d of %d bytes", tc.last, len(tc.content))
	}
}

// A component that starts again appends; a file may be put aside for a new one,
// or emptied.
func TestFollowThroughRotation(t *testing.T) {
	log, file := fileLog(t, "old\nlast\n")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := log.Copy(ctx, w, 1, true)
		_ = w.Close()
		done <- err
	}()
	lines := bufio.NewScanner(r)
	expect := func(want string) {
		t.Helper()
		require.True(t, lines.Scan(), "waited for %q", want)
		require.Equal(t, want, lines.Text())
	}
	add := func(text string) {
		t.Helper()
		f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		_, err = fmt.Fprint(f, text)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	expect("last")
	add("in two ")
	add("parts\n")
	expect("in two parts")
	require.NoError(t, os.Rename(file, file+".1"))
	add("a new file\n")
	expect("a new file")
	require.NoError(t, os.Truncate(file, 0))
	add("emptied\n")
	expect("emptied")
	cancel()
	for lines.Scan() {
	}
	require.NoError(t, <-done, "that is how one ends it")
}
