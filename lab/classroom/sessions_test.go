package classroom

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gossh "golang.org/x/crypto/ssh"
)

// A session ends with its channel, while its connection stays: the shell ends, and the place is free, whatever the
// session leaves behind.
func TestSessionEndsWithItsChannel(t *testing.T) {
	r, cards := newRoom(t, 1)
	serve(t, r)
	c := enter(t, r, cards[0])
	for name, run := range map[string]struct {
		command string
		// leaves tells whether the command may leave a process behind, whose ID is the second one it prints.
		leaves bool
	}{
		"waits":               {"echo $$; exec sleep 600", false},
		"ignores the hang-up": {"trap '' HUP; sleep 600 & echo $$; while :; do wait; done", false},
		"nohup":               {"nohup sleep 600 2>&1 & echo $$ $!; wait", true},
		"nohup, and is over":  {"nohup sleep 600 & echo $$ $!", true},
		"setsid":              {"setsid sleep 600 & echo $$ $!; wait", true},
	} {
		for _, terminal := range []bool{true, false} {
			if terminal && strings.HasSuffix(name, "is over") {
				continue // The end of a terminal's program is that of its session.
			}
			t.Run(fmt.Sprintf("%s, terminal %v", name, terminal), func(t *testing.T) {
				s, shell, left := startSession(t, c, run.command, terminal)
				if run.leaves {
					t.Cleanup(func() { _ = syscall.Kill(left, syscall.SIGKILL) })
				}
				require.Equal(t, 1, here(t, r))
				require.NoError(t, s.Close())
				require.Eventually(t, func() bool { return here(t, r) == 0 }, time.Minute, 10*time.Millisecond)
				assert.NoDirExists(t, fmt.Sprintf("/proc/%d", shell))
			})
		}
	}
}

// startSession starts a command, which prints its own ID and perhaps another process's.
func startSession(t *testing.T, c *gossh.Client, command string, terminal bool) (s *gossh.Session, own, other int) {
	t.Helper()
	s = session(t, c)
	if terminal {
		require.NoError(t, s.RequestPty("xterm", 30, 100, nil))
	}
	out, err := s.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.Start(command))
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		ids := strings.Fields(lines.Text())
		if len(ids) == 0 {
			continue
		}
		if own, err = strconv.Atoi(ids[0]); err != nil {
			continue // nohup says what it does.
		}
		if len(ids) > 1 {
			other, err = strconv.Atoi(ids[1])
			require.NoError(t, err)
		}
		return s, own, other
	}
	t.Fatal("it has not printed its ID")
	return s, 0, 0
}

// What a program has printed arrives to the end.
func TestOutputAfterTheEnd(t *testing.T) {
	r, cards := newRoom(t, 1)
	serve(t, r)
	const size = 8 << 20 // Above the window of an SSH channel and the buffer of a pipe.
	s := session(t, enter(t, r, cards[0]))
	out, err := s.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.Start(fmt.Sprintf("head -c %d /dev/zero", size)))
	n, err := io.Copy(io.Discard, out)
	require.NoError(t, err)
	assert.EqualValues(t, size, n)
	assert.NoError(t, s.Wait())
}
