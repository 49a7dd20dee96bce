package server

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

const (
	journalPause = 200 * time.Millisecond
	journalBatch = 500
	// journalLimit bounds how many calls wait to be stored. Callers wait when it is
	// reached. While storing fails they do not: calls are then left out of the list, but
	// never out of the sums.
	journalLimit = 10_000
	// agentLimit is how many user agents of a token have sums of their own. Sums are kept
	// for ever.
	agentLimit  = 200
	otherAgents = "(others)"
	agentLength = 256
)

// journalEntry is a call that was stored or will be.
type journalEntry struct {
	cloud.AuditEntry
	// written is set when the entry is being stored, and stays set once it was. Its ID is
	// 0 until then.
	written, amended bool
}

// journal collects calls for the audit and stores them in batches.
type journal struct {
	// appendBatch stores a batch and gives the ID of its first entry.
	appendBatch func(context.Context, cloud.AuditBatch) (int64, error)
	log         *slog.Logger
	// stopped is closed when failures to store are no longer logged, as the server stops.
	stopped <-chan struct{}

	flushing sync.Mutex // one batch at a time

	mu             sync.Mutex
	room           sync.Cond
	entries        []*journalEntry
	amended        []*journalEntry
	sums           map[cloud.AuditCaller]*cloud.AuditSum
	agents         map[cloud.AuditCaller]map[string]bool // by project and token
	flushScheduled bool
	failing        bool
	lost           int64
}

func newJournal(c *cloud.Cloud, log *slog.Logger, over <-chan struct{}) (*journal, error) {
	j := &journal{
		appendBatch: c.AppendAudit, log: log, stopped: over, sums: map[cloud.AuditCaller]*cloud.AuditSum{},
		agents: map[cloud.AuditCaller]map[string]bool{},
	}
	j.room.L = &j.mu
	known, err := c.AuditAgents(context.Background())
	for _, k := range known {
		j.sumAgent(k)
	}
	return j, err
}

// sumAgent is the user agent under which a caller's calls are summed: its own, or
// otherAgents if its token has too many.
func (j *journal) sumAgent(who cloud.AuditCaller) string {
	of := cloud.AuditCaller{Project: who.Project, Token: who.Token}
	known := j.agents[of]
	switch {
	case known[who.UserAgent]:
	case len(known) >= agentLimit:
		return otherAgents
	case known == nil:
		j.agents[of] = map[string]bool{who.UserAgent: true}
	default:
		known[who.UserAgent] = true
	}
	return who.UserAgent
}

// recordCall adds a call. It waits while the journal is full.
func (j *journal) recordCall(e cloud.AuditEntry) *journalEntry {
	j.mu.Lock()
	defer j.mu.Unlock()
	for len(j.entries) >= journalLimit && !j.failing {
		j.room.Wait()
	}
	entry := j.addEntry(e)
	if len(j.entries) == journalBatch {
		go j.flushOrRetry()
	}
	j.scheduleFlush(journalPause)
	return entry
}

// countCall adds a call to the sums only.
func (j *journal) countCall(e cloud.AuditEntry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.addToSums(e.AuditCaller, sumOf(e))
	j.scheduleFlush(journalPause)
}

// addEntry adds a call to the list and the sums. mu is held.
func (j *journal) addEntry(e cloud.AuditEntry) *journalEntry {
	entry := &journalEntry{AuditEntry: e}
	j.addToSums(e.AuditCaller, sumOf(e))
	if len(j.entries) >= journalLimit {
		j.lost++
	} else {
		j.entries = append(j.entries, entry)
	}
	return entry
}

// queueLength is how many calls wait to be stored.
func (j *journal) queueLength() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return int64(len(j.entries))
}

func sumOf(e cloud.AuditEntry) cloud.AuditSum {
	s := cloud.AuditSum{Calls: 1, Duration: e.Duration, BytesIn: e.BytesIn, BytesOut: e.BytesOut}
	if e.Status == 0 || e.Status >= http.StatusBadRequest {
		s.Errors = 1
	}
	if e.Fault != "" {
		s.Faults = 1
	}
	if e.Status == http.StatusTooManyRequests {
		s.Throttled = 1
	}
	return s
}

