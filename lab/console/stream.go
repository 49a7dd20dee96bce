package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/console/scene"
	"github.com/ccmlab/ccmlab/lab/lines"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/watch"
)

const (
	sendInterval = 200 * time.Millisecond
	// maxBatch bounds the changes and entries of one message.
	maxBatch = 2000
	// writeTimeout is how long a browser that is asleep may take to read a message.
	writeTimeout = time.Minute
)

// batch is what a page is sent at a time.
type batch struct {
	// Reset tells that the changes begin anew.
	Reset bool             `json:"reset,omitempty"`
	Now   time.Time        `json:"now"`
	Scene []scene.Change   `json:"scene,omitempty"`
	Story []timeline.Entry `json:"story,omitempty"`
	// Note is what keeps the story from being complete.
	Note string `json:"note,omitempty"`
}

// newStream sends changes of the scene and entries of the timeline, those recorded first, as server-sent
// events. A page that connects again is sent everything again.
func newStream(l *lab.Lab) http.Handler {
	viewers := make(chan struct{}, maxViewers)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case viewers <- struct{}{}:
			defer func() { <-viewers }()
		default:
			http.Error(w, fmt.Sprintf("%d pages of this lab are open; close one", maxViewers), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		control := http.NewResponseController(w)
		send := func(b batch) error {
			b.Now = time.Now()
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
		story := followStory(ctx, l)
		_ = followLab(ctx, SceneFile(l), story, send) // Of a browser that is gone.
	})
}

// storyQueue is what a watch has told and a page was not sent yet.
type storyQueue struct {
	mu      sync.Mutex
	entries []timeline.Entry
	note    string
}

func (q *storyQueue) takeBatch() (entries []timeline.Entry, note string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.entries), maxBatch)
	entries, q.entries = q.entries[:n], q.entries[n:]
	note, q.note = q.note, ""
	return entries, note
}

// isOwnRead tells of a call by which the lab itself looks at the cloud, as it does all the time.
func isOwnRead(e timeline.Entry) bool {
	return e.Call != nil && e.Call.Reads() && !e.Failed && e.Caller == cluster.CallerLab
}

// followStory watches a lab until ctx ends.
func followStory(ctx context.Context, l *lab.Lab) *storyQueue {
	q := &storyQueue{}
	note := func(text string) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.note = text
	}
	go func() {
		err := watch.Watch(ctx, l, watch.Options{
			Filter: timeline.Filter{Calls: timeline.CallsAll}, Follow: true,
		}, func(e timeline.Entry) error {
			if isOwnRead(e) {
				return nil
			}
			q.mu.Lock()
			defer q.mu.Unlock()
			q.entries = append(q.entries, e)
			return nil
		}, note)
		if err != nil && ctx.Err() == nil {
			note(err.Error())
		}
	}()
	return q
}

// followLab sends what is new until ctx ends or send fails.
func followLab(ctx context.Context, sceneFile string, story *storyQueue, send func(batch) error) error {
	var reader *lines.Reader[scene.Change]
	defer func() {
		if reader != nil {
			_ = reader.Close()
		}
	}()
	tick := time.NewTicker(sendInterval)
	defer tick.Stop()
	for first := true; ; first = false {
		b := batch{Reset: first}
		if reader == nil {
			opened, err := lines.Open[scene.Change](sceneFile)
			if err == nil {
				reader, b.Reset = opened, true
			}
		}
		if reader != nil {
			changes, err := reader.Next()
			b.Scene = changes
			if errors.Is(err, lines.ErrGone) {
				_ = reader.Close()
				reader = nil
			}
		}
		b.Story, b.Note = story.takeBatch()
		for rest := b.Scene; ; {
			n := min(len(rest), maxBatch)
			b.Scene, rest = rest[:n], rest[n:]
			if err := send(b); err != nil {
				return err
			}
			if len(rest) == 0 {
				break
			}
			b = batch{}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
