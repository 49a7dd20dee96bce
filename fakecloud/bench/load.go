package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

// call is one HTTP call of a load, and what its answer must be.
type call struct {
	request []byte
	// want is the expected status.
	want int
	// check fails if the body is wrong; nil accepts any body.
	check func(body []byte) error
}

// load is a number of clients, each of which makes its next call as soon as the one before
// is answered.
type load struct {
	Address string
	Clients int
	// Warm is the time before the measured period, Period the length of that.
	Warm, Period time.Duration
	// Max is the greatest number of calls; 0 is no limit.
	Max int64
	// Next returns the next call of a client (from 0 to Clients-1). n is the number
	// of the call among those of all clients, from 0.
	Next func(client int, n int64) call
}

// result is what a load measured.
type result struct {
	Calls, Failed int64
	// Failure is the first error of one client.
	Failure string
	Elapsed time.Duration
	// Took are the latencies of the calls that did not fail, sorted.
	Took machine.Latencies
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
	begin := time.Now().Add(l.Warm)
	end := begin.Add(l.Period)
	var n atomic.Int64
	parts := make([]clientResult, l.Clients)
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() { l.runClient(ctx, i, &n, begin, end, &parts[i]) })
	}
	wg.Wait()
	return sumResults(parts, begin, end), ctx.Err()
}

// clientResult is what one client has measured.
type clientResult struct {
	took    machine.Latencies
	failed  int64
	failure error
	last    time.Time
}

func (l load) runClient(ctx context.Context, i int, n *atomic.Int64, begin, end time.Time, p *clientResult) {
	var c *conn
	defer func() {
		if c != nil {
			c.close()
		}
	}()
	for ctx.Err() == nil && p.failed < 100 {
		k := n.Add(1) - 1
		if l.Max > 0 && k >= l.Max || !time.Now().Before(end) {
			return
		}
		if c == nil {
			var err error
			if c, err = dialConn(ctx, l.Address); err != nil {
				p.recordFailure(err)
				continue
			}
		}
		next := l.Next(i, k)
		start := time.Now()
		broken, err := c.makeCall(next)
		done := time.Now()
		if broken {
			c.close()
			c = nil
		}
		switch {
		case err != nil:
			p.recordFailure(err)
		case !start.Before(begin) && !done.After(end):
			p.took = append(p.took, done.Sub(start))
			p.last = done
		}
	}
}

// makeCall makes a call. broken means that the connection cannot be used any more.
func (c *conn) makeCall(next call) (broken bool, err error) {
	status, body, err := c.exchange(next.request)
	if err != nil {
		return true, err
	}
	if status != next.want {
		line, _, _ := strings.Cut(string(next.request), "\r\n")
		return false, fmt.Errorf("%s: status %d, not %d: %.300s", line, status, next.want, body)
	}
	if next.check != nil {
		err = next.check(body)
	}
	return false, err
}

func (p *clientResult) recordFailure(err error) {
	if p.failed++; p.failure == nil {
		p.failure = err
	}
}

func sumResults(parts []clientResult, begin, end time.Time) result {
	var r result
	last := begin
	for _, p := range parts {
		r.Took = append(r.Took, p.took...)
		r.Failed += p.failed
		if p.failure != nil && r.Failure == "" {
			r.Failure = p.failure.Error()
		}
		if p.last.After(last) {
			last = p.last
		}
	}
	slices.Sort(r.Took)
	r.Calls = int64(len(r.Took))
	// With Max, the load may end before the period does.
	r.Elapsed = min(last.Sub(begin), end.Sub(begin))
	return r
}
