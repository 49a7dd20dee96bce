package store

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

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
	err = s.runBackup(func() error {
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

// runBackup runs one backup at a time, and makes Close wait for it.
func (s *Store) runBackup(fn func() error) error {
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
			return path, errors.New("is a file of the database itself: choose another")
		}
	}
	return path, nil
}

// writeCopy makes a file that holds the whole database but private keys, and needs no other file beside it.
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
	vacuum := func() error {
		// A store in memory would write it to memory, too.
		_, err := from.ExecContext(ctx, "PRAGMA query_only = 0; VACUUM INTO ?", fileURI(path)+"?vfs=unix")
		return err
	}
	if s.path == Memory {
		err = s.runExclusively(vacuum)
	} else {
		err = vacuum()
	}
	if err == nil {
		err = removePrivateKeys(ctx, path)
	}
	if err != nil {
		return err
	}
	return SyncFile(path)
}

// removePrivateKeys overwrites the private keys of certificates: a backup may go to other machines.
func removePrivateKeys(ctx context.Context, path string) error {
	file, err := sql.Open("sqlite3", fileURI(path)+"?_secure_delete=on&_journal_mode=MEMORY")
	if err != nil {
		return err
	}
	_, err = file.ExecContext(ctx, "DELETE FROM certificate_keys")
	return errors.Join(err, file.Close())
}

// SyncFile brings a file, or the names in a folder, to disk.
func SyncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
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

// Restore gives a data file that no process has open the content of another file, which was written by Backup or an
// older release or is such a data file itself. The other file is only read. Afterwards, even after a crash, the data
// file has all of the new content or, if there was an error, all of the old. One that is missing is created.
//
// What the data file keeps is in restore.sql.
func Restore(ctx context.Context, data, path string) (err error) {
	s, err := Open(ctx, data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	path, err = s.resolveOutside(path)
	if err == nil {
		err = s.replaceFile(ctx, path)
	}
	if err != nil {
		return fmt.Errorf("restore from %s: nothing was changed: %w", path, markFull(err))
	}
	return SyncFile(filepath.Dir(s.path))
}

// stagingDir is where a file that is being restored is prepared.
func stagingDir(path string) string { return path + ".restore" }

// replaceFile puts a copy of another file in this store's place. The store is not used afterwards but closed.
func (s *Store) replaceFile(ctx context.Context, path string) error {
	dir := stagingDir(s.path)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	staged := filepath.Join(dir, "cloud.db")
	if err := stageCopy(ctx, staged, path, s.path); err != nil {
		return err
	}
	if err := SyncFile(staged); err != nil {
		return err
	}
	if err := os.Rename(staged, s.path); err != nil {
		return err
	}
	// The old file's log is empty since Open. SQLite leaves it behind, as its data file was moved.
	_, _ = os.Remove(s.path+"-wal"), os.Remove(s.path+"-shm")
	return nil
}

//go:embed restore.sql
var keepFromLive string

// stageCopy makes a copy of a file that has the current schema, and what stays of the live database.
func stageCopy(ctx context.Context, staged, path, live string) error {
	if err := copyFile(staged, path); err != nil {
		return err
	}
	if err := copyFile(staged+"-wal", path+"-wal"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := CheckFile(ctx, staged); err != nil {
		return err
	}
	file, err := sql.Open("sqlite3", fileURI(staged)+"?_synchronous=OFF&_foreign_keys=on")
	if err != nil {
		return err
	}
	file.SetMaxOpenConns(1) // What is attached is so to one connection.
	err = migrateSchema(ctx, file)
	if err == nil {
		_, err = file.ExecContext(ctx, "PRAGMA journal_mode = DELETE; ATTACH ? AS live;"+keepFromLive, live)
	}
	return errors.Join(err, file.Close())
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
