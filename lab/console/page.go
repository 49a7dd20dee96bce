// Package console is a lab's page: that of its cloud, with the cluster in the picture and the lab's timeline
// as its story. The lab's agent records the scene and serves the page. Begin with Serve; WriteRecording
// writes the same page as one file.
package console

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/conformance"
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
	recording := console.Recording{Title: pageTitle(l), Until: time.Now(), Scene: changes, Story: entries, Bounds: boundsOf(changes)}
	if err := recording.Write(&page); err != nil {
		return 0, err
	}
	return page.Len(), atomicfile.Write(file, page.Bytes())
}

// boundsOf are what the calls of a lab are compared with: the cloud's limit, and what the conformance suite
// allows a CCM that has as many Nodes.
func boundsOf(changes []scene.Change) console.Bounds {
	b := console.Bounds{Limit: api.DefaultRateLimit}
	nodes := 0
	for _, t := range scene.Fold(changes) {
		if t.Kind == labscene.KindNode {
			nodes++
		}
	}
	if nodes > 0 {
		allowed := conformance.AllowedAtRest(nodes, time.Minute)
		b.Budget = fmt.Sprintf(
			"The conformance suite allows a CCM at rest with so many Nodes (%d), by controller: node %d, route %d, service %d.",
			nodes, allowed[conformance.ControllerNode], allowed[conformance.ControllerRoute],
			allowed[conformance.ControllerService],
		)
	}
	return b
}

func pageTitle(l *lab.Lab) string { return "Lab " + l.State.Name }
