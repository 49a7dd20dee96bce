// Package fsnotify replaces github.com/fsnotify/fsnotify for a lab's components, by the replace
// directive in ../go.mod: it looks at files now and then instead of asking the kernel.
//
// Linux gives a user 128 inotify instances by default (fs.inotify.max_user_instances), and the
// components of one lab would take 19: for certificates that are never renewed while a lab lives,
// and for a kubelet's plugins, which a hollow node does not have. The seventh lab of a classroom
// could not begin.
//
// It has what Kubernetes uses of the original. A renamed file is reported as removed.
package fsnotify

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// pollInterval is how late a change is seen at most. The API server's own look at a certificate,
// should a watch fail, comes once a minute.
const pollInterval = 5 * time.Second

// Op is what has happened to a file: one bit of the constants.
type Op uint32

// The bits are those of the original. Rename and Chmod are never sent.
const (
	Create Op = 1 << iota
	Write
	Remove
	Rename
	Chmod
)

// Event is one change.
type Event struct {
	Name string
	Op   Op
}

// Has reports whether the event is of that kind.
func (e Event) Has(op Op) bool { return e.Op&op != 0 }

// ErrNonExistentWatch is returned by Remove for a path that is not watched.
var ErrNonExistentWatch = errors.New("fsnotify: can't remove non-existent watch")

// Watcher sends the changes of the paths that were added.
type Watcher struct {
	Events chan Event
	Errors chan error

	closing sync.Once
	closed  chan struct{}
	mu      sync.Mutex
	watched map[string]listing
}

// listing is what a path had when it was looked at: a folder's entries or the file itself, by
// path.
type listing map[string]fs.FileInfo

// NewWatcher returns a watcher of nothing yet. Close ends it.
func NewWatcher() (*Watcher, error) {
	w := &Watcher{
		Events: make(chan Event), Errors: make(chan error),
		closed: make(chan struct{}), watched: map[string]listing{},
	}
	go w.poll()
	return w, nil
}

// Add begins to watch a file, or the entries of a folder.
func (w *Watcher) Add(path string) error {
	found, err := list(path)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.watched[path]; !ok {
		w.watched[path] = found
	}
	return nil
}

// Remove ends the watch of a path.
func (w *Watcher) Remove(path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.watched[path]; !ok {
		return ErrNonExistentWatch
	}
	delete(w.watched, path)
	return nil
}

// Close ends the watcher. Its channels stay open.
func (w *Watcher) Close() error {
	w.closing.Do(func() { close(w.closed) })
	return nil
}

func (w *Watcher) poll() {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-w.closed:
			return
		}
		for _, event := range w.findChanges() {
			select {
			case w.Events <- event:
			case <-w.closed:
				return
			}
		}
	}
}

// findChanges looks at every watched path. As with inotify, the watch of a path that is gone
// ends.
func (w *Watcher) findChanges() []Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	var events []Event
	for path, before := range w.watched {
		now, err := list(path)
		if err != nil {
			delete(w.watched, path)
			events = append(events, Event{Name: path, Op: Remove})
			continue
		}
		events = append(events, compare(before, now)...)
		w.watched[path] = now
	}
	return events
}

func compare(before, now listing) []Event {
	var events []Event
	for name, old := range before {
		switch new, ok := now[name]; {
		case !ok:
			events = append(events, Event{Name: name, Op: Remove})
		case !os.SameFile(old, new):
			events = append(events, Event{Name: name, Op: Remove}, Event{Name: name, Op: Create})
		case old.Size() != new.Size() || !old.ModTime().Equal(new.ModTime()):
			events = append(events, Event{Name: name, Op: Write})
		}
	}
	for name := range now {
		if _, ok := before[name]; !ok {
			events = append(events, Event{Name: name, Op: Create})
		}
	}
	return events
}

func list(path string) (listing, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return listing{path: info}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	found := listing{}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil { // Else it is gone since.
			found[filepath.Join(path, entry.Name())] = info
		}
	}
	return found, nil
}
