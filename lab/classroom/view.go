package classroom

// This file answers: how far is each seat? It is looked at here, so that what somebody
// has done shows whether or not they ask.

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/state"
)

// View is the room at a moment.
type View struct {
	At    time.Time  `json:"at"`
	Seats []SeatView `json:"seats"`
	// Lessons are how many there are.
	Lessons int      `json:"lessons"`
	Machine *Machine `json:"machine,omitempty"`
}

// Machine is how busy the machine is.
type Machine struct {
	// MemoryTotal and MemoryAvailable are in bytes.
	MemoryTotal     uint64 `json:"memoryTotal"`
	MemoryAvailable uint64 `json:"memoryAvailable"`
	// Load is how many threads ran or wanted to, on the average of a minute.
	Load float64 `json:"load"`
}

// Short tells whether little memory is left: labs may be killed for it soon.
func (m *Machine) Short() bool { return m.MemoryAvailable < m.MemoryTotal/16 }

// Here is how many seats somebody is logged in at.
func (v *View) Here() int {
	n := 0
	for _, s := range v.Seats {
		if s.Here > 0 {
			n++
		}
	}
	return n
}

// TasksDone is how many are in the lessons that were begun last.
func (v *View) TasksDone() int {
	n := 0
	for _, s := range v.Seats {
		if s.Lesson != nil {
			n += s.Lesson.Done()
		}
	}
	return n
}

// SeatView is a seat at a moment.
type SeatView struct {
	Name string `json:"name"`
	// Lesson is the one that was started; nil is none.
	Lesson *LessonView `json:"lesson,omitempty"`
	// Finished are the lessons that were, by ID.
	Finished []string `json:"finished"`
	// Here is how many are logged in.
	Here int `json:"here"`
	// Problem is why it cannot be told how far somebody is.
	Problem string `json:"problem,omitempty"`
}

// LessonView is how far somebody is in a lesson.
type LessonView struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	// Since is when the last task was done or, without one, the lesson started.
	Since time.Time  `json:"since"`
	Tasks []TaskView `json:"tasks"`
}

// TaskView is a task, and how far somebody is.
type TaskView struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	// Seen is what was seen when it was done; "" is that it is not.
	Seen string `json:"seen,omitempty"`
	// Hints is how many were asked for.
	Hints int `json:"hints"`
}

// Done tells whether it is.
func (t TaskView) Done() bool { return t.Seen != "" }

// Hints is how many were asked for.
func (l *LessonView) Hints() int {
	n := 0
	for _, t := range l.Tasks {
		n += t.Hints
	}
	return n
}

// Done is how many tasks are.
func (l *LessonView) Done() int {
	n := 0
	for _, t := range l.Tasks {
		if t.Done() {
			n++
		}
	}
	return n
}

// Current is the task to do; nil if all are done.
func (l *LessonView) Current() *TaskView {
	for i, t := range l.Tasks {
		if !t.Done() {
			return &l.Tasks[i]
		}
	}
	return nil
}

// lookBound is how long it may take to look at a seat, looksAtOnce how many are.
const (
	lookBound   = 10 * time.Second
	looksAtOnce = 4
)

// Look sees how far everybody is.
func (r *Room) Look(ctx context.Context) (*View, error) {
	all, err := lessons.All()
	if err != nil {
		return nil, err
	}
	v := &View{At: time.Now(), Seats: make([]SeatView, len(r.Seats)), Lessons: len(all), Machine: ThisMachine()}
	var lookers errgroup.Group
	lookers.SetLimit(looksAtOnce)
	for i, s := range r.Seats {
		lookers.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, lookBound)
			defer cancel()
			v.Seats[i] = r.look(ctx, s.Name, all)
			return nil
		})
	}
	return v, errors.Join(lookers.Wait(), ctx.Err())
}

func (r *Room) look(ctx context.Context, seat string, all []*lessons.Lesson) SeatView {
	v, s := SeatView{Name: seat, Finished: []string{}}, r.lessons(seat)
	st, err := s.Glance(ctx)
	p, unread := s.Progress()
	if unread != nil {
		v.Problem = unread.Error()
		return v
	}
	for _, l := range all {
		if lp := p.Lessons[l.ID]; lp != nil && !lp.Finished.IsZero() {
			v.Finished = append(v.Finished, l.ID)
		}
	}
	switch {
	case errors.Is(err, lessons.ErrNone):
	case err != nil:
		v.Problem = err.Error()
	default:
		v.Lesson = lessonView(st, p.Lessons[st.Lesson.ID])
		switch {
		case errors.Is(st.Problem, state.ErrNone):
			v.Problem = "the labs of its lesson are not up; `lab classroom up` begins it again"
		case st.Problem != nil && st.Lesson.Step == 0: // What a suite has said is no problem of the seat.
			v.Problem = st.Problem.Error()
		}
	}
	return v
}

func lessonView(st *lessons.Status, p *lessons.LessonProgress) *LessonView {
	v := &LessonView{ID: st.Lesson.ID, Title: st.Lesson.Title, Since: p.Started}
	for _, t := range st.Tasks {
		task := TaskView{ID: t.ID, Title: t.Title, Hints: p.Hints[t.ID]}
		if t.Done != nil {
			task.Seen = t.Done.Seen
			v.Since = slices.MaxFunc([]time.Time{v.Since, t.Done.At}, time.Time.Compare)
		}
		v.Tasks = append(v.Tasks, task)
	}
	return v
}

// ThisMachine is nil where it cannot be told.
func ThisMachine() *Machine {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return nil
	}
	memory, err := fs.Meminfo()
	if err != nil || memory.MemTotalBytes == nil || memory.MemAvailableBytes == nil {
		return nil
	}
	load, err := fs.LoadAvg()
	if err != nil {
		return nil
	}
	return &Machine{MemoryTotal: *memory.MemTotalBytes, MemoryAvailable: *memory.MemAvailableBytes, Load: load.Load1}
}
