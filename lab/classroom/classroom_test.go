package classroom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gossh "golang.org/x/crypto/ssh"

	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/state"
)

// newRoom is one without labs, in a folder of its own.
func newRoom(t *testing.T, seats int) (*Room, []Card) {
	t.Helper()
	t.Setenv("CCMLAB_HOME", t.TempDir())
	_, err := Open()
	require.ErrorIs(t, err, ErrNone)
	r, err := Enter()
	require.NoError(t, err)
	t.Cleanup(r.Leave)
	r.Listen, r.PagePort, r.SSHPort = "127.0.0.1", local.FreePort("127.0.0.1", 0), local.FreePort("127.0.0.1", 0)
	cards, err := r.Grow(seats)
	require.NoError(t, err)
	return r, cards
}

func TestSeats(t *testing.T) {
	r, cards := newRoom(t, 2)
	assert.Len(t, cards, 2)
	_, err := Enter()
	require.ErrorContains(t, err, "another command changes the classroom")
	more, err := r.Grow(3)
	require.NoError(t, err)
	assert.Equal(t, "seat-03", more[0].Seat)
	assert.Len(t, more, 1)
	none, err := r.Grow(1)
	require.NoError(t, err)
	assert.Empty(t, none)
	again, err := Open()
	require.NoError(t, err)
	assert.Equal(t, []string{"seat-01", "seat-02", "seat-03"}, again.Names(), "there are never fewer")
	_, err = r.Renew("seat-04")
	require.ErrorContains(t, err, "the seats are seat-01, seat-02, seat-03")

	data, err := os.ReadFile(r.configFile())
	require.NoError(t, err)
	for _, c := range append(cards, more...) {
		assert.Len(t, c.Password, 14)
		assert.NotContains(t, string(data), c.Password, "a password is kept as a hash")
	}
	require.NoError(t, os.WriteFile(r.configFile(), []byte("{"), 0o600))
	_, err = Open()
	assert.ErrorContains(t, err, "is damaged")
}

func TestSeatOfAName(t *testing.T) {
	r, _ := newRoom(t, 0)
	cards, err := r.Add("alice-3")
	require.NoError(t, err)
	assert.Equal(t, "alice-3", cards[0].Seat)
	again, err := r.Add("alice-3")
	require.NoError(t, err)
	assert.Empty(t, again)
	more, err := r.Grow(3)
	require.NoError(t, err)
	assert.Len(t, more, 2)
	assert.Equal(t, []string{"alice-3", "seat-01", "seat-02"}, r.Names())
	for _, wrong := range []string{
		"", "seat", "Seat-1", "site", ".server", "../seat-1", "seat-1/x", "-1", "a-very-long-name-of-a-seat-1",
		"seat-12345",
	} {
		_, err := r.Add(wrong)
		assert.ErrorContains(t, err, "such as seat-3", wrong)
	}
}

func TestPasswordThatIsKnown(t *testing.T) {
	r, cards := newRoom(t, 1)
	serve(t, r)
	require.ErrorContains(t, r.Admit("seat-01", "seven77"), "8 are the least")
	require.ErrorContains(t, r.Admit("seat-01", strings.Repeat("x", 73)), "72 are the most")
	require.NoError(t, r.Admit("seat-01", "of the Secret"))
	enter(t, r, Card{"seat-01", "of the Secret"})
	_, err := come(r, "seat-01", cards[0].Password)
	require.ErrorContains(t, err, "unable to authenticate")
	data, err := os.ReadFile(r.configFile())
	require.NoError(t, err)
	assert.NotContains(t, string(data), "of the Secret")
}

// A room may be known by another name than it has itself.
func TestPageElsewhere(t *testing.T) {
	r, cards := newRoom(t, 1)
	r.PageURL = "http://classroom.example.com/"
	require.NoError(t, r.save())
	serve(t, r)
	out, err := session(t, enter(t, r, cards[0])).Output(`echo "$CCMLAB_PAGE"`)
	require.NoError(t, err)
	assert.Equal(t, r.PageURL+"\n", string(out))
	code, _ := get(t, r.ownPageURL())
	assert.Equal(t, http.StatusOK, code)
}

