package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/mattn/go-sqlite3"

	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// PartialSuffix ends the name of a backup's file until the backup is complete. A file with
// it was left by a process that was killed.
const PartialSuffix = ".partial"

// Backup writes the database, as it is at one moment, to a file that only its owner can
// read. Writes go on meanwhile, except in a store in memory, whose readers block writers
// anyway. An existing file of that name is replaced only when the new one is complete and
// on disk.
func (s *Store) Backup(ctx context.Context, path string) error {
	path, err := s.resolveOutside(path)
	if err != nil {
		return fmt.Errorf("backup to %s: %w", path, err)
	}
	err = s.runOneCopy(func() error {
		part := path + PartialSuffix
		defer func() { _ = os.Remove(part) }() // It exists only if something failed.
		if err := s.writeCopy(ctx, part); err != nil {
			return err
		}
		if err := os.Rename(part, path); err != nil {
			return err
		}
		return SyncFile(filepath.Dir(path))
	})
	if err != nil {
		return fmt.Errorf("backup to %s: %w", path, err)
	}
	return nil
}

// runOneCopy runs one backup or restore at a time, and makes Close wait for it.
func (s *Store) runOneCopy(fn func() error) error {
	s.copying.Lock()
	defer s.copying.Unlock()
	s.open.RLock()
	defer s.open.RUnlock()
	if s.closed {
		return ErrClosed
	}
	return markFull(fn())
}

// resolveOutside makes a path absolute and refuses the store's own files.
func (s *Store) resolveOutside(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil || s.path == Memory {
		return path, err
	}
	for _, own := range []string{s.path, s.path + "-wal", s.path + "-shm", s.path + ".lock"} {
		a, errA := os.Stat(own)
		b, errB := os.Stat(path)
		if own == path || errA == nil && errB == nil && os.SameFile(a, b) {
			return path, errors.New("is a file of the running database: choose another")
		}
	}
	return path, nil
}

// writeCopy makes a file that holds the whole database and needs no other file beside it.
func (s *Store) writeCopy(ctx context.Context, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	// A connection of its own, as this takes longer than reads do.
	from, err := s.read.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	file, err := openAlone(path)
	if err != nil {
		return err
	}
	err = withOnlyConn(ctx, file, func(to *sql.Conn) error {
		if err := s.copyOut(ctx, to, from); err != nil {
			return err
		}
		_, err := to.ExecContext(ctx, "PRAGMA journal_mode = DELETE")
		return err
	})
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	return SyncFile(path)
}

func (s *Store) copyOut(ctx context.Context, to, from *sql.Conn) error {
	if s.path == Memory {
		return s.runExclusively(func() error { return copyPages(ctx, to, from) })
	}
	return copyPages(ctx, to, from)
}

// openAlone opens a file that nobody else has open and that may be lost in a crash.
func openAlone(path string) (*sql.DB, error) {
	file, err := sql.Open("sqlite3", fileURI(path)+"?_synchronous=OFF&_foreign_keys=on")
	if err != nil {
		return nil, err
	}
	file.SetMaxOpenConns(1)
	return file, nil
}

func withOnlyConn(ctx context.Context, file *sql.DB, fn func(*sql.Conn) error) error {
	conn, err := file.Conn(ctx)
	if err != nil {
		return err
	}
	return errors.Join(fn(conn), conn.Close())
}

// copyPages replaces the content of one database by that of another, in one transaction.
func copyPages(ctx context.Context, to, from *sql.Conn) error {
	return to.Raw(func(to any) error {
		return from.Raw(func(from any) error {
			b, err := to.(*sqlite3.SQLiteConn).Backup("main", from.(*sqlite3.SQLiteConn), "main")
			if err != nil {
				return err
			}
			done, err := b.Step(-1)
			for ; err == nil && !done; done, err = b.Step(-1) { // It is locked for a moment.
				select {
				case <-ctx.Done():
					return errors.Join(ctx.Err(), b.Finish())
				case <-time.After(time.Millisecond):
				}
			}
			return errors.Join(err, b.Finish())
		})
	})
}

