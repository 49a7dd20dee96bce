package lessons

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/remedy"
)

// Progress is what one learner has done in all lessons. It is stored beside the labs,
// which come and go.
type Progress struct {
	// Current is the lesson that the labs were brought up for; "" is none.
	Current string `json:"current,omitempty"`
	// Labs are the names of the current lesson's labs, by role.
	Labs map[string]string `json:"labs,omitempty"`
	// Folder is where the learner writes a CCM; "" before they do.
	Folder string `json:"folder,omitempty"`
	// Seat is the learner's seat in a classroom; "" elsewhere.
	Seat string `json:"seat,omitempty"`
	// Lessons are those that were ever started, by ID.
	Lessons map[string]*LessonProgress `json:"lessons"`
}

// LessonProgress is what one learner has done in one lesson.
type LessonProgress struct {
	// Started is when the lesson was last started and its labs were ready; zero while
	// they are being brought up.
	Started time.Time `json:"started,omitzero"`
	// Finished is when all tasks were done for the first time; zero if never.
	Finished time.Time `json:"finished,omitzero"`
	// Done are the tasks done since the start, by ID.
	Done map[string]Done `json:"done,omitempty"`
	// Hints is how many hints were given, by task.
	Hints map[string]int `json:"hints,omitempty"`
	// Begun is the hash of the starting point that the lesson wrote; "" where the
	// learner continues with their own sources.
	Begun string `json:"begun,omitempty"`
	// Verdicts are the suite's latest, by task.
	Verdicts map[string]Verdict `json:"verdicts,omitempty"`
}

// Done records that a task was done.
type Done struct {
	At time.Time `json:"at"`
	// Seen is the message that describes it.
	Seen string `json:"seen"`
	// Told says that the learner was shown it: another command may have noticed first.
	Told bool `json:"told,omitempty"`
}

// lessonProgress returns the progress in a lesson, empty if there is none.
func (p *Progress) lessonProgress(lesson string) *LessonProgress {
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

// lastDone is when the latest task was done, of those recorded and those just seen; the
// lesson's start if none was.
func (l *LessonProgress) lastDone(seen map[string]Done) time.Time {
	last := l.Started
	for _, done := range []map[string]Done{l.Done, seen} {
		for _, d := range done {
			if d.At.After(last) {
				last = d.At
			}
		}
	}
	return last
}

// reset forgets all but when the lesson was first finished.
func (l *LessonProgress) reset(begun string) {
	*l = LessonProgress{Finished: l.Finished, Begun: begun, Done: map[string]Done{}, Hints: map[string]int{}}
}

// progressDir is the folder of the progress files. No lab can have this name.
const progressDir = ".lessons"

// progressFile stores the Progress of one seat.
type progressFile struct{ file string }

func progressFileOf(root, name string) progressFile {
	return progressFile{filepath.Join(root, progressDir, name+".json")}
}

// load reads the progress. A missing file is no progress.
func (p progressFile) load() (*Progress, error) {
	progress := &Progress{}
	data, err := os.ReadFile(p.file)
	if errors.Is(err, fs.ErrNotExist) {
		return progress, nil
	}
	if err != nil {
		return nil, remedy.With(err)
	}
	if err := json.Unmarshal(data, progress); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; delete it to begin anew", p.file, err)
	}
	return progress, nil
}

// update changes the progress under a file lock. Nothing is written if change fails.
func (p progressFile) update(do func(*Progress) error) error {
	if err := os.MkdirAll(filepath.Dir(p.file), 0o700); err != nil {
		return remedy.With(err)
	}
	lock, err := os.OpenFile(p.file+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return remedy.With(err)
	}
	defer func() { _ = lock.Close() }() // Which gives the lock back.
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	progress, err := p.load()
	if err != nil {
		return err
	}
	if err := do(progress); err != nil {
		return err
	}
	data, err := json.MarshalIndent(progress, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(p.file, append(data, '\n'))
}

func (p progressFile) remove() error {
	var errs []error
	for _, file := range []string{p.file, p.file + ".lock"} {
		if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	_ = os.Remove(filepath.Dir(p.file)) // Fails while there are others'.
	return errors.Join(errs...)
}