// What was ended with its machine is no lab that is there.
func TestLabOfAMachineThatEnded(t *testing.T) {
	r, _ := newRoom(t, 1)
	all, err := lessons.All()
	require.NoError(t, err)
	record, err := json.Marshal(lessons.Progress{
		Current: all[0].ID, Labs: map[string]string{"": lessons.DefaultName},
		Lessons: map[string]*lessons.LessonProgress{all[0].ID: {Started: time.Now()}},
	})
	require.NoError(t, err)
	for file, text := range map[string]string{
		".lessons/lesson.json": string(record), "lesson/lab.json": `{"name": "lesson", "slot": 30}`,
	} {
		file = filepath.Join(r.Home("seat-01"), file)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	missing, err := r.Missing()
	require.NoError(t, err)
	assert.Equal(t, 1, missing)
}

// serve has the room's server run until the test ends.
func serve(t *testing.T, r *Room) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	require.Eventually(t, func() bool { return r.checkServer(t.Context()) == nil }, time.Minute, 10*time.Millisecond)
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	res, err := http.Get(url) //nolint:gosec,noctx // It is the test's own.
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusOK {
		assert.Contains(t, res.Header.Get("Content-Security-Policy"), "default-src 'self'")
	}
	data, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(data)
}

// A server that is there already is this room's only if it is reached as the room is to
// be: one that is to be reached from this machine alone, and is from others, is another.
func TestWhoseServer(t *testing.T) {
	r, _ := newRoom(t, 1)
	stranger := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer stranger.Close()
	serve(t, r)
	require.NoError(t, r.checkServer(t.Context()))
	strangers, elsewhere := *r, *r
	strangers.PagePort = stranger.Listener.Addr().(*net.TCPAddr).Port
	require.ErrorContains(t, strangers.checkServer(t.Context()), "not this classroom's")
	elsewhere.Listen = "localhost"
	assert.ErrorContains(t, elsewhere.checkServer(t.Context()), "not this classroom's")
}

func TestPage(t *testing.T) {
	r, _ := newRoom(t, 2)
	all, err := lessons.All()
	require.NoError(t, err)
	first := all[0]
	now := time.Now()
	record, err := json.Marshal(lessons.Progress{
		Current: first.ID, Labs: map[string]string{"": lessons.DefaultName},
		Lessons: map[string]*lessons.LessonProgress{
			first.ID: {
				Started: now.Add(-time.Hour), Finished: now,
				Done: map[string]lessons.Done{first.Tasks[0].ID: {At: now, Seen: "<b>seen</b>"}},
			},
		},
	})
	require.NoError(t, err)
	file := filepath.Join(r.Home("seat-02"), ".lessons", lessons.DefaultName+".json")
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, record, 0o600))
	serve(t, r)

	code, page := get(t, r.Page())
	assert.Equal(t, http.StatusOK, code)
	for _, want := range []string{
		`id="seat-01"`, "no lesson was started", first.Title, "&lt;b&gt;seen&lt;/b&gt;",
		"the labs of its lesson are not up",
	} {
		assert.Contains(t, page, want)
	}
	for path, want := range map[string]int{
		"page.js": 200, "page.css": 200, "lessons/" + first.ID + ".html": 200, "classroom.json": 404,
		"lessons/../classroom.json": 404,
	} {
		code, _ = get(t, r.Page()+path)
		assert.Equal(t, want, code, path)
	}
	var v View
	_, text := get(t, r.Page()+"progress.json")
	require.NoError(t, json.Unmarshal([]byte(text), &v))
	require.Len(t, v.Seats, 2)
	assert.Nil(t, v.Seats[0].Lesson)
	assert.Equal(t, 1, v.Seats[1].Lesson.Done())
	assert.Equal(t, first.Tasks[1].ID, v.Seats[1].Lesson.Current().ID)
	assert.Equal(t, []string{first.ID}, v.Seats[1].Finished)
	assert.WithinDuration(t, now, v.Seats[1].Lesson.Since, 0)

	added, err := r.Grow(3)
	require.NoError(t, err)
	assert.Eventually(t, func() bool {
		_, page := get(t, r.Page())
		return strings.Contains(page, `id="`+added[0].Seat+`"`)
	}, time.Minute, 50*time.Millisecond, "a seat that came later is seen")
}

