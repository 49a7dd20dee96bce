package scene

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/lines"
)

// maxLogBytes is how large a log of changes may become. Then the older half of its changes is folded
// into one scene, and what was before can be looked at no more.
const maxLogBytes = 32 << 20

// Log is the file of a lab's changes. One process writes it.
type Log struct {
	File string

	scene Scene
	seq   int64
	size  int64
	bound int64 // of size
}

// OpenLog folds what the file has, if there is one.
func OpenLog(file string) (*Log, error) {
	l := &Log{File: file, scene: Scene{}, bound: maxLogBytes}
	changes, err := Read(file)
	for _, c := range changes {
		l.scene.Apply(c)
		l.seq = max(l.seq, c.CloudSeq)
	}
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(file); err == nil {
		l.size = info.Size()
	}
	return l, lines.Create(file)
}

// Read returns the changes of a log's file; none if there is no such file.
func Read(file string) ([]Change, error) {
	r, err := lines.Open[Change](file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	all, err := r.Next()
	if errors.Is(err, lines.ErrGone) {
		err = nil
	}
	return all, err
}

// Get returns a thing as it is now.
func (l *Log) Get(id string) (t Thing, ok bool) { t, ok = l.scene[id]; return t, ok }

// FindByCloudID returns the thing that has the cloud's ID, as it is now.
func (l *Log) FindByCloudID(id string) (t Thing, ok bool) {
	for _, t := range l.scene {
		if t.CloudID == id {
			return t, true
		}
	}
	return t, false
}

// Seq is the number of the cloud's newest event that is in the log.
func (l *Log) Seq() int64 { return l.seq }

// Things are those that there are now.
func (l *Log) Things() []Thing { return l.scene.Things() }

// Add writes a change, unless nothing changes.
func (l *Log) Add(c Change) error {
	if !l.scene.Changes(c) {
		return nil
	}
	if l.size > l.bound {
		if err := l.foldOlderHalf(); err != nil {
			return err
		}
	}
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := lines.Append(l.File, json.RawMessage(line)); err != nil {
		return err
	}
	l.scene.Apply(c)
	l.size += int64(len(line)) + 1
	l.seq = max(l.seq, c.CloudSeq)
	return nil
}

// foldOlderHalf replaces the older half of the changes with the scene that they make. Who reads the
// file meanwhile reads it to its end, and begins anew.
func (l *Log) foldOlderHalf() error {
	changes, err := Read(l.File)
	if err != nil {
		return err
	}
	half := len(changes) / 2
	folded, then := Scene{}, time.Time{}
	for _, c := range changes[:half] {
		folded.Apply(c)
		then = c.Time
	}
	var kept []byte
	keep := func(c Change) error {
		line, err := json.Marshal(c)
		kept = append(append(kept, line...), '\n')
		return err
	}
	for _, t := range folded.Things() {
		if err := keep(Change{Time: then, Thing: &t}); err != nil {
			return err
		}
	}
	for _, c := range changes[half:] {
		if err := keep(c); err != nil {
			return err
		}
	}
	l.size = int64(len(kept))
	return atomicfile.Write(l.File, kept)
}
