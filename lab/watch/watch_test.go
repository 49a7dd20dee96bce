package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// fakeAudit has the calls, oldest first, and counts the pages that were read.
type fakeAudit struct {
	calls []api.AuditEntry
	err   error
	pages int
}

func (a *fakeAudit) ListAuditUntil(
	_ context.Context,
	f client.AuditFilter,
	isOld func(api.AuditEntry) bool,
) ([]api.AuditEntry, error) {
	if a.err != nil {
		return nil, a.err
	}
	if (f != client.AuditFilter{}) {
		return nil, errors.New("the cloud would search all calls for that")
	}
	newestFirst := slices.Clone(a.calls)
	slices.Reverse(newestFirst)
	var listed []api.AuditEntry
	for page := range slices.Chunk(newestFirst, 50) {
		a.pages++
		if listed = append(listed, page...); isOld(listed[len(listed)-1]) {
			break
		}
	}
	return listed, nil
}

var began = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)

// call makes the next n calls, a millisecond apart.
func (a *fakeAudit) call(n int) {
	for range n {
		i := len(a.calls)
		a.calls = append(a.calls, api.AuditEntry{
			Time: began.Add(time.Duration(i) * time.Millisecond), RequestID: fmt.Sprint(i), Operation: "getInstance",
			Status: 200,
		})
	}
}

func TestCallsAreFollowed(t *testing.T) {
	audit := &fakeAudit{}
	f := newCallFollower(audit, timeline.Log{Start: began}, time.Time{})
	total := 0
	next := func(want int) {
		t.Helper()
		entries, err := f.fetchNew(t.Context())
		require.NoError(t, err)
		require.Len(t, entries, want)
		for _, e := range entries { // Newest first; Merge puts them in order.
			want--
			assert.Equal(t, fmt.Sprint(total+want), e.Call.RequestID)
		}
		total += len(entries)
	}
	next(0)
	audit.call(3)
	next(3)
	next(0)
	audit.call(60)
	next(60)
	audit.call(1)
	audit.pages = 0
	next(1)
	assert.Equal(t, 1, audit.pages, "a single page, once it follows")
	audit.call(7000)
	next(7000)
	audit.err = errors.New("the cloud is away")
	_, err := f.fetchNew(t.Context())
	require.ErrorContains(t, err, "away")
	audit.err = nil
	audit.call(2)
	next(2)
	assert.Len(t, audit.calls, total)
}

func TestCallsSince(t *testing.T) {
	audit := &fakeAudit{}
	audit.call(1000)
	f := newCallFollower(audit, timeline.Log{}, began.Add(990*time.Millisecond))
	entries, err := f.fetchNew(t.Context())
	require.NoError(t, err)
	assert.Len(t, entries, 10)
	assert.Equal(t, 1, audit.pages)
}

// A word when something is away for long, another when it is back, and none for
// a moment's absence.
func TestOutage(t *testing.T) {
	var o outage
	at := func(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }
	for _, step := range []struct {
		seconds float64
		away    bool
		want    transition
	}{
		{0, false, noTransition},
		{1, true, noTransition}, {2, false, noTransition}, // A moment.
		{3, true, noTransition}, {5, true, noTransition}, {7, true, goneAway}, {8, true, noTransition},
		{9, false, cameBack}, {10, false, noTransition},
		{11, true, noTransition}, {15, true, goneAway},
	} {
		assert.Equal(t, step.want, o.observe(step.away, at(step.seconds)), "at %vs", step.seconds)
	}
}

// absentCluster has no component.
type absentCluster struct{ cluster.Cluster }

func (absentCluster) Components(context.Context) ([]cluster.Component, error) { return nil, nil }

// On a busy machine a `down` may be long in deleting a lab of which nothing runs any
// more: that is no stopped lab, which `up` would start.
func TestALabThatGoesDownIsNotStopped(t *testing.T) {
	st, err := state.CreateDir(t.TempDir())
	require.NoError(t, err)
	l := &lab.Lab{State: st, Cluster: absentCluster{}, Host: process.Host{Lab: st.Path()}}
	require.NoError(t, l.Timeline().Create())
	var notes []string
	w := watcher{lab: l, note: func(s string) { notes = append(notes, s) }}
	look := func(at time.Time) bool {
		stopped, err := w.checkAgent(t.Context(), at)
		require.NoError(t, err)
		return stopped
	}
	assert.False(t, look(began), "it may be about to go")
	assert.False(t, look(began.Add(time.Hour)), "a command works on it")
	st.Unlock()
	assert.True(t, look(began.Add(time.Hour)))
	assert.Contains(t, notes[len(notes)-1], "is stopped")
	require.NoError(t, st.Remove())
	assert.False(t, look(began.Add(time.Hour)), "it is gone")
}
