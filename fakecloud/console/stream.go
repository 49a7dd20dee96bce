package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/console/story"
)

const (
	// SendInterval is how often a page is sent what is new.
	SendInterval = 200 * time.Millisecond
	// heartbeatInterval is how often a page is told that nothing is new. A page to which nothing comes for
	// several of them shows its picture as the last one known.
	heartbeatInterval = time.Second
	// MaxBatch bounds the changes and entries of one message.
	MaxBatch = 2000
	// writeTimeout is how long a browser that is asleep may take to read a message.
	writeTimeout = time.Minute
)

// StoryQueue has what a page is to be told and was not sent yet.
type StoryQueue struct {
	mu      sync.Mutex
	entries []story.Entry
	note    string
}

// Add puts an entry at the end.
func (q *StoryQueue) Add(e story.Entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.entries = append(q.entries, e)
}

// SetNote has the page say what keeps the story from being complete.
func (q *StoryQueue) SetNote(text string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.note = text
}

// MoveTo moves at most MaxBatch entries, and the note, into a batch.
func (q *StoryQueue) MoveTo(b *Batch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.entries), MaxBatch)
	b.Story, q.entries = q.entries[:n], q.entries[n:]
	b.Note, q.note = q.note, ""
}

// newStream sends what Page.Stream tells as server-sent events. A page that connects again is sent
// everything again.
func (p *Page) newStream() http.Handler {
	token := func(r *http.Request) string { return sessionOf(r).Token }
	return NewViewers(maxViewers).Limit(token, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		control := http.NewResponseController(w)
		var sent time.Time
		send := func(b Batch) error {
			b.Now = time.Now()
			if b.isEmpty() && b.Now.Sub(sent) < heartbeatInterval {
				return nil
			}
			sent = b.Now
			data, err := json.Marshal(b)
			if err != nil {
				return err
			}
			// A writer that knows no deadline is a test's.
			_ = control.SetWriteDeadline(b.Now.Add(writeTimeout))
			if _, err := fmt.Fprintf(w, "data: %s\n\n", data); err != nil {
				return err
			}
			return control.Flush()
		}
		_ = p.Stream(r.Context(), sessionOf(r), send) // Of a browser that is gone.
	}))
}
