package faults_test

import (
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// alter changes a store that no process has open.
func alter(t *testing.T, path, statements string) {
	t.Helper()
	file := must.Do(sql.Open("sqlite3", "file:"+path))(t)
	must.Do(file.Exec(statements))(t)
	require.NoError(t, file.Close())
}

// failing is a world whose store refuses some changes, by a trigger's statement.
func failing(t *testing.T, trigger string) *world {
	path := filepath.Join(t.TempDir(), "cloud.db")
	clock := clockwork.NewFakeClockAt(epoch)
	openWorld(t, path, clock).end()
	alter(t, path, trigger)
	w := openWorld(t, path, clock)
	t.Cleanup(w.end)
	return w
}

func TestCountsThatWereNotStoredAreTriedAgain(t *testing.T) {
	w := failing(
		t, `CREATE TRIGGER no BEFORE UPDATE ON faults WHEN NEW.matched = 1 BEGIN SELECT RAISE(ABORT, 'no'); END`,
	)
	a := w.make(t, unavailable(callsOf("makeThing")))
	b := w.make(t, unavailable(callsOf("getThing")))
	call := func(operation string) {
		require.NotNil(t, applyTo(t, w.Rules, faults.Call{Project: w.project, Operation: operation}))
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

// Transitions that share a write are made one by one if that fails. What was
// counted for it is not counted twice, and uses up no turn.
func TestAWriteThatFailsCountsNothing(t *testing.T) {
	for effect, want := range map[string]struct {
		api.FaultEffect
		state string
	}{
		"fail":  {api.FaultEffect{Fail: "no disk"}, "error no disk"},
		"crash": {api.FaultEffect{Crash: true}, "error crashed"},
		"stuck": {api.FaultEffect{Stuck: true}, "pending "},
	} {
		t.Run(effect, func(t *testing.T) {
			w := failing(
				t,
				`CREATE TRIGGER no BEFORE UPDATE ON resources WHEN NEW.name = 'bad' AND NEW.state = 'running' BEGIN SELECT RAISE(ABORT, 'no'); END`,
			)
			spec := api.FaultCreate{Effect: want.FaultEffect, Match: api.FaultMatch{Tag: "name=good"}}
			if effect != "stuck" {
				spec.Times = 1
			}
			f := w.make(t, spec)
			good, bad := w.instance(t, "good", ""), w.instance(t, "bad", "")
			w.clock.Advance(time.Minute) // Both are due when the cloud begins to run.
			t.Cleanup(w.run(t))
			w.pass(t, 0)
			require.Equal(t, want.state, w.stateOf(t, good))
			require.Equal(t, "pending ", w.stateOf(t, bad))
			w.counts(t, f.ID, 1, 1)
		})
	}
}
