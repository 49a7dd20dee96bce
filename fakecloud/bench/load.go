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

// call is one thing to ask. Each client has a number, below the load's Clients.
type call struct {
	request []byte
	// want is the status that is no failure.
	want int
	// check looks at the body of such an answer; nil accepts all.
	check func(body []byte) error
}

// load is a number of clients, each of which asks again once it is answered.
type load struct {
	Address string
	Clients int
	// Warm is the time before anything is measured, Period that which is.
	Warm, Period time.Duration
	// Max bounds the calls; 0 does not.
	Max int64
	// Next gives client's next call; n counts all clients' calls from 0.
	Next func(client int, n int64) call
}

// result is what a load measured.
type result struct {
	Calls, Failed int64
	// Failure is the first that was seen.
	Failure string
	Elapsed time.Duration
	// Took is sorted, without the failed calls.
	Took machine.Latencies
}

func (r result) perSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Calls) / r.Elapsed.Seconds()
}

// run ends after the load's time, or its count of calls, or with ctx. Calls are
// measured that began and ended within the period.
func (l load) run(ctx context.Context) (result, error) {
	begin := time.Now().Add(l.Warm)
	end := begin.Add(l.Period)
	var n atomic.Int64
	parts := make([]part, l.Clients)
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() { l.client(ctx, i, &n, begin, end, &parts[i]) })
	}
	wg.Wait()
	return total(parts, begin, end), ctx.Err()
}

// part is what one client measured.
type part struct {
	took    machine.Latencies
	failed  int64
	failure error
	last    time.Time
}

func (l load) client(ctx context.Context, i int, n *atomic.Int64, begin, end time.Time, p *part) {
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
			if c, err = dial(ctx, l.Address); err != nil {
				p.fail(err)
				continue
			}
		}
		next := l.Next(i, k)
		start := time.Now()
		broken, err := c.ask(next)
		done := time.Now()
		if broken {
			c.close()
			c = nil
		}
		switch {
		case err != nil:
			p.fail(err)
		case !start.Before(begin) && !done.After(end):
			p.took = append(p.took, done.Sub(start))
			p.last = done
		}
	}
}

// ask makes the call; broken says that the connection is of no further use.
func (c *conn) ask(next call) (broken bool, err error) {
	status, body, err := c.do(next.request)
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

func (p *part) fail(err error) {
	if p.failed++; p.failure == nil {
		p.failure = err
	}
}

func total(parts []part, begin, end time.Time) result {
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
	// With a bound on the calls the load is over before the time is.
	r.Elapsed = min(last.Sub(begin), end.Sub(begin))
	return r
}
