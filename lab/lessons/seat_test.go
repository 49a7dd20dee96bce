package lessons

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// A lesson begins when the timeline has told of its Nodes: what it tells later would
// be taken for the learner's doing.
func TestQuiet(t *testing.T) {
	file := filepath.Join(t.TempDir(), "timeline.jsonl")
	synctest.Test(t, func(t *testing.T) {
		log := timeline.Log{File: file, Start: time.Now()}
		tell := func(source timeline.Source, subject, what string) {
			require.NoError(t, log.Add(timeline.Change{Source: source, Subject: subject, What: what}))
		}
		require.NoError(t, checkNodesQuiet(log), "nothing is told yet")
		tell(timeline.SourceCluster, "node/node-1", "registered")
		tell(timeline.SourceCluster, "node/node-1", "initialized")
		tell(timeline.SourceCluster, "service/web", "created")
		require.EqualError(t, checkNodesQuiet(log), "the timeline tells of node/node-1: initialized")
		time.Sleep(quietPeriod)
		require.NoError(t, checkNodesQuiet(log))
		tell(timeline.SourceLab, "machine/node-1", "booted")
		tell(timeline.SourceCluster, "service/web", "address")
		require.NoError(t, checkNodesQuiet(log), "others may be told of")
	})
}

func TestDifferences(t *testing.T) {
	before := map[string]string{"runs": "true", "pods": "3", "faults": "0"}
	assert.NoError(t, compareOutlines(before, map[string]string{"runs": "true", "pods": "3", "faults": "0"}))
	assert.EqualError(t, compareOutlines(before, map[string]string{"runs": "true", "pods": "2", "routes": "1"}),
		`faults was "0" and is ""; pods was "3" and is "2"; routes was "" and is "1"`)
	assert.Error(t, compareOutlines(nil, before), "what was not looked at yet")
}

func TestLabsThatAreGoneAreMadeAgainByReset(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	s, err := Take("someone")
	require.NoError(t, err)
	for lesson, labs := range map[string]map[string]string{"taint": {"": "someone"}, "trouble": nil} {
		require.NoError(t, s.progress.update(func(p *Progress) error {
			p.Current, p.Labs = lesson, labs
			p.lessonProgress(lesson).Started = time.Now()
			return nil
		}))
		st, err := s.Glance(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, st.Problem, state.ErrNone)
		require.ErrorContains(t, st.Problem, "`lab lesson reset`")
		assert.NotContains(t, st.Problem.Error(), "lab up")
	}
}

// A lab belongs to the seat whose current lesson takes place in it.
func TestFindByLab(t *testing.T) {
	root := t.TempDir()
	seat := At(root, "mine")
	require.NoError(t, seat.progress.update(func(p *Progress) error {
		p.Current, p.Labs = "two-clusters", map[string]string{"": "mine", "plain": "mine-plain"}
		return nil
	}))
	require.NoError(t, At(root, "other").progress.update(func(*Progress) error { return nil }))
	for lab, want := range map[string]*Seat{"mine": seat, "mine-plain": seat, "other": nil, "lab": nil} {
		found, err := FindByLab(root, lab)
		require.NoError(t, err)
		if assert.Equal(t, want == nil, found == nil, lab) && want != nil {
			assert.Equal(t, want.Name(), found.Name())
		}
	}
}
