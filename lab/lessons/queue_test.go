package lessons

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSeatsRunTheSuiteInTurn(t *testing.T) {
	q := suiteQueue{dir: filepath.Join(t.TempDir(), "queue"), places: 1}
	silent := func(said string) { t.Errorf("nobody is before it, and it says %q", said) }
	first, err := q.enter(t.Context(), silent)
	require.NoError(t, err)

	come := func(ctx context.Context) (said chan string, entered chan func()) {
		said, entered = make(chan string, 10), make(chan func(), 1)
		go func() {
			leave, err := q.enter(ctx, func(what string) { said <- what })
			if err != nil {
				close(entered)
				return
			}
			entered <- leave
		}()
		return said, entered
	}
	impatient, goHome := context.WithCancel(t.Context())
	saidSecond, second := come(impatient)
	assert.Contains(t, receive(t, saidSecond), "number 1 in the queue")
	saidThird, third := come(t.Context())
	assert.Contains(t, receive(t, saidThird), "number 2 in the queue")
	goHome()
	assert.Nil(t, receive(t, second), "who gives up has no place")
	assert.Contains(t, receive(t, saidThird), "number 1 in the queue")
	first()
	receive(t, third)()

	// A process that was killed has left its ticket, and nobody holds it.
	require.NoError(t, os.WriteFile(filepath.Join(q.dir, "ticket-00000000000000000001-1"), nil, 0o600))
	leave, err := q.enter(t.Context(), silent)
	require.NoError(t, err)
	leave()
	left, err := os.ReadDir(q.dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func receive[T any](t *testing.T, from chan T) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(30 * time.Second):
		require.Fail(t, "nothing came within half a minute")
		panic("not reached")
	}
}

func TestWhoIsAtNoSeatDoesNotQueue(t *testing.T) {
	t.Setenv(QueueVariable, "")
	for range 3 {
		_, err := seatsQueue().enter(t.Context(), func(string) { t.Error("it waits") })
		require.NoError(t, err)
	}
}