// A seat that nobody has logged into since the door was opened is not late. From the first login on, its time counts.
func TestNobodyHereYet(t *testing.T) {
	r, cards := newRoom(t, 1)
	record, err := json.Marshal(lessons.Progress{
		Current: "taint", Labs: map[string]string{"": lessons.DefaultName},
		Lessons: map[string]*lessons.LessonProgress{"taint": {Started: time.Now().Add(-time.Hour)}},
	})
	require.NoError(t, err)
	file := filepath.Join(r.Home("seat-01"), ".lessons", lessons.DefaultName+".json")
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, record, 0o600))
	seat := func() SeatView {
		v, err := r.Look(t.Context())
		require.NoError(t, err)
		return v.Seats[0]
	}
	for _, opened := range []string{"first", "again"} {
		t.Run(opened, func(t *testing.T) {
			serve(t, r)
			_, page := get(t, r.Page())
			assert.Contains(t, page, `<td data-label="For">nobody here yet</td>`)
			assert.False(t, seat().Late(time.Now()))
			client := enter(t, r, cards[0])
			require.NoError(t, session(t, client).Run("true"))
			arrived := seat().Arrived
			assert.Equal(t, arrived, seat().Lesson.Since)
			assert.False(t, seat().Late(arrived.Add(lateAfter-1)))
			assert.True(t, seat().Late(arrived.Add(lateAfter)))
			require.NoError(t, session(t, client).Run("true"))
			assert.Equal(t, arrived, seat().Arrived, "it is the first login")
		})
	}
}

// Whoever chooses ports that are taken is told how others are chosen.
func TestTakenPort(t *testing.T) {
	r, _ := newRoom(t, 1)
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = other.Close() }()
	for flag, port := range map[string]*int{"--page-port": &r.PagePort, "--ssh-port": &r.SSHPort} {
		free := *port
		*port = other.Addr().(*net.TCPAddr).Port
		want := fmt.Sprintf("port %d is taken by another program: choose another port with %s", *port, flag)
		require.ErrorContains(t, r.Serve(t.Context()), want)
		*port = free
	}
	r.Listen = "192.0.2.1" // Of documentation: no machine has it.
	assert.ErrorContains(t, r.Serve(t.Context()), "this machine has no address 192.0.2.1: choose another with --listen")
}

// The page shows how a seat's lab is, and has that lab's page to look at.
func TestLabsOnThePage(t *testing.T) {
	r, _ := newRoom(t, 2)
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer reads" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.URL.Path != "/scene.json" {
			_, _ = w.Write([]byte("page of " + r.URL.Path))
			return
		}
		_, _ = w.Write([]byte(`[{"kind": "node", "name": "<n>", "state": "not ready", "level": "bad"}, {"kind": "pod"}]`))
	}))
	defer agent.Close()
	dir := filepath.Join(r.Home("seat-02"), lessons.DefaultName)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "console.json"), []byte(fmt.Sprintf(
		`{"address": %q, "key": "changes", "readOnlyKey": "reads"}`, agent.Listener.Addr())), 0o600))
	serve(t, r)
	_, page := get(t, r.Page())
	assert.Contains(t, page, `<span class="bad" title="node &lt;n&gt;: not ready">▲</span> <a href="seats/seat-02/"`)
	assert.NotContains(t, page, `href="seats/seat-01/"`)
	for path, want := range map[string]string{
		"seats/seat-02/": "page of /", "seats/seat-02/page.js": "page of /page.js",
		"seats/seat-01/": "no lab of seat-01", "seats/none/": "no lab of none",
	} {
		_, text := get(t, r.Page()+path)
		assert.Contains(t, text, want, path)
	}
	resp, err := http.Post(r.Page()+"seats/seat-02/acts.json", "", nil)
	require.NoError(t, err)
	assert.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
}

// come is somebody at the door.
func come(r *Room, seat, password string) (*gossh.Client, error) {
	key, err := r.hostKey()
	if err != nil {
		return nil, err
	}
	return gossh.Dial("tcp", net.JoinHostPort(r.Listen, strconv.Itoa(r.SSHPort)), &gossh.ClientConfig{
		User: seat, Auth: []gossh.AuthMethod{gossh.Password(password)},
		HostKeyCallback: gossh.FixedHostKey(key.PublicKey()), Timeout: time.Minute,
	})
}

