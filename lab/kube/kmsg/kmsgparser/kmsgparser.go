// Package kmsgparser answers, for the hollow node, the question "what has the
// kernel logged?" with silence.
//
// The kubelet builds an out-of-memory watcher as soon as it has a real event
// recorder (pkg/kubelet/oom/oom_watcher_linux.go), and that watcher opens
// /dev/kmsg through github.com/euank/go-kmsg-parser: an ordinary user may not,
// and the kubelet then refuses to start. A hollow node has no processes of its
// own that the kernel could kill, so this package takes that module's place
// (see the replace directive in ../../go.mod) and the kubelet keeps its genuine
// event recorder.
package kmsgparser

import "time"

// Logger is what cadvisor's oomparser hands to SetLogger.
type Logger interface {
	Warningf(format string, args ...any)
	Infof(format string, args ...any)
	Errorf(format string, args ...any)
}

// Message is one line of the kernel's ring buffer.
type Message struct {
	Priority       int
	SequenceNumber int
	Timestamp      time.Time
	Message        string
}

// Parser is the interface that cadvisor's oomparser uses.
type Parser interface {
	SeekEnd() error
	Parse() <-chan Message
	SetLogger(Logger)
	Close() error
}

// NewParser returns a parser of a kernel log that stays empty.
func NewParser() (Parser, error) { return silent{}, nil }

type silent struct{}

func (silent) SeekEnd() error   { return nil }
func (silent) SetLogger(Logger) {}
func (silent) Close() error     { return nil }

// Parse returns a channel on which nothing ever arrives. It is not closed: the
// kubelet's watcher reports a closed stream as an error.
func (silent) Parse() <-chan Message { return make(chan Message) }
