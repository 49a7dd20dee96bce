// Package record makes a timeline of each test: what the test did, which calls the CCM made, what it
// logged, and what changed on Nodes, Services and Events meanwhile. It knows entries and Kubernetes'
// types, no tests and no clouds, and it changes no verdict: what it cannot see is missing in a
// timeline, and nothing else. Its memory has bounds, however long the run. Begin with Start and Trace.
package record

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/follow"
)

const (
	// recordEvery is how often the cloud's journal and the CCM's log are read.
	recordEvery = time.Second
	// settleDelay is how long after a test's end its timeline is made: what happened
	// before may be reported as late as that. failedJournalDelay is the same while the
	// journal fails.
	settleDelay, failedJournalDelay = 500 * time.Millisecond, 10 * time.Second
	// clockOverlap is how much the order of calls and of their times may differ.
	clockOverlap = 2 * time.Second
	// journalBound is how long a journal may take to answer.
	journalBound = 5 * time.Second
	// maxItems is how many entries are held until the timelines are made that they belong to.
	maxItems = 40_000
	// maxSteps is how many of these may be steps of one test.
	maxSteps = 2_500
)

// Journal is implemented by a Cloud that knows which calls the CCM makes. They
// go into the tests' timelines and change no verdict.
type Journal interface {
	// CallsSince returns the CCM's calls that were answered at this time or later, the
	// oldest first. Callers ask for overlapping times.
	CallsSince(ctx context.Context, since time.Time) ([]protocol.Call, error)
}

// LogFiles names the files that a CCM logs to.
type LogFiles interface {
	// LogFiles may differ from one time to the next, and need not be there yet.
	LogFiles() []string
}

// Recorder collects what happens during a run. A nil one records nothing.
type Recorder struct {
	journal Journal  // nil if the cloud keeps none
	logs    LogFiles // nil if the CCM has no files
	stop    context.CancelFunc
	running sync.WaitGroup
	watches informers.SharedInformerFactory
	// OnStep, unless nil, is called with each step as it begins, and with its error when it fails.
	OnStep func(what string, failed bool)

	// Only the goroutine that polls has these.
	calls         follow.Calls[protocol.Call]
	journalFailed bool
	tails         map[string]*logTail

	mu        sync.Mutex // guards what follows
	ownership ownership
	items     []*item
	open      []*Trace // without a timeline yet
	timelines map[string]*Timeline
}

