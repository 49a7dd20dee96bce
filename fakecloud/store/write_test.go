package store_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

var errBoom = errors.New("boom")

// together begins the writes while an earlier one is under way, so that all of
// them share its commit, and gives what each returned; the earlier one's is
// the last. What a write panics with is its error.
func together(t *testing.T, s *store.Store, fns ...func(*store.Tx) error) []error {
	t.Helper()
	errs := make([]error, len(fns)+1)
	var all sync.WaitGroup
	began, free := make(chan struct{}), make(chan struct{})
	all.Go(func() {
		errs[len(fns)] = s.Write(t.Context(), func(*store.Tx) error {
			close(began)
			<-free
			return nil
		})
	})
	<-began
	for i, fn := range fns {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					errs[i] = fmt.Errorf("panic: %v", p)
				}
			}()
			errs[i] = s.Write(t.Context(), fn)
		})
	}
	assert.Eventually(t, func() bool { return s.Waiting() == len(fns) }, 10*time.Second, time.Millisecond)
	close(free)
	all.Wait()
	return errs
}

func projects(t *testing.T, s *store.Store) (names []string) {
	t.Helper()
	require.NoError(t, s.Read(t.Context(), func(tx *store.Tx) (err error) {
		names, err = tx.Strings(t.Context(), "SELECT name FROM projects ORDER BY id")
		return err
	}))
	return names
}

func TestWritesThatQueueShareACommit(t *testing.T) {
	for _, path := range []string{store.Memory, filepath.Join(t.TempDir(), "cloud.db")} {
		var batches []int
		s := open(t, path, store.OnCommit(func(n int) { batches = append(batches, n) }))
		var fns []func(*store.Tx) error
		for i := range 20 {
			fns = append(fns, func(tx *store.Tx) error {
				require.NoError(t, addProject(t.Context(), tx, fmt.Sprintf("p%02d", i)))
				if i%4 == 3 {
					return errBoom
				}
				return nil
			})
		}
		for i, err := range together(t, s, fns...) {
			if i < 20 && i%4 == 3 {
				assert.ErrorIs(t, err, errBoom)
			} else {
				assert.NoError(t, err)
			}
		}
		assert.Equal(t, []int{16}, batches)
		assert.Equal(t, []int64{16, 1}, []int64{s.Stats().Writes, s.Stats().Commits})
		assert.Len(t, projects(t, s), 15)
		assert.NotContains(t, projects(t, s), "p03")
	}
}

func TestABatchIsBounded(t *testing.T) {
	var batches []int
	s := open(t, store.Memory, store.OnCommit(func(n int) { batches = append(batches, n) }))
	fns := make([]func(*store.Tx) error, 300)
	for i := range fns {
		fns[i] = func(*store.Tx) error { return nil }
	}
	require.NoError(t, errors.Join(together(t, s, fns...)...))
	assert.Equal(t, []int{256, 45}, batches)
}

// A change whose caller never hears of it, because fn panics or ends its
// goroutine, is undone, and nobody else's is.
func TestAWriteThatPanicsHarmsNoOther(t *testing.T) {
	s := open(t, store.Memory)
	undone := make(chan string, 2)
	fine := func(tx *store.Tx) error { return addProject(t.Context(), tx, "fine") }
	bad := func(name string, end func()) func(*store.Tx) error {
		return func(tx *store.Tx) error {
			tx.OnRollback(func() { undone <- name })
			require.NoError(t, addProject(t.Context(), tx, name))
			end()
			return nil
		}
	}
	errs := together(t, s, bad("panics", func() { panic("oh") }), bad("exits", runtime.Goexit), fine)
	assert.EqualError(t, errs[0], "panic: oh")
	require.NoError(t, errors.Join(errs[2:]...))
	assert.ElementsMatch(t, []string{"panics", "exits"}, []string{<-undone, <-undone})
	assert.Equal(t, []string{"fine"}, projects(t, s))
	require.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error { return addProject(t.Context(), tx, "later") }))
}

func TestHooksFollowTheChange(t *testing.T) {
	s := open(t, store.Memory)
	var log []string
	hooks := func(tx *store.Tx) {
		tx.OnRollback(func() { log = append(log, "undo 1") })
		tx.OnRollback(func() { log = append(log, "undo 2") })
		tx.AfterCommit(func() { log = append(log, fmt.Sprint("kept by commit ", s.Stats().Commits)) })
	}
	require.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
		hooks(tx)
		return addProject(t.Context(), tx, "p")
	}))
	assert.Equal(t, []string{"kept by commit 1"}, log)
	log = nil
	require.ErrorIs(t, s.Write(t.Context(), func(tx *store.Tx) error {
		hooks(tx)
		return errBoom
	}), errBoom)
	assert.Equal(t, []string{"undo 2", "undo 1"}, log)
}

// A hook that panics keeps nobody waiting.
func TestAHookThatPanicsHarmsNoOther(t *testing.T) {
	s := open(t, store.Memory)
	assert.PanicsWithValue(t, "oh", func() {
		_ = s.Write(t.Context(), func(tx *store.Tx) error {
			tx.AfterCommit(func() { panic("oh") })
			return addProject(t.Context(), tx, "p")
		})
	})
	require.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error { return addProject(t.Context(), tx, "q") }))
	assert.Equal(t, []string{"p", "q"}, projects(t, s))
}