func enter(t *testing.T, r *Room, card Card) *gossh.Client {
	t.Helper()
	c, err := come(r, card.Seat, card.Password)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func session(t *testing.T, c *gossh.Client) *gossh.Session {
	t.Helper()
	s, err := c.NewSession()
	require.NoError(t, err)
	return s
}

func TestDoor(t *testing.T) {
	r, cards := newRoom(t, 2)
	serve(t, r)
	for _, wrong := range []Card{
		{"seat-01", cards[1].Password}, {"seat-01", ""}, {"seat-09", cards[0].Password}, {"", ""},
	} {
		_, err := come(r, wrong.Seat, wrong.Password)
		assert.ErrorContains(t, err, "unable to authenticate", wrong)
	}
	c := enter(t, r, cards[0])
	out, err := session(t, c).Output(`echo "$CCMLAB_SEAT $PWD $HOME $CCMLAB_HOME ${LAB_NAME-none}"`)
	require.NoError(t, err)
	work := r.workDir("seat-01")
	assert.Equal(t, strings.Join([]string{"seat-01", work, work, r.Home("seat-01"), "none"}, " ")+"\n", string(out))

	var exit *gossh.ExitError
	require.ErrorAs(t, session(t, c).Run("exit 7"), &exit)
	assert.Equal(t, 7, exit.ExitStatus())
	_, err = c.Dial("tcp", net.JoinHostPort(r.Listen, strconv.Itoa(r.PagePort)))
	require.Error(t, err, "nothing is forwarded")

	renewed, err := r.Renew("seat-01")
	require.NoError(t, err)
	_, err = come(r, cards[0].Seat, cards[0].Password)
	require.Error(t, err, "the old password")
	enter(t, r, renewed[0])
}

func TestTerminal(t *testing.T) {
	r, cards := newRoom(t, 1)
	serve(t, r)
	c := enter(t, r, cards[0])
	s := session(t, c)
	require.NoError(t, s.RequestPty("xterm", 30, 100, nil))
	in, err := s.StdinPipe()
	require.NoError(t, err)
	var out strings.Builder
	s.Stdout = &out
	require.NoError(t, s.Shell())
	require.Eventually(t, func() bool { v := here(t, r); return v == 1 }, time.Minute, 50*time.Millisecond)
	_, err = io.WriteString(in, "stty size; echo term is $TERM; exit 3\n")
	require.NoError(t, err)
	var exit *gossh.ExitError
	require.ErrorAs(t, s.Wait(), &exit)
	assert.Equal(t, 3, exit.ExitStatus())
	for _, want := range []string{"This is seat-01.", "30 100", "term is xterm"} {
		assert.Contains(t, out.String(), want)
	}
	assert.Eventually(t, func() bool { return here(t, r) == 0 }, time.Minute, 50*time.Millisecond)
}

// Who goes without a word has what they started ended.
func TestGone(t *testing.T) {
	r, cards := newRoom(t, 1)
	serve(t, r)
	c := enter(t, r, cards[0])
	s := session(t, c)
	out, err := s.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.Start("echo begun; exec sleep 600"))
	_, err = io.ReadFull(out, make([]byte, len("begun\n")))
	require.NoError(t, err)
	require.Equal(t, 1, here(t, r))
	require.NoError(t, c.Close())
	assert.Eventually(t, func() bool { return here(t, r) == 0 }, time.Minute, 50*time.Millisecond)
}

func TestTooMany(t *testing.T) {
	r, cards := newRoom(t, 1)
	serve(t, r)
	c := enter(t, r, cards[0])
	for range maxSessionsPerSeat {
		s := session(t, c)
		out, err := s.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, s.Start("echo begun; exec sleep 600"))
		_, err = io.ReadFull(out, make([]byte, len("begun\n")))
		require.NoError(t, err)
	}
	var said strings.Builder
	s := session(t, c)
	s.Stderr = &said
	require.Error(t, s.Run("true"))
	assert.Contains(t, said.String(), "are at seat-01 already")
}

// here is how many are at the first seat, as the page has it.
func here(t *testing.T, r *Room) int {
	t.Helper()
	_, text := get(t, r.Page()+"progress.json")
	var v View
	require.NoError(t, json.Unmarshal([]byte(text), &v))
	return v.Seats[0].Here
}

