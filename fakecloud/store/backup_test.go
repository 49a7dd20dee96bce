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

func TestBackupAndRestore(t *testing.T) {
	ctx := t.Context()
	kinds := []func() string{
		func() string { return store.Memory },
		func() string { return filepath.Join(t.TempDir(), "odd ?#% name.db") },
	}
	for _, from := range kinds {
		for _, to := range kinds {
			from, to := from(), to()
			s, other := open(t, from), open(t, to)
			add(t, s, "a", "b")
			add(t, other, "x")
			file := filepath.Join(t.TempDir(), "odd ?#% backup.db")
			require.NoError(t, os.WriteFile(file, []byte("an older one"), 0o644))
			require.NoError(t, s.Backup(ctx, file))
			add(t, s, "later")

			info, err := os.Stat(file)
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
			require.NoError(t, store.CheckFile(ctx, file))
			beside, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*"))
			require.NoError(t, err)
			assert.Equal(t, []string{file}, beside)
			before, err := os.ReadFile(file)
			require.NoError(t, err)

			require.NoError(t, other.Restore(ctx, file))
			assert.Equal(t, []string{"a", "b"}, projects(t, other))
			require.NoError(t, s.Restore(ctx, file))
			assert.Equal(t, []string{"a", "b"}, projects(t, s))
			add(t, s, "after") // Writers go on, too.
			assert.Equal(t, []string{"a", "after", "b"}, projects(t, s))
			after, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.True(t, string(before) == string(after), "only read")
			assert.NoDirExists(t, to+".restore")
		}
	}
}

func TestWhatWasRestoredIsOnDisk(t *testing.T) {
	dir := t.TempDir()
	live, file := filepath.Join(dir, "live.db"), filepath.Join(dir, "backup.db")
	s := open(t, live)
	add(t, s, "a")
	require.NoError(t, s.Backup(t.Context(), file))
	add(t, s, "b")
	require.NoError(t, s.Restore(t.Context(), file))
	add(t, s, "c")
	// As a killed process would leave it.
	for _, beside := range []string{"", "-wal"} {
		edit(t, live+beside, filepath.Join(dir, "crashed.db"+beside), func(b []byte) []byte { return b })
	}
	assert.Equal(t, []string{"a", "c"}, projects(t, open(t, filepath.Join(dir, "crashed.db"))))
}

// No reader of before can go on, however the two logs' numbers lie.
func TestEventNumbersExpireWhenRestored(t *testing.T) {
	ctx := t.Context()
	for name, ahead := range map[string]struct{ live, file int }{
		"live is ahead": {live: 9}, "the file is ahead": {file: 9}, "neither": {},
	} {
		t.Run(name, func(t *testing.T) {
			s, other := open(t, store.Memory), open(t, store.Memory)
			far := time.Now().Add(24 * time.Hour).UnixMilli() // Numbers may be ahead of the clock.
			jump := func(s *store.Store, n int) {
				require.NoError(t, s.Write(ctx, func(tx *store.Tx) error {
					if n == 0 {
						return nil
					}
					return tx.Exec(
						ctx, fmt.Sprintf("UPDATE sqlite_sequence SET seq = %d WHERE name = 'events'", far+int64(n)),
					)
				}))
			}
			jump(s, ahead.live)
			jump(other, ahead.file)
			add(t, s, "p", "q")
			add(t, other, "p", "q")
			var given []int64
			for _, log := range []*store.Store{s, other} {
				b, err := log.EventsAfter(ctx, "p", -1, 10)
				require.NoError(t, err)
				require.Len(t, b.Events, 1)
				given = append(given, b.Events[0].Seq-1, b.Events[0].Seq, b.Through)
			}
			file := filepath.Join(t.TempDir(), "backup.db")
			require.NoError(t, other.Backup(ctx, file))
			more := s.Committed()
			require.NoError(t, s.Restore(ctx, file))
			<-more // Who waits for events learns of it.
			for range 2 {
				for _, seq := range given {
					_, err := s.EventsAfter(ctx, "p", seq, 10)
					require.ErrorIs(t, err, store.ErrEventsExpired, "after %d", seq)
				}
				add(t, s, "r", "s", "t") // The same holds when there are events again.
			}
			b, err := s.EventsAfter(ctx, "p", -1, 10)
			require.NoError(t, err)
			assert.Greater(t, b.Through, time.Now().Add(-time.Hour).UnixMilli())
		})
	}
}

