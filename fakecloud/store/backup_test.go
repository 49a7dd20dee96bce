package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func add(t *testing.T, s *store.Store, names ...string) {
	t.Helper()
	require.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
		for _, name := range names {
			if err := errors.Join(addProject(t.Context(), tx, name), addEvent(t.Context(), tx, name)); err != nil {
				return err
			}
		}
		return nil
	}))
}

// restore restores a file to a data file, and opens that.
func restore(t *testing.T, data, file string) *store.Store {
	t.Helper()
	require.NoError(t, store.Restore(t.Context(), data, file))
	return open(t, data)
}

func TestBackupAndRestore(t *testing.T) {
	ctx := t.Context()
	for _, path := range []string{store.Memory, filepath.Join(t.TempDir(), "odd ?#% name.db")} {
		s := open(t, path)
		add(t, s, "a", "b")
		file := filepath.Join(t.TempDir(), "odd ?#% backup.db")
		require.NoError(t, os.WriteFile(file, []byte("an older one"), 0o644))
		require.NoError(t, s.Backup(ctx, file))
		add(t, s, "later")

		assert.Equal(t, os.FileMode(0o600), must.Do(os.Stat(file))(t).Mode().Perm())
		require.NoError(t, store.CheckFile(ctx, file))
		assert.Equal(t, []string{file}, must.Do(filepath.Glob(filepath.Join(filepath.Dir(file), "*")))(t))
		before := must.Do(os.ReadFile(file))(t)

		data := filepath.Join(t.TempDir(), "cloud.db")
		for range 2 { // Of a missing data file, and of one with other content.
			restored := restore(t, data, file)
			assert.Equal(t, []string{"a", "b"}, projects(t, restored))
			add(t, restored, "after")
			require.NoError(t, restored.Close())
		}
		assert.Equal(t, []string{"a", "after", "b"}, projects(t, open(t, data)))
		assert.True(t, string(before) == string(must.Do(os.ReadFile(file))(t)), "only read")
		assert.NoDirExists(t, data+".restore")
	}
}

// No reader of before can go on, however the two logs' numbers lie, and no number of a resource is given twice.
func TestNumbersOfBeforeARestore(t *testing.T) {
	ctx := t.Context()
	for name, ahead := range map[string]struct{ live, file int }{
		"live is ahead": {live: 9}, "the file is ahead": {file: 9}, "neither": {},
	} {
		t.Run(name, func(t *testing.T) {
			data := filepath.Join(t.TempDir(), "cloud.db")
			s, other := open(t, data), open(t, store.Memory)
			far := time.Now().Add(24 * time.Hour).UnixMilli() // Numbers may be ahead of the clock.
			jump := func(s *store.Store, n int) {
				require.NoError(t, s.Write(ctx, func(tx *store.Tx) error {
					if n == 0 {
						return nil
					}
					return tx.Exec(ctx, fmt.Sprintf("UPDATE sqlite_sequence SET seq = %d WHERE name = 'events'; "+
						"UPDATE serials SET last = %d", far+int64(n), n))
				}))
			}
			jump(s, ahead.live)
			jump(other, ahead.file)
			add(t, s, "p", "q")
			add(t, other, "p", "q")
			var given []int64
			for _, log := range []*store.Store{s, other} {
				b := must.Do(log.EventsAfter(ctx, "p", -1, 10))(t)
				require.Len(t, b.Events, 1)
				given = append(given, b.Events[0].Seq-1, b.Events[0].Seq, b.Through)
			}
			file := filepath.Join(t.TempDir(), "backup.db")
			require.NoError(t, other.Backup(ctx, file))
			require.NoError(t, s.Close())
			s = restore(t, data, file)
			for range 2 {
				for _, seq := range given {
					_, err := s.EventsAfter(ctx, "p", seq, 10)
					require.ErrorIs(t, err, store.ErrEventsExpired, "after %d", seq)
				}
				add(t, s, "r", "s", "t") // The same holds when there are events again.
			}
			events := must.Do(s.EventsAfter(ctx, "p", -1, 10))(t)
			assert.Greater(t, events.Through, time.Now().Add(-time.Hour).UnixMilli())
			require.NoError(t, s.Write(ctx, func(tx *store.Tx) error {
				serial, err := tx.NextSerial(ctx)
				assert.EqualValues(t, max(ahead.live, ahead.file)+1, serial)
				return err
			}))
		})
	}
}

