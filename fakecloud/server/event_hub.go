package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

const (
	// What the tail keeps for readers that follow, whichever is less: how far
	// behind one may fall.
	tailEvents = 4096
	tailBytes  = 8 << 20
	// tailPause is the least time between two reads of the log by the tail. What happens
	// meanwhile reaches each reader in one write.
	tailPause = 50 * time.Millisecond
)

var (
	errBehind   = errors.New("the reader is too slow: the events that it needs are no longer buffered")
	errTailOver = errors.New("nobody reads the log any more")
)

// eventMessage is one event as it is sent, with what filters match.
type eventMessage struct {
	seq      int64
	project  string
	resource cloud.Resource
	id       string
	tags     map[string]string
	data     []byte
	body     []byte // the JSON in data
}

func toEventMessage(e cloud.Event) (eventMessage, error) {
	body, err := json.Marshal(e.Event)
	if err != nil {
		return eventMessage{}, fmt.Errorf("event %d: %w", e.Seq, err)
	}
	data := make([]byte, 0, len(body)+64)
	data = fmt.Appendf(data, "id: %d\nevent: %s\ndata: ", e.Seq, e.Type)
	data = append(append(data, body...), "\n\n"...)
	body = data[len(data)-len("\n\n")-len(body) : len(data)-len("\n\n")]
	return eventMessage{
		seq: e.Seq, project: e.Project, resource: e.Resource, id: e.ID, tags: e.Tags, data: data, body: body,
	}, nil
}

func toEventMessages(events []cloud.Event) ([]eventMessage, error) {
	all := make([]eventMessage, len(events))
	for i, e := range events {
		var err error
		if all[i], err = toEventMessage(e); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// eventFilter selects the events that a reader wants. Empty fields do not narrow it.
type eventFilter struct {
	project   string
	resources []cloud.Resource
	ids       []string
	tags      []cloud.TagFilter
}

func (f eventFilter) wantsMessage(m eventMessage) bool {
	if f.project != "" && f.project != m.project ||
		len(f.resources) > 0 && !slices.Contains(f.resources, m.resource) ||
		len(f.ids) > 0 && !slices.Contains(f.ids, m.id) {
		return false
	}
	for _, t := range f.tags {
		if !t.Matches(m.tags) {
			return false
		}
	}
	return true
}

// eventHub lets all readers that follow the event log share one reader of the store, the
// tail. There is a tail while anyone follows.
type eventHub struct {
	cloud               *cloud.Cloud
	log                 *slog.Logger
	maxEvents, maxBytes int
	timeout             time.Duration // of one write to a reader

	mu   sync.Mutex
	tail *eventTail // nil when nobody follows

	readers, sent, cutOff atomic.Int64
}

// joinTail gives the tail, and starts it for the first reader. Each reader calls leaveTail
// in the end.
func (h *eventHub) joinTail(ctx context.Context) (*eventTail, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tail == nil {
		more := h.cloud.MoreEvents()
		last, err := h.cloud.LastEvent(ctx)
		if err != nil {
			return nil, err
		}
		life, end := context.WithCancel(context.Background())
		h.tail = &eventTail{
			cloud: h.cloud, end: end, low: last, high: last, changed: make(chan struct{}), maxEvents: h.maxEvents,
			maxBytes: h.maxBytes,
		}
		go h.runTail(life, h.tail, more)
	}
	h.tail.readers++
	h.readers.Add(1)
	return h.tail, nil
}

// leaveTail stops the tail when its last reader leaves.
func (h *eventHub) leaveTail(t *eventTail) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readers.Add(-1)
	if t.readers--; t.readers == 0 {
		h.dropTail(t)
	}
}

// dropTail stops a tail. mu is held.
func (h *eventHub) dropTail(t *eventTail) {
	t.end()
	if h.tail == t {
		h.tail = nil
	}
}

// runTail reads the log until it is stopped or fails. It then cuts off the readers, which
// learn the reason when they connect again.
func (h *eventHub) runTail(ctx context.Context, t *eventTail, more <-chan struct{}) {
	err := t.run(ctx, more)
	if ctx.Err() == nil {
		h.log.Info("the event streams end", "err", err)
	}
	h.mu.Lock()
	h.dropTail(t)
	h.mu.Unlock()
	t.close()
}

// eventTail holds the newest events: all of those after low and up to high.
type eventTail struct {
	cloud               *cloud.Cloud
	end                 context.CancelFunc
	readers             int // guarded by the hub's mu
	maxEvents, maxBytes int

	mu sync.Mutex
	// messages only ever changes by appending and reslicing, as readers share it.
	messages  []eventMessage
	size      int
	low, high int64
	over      bool
	changed   chan struct{} // closed and replaced when there is more
}

func (t *eventTail) run(ctx context.Context, more <-chan struct{}) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		}
		more = t.cloud.MoreEvents()
		if err := t.readNewEvents(ctx); err != nil {
			return err
		}
		pause.Reset(tailPause)
	}
}

// readNewEvents adds the events that are new in the store.
func (t *eventTail) readNewEvents(ctx context.Context) error {
	for {
		// Only this goroutine changes high.
		events, through, err := t.cloud.Events(ctx, cloud.Project{}, t.high)
		if err != nil || through == t.high {
			return err
		}
		messages, err := toEventMessages(events)
		if err != nil {
			return err
		}
		t.publishMessages(messages, through)
	}
}

func (t *eventTail) publishMessages(messages []eventMessage, through int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range messages {
		t.size += len(m.data)
	}
	t.messages = append(t.messages, messages...)
	t.high = through
	for len(t.messages) > 1 && (len(t.messages) > t.maxEvents || t.size > t.maxBytes) {
		t.low = t.messages[0].seq
		t.size -= len(t.messages[0].data)
		t.messages = t.messages[1:]
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// close cuts off the readers.
func (t *eventTail) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	close(t.changed)
	t.changed = make(chan struct{})
}

// messagesAfter gives the messages after a number, the number up to which they reach, and
// a channel that is closed when there are more.
func (t *eventTail) messagesAfter(seq int64) ([]eventMessage, int64, <-chan struct{}, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.over:
		return nil, seq, nil, errTailOver
	case seq < t.low:
		return nil, seq, nil, errBehind
	}
	first := sort.Search(len(t.messages), func(i int) bool { return t.messages[i].seq > seq })
	return t.messages[first:], max(seq, t.high), t.changed, nil
}

// holdsAllAfter tells whether the tail holds all events after a number.
func (t *eventTail) holdsAllAfter(seq int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return seq >= t.low
}