func (j *journal) addToSums(who cloud.AuditCaller, s cloud.AuditSum) {
	who.UserAgent = j.sumAgent(who)
	if j.sums[who] == nil {
		j.sums[who] = &cloud.AuditSum{AuditCaller: who}
	}
	j.sums[who].Add(s)
}

// amendEntry adds the bytes and the time that a call took after its answer began.
func (j *journal) amendEntry(e *journalEntry, bytes int64, duration time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.addToSums(e.AuditCaller, cloud.AuditSum{BytesOut: bytes, Duration: duration - e.Duration})
	e.BytesOut += bytes
	e.Duration = duration
	if e.written && !e.amended {
		e.amended = true
		j.amended = append(j.amended, e)
	}
	j.scheduleFlush(journalPause)
}

// scheduleFlush has the journal stored after a pause. mu is held.
func (j *journal) scheduleFlush(pause time.Duration) {
	if !j.flushScheduled {
		j.flushScheduled = true
		time.AfterFunc(pause, j.flushOrRetry)
	}
}

func (j *journal) flushOrRetry() {
	if err := j.flush(context.Background()); err != nil {
		select {
		case <-j.stopped:
			return
		default:
		}
		j.log.Error("the audit cannot be stored", "err", err)
	}
}

// flush stores all calls recorded before.
func (j *journal) flush(ctx context.Context) error {
	j.flushing.Lock()
	defer j.flushing.Unlock()
	j.mu.Lock()
	j.flushScheduled = false
	batches := (len(j.entries) + journalBatch) / journalBatch
	j.mu.Unlock()
	for range batches {
		if err := j.storeBatch(ctx); err != nil {
			return err
		}
	}
	return nil
}

// storeBatch stores all sums and at most journalBatch entries. flushing is held.
func (j *journal) storeBatch(ctx context.Context) error {
	j.mu.Lock()
	entries := j.entries[:min(len(j.entries), journalBatch)]
	amended, sums := j.amended, j.sums
	if len(entries)+len(amended)+len(sums) == 0 {
		j.mu.Unlock()
		return nil
	}
	j.entries, j.amended, j.sums = j.entries[len(entries):], nil, map[cloud.AuditCaller]*cloud.AuditSum{}
	j.room.Broadcast() // Entries that are being stored take no room.
	var b cloud.AuditBatch
	for _, e := range entries {
		e.written = true
		b.Entries = append(b.Entries, e.AuditEntry)
	}
	for _, e := range amended {
		e.amended = false
		b.Amended = append(b.Amended, e.AuditEntry)
	}
	for _, s := range sums {
		b.Sums = append(b.Sums, *s)
	}
	j.mu.Unlock()

	first, err := j.appendBatch(ctx, b)

	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.room.Broadcast()
	if j.failing = err != nil; j.failing {
		j.takeBack(entries, amended, sums)
		return err
	}
	for i, e := range entries {
		e.ID = first + int64(i)
	}
	if j.lost > 0 {
		j.log.Error("the audit's list lacks calls; its sums have them", "calls", j.lost)
		j.lost = 0
	}
	return nil
}

// takeBack puts back what could not be stored. mu is held.
func (j *journal) takeBack(entries, amended []*journalEntry, sums map[cloud.AuditCaller]*cloud.AuditSum) {
	for _, e := range entries {
		e.written = false
	}
	for _, e := range amended {
		e.amended = true
	}
	j.entries = append(entries[:len(entries):len(entries)], j.entries...)
	j.amended = append(amended, j.amended...)
	for who, s := range sums {
		if now := j.sums[who]; now != nil {
			s.Add(*now)
		}
		j.sums[who] = s
	}
	j.scheduleFlush(10 * journalPause)
}
