package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/mattn/go-sqlite3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// limitPages has the store meet a full disk beyond so many pages.
func limitPages(t *testing.T, s *store.Store, pages int) {
	t.Helper()
	require.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
		return tx.Exec(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", pages))
	}))
}

func TestAFullDiskKeepsWhatWasAcknowledged(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "cloud.db")
	s := must.Do(store.Open(ctx, path))(t)
	require.NoError(t, s.Write(ctx, func(tx *store.Tx) error { return addProject(ctx, tx, "p") }))
	limitPages(t, s, 150)
	add := func(from, to int64) error {
		return s.Write(ctx, func(tx *store.Tx) error {
			for n := from; n < to; n++ {
				if err := addInstance(ctx, tx, n); err != nil {
					return err
				}
			}
			return nil
		})
	}
	var acknowledged int64
	var err error
	for acknowledged = 0; acknowledged < 10_000; acknowledged++ {
		if err = add(acknowledged, acknowledged+1); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, store.ErrFull)
	require.Positive(t, acknowledged)
	require.ErrorIs(t, add(acknowledged, acknowledged+100), store.ErrFull, "a larger one")

	count := func(s *store.Store) (n int) {
		require.NoError(t, s.Read(ctx, func(tx *store.Tx) error {
			ids, err := tx.Strings(ctx, "SELECT id FROM resources")
			n = len(ids)
			return err
		}))
		return n
	}
	assert.EqualValues(t, acknowledged, count(s), "reads go on")

	limitPages(t, s, 100_000)
	require.NoError(t, add(acknowledged, acknowledged+1), "there is room again")
	require.NoError(t, s.Close())
	assert.EqualValues(t, acknowledged+1, count(open(t, path)))
}

func TestWhatSharesATransactionIsToldOfTheFullDisk(t *testing.T) {
	ctx := t.Context()
	s := open(t, filepath.Join(t.TempDir(), "cloud.db"))
	add := func(id string) func(*store.Tx) error {
		return func(tx *store.Tx) error { return addProject(ctx, tx, id) }
	}
	full := func(tx *store.Tx) error { // SQLite may undo the whole transaction.
		require.NoError(t, tx.Exec(ctx, "ROLLBACK"))
		return sqlite3.Error{Code: sqlite3.ErrFull}
	}
	for _, err := range together(t, s, add("p1"), full, add("p2")) {
		if err != nil {
			require.ErrorIs(t, err, store.ErrFull)
		}
	}
}

func TestWhatCountsAsNoRoom(t *testing.T) {
	s := open(t, store.Memory)
	for err, want := range map[error]bool{
		sqlite3.Error{Code: sqlite3.ErrFull}:                               true,
		sqlite3.Error{Code: sqlite3.ErrIoErr, SystemErrno: syscall.EDQUOT}: true,
		&os.PathError{Err: syscall.ENOSPC}:                                 true,
		sqlite3.Error{Code: sqlite3.ErrIoErr, SystemErrno: syscall.EIO}:    false,
		sqlite3.Error{Code: sqlite3.ErrConstraint}:                         false,
	} {
		got := s.Write(t.Context(), func(*store.Tx) error { return err })
		require.ErrorIs(t, got, err)
		if want {
			require.ErrorIs(t, got, store.ErrFull)
		} else {
			require.NotErrorIs(t, got, store.ErrFull)
		}
	}
}
