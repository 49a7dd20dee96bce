// This file answers: how is the event log written, read and pruned?

package store

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// ErrEventsExpired means that events after the number asked for are not kept
// any more, or that the number is none this log has given (its data was
// replaced): either way the reader cannot resume and has to list anew.
var ErrEventsExpired = errors.New("events expired")

// AppendEvent writes an event in the change's transaction and drops those
// beyond what is kept.
func (tx *Tx) AppendEvent(ctx context.Context, e db.InsertEventParams) error {
	seq, err := tx.InsertEvent(ctx, e)
	if err != nil {
		return err
	}
	tx.events++
	return tx.PruneEvents(ctx, seq-tx.keep)
}

// Batch is a run of a project's events.
type Batch struct {
	Events []db.Event
	// Through is the number up to which nothing is left unread: where the next
	// read goes on. It also moves past other projects' events.
	Through int64
}

// EventsAfter reads at most limit events of the project with a greater number.
// A negative number starts with the oldest event kept.
func (s *Store) EventsAfter(ctx context.Context, project string, after, limit int64) (Batch, error) {
	var b Batch
	err := s.Read(ctx, func(tx *Tx) error {
		newest, err := orZero(tx.NewestEvent(ctx))
		if err != nil {
			return err
		}
		oldest, err := orZero(tx.OldestEvent(ctx))
		if err != nil {
			return err
		}
		if after >= 0 && (after > newest || after < oldest-1) {
			return ErrEventsExpired
		}
		after = max(after, 0)
		b.Events, err = tx.EventsAfter(ctx, db.EventsAfterParams{ProjectID: project, After: after, Max: limit})
		b.Through = newest
		if int64(len(b.Events)) == limit {
			b.Through = b.Events[limit-1].Seq
		}
		return err
	})
	return b, err
}

func orZero(n int64, err error) (int64, error) {
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return n, err
}

// Committed gives a channel that is closed when further events have been
// committed. Take it before reading, wait on it after: nothing is missed.
func (s *Store) Committed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

func (s *Store) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.commits)
	s.commits = make(chan struct{})
}
