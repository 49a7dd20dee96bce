// Package console is a lab's page: that of its cloud, with the cluster in the picture and the lab's timeline
// as its story. The lab's agent records the scene and serves the page. Begin with Serve; WriteRecording
// writes the same page as one file.
package console

import (
	"context"
	"io"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/watch"
)

// WriteRecording writes what happened in a lab so far as a page that needs nothing else. note is told
// what is missing of it.
func WriteRecording(ctx context.Context, w io.Writer, l *lab.Lab, note func(string)) error {
	changes, err := labscene.Read(SceneFile(l))
	if err != nil {
		return err
	}
	var entries []timeline.Entry
	if err := watch.Watch(ctx, l, watch.Options{Filter: timeline.Filter{Calls: timeline.CallsAll}}, func(e timeline.Entry) error {
		if !isOwnRead(e) {
			entries = append(entries, e)
		}
		return nil
	}, note); err != nil {
		return err
	}
	return console.Recording{Title: pageTitle(l), Until: time.Now(), Scene: changes, Story: entries}.Write(w)
}

func pageTitle(l *lab.Lab) string { return "Lab " + l.State.Name }
