// Package kmsgparser replaces github.com/euank/go-kmsg-parser for the hollow node, by the replace
// directive in ../../go.mod: it parses a kernel log that is always empty.
//
// The kubelet starts an out-of-memory watcher as soon as it has a real event recorder
// (pkg/kubelet/oom/oom_watcher_linux.go). The watcher opens /dev/kmsg through that module, which an
// ordinary user may not do, and then the kubelet refuses to start. A hollow node has no processes
// that the kernel could kill. With this package it keeps the genuine event recorder.
package kmsgparser

import "time"

// Logger is the type of SetLogger's argument in cadvisor's oomparser.
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

// NewParser returns a parser of an empty kernel log.
func NewParser() (Parser, error) { return emptyLog{}, nil }

type emptyLog struct{}

func (emptyLog) SeekEnd() error   { return nil }
func (emptyLog) SetLogger(Logger) {}
func (emptyLog) Close() error     { return nil }

// Parse returns a channel without messages. It is never closed: the kubelet's watcher reports a
// closed channel as an error.
func (emptyLog) Parse() <-chan Message { return make(chan Message) }
