// Package console is a lab's page: that of its cloud, with the cluster in the picture and the lab's timeline
// as its story. The lab's agent records the scene and serves the page. Begin with Serve; WriteRecording
// writes the same page as one file.
package console

import (
	"bytes"
	"context"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/watch"
)

// WriteRecording writes what happened in a lab so far into a file, as a page that needs nothing else. It
// returns the file's size in bytes. note is told what is missing of it.
func WriteRecording(ctx context.Context, file string, l *lab.Lab, note func(string)) (size int, err error) {
	changes, err := labscene.Read(SceneFile(l))
	if err != nil {
		return 0, err
	}
	var entries []timeline.Entry
	if err := watch.Watch(ctx, l, watch.Options{Filter: timeline.Filter{Calls: timeline.CallsAll}}, func(e timeline.Entry) error {
		if !isOwnRead(e) {
			entries = append(entries, e)
		}
		return nil
	}, note); err != nil {
		return 0, err
	}
	var page bytes.Buffer
	recording := console.Recording{Title: pageTitle(l), Until: time.Now(), Scene: changes, Story: entries}
	if err := recording.Write(&page); err != nil {
		return 0, err
	}
	return page.Len(), atomicfile.Write(file, page.Bytes())
}

func pageTitle(l *lab.Lab) string { return "Lab " + l.State.Name }
