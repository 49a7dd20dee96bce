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
	return tx.PruneEvents(ctx, seq-tx.keepEvents)
}

// Batch is a run of a project's events.
type Batch struct {
	Events []db.Event
	// Through is the number up to which nothing is left unread: where the next
	// read goes on. It also moves past other projects' events.
	Through int64
}

// EventsAfter reads at most limit events with a greater number: the project's
// or, with "", everyone's. A negative number starts with the oldest event kept.
func (s *Store) EventsAfter(ctx context.Context, project string, after, limit int64) (Batch, error) {
	var b Batch
	err := s.Read(ctx, func(tx *Tx) error {
		newest, err := tx.newestEvent(ctx)
		if err != nil {
			return err
		}
		oldest, err := tx.OldestEvent(ctx)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			oldest = newest + 1 // None is kept: the next to come.
		case err != nil:
			return err
		}
		if after >= 0 && (after > newest || after < oldest-1) {
			return ErrEventsExpired
		}
		after = max(after, 0)
		if project == "" {
			b.Events, err = tx.AllEventsAfter(ctx, db.AllEventsAfterParams{After: after, Max: limit})
		} else {
			b.Events, err = tx.EventsAfter(ctx, db.EventsAfterParams{ProjectID: project, After: after, Max: limit})
		}
		b.Through = newest
		if int64(len(b.Events)) == limit {
			b.Through = b.Events[limit-1].Seq
		}
		return err
	})
	return b, err
}

// LastEvent is the last number given.
func (s *Store) LastEvent(ctx context.Context) (seq int64, err error) {
	err = s.Read(ctx, func(tx *Tx) error {
		seq, err = tx.newestEvent(ctx)
		return err
	})
	return seq, err
}

// newestEvent is the last number given, or the one before the first: numbers of
// a new log do not start at 1 (migration 2). sqlc does not know SQLite's table.
func (tx *Tx) newestEvent(ctx context.Context) (seq int64, err error) {
	err = tx.conn.QueryRowContext(ctx, "SELECT seq FROM sqlite_sequence WHERE name = 'events'").Scan(&seq)
	return seq, err
}

// Committed gives a channel that is closed when further events have been
// committed. Take it before reading, wait on it after: nothing is missed.
func (s *Store) Committed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

func (s *Store) announceCommit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.commits)
	s.commits = make(chan struct{})
}