// Start begins to record. journal is nil if the cloud keeps none, logs if the CCM has no files.
// run sets the names of this run's things apart.
func Start(kube kubernetes.Interface, journal Journal, logs LogFiles, run string) *Recorder {
	r := &Recorder{
		journal: journal, logs: logs, tails: map[string]*logTail{},
		calls: follow.Calls[protocol.Call]{
			Key:     func(c protocol.Call) (string, time.Time) { return c.ID, c.Answered },
			Overlap: clockOverlap, Since: time.Now(),
		},
		ownership: newOwnership(run), timelines: map[string]*Timeline{},
	}
	r.readLogs(true)
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	r.watchObjects(ctx, kube)
	r.running.Go(func() {
		tick := time.NewTicker(recordEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.readAndSettle(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
	return r
}

// Close ends the recording, and returns the timelines by the tests' IDs.
func (r *Recorder) Close() map[string]*Timeline {
	if r == nil {
		return nil
	}
	r.stop()
	r.running.Wait()
	r.watches.Shutdown()
	now := time.Now()
	_ = r.readSources(context.Background()) // What the journal lacks, the timelines say.
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.open {
		if t.ended.IsZero() {
			t.ended = now // It was left behind.
		}
		r.timelines[t.id] = r.ownership.timelineOf(t, r.items)
	}
	r.open, r.items = nil, nil
	return r.timelines
}

// readAndSettle reads what is new, and makes the timelines of the tests that ended before that.
func (r *Recorder) readAndSettle(ctx context.Context) {
	now := time.Now()
	settled := now.Add(-settleDelay)
	if err := r.readSources(ctx); err != nil {
		settled = now.Add(-failedJournalDelay)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var open []*Trace
	oldest := settled
	for _, t := range r.open {
		if t.ended.IsZero() || t.ended.After(settled) {
			open = append(open, t)
			if t.began.Before(oldest) {
				oldest = t.began
			}
			continue
		}
		r.timelines[t.id] = r.ownership.timelineOf(t, r.items)
	}
	r.open = open
	r.dropItems(func(i *item) bool { return i.At.Before(oldest) })
}

// dropItems removes items, and returns how many.
func (r *Recorder) dropItems(which func(*item) bool) (dropped int) {
	kept := r.items[:0:0]
	for _, i := range r.items {
		if which(i) {
			dropped++
		} else {
			kept = append(kept, i)
		}
	}
	r.items = kept
	return dropped
}

// readSources reads the journal and the log.
func (r *Recorder) readSources(ctx context.Context) error {
	r.readLogs(false)
	if r.journal == nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, journalBound)
	defer cancel()
	calls, err := r.journal.CallsSince(bounded, r.calls.Since)
	if err != nil {
		if ctx.Err() == nil && !r.journalFailed {
			r.addItem(&item{Entry: Entry{
				At: time.Now(), Source: SourceStep,
				Text: displayText("the cloud does not say which calls it gets: " + err.Error()), Failed: true,
			}})
		}
		r.journalFailed = true
		return err
	}
	r.journalFailed = false
	for _, c := range r.calls.New(calls) {
		r.addItem(&item{Entry: Entry{
			At: c.Began, Took: c.Answered.Sub(c.Began), Source: SourceCall, Subject: displayText(c.Resource),
			Text: displayText(c.Operation + " → " + c.Answer), Failed: c.Failed,
		}})
	}
	return nil
}

func (r *Recorder) addItem(i *item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.appendItem(i)
}

// appendItem adds an item. When there are too many, the older half is dropped, except what the tests
// themselves did.
func (r *Recorder) appendItem(i *item) {
	if len(r.items) >= maxItems {
		n := 0
		lost := r.dropItems(func(i *item) bool { n++; return n < maxItems/2 && i.owner == nil })
		for _, t := range r.open {
			t.lost += lost
		}
	}
	r.items = append(r.items, i)
}

// addEntry adds what has just been seen.
func (r *Recorder) addEntry(s Source, failed bool, subject, format string, args ...any) {
	r.addItem(&item{Entry: Entry{
		At: time.Now(), Source: s, Subject: subject, Text: displayText(fmt.Sprintf(format, args...)), Failed: failed,
	}})
}

// BeginStep adds an entry for what the suite does to the CCM. It belongs to no test alone.
func (r *Recorder) BeginStep(what string) (ended func(error)) {
	i := &item{Entry: Entry{At: time.Now(), Source: SourceStep, Text: displayText(what)}}
	r.addItem(i)
	r.notifyStep(i.Text, false)
	return func(err error) { r.finishStep(i, err, "") }
}

// notifyStep passes a step on to OnStep.
func (r *Recorder) notifyStep(what string, failed bool) {
	if r.OnStep != nil {
		r.OnStep(what, failed)
	}
}

func (r *Recorder) finishStep(i *item, err error, detail string) {
	// A wait that was cancelled is no failure of its own: whoever cancelled it says why.
	failed := err != nil && !errors.Is(err, context.Canceled)
	r.mu.Lock()
	i.Took = time.Since(i.At)
	i.Text = displayText(i.Text + outcomeText(err, detail))
	i.Failed = failed
	text := i.Text
	r.mu.Unlock()
	if failed {
		r.notifyStep(text, true)
	}
}

// Trace adds the entries of one test. A nil one adds nothing.
type Trace struct {
	recorder *Recorder
	id       string
	alone    bool // no other test runs meanwhile
	began    time.Time
	// The recorder's mu guards these.
	ended       time.Time
	failed      bool
	steps, lost int
}

// Begin begins the trace of a test. alone says that no other test runs meanwhile.
func (r *Recorder) Begin(id string, alone bool, began time.Time) *Trace {
	if r == nil {
		return nil
	}
	t := &Trace{recorder: r, id: id, alone: alone, began: began}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = append(r.open, t)
	return t
}

// End says that the test has ended, and whether it failed.
func (t *Trace) End(failed bool) {
	if t == nil {
		return
	}
	t.recorder.mu.Lock()
	defer t.recorder.mu.Unlock()
	t.ended, t.failed = time.Now(), failed
}

// Step adds an entry for what the test has done.
func (t *Trace) Step(format string, args ...any) {
	if t != nil {
		t.addItem(&item{
			owner: t, Entry: Entry{At: time.Now(), Source: SourceStep, Text: displayText(fmt.Sprintf(format, args...))},
		})
	}
}

// Failure adds an entry that says why the test has failed.
func (t *Trace) Failure(why string) {
	if t != nil {
		t.addItem(&item{
			owner: t,
			Entry: Entry{At: time.Now(), Source: SourceStep, Text: displayText("failed: " + why), Failed: true},
		})
	}
}

// Begin adds an entry for what the test begins to do, and returns the function to call at its end.
func (t *Trace) Begin(what string) (ended func(err error, detail string)) {
	if t == nil {
		return func(error, string) {}
	}
	i := &item{owner: t, Entry: Entry{At: time.Now(), Source: SourceStep, Text: displayText(what)}}
	t.addItem(i)
	return func(err error, detail string) { t.recorder.finishStep(i, err, detail) }
}

func (t *Trace) addItem(i *item) {
	t.recorder.notifyStep(i.Text, i.Failed)
	t.recorder.mu.Lock()
	defer t.recorder.mu.Unlock()
	if t.steps++; t.steps > maxSteps && !i.Failed {
		t.lost++
		return
	}
	t.recorder.appendItem(i)
}

// OwnSerial says that things whose names have this serial number are the test's.
func (t *Trace) OwnSerial(serial int64) {
	if t == nil {
		return
	}
	t.recorder.mu.Lock()
	defer t.recorder.mu.Unlock()
	t.recorder.ownership.serials[serial] = t
}

// Learn says that the thing with this ID is the test's, and what its name is.
func (t *Trace) Learn(id, name string) {
	if t == nil || id == "" {
		return
	}
	t.recorder.mu.Lock()
	defer t.recorder.mu.Unlock()
	t.recorder.ownership.ids[id], t.recorder.ownership.names[id] = t, name
}

// LearnOwned says that the thing with this ID belongs to the one with ownerID, as a balancer belongs to
// its Service: timelines give it to the owner's test, and call it by the owner's name.
func (t *Trace) LearnOwned(id, ownerID string) {
	if t == nil {
		return
	}
	t.recorder.mu.Lock()
	defer t.recorder.mu.Unlock()
	o := &t.recorder.ownership
	if owner := o.ids[ownerID]; owner != nil {
		o.ids[id], o.names[id] = owner, o.names[ownerID]
	}
}
