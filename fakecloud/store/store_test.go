package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

func open(t *testing.T, path string, opts ...store.Option) *store.Store {
	t.Helper()
	s := must.Do(store.Open(t.Context(), path, opts...))(t)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// addProject adds a project unless it is there.
func addProject(ctx context.Context, tx *store.Tx, id string) error {
	if _, err := tx.GetProject(ctx, id); !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	return tx.InsertProject(ctx, db.InsertProjectParams{ID: id, Name: id, DefaultTags: "{}"})
}

func addEvent(ctx context.Context, tx *store.Tx, project string) error {
	return tx.AppendEvent(ctx, db.InsertEventParams{ProjectID: project, Type: "created", Body: "{}"})
}

func instanceID(n int64) string { return fmt.Sprintf("i-%026d", n) }

// addInstance is what a create costs the store: a row and its event.
func addInstance(ctx context.Context, tx *store.Tx, n int64) error {
	id, address := instanceID(n), fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255)
	document := fmt.Sprintf(
		`{"id":%q,"name":"worker-%s","zone":"nebula-1a","type":"small","state":"pending","address":%q,"tags":{"cluster":"lab","role":"worker"},"version":1}`,
		id, id, address,
	)
	serial, err := tx.NextSerial(ctx)
	if err != nil {
		return err
	}
	err = tx.InsertResource(ctx, db.InsertResourceParams{
		ID: id, Kind: "instance", ProjectID: "p", Name: "worker-" + id, Zone: "nebula-1a", State: "pending",
		Address: &address, Version: 1, Document: document, Serial: serial,
	})
	if err != nil {
		return err
	}
	return tx.AppendEvent(ctx, db.InsertEventParams{
		ProjectID: "p", Time: n, Type: "created", Resource: "instance", ResourceID: id, Name: "worker-" + id,
		ToState: "pending", Body: document,
	})
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
				_, err := tx.EventBeyond(ctx, db.EventBeyondParams{ProjectID: "p"})
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
	s := must.Do(store.Open(ctx, path))(t)
	require.NoError(t, s.Write(ctx, func(tx *store.Tx) error {
		return errors.Join(addProject(ctx, tx, "p"), addEvent(ctx, tx, "p"))
	}))
	for _, file := range []string{path, path + "-wal", path + "-shm", path + ".lock"} {
		assert.Equal(t, os.FileMode(0o600), must.Do(os.Stat(file))(t).Mode().Perm(), file)
	}
	b := must.Do(s.EventsAfter(ctx, "p", -1, 10))(t)
	require.NoError(t, s.Close())
	again := must.Do(open(t, path).EventsAfter(ctx, "p", -1, 10))(t)
	require.Len(t, b.Events, 1)
	assert.Equal(t, b, again)
}

func TestReadsChangeNothing(t *testing.T) {
	for _, path := range []string{store.Memory, filepath.Join(t.TempDir(), "cloud.db")} {
		s := open(t, path)
		err := s.Read(t.Context(), func(tx *store.Tx) error { return addProject(t.Context(), tx, "p") })
		require.ErrorContains(t, err, "readonly", path)
	}
}

// Numbers that an older log has given, few or many, are none of a new one's.
func TestNumbersOfReplacedDataAreExpired(t *testing.T) {
	ctx := t.Context()
	older := open(t, store.Memory)
	require.NoError(t, older.Write(ctx, func(tx *store.Tx) error { return addProject(ctx, tx, "p") }))
	first := must.Do(older.EventsAfter(ctx, "p", -1, 1))(t)
	require.NoError(t, older.Write(ctx, func(tx *store.Tx) error { return addEvent(ctx, tx, "p") }))
	last := must.Do(older.EventsAfter(ctx, "p", -1, 1))(t)
	require.Equal(t, first.Through+1, last.Through)

	// A log is as old as its millisecond.
	require.Eventually(t, func() bool {
		return time.Now().UnixMilli() > last.Through
	}, 10*time.Second, time.Millisecond)
	newer := open(t, store.Memory)
	expired := func(when string) {
		for _, seq := range []int64{0, 1, first.Through, last.Through} {
			_, err := newer.EventsAfter(ctx, "p", seq, 1)
			assert.ErrorIs(t, err, store.ErrEventsExpired, "after %d, %s", seq, when)
		}
	}
	expired("while it is empty")
	require.NoError(t, newer.Write(ctx, func(tx *store.Tx) error {
		return errors.Join(
			addProject(ctx, tx, "p"), addEvent(ctx, tx, "p"), addEvent(ctx, tx, "p"), addEvent(ctx, tx, "p"),
		)
	}))
	expired("when it is longer than the older")
}