// What ends the transaction that a batch shares ends all of the batch, hooks
// included, and nothing after it.
func TestWhenTheSharedTransactionFails(t *testing.T) {
	ctx := t.Context()
	for name, spoil := range map[string]func(*store.Tx) error{
		"it cannot be committed": func(tx *store.Tx) error {
			require.NoError(t, tx.Exec(ctx, "PRAGMA defer_foreign_keys = ON"))
			return addEvent(ctx, tx, "missing")
		},
		// As SQLite does by itself when the disk is full.
		"it is lost, and the change tells": func(tx *store.Tx) error {
			require.NoError(t, tx.Exec(ctx, "ROLLBACK"))
			return errBoom
		},
		"it is lost, and the change does not tell": func(tx *store.Tx) error { return tx.Exec(ctx, "ROLLBACK") },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, filepath.Join(t.TempDir(), "cloud.db"))
			committed := s.Committed()
			var undone, kept, failed int
			add := func(id string) func(tx *store.Tx) error {
				return func(tx *store.Tx) error {
					tx.OnRollback(func() { undone++ })
					tx.AfterCommit(func() { kept++ })
					return errors.Join(addProject(ctx, tx, id), addEvent(ctx, tx, id))
				}
			}
			errs := together(t, s, add("p1"), add("p2"), add("p3"), spoil)
			for _, err := range errs[:3] {
				if err != nil {
					failed++
				}
			}
			// Whoever had a turn after the spoiler is in another batch.
			assert.Error(t, errs[3])
			assert.Error(t, errs[4], "what came first")
			assert.Equal(t, failed, undone)
			assert.Equal(t, 3-failed, kept)
			assert.Len(t, projects(t, s), kept)
			if kept == 0 {
				select {
				case <-committed:
					t.Error("told of events that were undone")
				default:
				}
			}
			require.NoError(t, s.Write(ctx, func(tx *store.Tx) error { return addProject(ctx, tx, "later") }))
		})
	}
}

// Many writers, with failing ones in between, leave exactly what was
// acknowledged, also for whoever opens the file next.
func TestManyWritersLeaveWhatWasAcknowledged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	s := must.Do(store.Open(t.Context(), path))(t)
	var mu sync.Mutex
	var acknowledged []string
	var all sync.WaitGroup
	for w := range 32 {
		all.Go(func() {
			for i := range 30 {
				name := fmt.Sprintf("p-%d-%d", w, i)
				ctx, cancel := context.WithCancel(t.Context())
				err := s.Write(ctx, func(tx *store.Tx) error {
					if i%5 == 4 {
						cancel() // Who has gone changes nothing.
					}
					if err := addProject(ctx, tx, name); err != nil {
						return err
					}
					switch (w + i) % 3 {
					case 0:
						return errBoom
					case 1:
						return addEvent(ctx, tx, "missing")
					}
					return addEvent(ctx, tx, name)
				})
				cancel()
				if err == nil {
					mu.Lock()
					acknowledged = append(acknowledged, name)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	assert.Len(t, acknowledged, 32*30/3)
	assert.ElementsMatch(t, acknowledged, projects(t, s))
	assert.Equal(t, int64(len(acknowledged)), s.Stats().Writes)
	assert.LessOrEqual(t, s.Stats().Commits, s.Stats().Writes)
	require.NoError(t, s.Close())
	assert.ElementsMatch(t, acknowledged, projects(t, open(t, path)))
}

func TestCloseWaitsForWritesAndRefusesLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	s := must.Do(store.Open(t.Context(), path))(t)
	began, free, closed := make(chan struct{}), make(chan struct{}), make(chan error)
	var all sync.WaitGroup
	all.Go(func() {
		assert.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
			close(began)
			<-free
			return addProject(t.Context(), tx, "first")
		}))
	})
	<-began
	all.Go(func() {
		assert.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
			return addProject(t.Context(), tx, "queued")
		}))
	})
	require.Eventually(t, func() bool { return s.Waiting() == 1 }, 10*time.Second, time.Millisecond)
	go func() { closed <- s.Close() }()
	close(free)
	all.Wait()
	require.NoError(t, <-closed)
	require.ErrorIs(t, s.Write(t.Context(), func(*store.Tx) error { return nil }), store.ErrClosed)
	require.ErrorIs(t, s.Read(t.Context(), func(*store.Tx) error { return nil }), store.ErrClosed)
	assert.Equal(t, []string{"first", "queued"}, projects(t, open(t, path)))
}

func TestStatsCountFsyncs(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "cloud.db"))
	var all int64
	add := func(n int) store.Stats {
		require.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
			for range n {
				all++
				if err := addProject(t.Context(), tx, fmt.Sprintf("%0500d", all)); err != nil {
					return err
				}
			}
			return nil
		}))
		return s.Stats()
	}
	assert.Equal(t, store.Stats{Writes: 1, Commits: 1, Fsyncs: 2}, add(1), "the log begins")
	assert.Equal(t, store.Stats{Writes: 2, Commits: 2, Fsyncs: 3}, add(1))
	assert.Equal(t, store.Stats{Writes: 3, Commits: 3, Fsyncs: 3}, add(0), "nothing was changed")
	assert.Equal(t, store.Stats{Writes: 4, Commits: 4, Checkpoints: 1, Fsyncs: 6}, add(10_000), "the log is full")
	assert.Equal(t, store.Stats{Writes: 5, Commits: 5, Checkpoints: 1, Fsyncs: 8}, add(1), "it begins anew")
	assert.Equal(t, store.Stats{Writes: 6, Commits: 6, Checkpoints: 1, Fsyncs: 9}, add(1))
}