func TestEach(t *testing.T) {
	r, _ := newRoom(t, 3)
	said := map[string]string{}
	err := r.Each(t.Context(), r.Names(), []string{
		"bash", "-c", `echo "$CCMLAB_SEAT $1"; test "$CCMLAB_SEAT" != seat-02`, "-", "$HOME `x`",
	}, func(did Did) {
		said[did.Seat] = did.Output
		assert.Equal(t, did.Seat == "seat-02", did.Err != nil, did.Seat)
	})
	require.EqualError(t, err, "bash: it failed at 1 of 3 seats: seat-02")
	assert.Equal(t, map[string]string{
		"seat-01": "seat-01 $HOME `x`\n", "seat-02": "seat-02 $HOME `x`\n", "seat-03": "seat-03 $HOME `x`\n",
	}, said)
	err = r.Each(t.Context(), []string{"seat-09"}, []string{"true"}, func(did Did) {
		assert.ErrorContains(t, did.Err, "there is no seat-09")
	})
	require.Error(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = r.Each(ctx, r.Names(), []string{"true"}, func(did Did) {
		assert.True(t, errors.Is(did.Err, context.Canceled))
	})
	assert.ErrorIs(t, err, context.Canceled)
}

// A `lab` in the place of the real one: it fails at seat-02 at the first try, and at seat-03
// at each.
const failingLab = `#!/bin/sh
echo "$*" >>"$CCMLAB_HOME/tries"
case $CCMLAB_SEAT in
seat-02) [ "$(wc -l <"$CCMLAB_HOME/tries")" -gt 1 ] && exit 0 ;;
seat-03) ;;
*) exit 0 ;;
esac
echo "too many open files" >&2
exit 1
`

func TestSeatThatFailsLeavesTheOthers(t *testing.T) {
	r, _ := newRoom(t, 4)
	programs := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(programs, "lab"), []byte(failingLab), 0o700)) //nolint:gosec // It is a program.
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))

	summary, err := r.startLesson(t.Context(), "taint", r.Names(), func(string) {})
	assert.Equal(t, "begun at 3 of 4 seats", summary)
	require.ErrorContains(t, err, "seat-03: exit status 1")
	require.ErrorContains(t, err, "too many open files")
	require.ErrorContains(t, err, "`lab classroom up` tries the others again")
	assert.NotContains(t, err.Error(), "seat-02", "it was tried again")
	for seat, want := range map[string]int{"seat-01": 1, "seat-02": 2, "seat-03": 2, "seat-04": 1} {
		tries, err := os.ReadFile(filepath.Join(r.Home(seat), "tries"))
		require.NoError(t, err)
		assert.Equal(t, want, strings.Count(string(tries), "lesson start taint --quiet"), seat)
	}
}

func TestLabs(t *testing.T) {
	for lesson, want := range map[string][2]int{
		"": {1, 1}, "taint": {1, 1}, "two-clusters": {2, 2}, "own-nodes": {1, 2},
	} {
		atRest, most, err := Labs(lesson)
		require.NoError(t, err)
		assert.Equal(t, want, [2]int{atRest, most}, lesson)
	}
}

func TestDefaultLesson(t *testing.T) {
	l, err := DefaultLesson()
	require.NoError(t, err)
	assert.Equal(t, "taint", l.ID, "as --lesson of `lab classroom up` says")
}

// A learner may have as many instances as the trainer has said, and each lesson fits.
func TestInstancesOfASeat(t *testing.T) {
	r, _ := newRoom(t, 1)
	quota := func() string {
		env, err := r.seatEnviron("seat-01")
		require.NoError(t, err)
		i := slices.IndexFunc(env, func(kv string) bool { return strings.HasPrefix(kv, state.SeatInstancesVariable) })
		return env[i]
	}
	assert.Equal(t, "CCMLAB_SEAT_INSTANCES=10", quota())
	r.SeatInstances = 20
	assert.Equal(t, "CCMLAB_SEAT_INSTANCES=20", quota())
	all, err := lessons.All()
	require.NoError(t, err)
	for _, l := range all {
		for _, s := range append(slices.Collect(maps.Values(l.Others)), l.Lab) {
			assert.LessOrEqual(t, s.Nodes, MinSeatInstances/(1+len(l.Others)), l.ID)
		}
	}
}

// Whoever could write the passwords' file would get a shell as the trainer.
func TestFolderOfOthers(t *testing.T) {
	home := t.TempDir()
	t.Setenv("CCMLAB_HOME", home)
	file := filepath.Join(home, classroomDir, "classroom.json")
	require.NoError(t, os.Mkdir(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte(`{"seats": [{"name": "seat-1", "hash": "mallory's"}]}`), 0o600))
	for _, dir := range []string{home, filepath.Dir(file)} {
		require.NoError(t, os.Chmod(dir, 0o777)) //nolint:gosec // That is what is to be refused.
		_, err := Open()
		require.ErrorContains(t, err, "other users may write in "+dir)
		_, err = Enter()
		require.ErrorContains(t, err, "other users may write in "+dir)
		require.NoError(t, os.Chmod(dir, 0o700)) //nolint:gosec // A folder must be entered.
	}
	r, err := Open()
	require.NoError(t, err)
	assert.Equal(t, []string{"seat-1"}, r.Names())
}
