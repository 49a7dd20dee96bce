package lab_test

// A classroom, as its trainer and its learners have it.

import (
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/ccmlab/ccmlab/lab/classroom"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
)

func TestClassroom(t *testing.T) {
	f := newFixture(t)
	page, door := local.FreePort("127.0.0.1", 0), local.FreePort("127.0.0.1", 0)
	up := func(args ...string) string {
		return f.lab(append([]string{"classroom", "up", "--page-port", strconv.Itoa(page), "--ssh-port", strconv.Itoa(door)}, args...)...)
	}
	t.Cleanup(func() { f.lab("classroom", "down", "--delete") })
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
	at(`bash -c "$(lab lesson solve --print)"`) // What the learner types; nobody asks how far they are.
	require.Eventually(t, func() bool { return f.seats()[0].Lesson.Done() == 1 }, bound, 100*time.Millisecond, "the page sees it")
	assert.Contains(t, at("lab lesson status --new"), "pod early is Ready")
	assert.Empty(t, at("lab lesson status --new"), "it was told")
	assert.Zero(t, f.seats()[1].Lesson.Done())
	at("echo mine >work")

	said := f.lab("classroom", "run", "--", "lab", "list", "-o", "json")
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

// seats are as `lab classroom status` has them.
func (f *fixture) seats() []classroom.SeatView {
	f.t.Helper()
	out, err := f.command("lab", "classroom", "status", "-o", "json").Output()
	require.NoError(f.t, err)
	var v classroom.View
	require.NoError(f.t, json.Unmarshal(out, &v))
	return v.Seats
}