// SyncFile brings a file, or the names in a folder, to disk.
func SyncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Restore replaces all data by that of a file, which was written by Backup or an older
// release or is a data file that no process has open. Readers and writers wait for it.
// Afterwards, even after a crash, the store has all of the new data or, if there was an
// error, all of the old. The event log is empty then, and none of the numbers given before
// is in it: readers get ErrEventsExpired. The file itself is only read.
func (s *Store) Restore(ctx context.Context, path string) error {
	return s.restoreKeeping(ctx, path, s.keepAccessTokens)
}

// RestoreKeepingTokens is Restore, but the tokens stay as they are, of projects that the file has.
func (s *Store) RestoreKeepingTokens(ctx context.Context, path string) error {
	return s.restoreKeeping(ctx, path, func(ctx context.Context, snapshot *sql.Conn) error {
		return errors.Join(s.keepTokens(ctx, snapshot), s.keepAccessTokens(ctx, snapshot))
	})
}

// keepState changes the copy of a file that is being restored, so that something of now outlasts that.
type keepState func(ctx context.Context, snapshot *sql.Conn) error

func (s *Store) restoreKeeping(ctx context.Context, path string, keep keepState) error {
	path, err := s.resolveOutside(path)
	if err != nil {
		return fmt.Errorf("restore from %s: %w", path, err)
	}
	if err := s.runOneCopy(func() error { return s.restoreFile(ctx, path, keep) }); err != nil {
		return fmt.Errorf("restore from %s: nothing was changed: %w", path, err)
	}
	return nil
}

func (s *Store) restoreFile(ctx context.Context, path string, keep keepState) error {
	return s.withStagedCopy(ctx, path, func(from *sql.Conn) error {
		return s.runExclusively(func() error { return s.replaceContent(ctx, from, keep) })
	})
}

// Inspect shows fn the data that Restore would bring in, and changes nothing.
func (s *Store) Inspect(ctx context.Context, path string, fn func(*Tx) error) error {
	path, err := s.resolveOutside(path)
	if err != nil {
		return err
	}
	return s.runOneCopy(func() error {
		return s.withStagedCopy(ctx, path, func(from *sql.Conn) error { return fn(newTx(conn{from}, s.keepEvents)) })
	})
}

// ReadClock reads the time of the virtual clock from a backup's file. The file is neither
// locked nor changed, and may have an older schema. The error is sql.ErrNoRows for data
// that was never under a virtual clock.
func ReadClock(ctx context.Context, path string) (db.Clock, error) {
	file, err := sql.Open("sqlite3", fileURI(path)+"?mode=ro&immutable=1")
	if err != nil {
		return db.Clock{}, err
	}
	defer func() { _ = file.Close() }()
	return db.New(file).Clock(ctx)
}

// withStagedCopy runs do with a copy of a file that has the current schema.
func (s *Store) withStagedCopy(ctx context.Context, path string, do func(*sql.Conn) error) error {
	dir, err := s.makeStagingDir()
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file, err := s.stageCopy(ctx, filepath.Join(dir, "cloud.db"), path)
	if err != nil {
		return err
	}
	return errors.Join(withOnlyConn(ctx, file, do), file.Close())
}

// stagingDir is where a file that is being restored is prepared.
func stagingDir(path string) string { return path + ".restore" }

func (s *Store) makeStagingDir() (string, error) {
	if s.path == Memory {
		return os.MkdirTemp("", "fakecloud-restore-")
	}
	dir := stagingDir(s.path)
	return dir, errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700))
}

