package console

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/lines"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/watch"
)

// storyQueue is what a watch has told and a page was not sent yet.
type storyQueue struct {
	mu      sync.Mutex
	entries []timeline.Entry
	note    string
}

func (q *storyQueue) takeBatch() (entries []timeline.Entry, note string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.entries), console.MaxBatch)
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

// streamLab sends what was recorded and what is new until ctx ends or send fails.
func streamLab(ctx context.Context, l *lab.Lab, send func(console.Batch) error) error {
	story := followStory(ctx, l)
	var reader *lines.Reader[scene.Change]
	defer func() {
		if reader != nil {
			_ = reader.Close()
		}
	}()
	tick := time.NewTicker(console.SendInterval)
	defer tick.Stop()
	for first := true; ; first = false {
		b := console.Batch{Reset: first, Limit: api.DefaultRateLimit}
		if reader == nil {
			opened, err := lines.Open[scene.Change](SceneFile(l))
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
			n := min(len(rest), console.MaxBatch)
			b.Scene, rest = rest[:n], rest[n:]
			if err := send(b); err != nil {
				return err
			}
			if len(rest) == 0 {
				break
			}
			b = console.Batch{}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
