package lessons

// This file answers: what has somebody done, and when? It is kept beside the labs,
// which come and go.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/lab/remedy"
	"github.com/ccmlab/ccmlab/lab/state"
)

// Progress is somebody's, in all lessons.
type Progress struct {
	// Current is the lesson that the lab was brought up for; "" is none.
	Current string `json:"current,omitempty"`
	// Labs are those of the current lesson, by role; its own is "".
	Labs map[string]string `json:"labs,omitempty"`
	// Folder is where the learner writes a CCM of their own; "" until they do.
	Folder string `json:"folder,omitempty"`
	// Lessons are those that were ever started.
	Lessons map[string]*LessonProgress `json:"lessons"`
}

// LessonProgress is that in one lesson.
type LessonProgress struct {
	// Started is when it was last, with everything as it should be; zero while it
	// is being brought up.
	Started time.Time `json:"started,omitzero"`
	// Finished is when all was done for the first time; zero is never.
	Finished time.Time `json:"finished,omitzero"`
	// Done are the tasks, by ID, since it was started.
	Done map[string]Done `json:"done,omitempty"`
	// Hints is how many were asked for, by task.
	Hints map[string]int `json:"hints,omitempty"`
	// Begun is the fingerprint of the CCM that the lesson put there; "" where it begins
	// with what the learner had written.
	Begun string `json:"begun,omitempty"`
	// Verdicts are the suite's last, by task.
	Verdicts map[string]Verdict `json:"verdicts,omitempty"`
}

// Done says of a task that it is.
type Done struct {
	At time.Time `json:"at"`
	// Seen is what was seen.
	Seen string `json:"seen"`
	// Told says that the learner knows: somebody else may have looked first.
	Told bool `json:"told,omitempty"`
}

// of is the progress in a lesson.
func (p *Progress) of(lesson string) *LessonProgress {
	if p.Lessons == nil {
		p.Lessons = map[string]*LessonProgress{}
	}
	lp := p.Lessons[lesson]
	if lp == nil {
		lp = &LessonProgress{}
		p.Lessons[lesson] = lp
	}
	return lp
}

// begin forgets what was done in a lesson, but not that it was finished once.
func (p *LessonProgress) begin(begun string) {
	*p = LessonProgress{Finished: p.Finished, Begun: begun, Done: map[string]Done{}, Hints: map[string]int{}}
}

// dir is where progress is kept: no lab can have this name.
const dir = ".lessons"

// record is somebody's progress on disk.
type record struct{ file string }

func recordOf(root, name string) record { return record{filepath.Join(root, dir, name+".json")} }

// read is what is recorded; nothing is no progress.
func (r record) read() (*Progress, error) {
	p := &Progress{}
	data, err := os.ReadFile(r.file)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, remedy.With(err)
	}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; delete it to begin anew", r.file, err)
	}
	return p, nil
}

// change has do change what is recorded, while no other command does. Nothing is
// written if do fails.
func (r record) change(do func(*Progress) error) error {
	if err := os.MkdirAll(filepath.Dir(r.file), 0o700); err != nil {
		return remedy.With(err)
	}
	lock, err := os.OpenFile(r.file+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return remedy.With(err)
	}
	defer func() { _ = lock.Close() }() // Which gives the lock back.
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	p, err := r.read()
	if err != nil {
		return err
	}
	if err := do(p); err != nil {
		return err
	}
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return state.WriteFile(r.file, append(data, '\n'))
}

func (r record) remove() error {
	var errs []error
	for _, file := range []string{r.file, r.file + ".lock"} {
		if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	_ = os.Remove(filepath.Dir(r.file)) // Fails while there are others'.
	return errors.Join(errs...)
}