// Readers see all of the old data or all of the new, and a backup made meanwhile
// is sound.
func TestRestoreUnderLoad(t *testing.T) {
	for _, path := range []string{store.Memory, filepath.Join(t.TempDir(), "cloud.db")} {
		s := open(t, path)
		files := []string{filepath.Join(t.TempDir(), "a.db"), filepath.Join(t.TempDir(), "b.db")}
		for _, file := range files {
			source := open(t, store.Memory)
			for n := range 20 {
				add(t, source, fmt.Sprintf("%s%02d", filepath.Base(file)[:1], n))
			}
			require.NoError(t, source.Backup(t.Context(), file))
		}
		require.NoError(t, s.Restore(t.Context(), files[0]))
		g, ctx := errgroup.WithContext(t.Context())
		done := make(chan struct{})
		until := func(do func() error) func() error {
			return func() error {
				for {
					select {
					case <-done:
						return nil
					case <-ctx.Done():
						return nil
					default:
					}
					if err := do(); err != nil {
						return err
					}
				}
			}
		}
		for w := range 4 {
			g.Go(until(func() error { return seesOne(ctx, s) }))
			g.Go(until(func() error {
				return s.Write(ctx, func(tx *store.Tx) error { return addProject(ctx, tx, fmt.Sprintf("w%d", w)) })
			}))
		}
		running := filepath.Join(t.TempDir(), "running.db")
		g.Go(func() error {
			defer close(done)
			for n := range 8 {
				if err := errors.Join(
					s.Restore(ctx, files[n%2]), s.Backup(ctx, running), store.CheckFile(ctx, running),
				); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(t, g.Wait())
	}
}

// seesOne reads twice, and checks that one file's projects are all there and
// none of the other's.
func seesOne(ctx context.Context, s *store.Store) error {
	return s.Read(ctx, func(tx *store.Tx) error {
		for range 2 {
			kinds, err := tx.Strings(
				ctx,
				"SELECT substr(name, 1, 1) || count(*) FROM projects WHERE name NOT LIKE 'w%' GROUP BY substr(name, 1, 1)",
			)
			if err != nil {
				return err
			}
			if len(kinds) != 1 || kinds[0] != "a20" && kinds[0] != "b20" {
				return fmt.Errorf("a reader sees %v", kinds)
			}
		}
		return nil
	})
}

func TestRestoreFitsOtherPageSizes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "backup.db")
	source := open(t, store.Memory)
	add(t, source, "a", "b")
	require.NoError(t, source.Backup(t.Context(), file))
	conn, err := sql.Open("sqlite3", file)
	require.NoError(t, err)
	_, err = conn.ExecContext(t.Context(), "PRAGMA page_size = 16384; VACUUM; PRAGMA journal_mode = WAL")
	require.NoError(t, errors.Join(err, conn.Close()))
	for _, path := range []string{store.Memory, filepath.Join(t.TempDir(), "cloud.db")} {
		s := open(t, path)
		require.NoError(t, s.Restore(t.Context(), file))
		assert.Equal(t, []string{"a", "b"}, projects(t, s))
	}
}

func TestBackupAndRestoreThatFailChangeNothing(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	path := filepath.Join(dir, "cloud.db")
	s := open(t, path)
	add(t, s, "a")
	linked := filepath.Join(dir, "linked.db")
	require.NoError(t, os.Symlink(path, linked))
	for _, own := range []string{path, path + "-wal", path + ".lock", linked} {
		require.ErrorContains(t, s.Backup(ctx, own), "running database")
		require.ErrorContains(t, s.Restore(ctx, own), "running database")
	}
	good := filepath.Join(dir, "good.db")
	require.NoError(t, s.Backup(ctx, good))
	before, err := os.ReadFile(good)
	require.NoError(t, err)

	gone, cancel := context.WithCancel(ctx)
	cancel()
	add(t, s, "b")
	require.ErrorIs(t, s.Backup(gone, good), context.Canceled)
	require.ErrorIs(t, s.Restore(gone, good), context.Canceled)
	after, err := os.ReadFile(good)
	require.NoError(t, err)
	assert.True(t, string(before) == string(after), "the older backup is there")
	assert.NoFileExists(t, good+".partial")

	require.Error(t, s.Backup(ctx, filepath.Join(dir, "missing", "backup.db")))
	require.ErrorIs(t, s.Restore(ctx, filepath.Join(dir, "missing.db")), os.ErrNotExist)
	require.ErrorIs(t, s.Restore(ctx, os.DevNull), store.ErrUnusable)
	empty := filepath.Join(dir, "empty.db")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	require.ErrorIs(t, s.Restore(ctx, empty), store.ErrUnusable)
	assert.Equal(t, []string{"a", "b"}, projects(t, s))

	// A restore that has to wait for a reader can be given up.
	short, cancel := context.WithCancel(ctx)
	require.NoError(t, s.Read(ctx, func(tx *store.Tx) error {
		time.AfterFunc(50*time.Millisecond, cancel)
		require.ErrorIs(t, s.Restore(short, good), context.Canceled)
		return nil
	}))
	assert.Equal(t, []string{"a", "b"}, projects(t, s))
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Backup(ctx, good), store.ErrClosed)
	require.ErrorIs(t, s.Restore(ctx, good), store.ErrClosed)
}

// What a process that was killed while restoring left is cleared away.
func TestOpenClearsAnUnfinishedRestore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	require.NoError(t, os.MkdirAll(path+".restore", 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(path+".restore", "cloud.db"), []byte("half"), 0o600))
	open(t, path)
	assert.NoDirExists(t, path+".restore")
}
