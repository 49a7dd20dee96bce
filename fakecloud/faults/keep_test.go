// This file answers: are counts right although the store fails?

package faults_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/faults"
)

// failing is a world whose store refuses some changes, by a trigger's statement.
func failing(t *testing.T, trigger string) *world {
	path := filepath.Join(t.TempDir(), "cloud.db")
	clock := clockwork.NewFakeClockAt(epoch)
	openWorld(t, path, clock).end()
	file, err := sql.Open("sqlite3", "file:"+path)
	require.NoError(t, err)
	_, err = file.Exec(trigger)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	w := openWorld(t, path, clock)
	t.Cleanup(w.end)
	return w
}

func TestCountsThatWereNotStoredAreTriedAgain(t *testing.T) {
	w := failing(t, `CREATE TRIGGER no BEFORE UPDATE ON faults WHEN NEW.matched = 1 BEGIN SELECT RAISE(ABORT, 'no'); END`)
	a := w.make(t, unavailable(faults.Match{Operations: []string{"makeThing"}}))
	b := w.make(t, unavailable(faults.Match{Operations: []string{"getThing"}}))
	call := func(operation string) {
		require.NotNil(t, w.Apply(faults.Call{Project: w.project, Operation: operation}))
	}
	call("makeThing")
	call("makeThing")
	call("getThing")
	w.Close()
	call("getThing")
	w.reopen(t)
	w.counts(t, a.ID, 2, 2)
	w.counts(t, b.ID, 2, 2)
}
