// Package chaos brings a lab up and, from a seed and without pause, kills and freezes its components, makes its
// cloud's answers fail and its disk full, ends instances and zones, and changes Services and Nodes; meanwhile
// changes are made through the cloud's API and through each dialect, and a page of the console is open. After
// each round of that it rests, and what was broken has a bound to be well again by itself. What must
// always hold is checked all along: see invariants_test.go. `make chaos` runs it, from the root of a clone.
//
// A round's history is drawn by rapid. After a violation rapid carries that history out again on labs of their
// own, shorter and shorter, and prints the shortest that brings a violation about, and the seed. All that happens
// is written to bin/chaos/SEED.jsonl as it happens.
//
// Begin with TestChaos, and with histories in history_test.go.
package chaos

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var duration = flag.Duration("for", 0, "begin no round after so long; 0 skips the test")

// TestChaos carries out one history after the other on a lab. Round n of a seed is round 0 of the seed + n.
func TestChaos(t *testing.T) {
	if *duration <= 0 {
		t.Skip("it takes minutes: `make chaos` runs it")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	bin, err := filepath.Abs("../../bin")
	require.NoError(t, err)
	t.Setenv("PATH", strings.Join([]string{bin, filepath.Join(bin, "kube"), os.Getenv("PATH")}, ":"))
	for _, program := range []string{"lab", "fakecloud", "kubectl"} {
		_, err := exec.LookPath(program)
		require.NoError(t, err)
	}
	seed, err := strconv.ParseUint(flag.Lookup("rapid.seed").Value.String(), 10, 64)
	require.NoError(t, err)
	if seed == 0 {
		seed = 1 + rand.Uint64N(1_000_000) //nolint:gosec // Any will do.
	}
	j, err := newJournal(filepath.Join(bin, "chaos"), seed)
	require.NoError(t, err)
	defer j.close()
	r := &runner{ctx: ctx, journal: j, tried: map[string]error{}}
	r.world, err = newWorld(ctx, j)
	require.NoError(t, err)
	defer func() {
		if r.world != nil {
			assert.NoError(t, r.world.close())
		}
	}()
	require.NoError(t, flag.Set("rapid.checks", "1"))
	for began := time.Now(); r.round == 0 || time.Since(began) < *duration && ctx.Err() == nil; r.round++ {
		require.NoError(t, flag.Set("rapid.seed", fmt.Sprint(seed+r.round)))
		rapid.Check(t, r.tryHistory)
	}
	require.NoError(t, ctx.Err())
}

// runner carries out histories.
type runner struct {
	ctx     context.Context
	journal *journal
	round   uint64
	// world is the lab of all rounds, until something does not hold there. After that each history has its own.
	world *world
	// tried is what became of each history that had a lab of its own. Rapid tries some twice, to tell flaky tests;
	// but whoever looks for a bug in what a dozen processes do at once takes what happened once.
	tried map[string]error
}

// tryHistory is the property that rapid checks. It always fails with the same words, so that to rapid all violations
// are the same failure.
func (r *runner) tryHistory(t *rapid.T) {
	h := histories.Draw(t, "history")
	violation, tried := r.tried[h.GoString()]
	if r.ctx.Err() == nil && !tried {
		violation = r.carryOut(h)
	}
	if violation != nil {
		t.Log(violation)
		t.Fatal("something that must hold does not")
	}
}

// carryOut returns the violation that a history brings about, if any.
func (r *runner) carryOut(h history) (violation error) {
	w, own := r.world, r.world == nil
	if own {
		var err error
		if w, err = newWorld(r.ctx, r.journal); err != nil {
			fmt.Println("no lab to try a history on:", err)
			return nil
		}
	}
	well, violation := w.runRound(r.round, h)
	switch {
	case r.ctx.Err() != nil:
		violation = nil
	case violation != nil:
		fmt.Printf("VIOLATION in round %d, %d actions: %v\n", r.round, len(h), violation)
		w.explain(r.ctx)
	default:
		fmt.Printf("round %d: %d actions; all was well %.1f s after the last\n", r.round, len(h), well.Seconds())
	}
	if own || violation != nil {
		r.world = nil
		if err := w.close(); err != nil {
			fmt.Println(err)
		}
	}
	if own {
		r.tried[h.GoString()] = violation
	}
	return violation
}
