// Package timeline records what happened to each Node and Service, in seconds
// since the lab's start: an append-only file of JSON lines that one process
// writes for the cluster and the cloud, and `lab up` for what it saw itself.
package timeline

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Entry is one thing that happened.
type Entry struct {
	Time time.Time `json:"time"`
	// Seconds since the lab's start.
	Seconds float64 `json:"seconds"`
	// Subject is what it happened to, as kind/name.
	Subject string `json:"subject"`
	// What happened, in a word or two.
	What string `json:"what"`
	// Detail says more.
	Detail string `json:"detail,omitempty"`
	// CloudSeq is the number of the cloud's event that told it, if one did.
	CloudSeq int64 `json:"cloudSeq,omitempty"`
}

// Log is a timeline's file.
type Log struct {
	File  string
	Start time.Time
}

// Create makes the file, so that it can be followed from the beginning.
func (l Log) Create() error {
	f, err := os.OpenFile(l.File, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// Add appends what happened now.
func (l Log) Add(c Change) error { return l.AddAt(time.Now(), 0, c) }

// AddAt appends what happened then, as the cloud's event of that number tells
// it. A single write of a short line with O_APPEND is not torn by another
// process's.
func (l Log) AddAt(then time.Time, cloudSeq int64, c Change) error {
	line, err := json.Marshal(Entry{
		Time: then, Seconds: round(then.Sub(l.Start).Seconds()), CloudSeq: cloudSeq,
		Subject: c.Subject, What: c.What, Detail: c.Detail,
	})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(l.File, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

func round(s float64) float64 { return float64(int64(s*100+0.5)) / 100 }

// Read returns all entries so far.
func (l Log) Read() ([]Entry, error) {
	var all []Entry
	err := l.Follow(context.Background(), false, func(e Entry) error {
		all = append(all, e)
		return nil
	})
	return all, err
}

// Follow calls fn for each entry; with more it waits for those to come, until
// ctx ends.
func (l Log) Follow(ctx context.Context, more bool, fn func(Entry) error) error {
	f, err := os.Open(l.File)
	if errors.Is(err, fs.ErrNotExist) && !more {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var changed <-chan fsnotify.Event
	if more {
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return err
		}
		defer func() { _ = w.Close() }()
		if err := w.Add(l.File); err != nil {
			return err
		}
		changed = w.Events
	}
	r := bufio.NewReader(f)
	var line []byte
	for {
		part, err := r.ReadBytes('\n')
		line = append(line, part...)
		if err == nil {
			var e Entry
			// A line that a crash cut short is skipped.
			if json.Unmarshal(line, &e) == nil {
				if err := fn(e); err != nil {
					return err
				}
			}
			line = line[:0]
			continue
		}
		if !errors.Is(err, io.EOF) || !more {
			return noEOF(err)
		}
		select {
		case <-changed:
			// We hold the file open, so its removal shows as a change of
			// attributes: no name links to it any more.
			if info, err := f.Stat(); err != nil || info.Sys().(*syscall.Stat_t).Nlink == 0 {
				return nil // The lab went down.
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
