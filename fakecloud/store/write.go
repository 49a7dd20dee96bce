package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// maxBatch bounds how many writes wait for one commit.
const maxBatch = 256

// ErrClosed is the error of a store that was closed.
var ErrClosed = errors.New("the store is closed")

// writeBatch is a number of writes that share one transaction, and so one commit.
//
// A commit waits for the disk, which is most of what a write costs. Writes take turns
// on the one connection that writes. Each runs in a savepoint, so that it can be undone
// alone. When it has run, it looks whether another write waits for its turn: if so, it
// leaves the commit to that one, and otherwise commits. So a write that is alone is
// committed at once, and writes that came while the disk was busy are committed together.
//
// An error that SQLite reports only at the commit is that of every write in the batch, so
// constraints must not be DEFERRABLE.
type writeBatch struct {
	done []*Tx // those that succeeded
	lost error // why the transaction cannot be committed

	over chan struct{} // closed when it is on disk or undone
	err  error         // set before that
}

// Write runs one change: all of it is on disk when Write returns nil, and none of it
// otherwise. Cancelling the caller does not interrupt it. fn runs on the caller's
// goroutine, while no other change does. It sees changes that will be committed together
// with its own. It must write by its Tx only, and must not use that after it has returned.
func (s *Store) Write(_ context.Context, fn func(*Tx) error) error { return markFull(s.writeOnce(fn)) }

func (s *Store) writeOnce(fn func(*Tx) error) error {
	s.open.RLock() // Close waits for writes that got this far.
	defer s.open.RUnlock()
	if s.closed {
		return ErrClosed
	}
	b, err := s.runInBatch(fn)
	if b == nil {
		return err
	}
	// A write that failed waits as well: what it failed for may not be on disk yet.
	<-b.over
	if err != nil {
		return err
	}
	return b.err
}

// runInBatch runs fn in the batch that is open, or in a new one.
func (s *Store) runInBatch(fn func(*Tx) error) (*writeBatch, error) {
	s.waiting.Add(1)
	s.turn.Lock()
	s.waiting.Add(-1)
	defer s.turn.Unlock()
	if s.batch == nil {
		if err := s.writer.run("BEGIN IMMEDIATE"); err != nil {
			return nil, err
		}
		s.batch = &writeBatch{over: make(chan struct{})}
	}
	b := s.batch
	defer func() { // Also when fn panics.
		if s.waiting.Load() == 0 || b.lost != nil || len(b.done) >= maxBatch {
			s.commitBatch()
		}
	}()
	return b, s.runInSavepoint(b, fn)
}

// runInSavepoint runs fn in a savepoint of the batch's transaction.
func (s *Store) runInSavepoint(b *writeBatch, fn func(*Tx) error) (err error) {
	if err := s.writer.run("SAVEPOINT change"); err != nil {
		b.lost = err
		return err
	}
	tx := newTx(s.writer, s.keepEvents)
	tx.additions = s.additions
	succeeded := false
	defer func() {
		if succeeded {
			return
		}
		// Some errors, a full disk among them, have undone all of the transaction.
		if lost := s.writer.run("ROLLBACK TO change; RELEASE change"); lost != nil {
			b.lost = errors.Join(err, lost)
		}
		tx.runRollbackHooks()
	}()
	if err := fn(tx); err != nil {
		return err
	}
	if err := s.writer.run("RELEASE change"); err != nil {
		return err
	}
	succeeded = true
	b.done = append(b.done, tx)
	return nil
}

// commitBatch ends the batch that is open.
func (s *Store) commitBatch() {
	b := s.batch
	s.batch = nil
	s.endBatch(b)
	s.checkpointIfGrown()
}

func (s *Store) endBatch(b *writeBatch) {
	defer close(b.over) // Also when a hook panics.
	err := b.lost
	if err == nil && len(b.done) > 0 {
		err = s.writer.run("COMMIT")
	}
	if err != nil || len(b.done) == 0 {
		_ = s.writer.run("ROLLBACK") // Nothing to undo if SQLite has.
	}
	if err == nil {
		s.notifyCommitted(b)
		return
	}
	b.err = fmt.Errorf("nothing was changed: committing %d writes together: %w", len(b.done), err)
	for _, tx := range slices.Backward(b.done) {
		tx.runRollbackHooks()
	}
}

// notifyCommitted runs the hooks of a committed batch and wakes readers of events.
func (s *Store) notifyCommitted(b *writeBatch) {
	if len(b.done) == 0 {
		return
	}
	s.countCommit(len(b.done))
	events := 0
	for _, tx := range b.done {
		for _, fn := range tx.afterCommit {
			fn()
		}
		events += tx.events
	}
	if events > 0 {
		s.announceCommit()
	}
}

// runExclusively runs fn while no write is under way and none is uncommitted.
func (s *Store) runExclusively(fn func() error) error {
	s.turn.Lock()
	defer s.turn.Unlock()
	if s.batch != nil {
		s.commitBatch()
	}
	return fn()
}

// OnRollback has fn run if the change is undone, because the change or its commit failed.
// It is for state that the process keeps beside the database. The latest hook runs first,
// and before any later change. fn must be quick and must not use the store.
func (tx *Tx) OnRollback(fn func()) { tx.onRollback = append(tx.onRollback, fn) }

// AfterCommit has fn run when the change is on disk, before its Write returns and before
// any later change. fn must be quick and must not use the store.
func (tx *Tx) AfterCommit(fn func()) { tx.afterCommit = append(tx.afterCommit, fn) }

func (tx *Tx) runRollbackHooks() {
	for _, fn := range slices.Backward(tx.onRollback) {
		fn()
	}
}
