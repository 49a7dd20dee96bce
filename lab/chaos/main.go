// chaos brings a lab up and, from a seed and without pause, kills and freezes its components, makes its
// cloud's answers fail and its disk full, ends instances and zones, and changes Services and Nodes; meanwhile
// changes are made through the cloud's API and through each dialect, and pages of the console are open. After
// each forty seconds of that it rests, and what was broken has a bound to be well again by itself. What must
// always hold is looked at all along: see invariants.go. `make chaos` calls it, from the root of a clone.
//
// A violation is printed with the seed, and the round's actions are tried again on labs of their own, fewer
// and fewer, so that the shortest history is printed that brings it about. All that happens is written to
// bin/chaos/SEED.jsonl as it happens.
//
// Begin with run, and with plan in plan.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

type options struct {
	seed     uint64
	duration time.Duration
	shrink   time.Duration
	lab      string // the program
	dir      string
}

func main() {
	o := options{}
	flag.Uint64Var(&o.seed, "seed", rand.Uint64()%1_000_000, "of what is done and when") //nolint:gosec // Any will do.
	flag.DurationVar(&o.duration, "for", 5*time.Minute, "begin no round after so long")
	flag.DurationVar(&o.shrink, "shrink", 10*time.Minute, "how long to look for a shorter history of a violation")
	flag.StringVar(&o.lab, "lab", "bin/lab", "the program lab")
	flag.StringVar(&o.dir, "dir", "bin/chaos", "folder for what it writes")
	flag.Parse()
	if flag.NArg() > 0 || o.duration <= 0 {
		fmt.Fprintln(os.Stderr, "chaos: there are flags only, and -for must be above 0: see -help")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called.
	}
}

func run(ctx context.Context, o options) error {
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	name := filepath.Join(o.dir, fmt.Sprintf("%d.jsonl", o.seed))
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	j := &journal{to: file}
	fmt.Printf("seed %d for %s; what happens is written to %s\n", o.seed, o.duration, name)
	began := time.Now()
	broken := runRounds(ctx, o, j, func(round int) ([]Action, bool) {
		return plan(o.seed, round), round == 0 || time.Since(began) < o.duration
	})
	j.printSums(os.Stdout)
	var v *violation
	if !errors.As(broken, &v) || ctx.Err() != nil {
		return broken
	}
	fmt.Printf("VIOLATION, seed %d, round %d: %v\nlooking for the shortest history, for at most %s\n", o.seed, v.round, v, o.shrink)
	shortest := findShortest(ctx, o, j, plan(o.seed, v.round))
	fmt.Printf("shortest history found, %d actions:\n", len(shortest))
	for _, a := range shortest {
		fmt.Println(" ", a)
	}
	return broken
}

// findShortest carries out fewer and fewer of a round's actions, each time on a lab of its own.
func findShortest(ctx context.Context, o options, j *journal, actions []Action) []Action {
	until := time.Now().Add(o.shrink)
	return shrink(actions, func(some []Action) (bool, error) {
		if time.Now().After(until) {
			return false, errors.New("no time is left")
		}
		err := runRounds(ctx, o, j, func(round int) ([]Action, bool) { return some, round == 0 })
		var v *violation
		fmt.Printf("  %d of its actions: %v\n", len(some), err)
		return errors.As(err, &v), ctx.Err()
	})
}

// runRounds carries out rounds on a new lab until there is no next one, or one ends with a violation.
func runRounds(ctx context.Context, o options, j *journal, next func(round int) ([]Action, bool)) (err error) {
	w, err := newWorld(ctx, o, j)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for round := 0; ; round++ {
		actions, there := next(round)
		if !there {
			return nil
		}
		took, err := w.runRound(ctx, round, actions)
		if err != nil {
			w.explain(ctx)
			return err
		}
		fmt.Printf("round %d: %d actions; all was well %.1f s after the last\n", round, len(actions), took.Seconds())
	}
}

// violation is an invariant that does not hold.
type violation struct {
	round int
	error
}

func (v *violation) Unwrap() error { return v.error }
