package conformance

// How several runs, each with a cluster, a cloud and a CCM of its own, share one list of tests. Most
// of a run's time is waiting, and tests that run alone wait for each other: several runs share them.

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

// Priority says when a test is begun, among those of its scheduling class.
type Priority int

const (
	// Early is for a test that takes long: begun late, the whole run would wait for it.
	Early Priority = -1
	// Late is for a test after which a CCM may be wary for some time.
	Late Priority = 1
)

// Queue hands tests to the runs that share them, each test to one run. A test
// that a run could not bring to an end, because its cluster broke, is handed to
// another.
type Queue struct {
	listed []Test

	observerMu sync.Mutex // observers are called by one run at a time

	// foundations are the IDs of all listed tests that each builds on; none where all tests are to run.
	foundations map[string]map[string]bool
	// first are the IDs of tests that are begun before all others.
	first []string

	mu        sync.Mutex
	waiting   []Test          // in the order in which they are begun
	held      map[string]bool // handed out, and neither reported nor given back
	undecided map[string]bool // without a result yet
	active    int             // runs that can take what is given back
	joined    int             // runs so far
	// expected is how many of the active runs have not begun yet
	expected int
	changed  chan struct{} // closed, and made anew, when one of these changes
}

// NewQueue returns a queue of these tests. What others build on comes first.
func NewQueue(tests []Test) *Queue {
	q := &Queue{
		listed: slices.Clone(tests), waiting: slices.Clone(tests), changed: make(chan struct{}),
		foundations: map[string]map[string]bool{}, held: map[string]bool{}, undecided: map[string]bool{},
	}
	byID, others := map[string]Test{}, map[string]int{} // how many build on each
	for _, t := range tests {
		byID[t.ID], q.undecided[t.ID] = t, true
	}
	for _, t := range tests {
		q.foundations[t.ID] = foundationsOf(t, byID)
		for id := range q.foundations[t.ID] {
			others[id]++
		}
	}
	slices.SortStableFunc(q.waiting, func(a, b Test) int {
		return cmp.Or(cmp.Compare(others[b.ID], others[a.ID]), cmp.Compare(a.Priority, b.Priority))
	})
	return q
}

// RunBlocked has all tests run, also if tests that they build on fail. Call it before runs take part.
func (q *Queue) RunBlocked() { q.foundations = nil }

// RunFirst has these tests begun before all others, after what they build on. Those that run alone and
// are Late stay so. It is to be called before runs take part.
func (q *Queue) RunFirst(ids []string) {
	q.first = ids
	slices.SortStableFunc(q.waiting, func(a, b Test) int { return cmp.Compare(q.rank(a), q.rank(b)) })
}

// rank is 0 for a test that is begun first, and 1 for the others.
func (q *Queue) rank(t Test) int {
	if slices.Contains(q.first, t.ID) {
		return 0
	}
	return 1
}

// schedulingClass is a group of tests that a run takes at a time.
type schedulingClass int

const (
	classAloneFirst schedulingClass = iota // tests of classAlone that are begun first
	classParallel                          // tests that may run beside each other
	classAlone                             // tests that run while no other does
	classAloneLate                         // as classAlone, after all others (Test.Late)
)

func (q *Queue) schedulingClassOf(t Test) schedulingClass {
	switch {
	case !t.Alone:
		return classParallel
	case t.Priority == Late:
		return classAloneLate
	case q.rank(t) == 0:
		return classAloneFirst
	}
	return classAlone
}

// Expect says that so many runs will share the queue, each of which either begins
// or is reported Missing: until then the others do not give up on a test.
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
		q.notifyWaiters()
	}
}

// joinRun adds a run. It returns the order in which the run takes scheduling classes: only the
// first run begins with the parallel tests, which keep one run busy.
func (q *Queue) joinRun() []schedulingClass {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.expected > 0 {
		q.expected--
	} else {
		q.active++
	}
	q.joined++
	if q.joined == 1 {
		return []schedulingClass{classAloneFirst, classParallel, classAlone, classAloneLate}
	}
	return []schedulingClass{classAloneFirst, classAlone, classParallel, classAloneLate}
}

// leaveRun removes a run that has ended, or takes no more tests.
func (q *Queue) leaveRun() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.active--
	q.notifyWaiters()
}

// notifyWaiters wakes whoever waits for a change. The caller holds the lock.
func (q *Queue) notifyWaiters() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// takeAll takes out all tests that are wanted. They block nothing.
func (q *Queue) takeAll(wanted func(Test) bool) []Test {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.notifyWaiters()
	return q.takeWaiting(wanted)
}

// takeWaiting takes tests out of those that wait. The caller holds the lock.
func (q *Queue) takeWaiting(wanted func(Test) bool) (taken []Test) {
	q.waiting = slices.DeleteFunc(q.waiting, func(t Test) bool {
		if wanted(t) {
			taken = append(taken, t)
			delete(q.undecided, t.ID)
			return true
		}
		return false
	})
	return taken
}

