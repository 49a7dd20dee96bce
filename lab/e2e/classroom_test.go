package e2e

// A classroom, as its trainer and its learners have it.

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/ccmlab/ccmlab/lab/classroom"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
)

func TestClassroom(t *testing.T) {
	f := newFixture(t)
	page, door := local.FreePort("127.0.0.1", 0), local.FreePort("127.0.0.1", 0)
	up := func(args ...string) string {
		return f.lab(append(
			[]string{"classroom", "up", "--page-port", strconv.Itoa(page), "--ssh-port", strconv.Itoa(door)}, args...,
		)...)
	}
	t.Cleanup(func() { f.lab("classroom", "down", "--delete") })
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	said, err := f.try(
		"classroom", "up", "--seats", "2", "--page-port", strconv.Itoa(taken.Addr().(*net.TCPAddr).Port),
		"--ssh-port", strconv.Itoa(door),
	)
	require.Error(t, err)
	assert.Contains(t, said, "choose another port with --page-port")
	assert.NotContains(t, said, "PASSWORD", "nobody could log in")
	cards := up("--seats", "2", "--lesson", "taint")
	password := regexp.MustCompile(`(?m)^seat-01 .* (\S+)$`).FindStringSubmatch(cards)
	require.NotNil(t, password, cards)
	assert.NotContains(t, f.lab("list"), "lesson", "the trainer's own labs are others")

	client, err := ssh.Dial("tcp", "127.0.0.1:"+strconv.Itoa(door), &ssh.ClientConfig{
		User: "seat-01", Auth: []ssh.AuthMethod{ssh.Password(password[1])}, HostKeyCallback: ssh.InsecureIgnoreHostKey(), Timeout: bound, //nolint:gosec // It is this test's own.
	})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	at := func(command string) string {
		s, err := client.NewSession()
		require.NoError(t, err)
		out, err := s.CombinedOutput(command)
		require.NoError(t, err, "%s\n%s", command, out)
		return string(out)
	}
	assert.Len(t, strings.Fields(at("kubectl get nodes --output name")), 3)
	solutions := regexp.MustCompile(`kubectl run (\w+)`).FindAllStringSubmatch(
		f.lab("classroom", "run", "--", "lab", "lesson", "solve", "--print"), -1,
	)
	require.Len(t, solutions, 2)
	assert.NotEqual(t, solutions[0][1], solutions[1][1], "what one learner types does not help the next")
	at(`bash -c "$(lab lesson solve --print)"`) // What the learner types; nobody asks how far they are.
	require.Eventually(
		t, func() bool { return f.seats()[0].Lesson.Done() == 1 }, bound, 100*time.Millisecond, "the page sees it",
	)
	assert.Contains(t, at("lab lesson status --new"), " is Ready")
	assert.Empty(t, at("lab lesson status --new"), "it was told")
	assert.Zero(t, f.seats()[1].Lesson.Done())
	at("echo mine >work")

	said = f.lab("classroom", "run", "--", "lab", "list", "-o", "json")
	assert.Equal(t, 1, strings.Count(said, `seat-02 │     "name": "lesson"`), said)
	f.lab("classroom", "down")
	out, err := f.try("classroom", "status")
	require.Error(t, err)
	assert.Contains(t, out, "the door is closed")
	assert.NotContains(t, up(), "seat-01", "nobody is handed a new card")
	for _, seat := range f.seats() {
		assert.Equal(t, "taint", seat.Lesson.ID)
		assert.Empty(t, seat.Problem)
	}
	data, err := os.ReadFile(f.home + "/.class/seat-01/.work/work")
	require.NoError(t, err)
	assert.Equal(t, "mine\n", string(data))
}

// What a pod runs: a seat of its name, and all of it ends with it.
func TestClassroomInTheForeground(t *testing.T) {
	f := newFixture(t)
	page, door := local.FreePort("127.0.0.1", 0), local.FreePort("127.0.0.1", 0)
	secret := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(secret, []byte("of the Secret"), 0o600))
	var said bytes.Buffer
	begin := func(args ...string) (cmd *exec.Cmd, ended chan error) {
		said.Reset()
		cmd = f.command("lab", append([]string{
			"classroom", "up", "--foreground", "--seat", "seat-3", "--password-file", secret,
			"--page-port", strconv.Itoa(page), "--ssh-port", strconv.Itoa(door),
		}, args...)...)
		cmd.Stdout, cmd.Stderr, ended = &said, &said, make(chan error, 1)
		require.NoError(t, cmd.Start())
		go func() { ended <- cmd.Wait() }()
		return cmd, ended
	}
	t.Cleanup(func() { f.lab("classroom", "down", "--delete") })
	serves := func() bool {
		_, err := fetch("http://127.0.0.1:" + strconv.Itoa(page) + "/progress.json")
		return err == nil
	}
	cmd, ended := begin("--lesson", "taint")
	require.Eventually(t, func() bool {
		return serves() && len(f.seats()) == 1 && f.seats()[0].Lesson != nil
	}, bound, 100*time.Millisecond)
	assert.Equal(t, "seat-3", f.seats()[0].Name)
	client, err := ssh.Dial("tcp", "127.0.0.1:"+strconv.Itoa(door), &ssh.ClientConfig{
		User: "seat-3", Auth: []ssh.AuthMethod{ssh.Password("of the Secret")}, HostKeyCallback: ssh.InsecureIgnoreHostKey(), Timeout: bound, //nolint:gosec // It is this test's own.
	})
	require.NoError(t, err)
	require.NoError(t, client.Close())
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-ended, "%s", &said)
	assert.NotContains(t, said.String(), "PASSWORD", "who has the Secret needs no card")
	assert.False(t, serves())
	home := f.home + "/.class/seat-3"
	assert.NoDirExists(t, home+"/lesson", "its lab has ended")
	assert.FileExists(t, home+"/.lessons/lesson.json", "what was done stays")

	// A server that ends by itself is a failure, which a container's end tells.
	_, ended = begin("--lesson", "none")
	require.Eventually(t, serves, bound, 100*time.Millisecond)
	var server map[string]*process.Process
	require.Eventually(t, func() bool {
		server, err = process.Host{Lab: f.home + "/.class/.server"}.Running()
		return err == nil && len(server) == 1
	}, bound, 100*time.Millisecond)
	for _, p := range server {
		require.NoError(t, p.Signal(syscall.SIGKILL))
	}
	var exit *exec.ExitError
	require.ErrorAs(t, <-ended, &exit)
	assert.Equal(t, 1, exit.ExitCode())
	// On a busy machine it is killed while up still waits for its door.
	assert.Regexp(t, "classroom('s server has| ended at its start)", said.String())
}

// seats are as `lab classroom status` has them.
func (f *fixture) seats() []classroom.SeatView {
	f.t.Helper()
	out, err := f.command("lab", "classroom", "status", "-o", "json").Output()
	require.NoError(f.t, err)
	var v classroom.View
	require.NoError(f.t, json.Unmarshal(out, &v))
	return v.Seats
}
