package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

// callTimeout bounds one call, so that a row ends if the server hangs.
const callTimeout = 20 * time.Second

// load is a number of clients, each of which makes its next call as soon as the one before is
// answered or, with Rate, when it is due.
type load struct {
	Clients int
	// Rate is the number of calls a second of all clients; 0 is no limit.
	Rate int
	// Warm is the time before the measured period, Period the length of that.
	Warm, Period time.Duration
	// Max is the greatest number of calls; 0 is no limit.
	Max int
	// Next returns the nth call of all clients, from 0. It may be called concurrently.
	Next func(n int) vegeta.Target
	// Want is the expected status.
	Want int
	// Check fails if an answer is wrong; nil accepts any.
	Check func(*vegeta.Result) error
}

// result is what a load measured.
type result struct {
	Calls, Failed int
	// Failure is the first error.
	Failure string
	Elapsed time.Duration
	// Took are the latencies of the calls that did not fail, sorted.
	Took harness.Latencies
}

func (r result) perSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Calls) / r.Elapsed.Seconds()
}

// run makes calls until the period is over, Max calls are made, or ctx ends. It measures the
// calls that begin and end within the period.
func (l load) run(ctx context.Context) (result, error) {
	attacker := vegeta.NewAttacker(
		vegeta.Workers(uint64(l.Clients)), vegeta.MaxWorkers(uint64(l.Clients)), vegeta.Connections(l.Clients),
		vegeta.Timeout(callTimeout), vegeta.HTTP2(false),
	)
	defer context.AfterFunc(ctx, func() { attacker.Stop() })()
	var calls atomic.Int64
	next := func(t *vegeta.Target) error {
		n := int(calls.Add(1)) - 1
		if l.Max > 0 && n >= l.Max {
			return vegeta.ErrNoTargets
		}
		*t = l.Next(n)
		return nil
	}
	begin := time.Now().Add(l.Warm)
	end := begin.Add(l.Period)
	var r result
	last := begin
	for got := range attacker.Attack(next, vegeta.Rate{Freq: l.Rate, Per: time.Second}, l.Warm+l.Period, "") {
		done := got.Timestamp.Add(got.Latency)
		err := l.checkResult(got)
		switch {
		case got.Error == vegeta.ErrNoTargets.Error():
		case err != nil:
			if r.Failed++; r.Failure == "" {
				r.Failure = err.Error()
			}
		case !got.Timestamp.Before(begin) && !done.After(end):
			r.Took = append(r.Took, got.Latency)
			if done.After(last) {
				last = done
			}
		}
	}
	slices.Sort(r.Took)
	r.Calls = len(r.Took)
	// With Max, the load may end before the period does.
	r.Elapsed = min(last.Sub(begin), end.Sub(begin))
	return r, ctx.Err()
}

// checkResult returns what is wrong with an answer, or nil.
func (l load) checkResult(r *vegeta.Result) error {
	switch {
	case r.Code != 0 && int(r.Code) != l.Want:
		return fmt.Errorf("%s %s: status %d, not %d: %.300s", r.Method, r.URL, r.Code, l.Want, r.Body)
	case r.Error != "": // No answer, or no complete one.
		return errors.New(r.Error)
	case l.Check != nil:
		return l.Check(r)
	}
	return nil
}

// runAll makes Max calls, and fails if one of them does.
func (l load) runAll(ctx context.Context) error {
	l.Period = fillTimeout
	r, err := l.run(ctx)
	switch {
	case err != nil:
		return err
	case r.Failed > 0:
		return fmt.Errorf("%d calls failed: %s", r.Failed, r.Failure)
	case r.Calls < l.Max:
		return fmt.Errorf("only %d of %d calls within %s", r.Calls, l.Max, fillTimeout)
	}
	return nil
}