// takeNext hands out the next test of a class; false when none waits that can be begun, or when one of
// classAloneFirst can. What was held back by then may be begun when the channel is closed.
func (q *Queue) takeNext(k schedulingClass) (Test, bool, <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	next := func(k schedulingClass) int {
		return slices.IndexFunc(q.waiting, func(t Test) bool {
			return q.schedulingClassOf(t) == k && q.readiness(t) == readyNow
		})
	}
	i := next(k)
	if i < 0 || k != classAloneFirst && next(classAloneFirst) >= 0 {
		return Test{}, false, q.changed
	}
	t := q.waiting[i]
	q.waiting = slices.Delete(q.waiting, i, i+1)
	q.held[t.ID] = true
	return t, true, q.changed
}

// readiness says when a test that waits can be begun.
type readiness int

const (
	readyNow   readiness = iota
	readySoon            // when tests have ended that run
	readyLater           // when tests have ended that wait, too
)

// readiness of a test. The caller holds the lock.
func (q *Queue) readiness(t Test) readiness {
	when := readyNow
	for id := range q.foundations[t.ID] {
		switch {
		case q.held[id]:
			when = max(when, readySoon)
		case q.undecided[id]:
			return readyLater
		}
	}
	return when
}

// isFoundation tells whether a test waits that builds on this one.
func (q *Queue) isFoundation(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.waiting, func(t Test) bool { return q.foundations[t.ID][id] })
}

// markReported says that a test that was handed out has been reported. If it blocks, it takes out what
// builds on it.
func (q *Queue) markReported(id string, blocks bool) (blocked []Test) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.held, id)
	delete(q.undecided, id)
	if blocks {
		blocked = q.takeWaiting(func(t Test) bool { return q.foundations[t.ID][id] })
	}
	q.notifyWaiters()
	return blocked
}

// giveBack returns a test that was handed out and has no result. It is the next of its class.
func (q *Queue) giveBack(t Test) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.held, t.ID)
	q.waiting = slices.Insert(q.waiting, 0, t)
	q.notifyWaiters()
}

// awaitTests returns when a test waits, be it held back. It returns false when ctx ends, or when no
// test will ever wait again: as long as another run holds a test, that may be given back.
func (q *Queue) awaitTests(ctx context.Context) bool {
	return q.await(ctx, func() bool { return len(q.waiting) > 0 })
}

// awaitWork returns the first of the classes in which a test can be begun, or soon can. It returns
// false as awaitTests does.
func (q *Queue) awaitWork(ctx context.Context, order []schedulingClass) (first schedulingClass, some bool) {
	some = q.await(ctx, func() bool {
		for _, k := range order {
			when := readyLater
			for _, t := range q.waiting {
				if q.schedulingClassOf(t) == k {
					when = min(when, q.readiness(t))
				}
			}
			if when != readyLater {
				first = k
				return when == readyNow
			}
		}
		return false
	})
	return first, some
}

// await returns when something holds; false when ctx ends, or when nothing runs that could change it.
func (q *Queue) await(ctx context.Context, holds func() bool) bool {
	held := false
	q.awaitChange(ctx, func() bool {
		held = holds()
		return held || len(q.held) == 0
	})
	return held && ctx.Err() == nil
}

// awaitChange returns when something holds, or ctx ends. holds is called with the lock held.
func (q *Queue) awaitChange(ctx context.Context, holds func() bool) {
	for {
		q.mu.Lock()
		held, changed := holds(), q.changed
		q.mu.Unlock()
		if held {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// standBack is leaveRun for a run whose CCM was given up: it could only fail its tests. It returns
// when no other run is left that might pass them, or when ctx ends.
func (q *Queue) standBack(ctx context.Context) {
	q.leaveRun()
	q.awaitChange(ctx, func() bool { return q.active == 0 })
}

// Merge makes one report of the reports of all runs that shared the queue. It is
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
	whole.Tests, whole.Budget, whole.Crashes, whole.ExitsUnderFault = nil, nil, nil, 0
	whole.Unfinished, whole.Timelines = "", map[string]*record.Timeline{}
	var ended time.Time
	var unfinished []string
	for _, r := range reports {
		if r.Implementation != whole.Implementation || r.Cluster != whole.Cluster || r.Suite != whole.Suite ||
			r.Focus != whole.Focus {
			return nil, fmt.Errorf("reports are of different things: %v on %v by %v, and %v on %v by %v",
				whole.Implementation, whole.Cluster, whole.Suite, r.Implementation, r.Cluster, r.Suite)
		}
		if end := r.began.Add(time.Duration(r.Seconds * float64(time.Second))); end.After(ended) {
			ended = end
		}
		whole.Tests = append(whole.Tests, r.Tests...)
		whole.Budget = append(whole.Budget, r.Budget...)
		whole.Crashes = append(whole.Crashes, r.Crashes...)
		whole.ExitsUnderFault += r.ExitsUnderFault
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
	whole.Seconds = roundedSeconds(ended.Sub(whole.began))
	missing, err := q.sortResults(whole.Tests)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		whole.Unfinished = strings.Join(append(unfinished, "not run: "+strings.Join(missing, ", ")), "\n")
	}
	whole.Summarize()
	return &whole, nil
}

// sortResults sorts results in the order of the tests' list, and names the tests without a result.
func (q *Queue) sortResults(results []TestReport) (missing []string, err error) {
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