// A backup is of one moment, and writers go on meanwhile.
func TestBackupUnderLoad(t *testing.T) {
	for _, path := range []string{store.Memory, filepath.Join(t.TempDir(), "cloud.db")} {
		s := open(t, path)
		g, ctx := errgroup.WithContext(t.Context())
		done := make(chan struct{})
		for w := range 4 {
			g.Go(func() error {
				for n := 0; ; n++ {
					select {
					case <-done:
						return nil
					default:
					}
					if err := s.Write(ctx, func(tx *store.Tx) error {
						return errors.Join(
							addProject(ctx, tx, fmt.Sprintf("w%d-%d", w, n)), addProject(ctx, tx, fmt.Sprintf("x%d-%d", w, n)),
						)
					}); err != nil {
						return err
					}
				}
			})
		}
		running := filepath.Join(t.TempDir(), "running.db")
		g.Go(func() error {
			defer close(done)
			for range 8 {
				if err := errors.Join(s.Backup(ctx, running), store.CheckFile(ctx, running)); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(t, g.Wait())
		assert.Zero(t, len(projects(t, open(t, running)))%2, "a write is in it wholly or not at all")
	}
}

func TestRestoreOfAFileWithALogAndOtherPages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "backup.db")
	source := open(t, store.Memory)
	add(t, source, "a", "b")
	require.NoError(t, source.Backup(t.Context(), file))
	conn := must.Do(sql.Open("sqlite3", file))(t)
	_, err := conn.ExecContext(t.Context(), "PRAGMA page_size = 16384; VACUUM; PRAGMA journal_mode = WAL")
	require.NoError(t, errors.Join(err, conn.Close()))
	assert.Equal(t, []string{"a", "b"}, projects(t, restore(t, filepath.Join(t.TempDir(), "cloud.db"), file)))
	assert.Len(t, projects(t, restore(t, filepath.Join(t.TempDir(), "cloud.db"), crashed(t, 3))), 3)
}

func TestBackupAndRestoreThatFailChangeNothing(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	path := filepath.Join(dir, "cloud.db")
	s := open(t, path)
	add(t, s, "a")
	linked := filepath.Join(dir, "linked.db")
	require.NoError(t, os.Symlink(path, linked))
	own := []string{path, path + "-wal", path + ".lock", linked}
	for _, own := range own {
		require.ErrorContains(t, s.Backup(ctx, own), "the database itself")
	}
	good := filepath.Join(dir, "good.db")
	require.NoError(t, s.Backup(ctx, good))
	before := must.Do(os.ReadFile(good))(t)
	require.ErrorContains(t, store.Restore(ctx, path, good), "in use by another fakecloud")

	gone, cancel := context.WithCancel(ctx)
	cancel()
	add(t, s, "b")
	require.ErrorIs(t, s.Backup(gone, good), context.Canceled)
	assert.True(t, string(before) == string(must.Do(os.ReadFile(good))(t)), "the older backup is there")
	assert.NoFileExists(t, good+".partial")
	require.Error(t, s.Backup(ctx, filepath.Join(dir, "missing", "backup.db")))
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Backup(ctx, good), store.ErrClosed)

	for _, own := range own {
		require.Error(t, store.Restore(ctx, path, own))
	}
	require.ErrorIs(t, store.Restore(gone, path, good), context.Canceled)
	require.ErrorIs(t, store.Restore(ctx, path, filepath.Join(dir, "missing.db")), os.ErrNotExist)
	require.ErrorIs(t, store.Restore(ctx, path, os.DevNull), store.ErrUnusable)
	empty := filepath.Join(dir, "empty.db")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	require.ErrorIs(t, store.Restore(ctx, path, empty), store.ErrUnusable)
	assert.Equal(t, []string{"a", "b"}, projects(t, open(t, path)))
}

// What a process that was killed while restoring left is cleared away.
func TestOpenClearsAnUnfinishedRestore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	require.NoError(t, os.MkdirAll(path+".restore", 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(path+".restore", "cloud.db"), []byte("half"), 0o600))
	open(t, path)
	assert.NoDirExists(t, path+".restore")
}