// stageCopy makes a copy that has the current schema.
func (s *Store) stageCopy(ctx context.Context, staged, path string) (*sql.DB, error) {
	if err := copyFile(staged, path); err != nil {
		return nil, err
	}
	if err := copyFile(staged+"-wal", path+"-wal"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := CheckFile(ctx, staged); err != nil {
		return nil, err
	}
	file, err := openAlone(staged)
	if err != nil {
		return nil, err
	}
	if err = migrateSchema(ctx, file); err == nil {
		err = s.fitPages(ctx, file)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// fitPages gives the copy this store's page size, which is fixed while a database is open,
// and removes its write-ahead log, which a store in memory cannot have.
func (s *Store) fitPages(ctx context.Context, file *sql.DB) error {
	if _, err := file.ExecContext(ctx, "PRAGMA journal_mode = DELETE"); err != nil {
		return err
	}
	var size int
	if err := file.QueryRowContext(ctx, "PRAGMA page_size").Scan(&size); err != nil || size == s.pageSize {
		return err
	}
	_, err := file.ExecContext(ctx, fmt.Sprintf("PRAGMA page_size = %d; VACUUM", s.pageSize))
	return err
}

// replaceContent brings the copy in, with an event log that no reader of either database
// can resume (see migration 2).
func (s *Store) replaceContent(ctx context.Context, from *sql.Conn, keep keepState) error {
	given, err := newTx(s.writer, s.keepEvents).newestEvent(ctx)
	if err != nil {
		return err
	}
	serial, err := newTx(s.writer, s.keepEvents).LastSerial(ctx)
	if err != nil {
		return err
	}
	if _, err := from.ExecContext(ctx, "DELETE FROM events"); err != nil {
		return err
	}
	// What was numbered since the snapshot was saved keeps its number for itself.
	if _, err := from.ExecContext(ctx, "UPDATE serials SET last = max(last, ?)", serial); err != nil {
		return err
	}
	if err := keep(ctx, from); err != nil {
		return err
	}
	if _, err := from.ExecContext(ctx, `UPDATE sqlite_sequence
		SET seq = max(seq, ?, CAST(unixepoch('subsec') * 1000 AS INTEGER)) + 1 WHERE name = 'events'`, given); err != nil {
		return err
	}
	if _, err := from.ExecContext(ctx, `DELETE FROM removed_events; INSERT INTO removed_events (project_id, through)
		SELECT '', seq FROM sqlite_sequence WHERE name = 'events'`); err != nil {
		return err
	}
	for n := range s.pinned { // In memory, each reader blocks the writer.
		select {
		case c := <-s.readers:
			defer func() { s.readers <- c }()
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d reads: %w", s.pinned-n, ctx.Err())
		}
	}
	if err := copyPages(ctx, s.writer.sql, from); err != nil {
		return err
	}
	clear(s.additions)
	if s.path != Memory {
		if s.frames, _, err = s.runCheckpoint("TRUNCATE"); err != nil {
			s.frames = 0 // It only makes the count of fsyncs wrong by one.
		}
	}
	s.announceCommit()
	return nil
}

// copyFile copies a file that a user named.
func copyFile(to, from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() { // Opening a pipe would wait, and reading a device never end.
		return unusableError("%s is no ordinary file", from)
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// keepTokens gives a snapshot the tokens of now in place of its own, so that none comes back that was deleted or rotated
// since. Those of a project that it does not have are left out.
func (s *Store) keepTokens(ctx context.Context, snapshot *sql.Conn) error {
	all, err := newTx(s.writer, s.keepEvents).AllTokens(ctx)
	if err != nil {
		return err
	}
	if _, err := snapshot.ExecContext(ctx, "DELETE FROM tokens"); err != nil {
		return err
	}
	for _, t := range all {
		_, err := snapshot.ExecContext(
			ctx, `INSERT INTO tokens (name, project_id, hash, role, origin, created_at, expires_at, rotated_at,
				previous_hash, previous_until) SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
				WHERE EXISTS (SELECT 1 FROM projects WHERE id = ?)`,
			t.Name, t.ProjectID, t.Hash, t.Role, t.Origin, t.CreatedAt, t.ExpiresAt, t.RotatedAt, t.PreviousHash,
			t.PreviousUntil, t.ProjectID,
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// keepAccessTokens has a snapshot know the access tokens of now: clients go on with theirs until these expire. What
// they open is up to the secrets that they were granted to.
func (s *Store) keepAccessTokens(ctx context.Context, snapshot *sql.Conn) error {
	all, err := newTx(s.writer, s.keepEvents).ListAccessTokens(ctx)
	if err != nil {
		return err
	}
	if _, err := snapshot.ExecContext(ctx, "DELETE FROM access_tokens"); err != nil {
		return err
	}
	for _, t := range all {
		_, err := snapshot.ExecContext(
			ctx, "INSERT INTO access_tokens (hash, granted_to, expires_at) VALUES (?, ?, ?)", t.Hash, t.GrantedTo, t.ExpiresAt,
		)
		if err != nil {
			return err
		}
	}
	return nil
}
