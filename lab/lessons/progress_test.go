package lessons

import (
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/ui"
)

func TestProgressIsKept(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	s, err := Take("someone")
	require.NoError(t, err)
	p, err := s.Progress()
	require.NoError(t, err)
	assert.Empty(t, p.Lessons)
	_, _, err = s.Current()
	require.ErrorIs(t, err, ErrNone)
	first, _, err := s.Next(t.Context())
	require.NoError(t, err)
	all, err := All()
	require.NoError(t, err)
	assert.Same(t, all[0], first)

	var tellers sync.WaitGroup
	for range 20 {
		tellers.Go(func() {
			assert.NoError(t, s.progress.update(func(p *Progress) error {
				if p.lessonProgress("a").Hints == nil {
					p.lessonProgress("a").Hints = map[string]int{}
				}
				p.lessonProgress("a").Hints["task"]++
				return nil
			}))
		})
	}
	tellers.Wait()
	refused := errors.New("no")
	require.ErrorIs(t, s.progress.update(func(p *Progress) error { p.Current = "a"; return refused }), refused)
	p, err = s.Progress()
	require.NoError(t, err)
	assert.Equal(t, 20, p.Lessons["a"].Hints["task"], "each change saw the one before")
	assert.Empty(t, p.Current, "what failed is not written")

	require.NoError(t, os.WriteFile(s.progress.file, []byte("{"), 0o600))
	_, err = s.Progress()
	require.ErrorContains(t, err, "damaged")
	require.NoError(t, s.Forget())
	require.NoError(t, s.Forget(), "nothing is left to forget")
	_, err = Take("No Name")
	assert.Error(t, err)
}

func TestWhatIsNoted(t *testing.T) {
	l := &Lesson{ID: "l", Tasks: []*Task{{ID: "one"}, {ID: "two"}}}
	now := time.Now()
	p := &Progress{Current: "l"}
	p.lessonProgress("l").Started = now
	note := func(started time.Time, told bool, seen map[string]Done) {
		require.NoError(t, p.recordDone(statusOf(l, p.lessonProgress("l"), seen, nil), started, told))
	}
	note(now.Add(-time.Hour), true, map[string]Done{"one": {Seen: "old"}})
	assert.Empty(t, p.lessonProgress("l").Done, "what was seen before the lesson was started again is not of this run")
	note(now, false, map[string]Done{"one": {Seen: "first"}})
	note(now, false, map[string]Done{"one": {Seen: "again"}})
	assert.Equal(t, Done{Seen: "first"}, p.lessonProgress("l").Done["one"])
	assert.Len(
		t, statusOf(l, p.lessonProgress("l"), nil, nil).Fresh, 1, "somebody else has seen it: the learner was not told",
	)
	note(now, true, nil)
	assert.Equal(t, Done{Seen: "first", Told: true}, p.lessonProgress("l").Done["one"])
	assert.Empty(t, statusOf(l, p.lessonProgress("l"), nil, nil).Fresh)
	assert.Zero(t, p.lessonProgress("l").Finished)
	note(now, true, map[string]Done{"two": {Seen: "x"}})
	finished := p.lessonProgress("l").Finished
	assert.NotZero(t, finished)
	p.lessonProgress("l").reset("")
	assert.Empty(t, p.lessonProgress("l").Done)
	assert.Equal(t, finished, p.lessonProgress("l").Finished, "it was finished once")
}

// Where there is no container engine, a lesson that needs one says so before it takes
// anything down, and the next is another.
func TestWithoutAnEngine(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	t.Setenv("PATH", t.TempDir())
	t.Setenv("KIND_EXPERIMENTAL_PROVIDER", "")
	all, err := All()
	require.NoError(t, err)
	at := slices.IndexFunc(all, func(l *Lesson) bool { return l.Cluster == cluster.KindKind })
	require.Positive(t, at, "a lesson on kind, and not the first")
	s, err := Take("someone")
	require.NoError(t, err)
	require.NoError(t, s.progress.update(func(p *Progress) error {
		p.Current = all[at-1].ID
		return nil
	}))

	err = s.Start(t.Context(), all[at], ui.Discard())
	require.ErrorContains(t, err, "lesson "+all[at].ID+" needs a container engine")
	require.ErrorContains(t, err, "install one")
	p, err := s.Progress()
	require.NoError(t, err)
	assert.Equal(t, all[at-1].ID, p.Current)
	next, unfit, err := s.Next(t.Context())
	require.NoError(t, err)
	onKind := slices.IndexFunc(all[at:], func(l *Lesson) bool { return l.Cluster != cluster.KindKind })
	assert.Same(t, all[at+onKind], next)
	assert.Len(t, unfit, onKind)
}
