package suite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/console"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// recordingBound is how long a lab may take to say what happened in it.
const recordingBound = time.Minute

// writeRecording writes what happened in a lab as a page, beside those of other labs.
func writeRecording(ctx context.Context, l *lab.Lab, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, recordingBound)
	defer cancel()
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		// What is missing of it is seen on it.
		_, err = console.WriteRecording(ctx, recordingFile(dir, l.State.Name), l, func(string) {})
	}
	if err != nil {
		return fmt.Errorf("the recording of lab %s: %w", l.State.Name, err)
	}
	return nil
}

// RecordingsFrom are the paths of the labs' recordings that there are, as a page in dir links them.
func (o Options) RecordingsFrom(dir string) (paths []string) {
	if o.Recordings == "" {
		return nil
	}
	for _, name := range o.Names(o.SelectTests()) {
		file := recordingFile(o.Recordings, name)
		if _, err := os.Stat(file); err != nil {
			continue
		}
		if link, err := filepath.Rel(dir, file); err == nil {
			paths = append(paths, filepath.ToSlash(link))
		}
	}
	return paths
}

// recordingFile is where the recording of the lab is.
func recordingFile(dir, lab string) string { return filepath.Join(dir, lab+".html") }

// observerOn is the observer of tests that run on a lab. Where the lab is recorded, it puts their begins and
// ends into its timeline.
func (o Options) observerOn(l *lab.Lab) func(conformance.TestReport) {
	if o.Recordings == "" {
		return o.Observer
	}
	return func(r conformance.TestReport) {
		if o.Observer != nil {
			o.Observer(r)
		}
		c := timeline.Change{
			Source: timeline.SourceLab, Subject: "test/" + r.ID, What: string(r.Result), Caller: suiteCaller,
			Detail: strings.Join(r.Reasons, "; "), Failed: r.Result == conformance.Failed,
		}
		if r.Result == "" {
			c.What, c.Detail = "begins", r.Requires
		}
		_ = l.Timeline().Add(c) // One that is missing is one line less to read.
	}
}