func TestOneProcessPerFileByWhateverName(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.Mkdir("data", 0o700))
	require.NoError(t, os.Symlink("data", "folder"))
	require.NoError(t, os.Symlink(filepath.Join("data", "cloud.db"), "file.db"))
	require.NoError(t, os.Symlink("file.db", "link-to-link.db"))
	_, err := store.Open(t.Context(), "file.db")
	require.ErrorContains(t, err, "is a symbolic link to data/cloud.db, which is missing")

	// The file does not exist yet: its folder alone can be resolved.
	open(t, filepath.Join("folder", "cloud.db"))
	for _, name := range []string{
		"file.db", "link-to-link.db", filepath.Join("folder", "cloud.db"), filepath.Join("data", "cloud.db"),
		filepath.Join(dir, "data", "..", "folder", "cloud.db"),
	} {
		_, err := store.Open(t.Context(), name)
		require.ErrorContains(t, err, "in use by another fakecloud", name)
	}
}

func TestALogIsCheckedByWhateverName(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link.db")
	require.NoError(t, os.Symlink(filepath.Join(dir, "cloud.db"), link))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cloud.db"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cloud.db-wal"), []byte("changes"), 0o600))
	_, err := store.Open(t.Context(), link)
	require.ErrorIs(t, err, store.ErrUnusable)
}

// A project that has many events removes none of another's, nor its reader's place.
func TestEventsArePrunedByProject(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	s, ctx := open(t, path, store.KeepEvents(5)), t.Context()
	before := must.Do(s.EventsAfter(ctx, "q", -1, 10))(t).Through
	require.NoError(t, s.Write(ctx, func(tx *store.Tx) error {
		return errors.Join(addProject(ctx, tx, "p"), addProject(ctx, tx, "q"), addEvent(ctx, tx, "p"))
	}))
	for range 8 {
		require.NoError(t, s.Write(ctx, func(tx *store.Tx) error { return addEvent(ctx, tx, "q") }))
	}
	for range 2 {
		for _, read := range []struct {
			project      string
			after, limit int64
			want         []int64
			through      int64
		}{
			{"p", 0, 10, []int64{1}, 9}, {"p", 4, 10, nil, 9}, // Its reader moves past the other's all the same.
			{"q", 4, 10, []int64{5, 6, 7, 8, 9}, 9}, {"q", 4, 2, []int64{5, 6}, 6},
			{"q", -before - 1, 10, []int64{5, 6, 7, 8, 9}, 9}, // From the oldest on.
			{"", 4, 10, []int64{5, 6, 7, 8, 9}, 9},
		} {
			b := must.Do(s.EventsAfter(ctx, read.project, before+read.after, read.limit))(t)
			assert.Equal(t, read.want, seqs(b, before), read)
			assert.Equal(t, before+read.through, b.Through, read)
		}
		for project, gone := range map[string][]int64{"q": {3, 10}, "": {3, 10}, "p": {10}} {
			for _, after := range gone {
				_, err := s.EventsAfter(ctx, project, before+after, 10)
				require.ErrorIs(t, err, store.ErrEventsExpired, "project %q after %d", project, after)
			}
		}
		require.NoError(t, s.Close()) // What was removed is known after a restart, too.
		s = open(t, path, store.KeepEvents(5))
	}
}

