package labscene

import (
	"os"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/lines"
)

// maxLogBytes is how large a log of changes may become. Then the older half of its changes is folded
// into one scene, and what was before can be looked at no more.
const maxLogBytes = 32 << 20

// Log is the file of a lab's changes, and a scene.Store. One process writes it.
type Log struct {
	File string

	mu     sync.Mutex
	scene  scene.Scene
	seq    int64
	newest time.Time
	size   int64
	bound  int64 // of size
}

// OpenLog folds what the file has, if there is one.
func OpenLog(file string) (*Log, error) {
	changes, err := Read(file)
	if err != nil {
		return nil, err
	}
	l := &Log{File: file, scene: scene.Fold(changes), bound: maxLogBytes}
	for _, c := range changes {
		l.seq = max(l.seq, c.CloudSeq)
		l.newest = c.Time
	}
	if info, err := os.Stat(file); err == nil {
		l.size = info.Size()
	}
	return l, lines.Create(file)
}

// Read returns the changes of a log's file; none if there is no such file.
func Read(file string) ([]scene.Change, error) { return lines.Read[scene.Change](file) }

// Get returns a thing as it is now.
func (l *Log) Get(id string) (t scene.Object, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, ok = l.scene[id]
	return t, ok
}

// FindByCloudID returns the thing that has the cloud's ID, as it is now.
func (l *Log) FindByCloudID(id string) (scene.Object, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.scene.FindByCloudID(id)
}

// Seq is the number of the cloud's newest event that is in the log.
func (l *Log) Seq() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// Newest is when the last change was that the log had when it was opened; the zero time if it had none.
func (l *Log) Newest() time.Time { return l.newest }

// Objects are those that there are now.
func (l *Log) Objects() []scene.Object {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.scene.Objects()
}

// Add writes a change, unless nothing changes.
func (l *Log) Add(c scene.Change) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.scene.Changes(c) {
		return nil
	}
	if l.size > l.bound {
		if err := l.foldOlderHalf(); err != nil {
			return err
		}
	}
	n, err := lines.Append(l.File, c)
	if err != nil {
		return err
	}
	l.scene.Apply(c)
	l.size += int64(n)
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
	older, newer := changes[:len(changes)/2], changes[len(changes)/2:]
	var kept []scene.Change
	for _, t := range scene.Fold(older).Objects() {
		kept = append(kept, scene.Change{Time: older[len(older)-1].Time, Object: &t})
	}
	data, err := lines.Encode(append(kept, newer...)...)
	if err != nil {
		return err
	}
	l.size = int64(len(data))
	return atomicfile.Write(l.File, data)
}
