package store

import (
	"context"
	"sync/atomic"
)

// checkpointFrames is how long the write-ahead log grows before a checkpoint, in pages of
// 4 KiB: 16 MiB, so that there are fewer waits for the disk than with the usual 4.
const checkpointFrames = 4000

// Stats counts what was done since Open. In memory nothing is synced.
type Stats struct {
	Writes      int64 // changes committed
	Commits     int64 // transactions that they took: never more than Writes
	Checkpoints int64 // times that pages went from the log to the data file
	// Fsyncs are the waits for the disk: one for each commit that changed
	// something, one more if the log began anew with it, and two for each
	// checkpoint. Open, Close and Backup are not counted.
	Fsyncs int64
}

type counters struct{ writes, commits, checkpoints, fsyncs atomic.Int64 }

// Stats gives what was done since Open.
func (s *Store) Stats() Stats {
	return Stats{
		Writes: s.counts.writes.Load(), Commits: s.counts.commits.Load(),
		Checkpoints: s.counts.checkpoints.Load(), Fsyncs: s.counts.fsyncs.Load(),
	}
}

// OnCommit has fn called after each commit with the number of changes in it. fn must be
// quick and must not use the store.
func OnCommit(fn func(writes int)) Option {
	return func(s *Store) { s.onCommit = fn }
}

func (s *Store) countCommit(writes int) {
	s.counts.writes.Add(int64(writes))
	s.counts.commits.Add(1)
	if s.onCommit != nil {
		s.onCommit(writes)
	}
}

// checkpointIfGrown empties the write-ahead log when it has grown enough. SQLite would do
// so itself, but would not report it, and would make callers wait.
func (s *Store) checkpointIfGrown() {
	if s.path == Memory {
		return
	}
	frames, _, err := s.runCheckpoint("NOOP")
	if err != nil {
		return // The next commit tries again, and fails itself if something is wrong.
	}
	switch {
	case frames < s.frames || s.frames == 0 && frames > 0:
		s.counts.fsyncs.Add(2) // The new log's header, and the commit.
	case frames > s.frames:
		s.counts.fsyncs.Add(1)
	}
	if s.frames = frames; frames < checkpointFrames {
		return
	}
	_, before, err := s.runCheckpoint("NOOP")
	if err != nil {
		return
	}
	// Readers may keep the checkpoint from being complete. Then the next commit continues it.
	if _, after, err := s.runCheckpoint("PASSIVE"); err == nil && after > before {
		s.counts.checkpoints.Add(1)
		s.counts.fsyncs.Add(2) // The log, then the data file.
	}
}

// runCheckpoint runs a checkpoint of a kind, and gives how many pages are in the log and
// how many of them are in the data file as well.
func (s *Store) runCheckpoint(kind string) (frames, moved int64, err error) {
	var busy int64
	err = s.writer.QueryRowContext(context.Background(), "PRAGMA wal_checkpoint("+kind+")").Scan(&busy, &frames, &moved)
	return frames, moved, err
}