// Who follows all projects is told that events went with their project, unless it had read them.
func TestEventsOfADeletedProject(t *testing.T) {
	s, ctx := open(t, store.Memory), t.Context()
	before := must.Do(s.LastEvent(ctx))(t)
	require.NoError(t, s.Write(ctx, func(tx *store.Tx) error {
		return errors.Join(addProject(ctx, tx, "p"), addProject(ctx, tx, "q"), addEvent(ctx, tx, "p"), addEvent(ctx, tx, "q"))
	}))
	require.NoError(t, s.Write(ctx, func(tx *store.Tx) error { return tx.RemoveProjectEvents(ctx, "q") }))
	require.NoError(t, s.Write(ctx, func(tx *store.Tx) error { return addEvent(ctx, tx, "p") }))
	_, err := s.EventsAfter(ctx, "", before+1, 10)
	require.ErrorIs(t, err, store.ErrEventsExpired)
	for project, after := range map[string]int64{"": before + 2, "p": before + 1} {
		b := must.Do(s.EventsAfter(ctx, project, after, 10))(t)
		assert.Equal(t, []int64{3}, seqs(b, before), "project %q", project)
	}
}

func TestEventsAreBoundedByBytes(t *testing.T) {
	s, ctx := open(t, store.Memory, store.KeepEventBytes(16_000)), t.Context()
	before := must.Do(s.LastEvent(ctx))(t)
	require.NoError(t, s.Write(ctx, func(tx *store.Tx) error {
		err := errors.Join(addProject(ctx, tx, "p"), addProject(ctx, tx, "q"), addEvent(ctx, tx, "p"))
		for range 50 {
			err = errors.Join(err, tx.AppendEvent(ctx, db.InsertEventParams{
				ProjectID: "q", Type: "updated", Resource: "instance", Body: strings.Repeat("x", 1000),
			}))
		}
		return err
	}))
	b := must.Do(s.EventsAfter(ctx, "q", -1, 100))(t)
	assert.LessOrEqual(t, len(b.Events), 16)
	assert.GreaterOrEqual(t, len(b.Events), 15)
	assert.Equal(t, before+51, b.Events[len(b.Events)-1].Seq)
	_, err := s.EventsAfter(ctx, "q", b.Events[0].Seq-2, 10)
	require.ErrorIs(t, err, store.ErrEventsExpired)
	b = must.Do(s.EventsAfter(ctx, "p", before, 10))(t)
	assert.Equal(t, []int64{1}, seqs(b, before), "each project has its own bound")
}

// seqs counts the batch's events from the first that the log gave.
func seqs(b store.Batch, before int64) []int64 {
	var out []int64
	for _, e := range b.Events {
		out = append(out, e.Seq-before)
	}
	return out
}

func TestReadersAndWritersAtOnce(t *testing.T) {
	for _, path := range []string{store.Memory, filepath.Join(t.TempDir(), "cloud.db")} {
		s := open(t, path)
		ctx := t.Context()
		require.NoError(t, s.Write(ctx, func(tx *store.Tx) error { return addProject(ctx, tx, "p") }))
		start := must.Do(s.EventsAfter(ctx, "p", -1, 1))(t)
		g, ctx := errgroup.WithContext(ctx) // A writer that fails ends the readers too.
		for range 4 {
			g.Go(func() error {
				for range 25 {
					if err := s.Write(ctx, func(tx *store.Tx) error { return addEvent(ctx, tx, "p") }); err != nil {
						return fmt.Errorf("write: %w", err)
					}
				}
				return nil
			})
			g.Go(func() error { return readAll(ctx, s, start.Through, 100) })
		}
		require.NoError(t, g.Wait())
	}
}

// readAll follows the log from a number on until n events have come, in order
// and without gaps.
func readAll(ctx context.Context, s *store.Store, from, n int64) error {
	last := from
	for last < from+n {
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
			select {
			case <-more:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}
