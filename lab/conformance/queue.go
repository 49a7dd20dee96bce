package conformance

// How several runs, each with a cluster, a cloud and a CCM of its own, share one
// list of tests. Most of a run's time is waiting, and tests that run alone are one
// after the other on each: where there are several, so are those.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// Turn says when a test is begun, among those of its kind.
type Turn int

const (
	// Early is for one that takes long: begun late, it would be waited for.
	Early Turn = -1
	// Late is for one after which a CCM may be wary for some time, or that keeps the
	// whole machine busy.
	Late Turn = 1
)

// Queue hands tests to the runs that share them, each test to one run. A test
// that a run could not bring to an end, because its cluster broke, is handed to
// another.
type Queue struct {
	listed []Test

	telling sync.Mutex // observers are called by one run at a time

	mu      sync.Mutex
	waiting []Test // in the order in which they are begun
	held    int    // handed out, and neither reported nor given back
	active  int    // runs that can take what is given back
	entered int    // runs so far
	// expected are those among the active that have not entered yet
	expected int
	changed  chan struct{} // closed, and made anew, when one of these changes
}

// NewQueue is a queue of these tests.
func NewQueue(tests []Test) *Queue {
	q := &Queue{listed: slices.Clone(tests), waiting: slices.Clone(tests), changed: make(chan struct{})}
	slices.SortStableFunc(q.waiting, func(a, b Test) int { return cmp.Compare(a.Turn, b.Turn) })
	return q
}

// company is a group of tests that a run takes at a time.
type company int

const (
	besideOthers company = iota // tests that may run beside each other
	singly                      // tests that run while no other does
	atLast                      // those of them that are Late
)

func companyOf(t Test) company {
	switch {
	case !t.Alone:
		return besideOthers
	case t.Turn == Late:
		return atLast
	}
	return singly
}

// Expect says that so many runs will share the queue, each of which either begins
// or is said to be Missing: until then the others do not give up on a test.
func (q *Queue) Expect(runs int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.active += runs
	q.expected += runs
}

// Missing says that a run that was expected will not begin.
func (q *Queue) Missing() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.expected > 0 {
		q.expected--
		q.active--
		q.change()
	}
}

// enter is a run's beginning. It returns in which order the run takes kinds: only
// the first begins with those that run together, which keep one run busy.
func (q *Queue) enter() []company {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.expected > 0 {
		q.expected--
	} else {
		q.active++
	}
	q.entered++
	if q.entered == 1 {
		return []company{besideOthers, singly, atLast}
	}
	return []company{singly, besideOthers, atLast}
}

// leave is the end of a run, or of its taking part.
func (q *Queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.active--
	q.change()
}

// change tells those who wait. The lock is held.
func (q *Queue) change() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// takeAll takes out all tests that are wanted.
func (q *Queue) takeAll(wanted func(Test) bool) (taken []Test) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(t Test) bool {
		if wanted(t) {
			taken = append(taken, t)
			return true
		}
		return false
	})
	q.change()
	return taken
}

// take hands out the next test of a kind; false when none waits.
func (q *Queue) take(k company) (Test, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.IndexFunc(q.waiting, func(t Test) bool { return companyOf(t) == k })
	if i < 0 {
		return Test{}, false
	}
	t := q.waiting[i]
	q.waiting = slices.Delete(q.waiting, i, i+1)
	q.held++
	return t, true
}

// done says that a test that was handed out is reported.
func (q *Queue) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held--
	q.change()
}

// giveBack says that nothing is known of a test that was handed out. It is the
// next of its kind.
func (q *Queue) giveBack(t Test) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held--
	q.waiting = slices.Insert(q.waiting, 0, t)
	q.change()
}

// await returns the first of the kinds of which a test waits. It returns false
// when ctx ends, or when none will ever wait again: as long as another run holds
// a test, that may be given back.
func (q *Queue) await(ctx context.Context, order []company) (company, bool) {
	for {
		q.mu.Lock()
		for _, k := range order {
			if slices.ContainsFunc(q.waiting, func(t Test) bool { return companyOf(t) == k }) {
				q.mu.Unlock()
				return k, ctx.Err() == nil
			}
		}
		over, changed := q.held == 0, q.changed
		q.mu.Unlock()
		if over {
			return 0, false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, false
		}
	}
}

// standBack is leave for a run that could do nothing with a test but fail it: it
// returns when no other run is left that might do better, or when ctx ends.
func (q *Queue) standBack(ctx context.Context) {
	q.leave()
	for {
		q.mu.Lock()
		active, changed := q.active, q.changed
		q.mu.Unlock()
		if active == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Merge makes one report of those of the runs that shared the queue. It is
// finished if all tests have run, whatever became of single runs; its seconds are
// those from the first's beginning to the last's end. What differs from report to
// report and must not is an error. A nil report is of a run that did not begin.
func (q *Queue) Merge(reports []*Report) (*Report, error) {
	reports = slices.DeleteFunc(slices.Clone(reports), func(r *Report) bool { return r == nil })
	if len(reports) == 0 {
		return nil, errors.New("there is no report")
	}
	first := slices.MinFunc(reports, func(a, b *Report) int { return a.began.Compare(b.began) })
	whole := *first
	whole.Tests, whole.Budget, whole.Crashes, whole.Unfinished, whole.Timelines = nil, nil, nil, "", map[string]*record.Timeline{}
	var ended time.Time
	var unfinished []string
	for _, r := range reports {
		if r.Implementation != whole.Implementation || r.Cluster != whole.Cluster || r.Suite != whole.Suite || r.Focus != whole.Focus {
			return nil, fmt.Errorf("reports are of different things: %v on %v by %v, and %v on %v by %v",
				whole.Implementation, whole.Cluster, whole.Suite, r.Implementation, r.Cluster, r.Suite)
		}
		if end := r.began.Add(time.Duration(r.Seconds * float64(time.Second))); end.After(ended) {
			ended = end
		}
		whole.Tests = append(whole.Tests, r.Tests...)
		whole.Budget = append(whole.Budget, r.Budget...)
		whole.Crashes = append(whole.Crashes, r.Crashes...)
		for _, t := range r.Tests { // Not those that were handed on.
			if line := r.Timelines[t.ID]; line != nil {
				whole.Timelines[t.ID] = line
			}
		}
		if r.Unfinished != "" && !slices.Contains(unfinished, r.Unfinished) {
			unfinished = append(unfinished, r.Unfinished)
		}
	}
	slices.SortStableFunc(whole.Budget, func(a, b Spent) int { return cmp.Compare(a.Nodes, b.Nodes) })
	whole.Seconds = seconds(ended.Sub(whole.began))
	missing, err := q.arrange(whole.Tests)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		whole.Unfinished = strings.Join(append(unfinished, "not run: "+strings.Join(missing, ", ")), "\n")
	}
	whole.Summarize()
	return &whole, nil
}

// arrange sorts results as the tests are listed, and names those that have none.
func (q *Queue) arrange(results []TestReport) (missing []string, err error) {
	order := map[string]int{}
	for i, t := range q.listed {
		order[t.ID] = i
	}
	slices.SortStableFunc(results, func(a, b TestReport) int { return cmp.Compare(order[a.ID], order[b.ID]) })
	seen := map[string]bool{}
	for _, r := range results {
		if _, listed := order[r.ID]; !listed || seen[r.ID] {
			return nil, fmt.Errorf("there is a report of %s that nobody asked for", r.ID)
		}
		seen[r.ID] = true
	}
	for _, t := range q.listed {
		if !seen[t.ID] {
			missing = append(missing, t.ID)
		}
	}
	return missing, nil
}
