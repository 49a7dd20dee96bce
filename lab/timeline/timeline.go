// Package timeline records what happened to each Node and Service, in seconds
// since the lab's start: an append-only file of JSON lines that one process
// writes for the cluster and the cloud, and `lab up` for what it saw itself.
// What is asked of the cloud is in the cloud's own audit; Merge puts both in one
// order.
package timeline

import (
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/lab/lines"
)

// Source is who told what happened.
type Source string

// All sources.
const (
	// SourceCloud is the cloud's event stream.
	SourceCloud Source = "cloud"
	// SourceCluster are the API server's watches of Nodes, Services and Pods.
	SourceCluster Source = "cluster"
	// SourceEvent are Kubernetes Events: what a controller says of what it does.
	SourceEvent Source = "event"
	// SourceCall is the cloud's audit: who called what.
	SourceCall Source = "call"
	// SourceLab is the lab: its components and its machines.
	SourceLab Source = "lab"
)

// Sources are all of them.
var Sources = []Source{SourceCloud, SourceCluster, SourceEvent, SourceCall, SourceLab}

// Change is what happened, without when.
type Change struct {
	Source Source `json:"source"`
	// Subject is what it happened to, as kind/name.
	Subject string `json:"subject"`
	// What happened, in a word or two.
	What string `json:"what"`
	// Detail says more.
	Detail string `json:"detail,omitempty"`
	// Caller is who called the cloud, by the name of the token, or the controller
	// that told an Event.
	Caller string `json:"caller,omitempty"`
	// Failed is true for what is not as somebody wants it: a refused call, a
	// Warning, a load balancer in error, a Node that is not ready.
	Failed bool `json:"failed,omitempty"`
	// ID is the cloud's, of the subject.
	ID string `json:"id,omitempty"`
	// CloudSeq is the number of the cloud's event that told it, if one did.
	CloudSeq int64 `json:"cloudSeq,omitempty"`
	// EventKey tells a Kubernetes Event, and how often it had come, from others.
	EventKey string `json:"eventKey,omitempty"`
	// Call is there for those only.
	Call *Call `json:"call,omitempty"`
}

// Call is one of the cloud's API; Change.What is its operation.
type Call struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	// Status is 0 if the caller broke it off.
	Status int `json:"status"`
	// Code is the problem's, Fault the ID of the fault rule that was applied.
	Code         string  `json:"code,omitempty"`
	Fault        string  `json:"fault,omitempty"`
	Milliseconds float64 `json:"milliseconds"`
	RequestID    string  `json:"requestId"`
}

// Entry is one thing that happened.
type Entry struct {
	Time time.Time `json:"time"`
	// Seconds since the lab's start.
	Seconds float64 `json:"seconds"`
	Change
}

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
	return Entry{Time: then, Seconds: roundSeconds(then.Sub(l.Start).Seconds()), Change: c}
}

func roundSeconds(s float64) float64 { return float64(int64(s*100+0.5)) / 100 }

// Read returns all entries so far, in the order of their times.
func (l Log) Read() ([]Entry, error) {
	all, err := lines.Read[Entry](l.File)
	slices.SortStableFunc(all, byTime)
	return all, err
}

func byTime(a, b Entry) int { return a.happenedAt().Compare(b.happenedAt()) }

// happenedAt is when an entry counts as having happened. The cloud tells the
// millisecond in which something changed, and the call that asked for it may have
// come within that.
func (e Entry) happenedAt() time.Time {
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
