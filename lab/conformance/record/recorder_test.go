package record

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// fakeJournal is a journal that can fail.
type fakeJournal struct {
	mu    sync.Mutex
	calls []protocol.Call
	err   error
}

func (j *fakeJournal) CallsSince(_ context.Context, since time.Time) ([]protocol.Call, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(j.calls), func(one protocol.Call) bool { return one.Answered.Before(since) }), j.err
}

func (j *fakeJournal) addCall(operation, resource, answer string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls = append(j.calls, protocol.Call{
		ID: fmt.Sprint(len(j.calls)), Began: time.Now(), Answered: time.Now(), Operation: operation, Resource: resource,
		Answer: answer, Failed: answer != "200",
	})
}

func (j *fakeJournal) setError(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.err = err
}

// logFiles are the files that a CCM logs to.
type logFiles []string

func (f logFiles) LogFiles() []string { return f }

// bench is a recorder, and what it looks at, in a bubble of synctest.
type bench struct {
	*testing.T
	journal  *fakeJournal
	logFile  string
	recorder *Recorder
}

func runBench(t *testing.T, do func(b *bench)) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	synctest.Test(t, func(t *testing.T) {
		b := &bench{T: t, journal: &fakeJournal{}, logFile: filepath.Join(t.TempDir(), "ccm.log")}
		require.NoError(t, os.WriteFile(b.logFile, []byte("of an earlier run\n"), 0o600))
		b.recorder = Start(fake.NewClientset(), b.journal, logFiles{b.logFile}, "abcd")
		synctest.Wait()
		time.Sleep(recordEvery / 10) // What happens at a full second is not read at the same time.
		do(b)
	})
}

func (b *bench) log(format string, args ...any) {
	f, err := os.OpenFile(b.logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(b, err)
	_, err = fmt.Fprintf(f, format, args...)
	require.NoError(b, errors.Join(err, f.Close()))
}

// entryLines are a timeline's entries as lines.
func entryLines(line *Timeline) (lines []string) {
	for _, e := range line.Entries {
		text := fmt.Sprintf("%.1f %s", e.At.Sub(line.Began).Seconds(), e.Source)
		if e.Failed {
			text += "!"
		}
		lines = append(lines, strings.TrimSuffix(text+" "+e.Subject, " ")+": "+e.Text)
	}
	return lines
}

// A test with a thousand nodes, or a CCM that says a lot, costs no more than
// there is a place for.
func TestTimelineIsBounded(t *testing.T) {
	runBench(t, func(b *bench) {
		one := b.recorder.Begin("one", true, time.Now())
		one.OwnSerial(1)
		name := "n-abcd-1"
		for i := range maxItems + 1000 {
			b.recorder.addEntry(SourceNode, false, name, "change %d", i)
		}
		for i := range maxSteps + 10 {
			one.Step("step %d %s", i, strings.Repeat("é", 1000))
		}
		b.log("%s\n", strings.Repeat("x", maxLine*3))
		time.Sleep(10 * time.Second)
		one.End(true)
		assert.LessOrEqual(t, len(b.recorder.items), maxItems)
		line := b.recorder.Close()["one"]
		assert.Len(t, line.Entries, KeptOfFailed)
		assert.Equal(t, maxItems+1000+maxSteps+10+1-KeptOfFailed, line.LeftOut)
		assert.Equal(t, KeptOfFailed/2, line.Head)
		for _, e := range line.Entries {
			assert.LessOrEqual(t, len([]rune(e.Text)), MaxTextLength+2)
		}
		assert.Empty(t, b.recorder.items)
	})
}

// A journal that fails costs its calls, is told of once, and holds nothing up.
func TestJournalFails(t *testing.T) {
	runBench(t, func(b *bench) {
		b.journal.setError(errors.New("down"))
		one := b.recorder.Begin("one", true, time.Now())
		time.Sleep(5 * time.Second)
		b.journal.setError(nil)
		b.journal.addCall("listRoutes", "", "200")
		time.Sleep(5 * time.Second)
		one.End(false)
		time.Sleep(time.Minute)
		b.recorder.mu.Lock()
		assert.Len(t, b.recorder.timelines, 1, "it is settled before the end")
		assert.Empty(t, b.recorder.items)
		b.recorder.mu.Unlock()
		assert.Equal(
			t, []string{"0.9 step!: the cloud does not say which calls it gets: down", "5.0 call: listRoutes → 200"},
			entryLines(b.recorder.Close()["one"]),
		)
	})
}
