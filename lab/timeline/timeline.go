// Package timeline records what happened to each Node and Service, in seconds
// since the lab's start: an append-only file of JSON lines that one process
// writes for the cluster and the cloud, and `lab up` for what it saw itself.
// What is asked of the cloud is in the cloud's own audit; Merge puts both in one
// order.
package timeline

import (
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/console/story"
	"github.com/ccmlab/ccmlab/lab/lines"
)

// What happened is told in the words of the cloud's own story.
type (
	// Source is who told what happened.
	Source = story.Source
	// Change is what happened, without when.
	Change = story.Change
	// Call is one of the cloud's API; Change.What is its operation.
	Call = story.Call
	// Entry is one thing that happened.
	Entry = story.Entry
)

// All sources.
const (
	SourceCloud = story.SourceCloud
	SourceCall  = story.SourceCall
	// SourceCluster are the API server's watches of Nodes, Services and Pods.
	SourceCluster Source = "cluster"
	// SourceEvent are Kubernetes Events: what a controller says of what it does.
	SourceEvent Source = "event"
	// SourceLab is the lab: its components and its machines.
	SourceLab Source = "lab"
)

// Sources are all of them.
var Sources = []Source{SourceCloud, SourceCluster, SourceEvent, SourceCall, SourceLab}

// Log is a timeline's file.
type Log struct {
	File  string
	Start time.Time
}

// Create makes the file, so that it can be followed from the beginning.
func (l Log) Create() error { return lines.Create(l.File) }

// Add appends what happened now.
func (l Log) Add(c Change) error { return l.AddAt(time.Now(), c) }

// AddAt appends what happened then.
func (l Log) AddAt(then time.Time, c Change) error {
	_, err := lines.Append(l.File, l.newEntry(then, c))
	return err
}

func (l Log) newEntry(then time.Time, c Change) Entry {
	return story.NewEntry(l.Start, then, c)
}

// Read returns all entries so far, in the order of their times.
func (l Log) Read() ([]Entry, error) {
	all, err := lines.Read[Entry](l.File)
	slices.SortStableFunc(all, byTime)
	return all, err
}

func byTime(a, b Entry) int { return happenedAt(a).Compare(happenedAt(b)) }

// happenedAt is when an entry counts as having happened. The cloud tells the
// millisecond in which something changed, and the call that asked for it may have
// come within that.
func happenedAt(e Entry) time.Time {
	if e.Source == SourceCloud {
		return e.Time.Add(time.Millisecond - time.Nanosecond)
	}
	return e.Time
}

// ErrGone means that a timeline's file was removed: the lab went down.
var ErrGone = lines.ErrGone

// Reader reads a timeline as it grows.
type Reader = lines.Reader[Entry]

// Open begins with the first entry. It is for the caller to close.
func (l Log) Open() (*Reader, error) { return lines.Open[Entry](l.File) }

// Call makes an entry of a call.
func (l Log) Call(a api.AuditEntry) Entry { return l.newEntry(story.OfCall(a)) }
