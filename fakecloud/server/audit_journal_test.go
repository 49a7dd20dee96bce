package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// shelf is where a journal's batches go, unless it is broken.
type shelf struct {
	broken  bool
	entries []cloud.AuditEntry
	sums    map[cloud.AuditCaller]cloud.AuditSum
}

func (s *shelf) keep(_ context.Context, b cloud.AuditBatch) (int64, error) {
	if s.broken {
		return 0, errors.New("no space left")
	}
	first := int64(len(s.entries) + 1)
	for i, e := range b.Entries {
		e.ID = first + int64(i)
		s.entries = append(s.entries, e)
	}
	for _, e := range b.Amended {
		s.entries[e.ID-1] = e
	}
	for _, n := range b.Sums {
		all := s.sums[n.AuditCaller]
		all.AuditCaller = n.AuditCaller
		all.Add(n)
		s.sums[n.AuditCaller] = all
	}
	return first, nil
}

// Whatever fails and when: each call is stored once, as it was at last, in its
// order, and the sums are those of the calls.
func TestTheJournalLosesNothing(t *testing.T) {
	over := make(chan struct{})
	close(over)
	rapid.Check(t, func(t *rapid.T) {
		s := &shelf{sums: map[cloud.AuditCaller]cloud.AuditSum{}}
		// Armed: nothing is stored but when this test says so.
		j := &journal{
			appendBatch: s.keep, log: slog.New(slog.DiscardHandler), stopped: over, flushScheduled: true,
			sums: map[cloud.AuditCaller]*cloud.AuditSum{}, agents: map[cloud.AuditCaller]map[string]bool{},
		}
		j.room.L = &j.mu
		var all []*journalEntry
		calls := rapid.IntRange(1, 1200).Draw(t, "calls")
		for i := range calls {
			e := cloud.AuditEntry{
				RequestID: fmt.Sprint(i), AuditCaller: cloud.AuditCaller{Token: "t", Operation: fmt.Sprint("op", i%3)},
				Status: 200 + 100*(i%4), Duration: time.Millisecond, BytesOut: int64(i),
			}
			all = append(all, j.recordQuietly(e))
			if i%37 == 0 {
				j.amendEntry(all[rapid.IntRange(0, i).Draw(t, "which")], 1000, time.Second)
			}
			if i%101 == 0 {
				s.broken = rapid.Bool().Draw(t, "broken")
				err := j.flush(t.Context())
				j.flushScheduled = true
				require.Equal(t, s.broken, err != nil)
			}
		}
		s.broken = false
		require.NoError(t, j.flush(t.Context()))
		require.Len(t, s.entries, calls)
		want := map[cloud.AuditCaller]cloud.AuditSum{}
		for i, e := range s.entries {
			require.Equal(t, fmt.Sprint(i), e.RequestID)
			require.Equal(t, all[i].BytesOut, e.BytesOut)
			require.Equal(t, all[i].Duration, e.Duration)
			sum := want[e.AuditCaller]
			sum.AuditCaller = e.AuditCaller
			sum.Add(sumOf(e))
			want[e.AuditCaller] = sum
		}
		require.Equal(t, want, s.sums)
	})
}

// recordQuietly records without the batch that is stored by itself when it is
// full.
func (j *journal) recordQuietly(e cloud.AuditEntry) *journalEntry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.addEntry(e)
}

// A full queue holds callers up until there is room, and lets them go with their
// calls summed, but not listed, when nothing can be stored.
func TestTheJournalIsBounded(t *testing.T) {
	s := &shelf{broken: true, sums: map[cloud.AuditCaller]cloud.AuditSum{}}
	stuck := make(chan struct{})
	j := &journal{
		log: slog.New(slog.DiscardHandler), stopped: make(chan struct{}), flushScheduled: true,
		sums: map[cloud.AuditCaller]*cloud.AuditSum{}, agents: map[cloud.AuditCaller]map[string]bool{},
		appendBatch: func(ctx context.Context, b cloud.AuditBatch) (int64, error) { <-stuck; return s.keep(ctx, b) },
	}
	j.room.L = &j.mu
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range journalLimit + journalBatch + 10 {
			j.recordCall(cloud.AuditEntry{Status: 200})
		}
	}()
	full := func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return len(j.entries) == journalLimit
	}
	require.Eventually(t, full, 10*time.Second, time.Millisecond)
	select {
	case <-done:
		t.Fatal("nobody was held up")
	default:
	}
	close(stuck)
	<-done
	j.flushing.Lock() // Whatever is being stored by itself.
	s.broken = false
	j.flushing.Unlock()
	require.NoError(t, j.flush(t.Context()))
	require.EqualValues(t, journalLimit+journalBatch+10, s.sums[cloud.AuditCaller{}].Calls)
	require.GreaterOrEqual(t, len(s.entries), journalLimit)
}
