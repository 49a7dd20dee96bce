package store

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// ErrEventsExpired means that the reader cannot resume and has to list anew: events after
// the number asked for are not kept any more, or the log never gave that number, because
// its data was replaced.
var ErrEventsExpired = errors.New("events expired")

// AppendEvent writes an event in the change's transaction, and drops the project's oldest
// beyond those that are kept.
func (tx *Tx) AppendEvent(ctx context.Context, e db.InsertEventParams) error {
	if _, err := tx.InsertEvent(ctx, e); err != nil {
		return err
	}
	tx.events++
	err := tx.PruneRows("events", e.ProjectID, 1, tx.keepEvents, func() error {
		seq, err := tx.EventBeyond(ctx, db.EventBeyondParams{ProjectID: e.ProjectID, Keep: tx.keepEvents.Rows})
		return tx.removeEvents(ctx, e.ProjectID, seq, err)
	})
	if err != nil {
		return err
	}
	return tx.PruneBytes("events", e.ProjectID, int64(len(e.Body)), tx.keepEvents,
		func() (int64, error) { return tx.EventBytes(ctx, e.ProjectID) },
		func(keep int64) error {
			seq, err := tx.EventBeyondBytes(ctx, db.EventBeyondBytesParams{ProjectID: e.ProjectID, Keep: keep})
			return tx.removeEvents(ctx, e.ProjectID, seq, err)
		})
}

// RemoveProjectEvents removes the events of a project that goes. Who follows all projects and has not read as far is
// to know.
func (tx *Tx) RemoveProjectEvents(ctx context.Context, project string) error {
	newest, err := tx.EventBeyond(ctx, db.EventBeyondParams{ProjectID: project, Keep: 0})
	return tx.removeEvents(ctx, project, newest, err)
}

// removeEvents removes a project's events through one that a query found, if it found one,
// and has readers who did not read as far know.
func (tx *Tx) removeEvents(ctx context.Context, project string, through int64, found error) error {
	if errors.Is(found, sql.ErrNoRows) {
		return nil
	}
	if found != nil {
		return found
	}
	if err := tx.PruneEvents(ctx, db.PruneEventsParams{ProjectID: project, Through: through}); err != nil {
		return err
	}
	return tx.SetRemovedEvents(ctx, db.SetRemovedEventsParams{ProjectID: project, Through: through})
}

// Batch is a number of consecutive events.
type Batch struct {
	Events []db.Event
	// Through is the number from which to continue. It also moves past other projects'
	// events.
	Through int64
}

// EventsAfter reads at most limit events after a number: those of the project, or
// everyone's if project is empty. A negative number starts with the oldest event kept.
func (s *Store) EventsAfter(ctx context.Context, project string, after, limit int64) (Batch, error) {
	var b Batch
	err := s.Read(ctx, func(tx *Tx) error {
		newest, err := tx.newestEvent(ctx)
		if err != nil {
			return err
		}
		removed, err := tx.RemovedEvents(ctx, project)
		if err != nil {
			return err
		}
		if after >= 0 && (after > newest || after < removed) {
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

// LastEvent is the number of the last event.
func (s *Store) LastEvent(ctx context.Context) (seq int64, err error) {
	err = s.Read(ctx, func(tx *Tx) error {
		seq, err = tx.newestEvent(ctx)
		return err
	})
	return seq, err
}

// newestEvent is the number of the last event. If there was none, it is one less than
// the number of the first, as a new log does not start at 1 (migration 2). sqlc does not know
// this table of SQLite's.
func (tx *Tx) newestEvent(ctx context.Context) (seq int64, err error) {
	err = tx.conn.QueryRowContext(ctx, "SELECT seq FROM sqlite_sequence WHERE name = 'events'").Scan(&seq)
	return seq, err
}

// Committed gives a channel that is closed when further events have been committed. A
// reader that takes it before reading misses nothing.
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
