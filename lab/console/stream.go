package console

import (
	"context"
	"errors"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/lines"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/watch"
)

// isOwnRead tells of a call by which the lab itself looks at the cloud, as it does all the time.
func isOwnRead(e timeline.Entry) bool {
	return e.Call != nil && e.Call.Reads() && !e.Failed && e.Caller == cluster.CallerLab
}

// followStory watches a lab until ctx ends.
func followStory(ctx context.Context, l *lab.Lab) *console.StoryQueue {
	q := &console.StoryQueue{}
	go func() {
		err := watch.Watch(ctx, l, watch.Options{
			Filter: timeline.Filter{Calls: timeline.CallsAll}, Follow: true,
		}, func(e timeline.Entry) error {
			if !isOwnRead(e) {
				q.Add(e)
			}
			return nil
		}, q.SetNote)
		if err != nil && ctx.Err() == nil {
			q.SetNote(err.Error())
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
		b := console.Batch{Reset: first}
		if reader == nil {
			opened, err := lines.Open[scene.Change](SceneFile(l))
			if err == nil {
				reader, b.Reset = opened, true
			}
		}
		if reader != nil {
			changes, err := reader.Next()
			b.Scene = changes
			if b.Reset {
				b.Bounds = boundsOf(changes)
			}
			if errors.Is(err, lines.ErrGone) {
				_ = reader.Close()
				reader = nil
			}
		}
		story.MoveTo(&b)
		for rest := b.Scene; ; {
			n := min(len(rest), console.MaxBatch)
			b.Scene, rest = rest[:n], rest[n:]
			b.More = len(rest) > 0
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
