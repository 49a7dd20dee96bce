package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

func open(t *testing.T, path string, opts ...store.Option) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), path, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func addProject(ctx context.Context, tx *store.Tx, id string) error {
	_, err := tx.UpsertProject(ctx, db.UpsertProjectParams{ID: id, Name: id, DefaultTags: "{}"})
	return err
}

func addEvent(ctx context.Context, tx *store.Tx, project string) error {
	return tx.AppendEvent(ctx, db.InsertEventParams{ProjectID: project, Type: "created", Body: "{}"})
}

func TestWriteIsAllOrNothing(t *testing.T) {
	for _, path := range []string{store.Memory, filepath.Join(t.TempDir(), "odd ?#% name.db")} {
		t.Run(path, func(t *testing.T) {
			s := open(t, path)
			ctx := t.Context()
			boom := errors.New("boom")
			committed := s.Committed()
			require.ErrorIs(t, s.Write(ctx, func(tx *store.Tx) error {
				require.NoError(t, addProject(ctx, tx, "p"))
				require.NoError(t, addEvent(ctx, tx, "p"))
				return boom
			}), boom)
			require.NoError(t, s.Read(ctx, func(tx *store.Tx) error {
				_, err := tx.ProjectByName(ctx, "p")
				assert.ErrorIs(t, err, sql.ErrNoRows)
				return nil
			}))
			select {
			case <-committed:
				t.Fatal("told of an event that was rolled back")
			default:
			}
		})
	}
}

func TestReopenKeepsEverything(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "cloud.db")
	ctx := t.Context()
	s, err := store.Open(ctx, path)
	require.NoError(t, err)
	require.NoError(t, s.Write(ctx, func(tx *store.Tx) error { return addProject(ctx, tx, "p") }))
	require.NoError(t, s.Close())
	require.NoError(t, open(t, path).Read(ctx, func(tx *store.Tx) error {
		_, err := tx.ProjectByName(ctx, "p")
		return err
	}))
}

func TestOneProcessPerFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	open(t, path)
	_, err := store.Open(t.Context(), path)
	require.ErrorContains(t, err, "in use by another fakecloud")
}

func TestUnusableFilesAreRefusedAndUntouched(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "foreign.db")
	conn, err := sql.Open("sqlite3", foreign)
	require.NoError(t, err)
	_, err = conn.ExecContext(t.Context(), "CREATE TABLE recipes (name TEXT)")
	require.NoError(t, errors.Join(err, conn.Close()))

	text := filepath.Join(dir, "text.db")
	require.NoError(t, os.WriteFile(text, []byte("this is a shopping list, not a database"), 0o600))

	broken := filepath.Join(dir, "broken.db")
	s, err := store.Open(t.Context(), broken)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	content, err := os.ReadFile(broken)
	require.NoError(t, err)
	for i := 4096; i < len(content)-4096; i++ {
		content[i] = byte(i)
	}
	require.NoError(t, os.WriteFile(broken, content, 0o600))

	for path, want := range map[string]string{
		foreign: "another program", text: "header is not SQLite's", broken: "not a usable database",
	} {
		before, err := os.ReadFile(path)
		require.NoError(t, err)
		_, err = store.Open(t.Context(), path)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path)
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, before, after, path)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	s, err := store.Open(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	conn, err := sql.Open("sqlite3", path)
	require.NoError(t, err)
	_, err = conn.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, 1)")
	require.NoError(t, errors.Join(err, conn.Close()))
	_, err = store.Open(t.Context(), path)
	require.ErrorContains(t, err, "newer fakecloud")
}

func TestEventsArePrunedAndResumable(t *testing.T) {
	s := open(t, store.Memory, store.KeepEvents(5))
	ctx := t.Context()
	require.NoError(t, s.Write(ctx, func(tx *store.Tx) error {
		return errors.Join(addProject(ctx, tx, "p"), addProject(ctx, tx, "q"))
	}))
	b, err := s.EventsAfter(ctx, "p", -1, 10)
	require.NoError(t, err)
	assert.Equal(t, store.Batch{}, b)
	for range 8 {
		require.NoError(t, s.Write(ctx, func(tx *store.Tx) error { return addEvent(ctx, tx, "p") }))
	}
	b, err = s.EventsAfter(ctx, "p", -1, 10)
	require.NoError(t, err)
	assert.Equal(t, []int64{4, 5, 6, 7, 8}, seqs(b))
	b, err = s.EventsAfter(ctx, "p", 3, 2)
	require.NoError(t, err)
	assert.Equal(t, []int64{4, 5}, seqs(b))
	assert.EqualValues(t, 5, b.Through)
	for _, gone := range []int64{2, 9} {
		_, err = s.EventsAfter(ctx, "p", gone, 10)
		require.ErrorIs(t, err, store.ErrEventsExpired, "after %d", gone)
	}
	b, err = s.EventsAfter(ctx, "q", 3, 10)
	require.NoError(t, err)
	assert.Empty(t, b.Events, "another project's events")
	assert.EqualValues(t, 8, b.Through, "moves past them all the same")
}

func seqs(b store.Batch) []int64 {
	var out []int64
	for _, e := range b.Events {
		out = append(out, e.Seq)
	}
	return out
}

func TestReadersAndWritersAtOnce(t *testing.T) {
	for _, path := range []string{store.Memory, filepath.Join(t.TempDir(), "cloud.db")} {
		s := open(t, path)
		ctx := t.Context()
		require.NoError(t, s.Write(ctx, func(tx *store.Tx) error { return addProject(ctx, tx, "p") }))
		var g errgroup.Group
		for range 4 {
			g.Go(func() error {
				for range 25 {
					if err := s.Write(ctx, func(tx *store.Tx) error { return addEvent(ctx, tx, "p") }); err != nil {
						return fmt.Errorf("write: %w", err)
					}
				}
				return nil
			})
			g.Go(func() error { return readAll(ctx, s, 100) })
		}
		require.NoError(t, g.Wait())
	}
}

// readAll follows the log until n events have come, in order and without gaps.
func readAll(ctx context.Context, s *store.Store, n int64) error {
	var last int64
	for last < n {
		more := s.Committed()
		b, err := s.EventsAfter(ctx, "p", last, 7)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		for _, e := range b.Events {
			if e.Seq != last+1 {
				return fmt.Errorf("event %d came after %d", e.Seq, last)
			}
			last = e.Seq
		}
		if len(b.Events) == 0 {
			<-more
		}
	}
	return nil
}
