package classroom

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab/console"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/state"
)

// lateAfter is how long somebody may be on a task before a trainer might ask. A lesson
// of fifteen minutes has about five tasks.
const lateAfter = 10 * time.Minute

// View is the state of the room at a moment. It is polled here, so that a learner's
// progress shows whether or not they ask for it.
type View struct {
	At    time.Time  `json:"at"`
	Seats []SeatView `json:"seats"`
	// Lessons is the number of all lessons.
	Lessons int      `json:"lessons"`
	Machine *Machine `json:"machine,omitempty"`
}

// Machine says how busy the machine is.
type Machine struct {
	// MemoryTotal and MemoryAvailable are in bytes.
	MemoryTotal     uint64 `json:"memoryTotal"`
	MemoryAvailable uint64 `json:"memoryAvailable"`
	// Load is the load average of one minute.
	Load float64 `json:"load"`
}

// Short tells whether little memory is left: the kernel may kill labs for it soon.
func (m *Machine) Short() bool { return m.MemoryAvailable < m.MemoryTotal/16 }

// Here counts the seats with an open session.
func (v *View) Here() int {
	n := 0
	for _, s := range v.Seats {
		if s.Here > 0 {
			n++
		}
	}
	return n
}

// TasksDone counts the tasks done in the seats' current lessons.
func (v *View) TasksDone() int {
	n := 0
	for _, s := range v.Seats {
		if s.Lesson != nil {
			n += s.Lesson.Done()
		}
	}
	return n
}

// SeatView is the state of a seat at a moment.
type SeatView struct {
	Name string `json:"name"`
	// Lesson is the one that was started; nil if none was.
	Lesson *LessonView `json:"lesson,omitempty"`
	// Finished are the IDs of the finished lessons.
	Finished []string `json:"finished"`
	// Arrived is when somebody first logged in since the door was opened; zero if nobody has.
	Arrived time.Time `json:"arrived,omitzero"`
	// Here is the number of open sessions.
	Here int `json:"here"`
	// Problem is why the progress is unknown.
	Problem string `json:"problem,omitempty"`
	// Page is where the page of the seat's lab is, below that of its own room; "" while there is none.
	Page string `json:"page,omitempty"`
	// Picture are the Nodes and Services of that lab.
	Picture []scene.Object `json:"picture,omitempty"`
}

// OnTask is for how long somebody has been on the current task; "" if nobody has been at the seat yet.
func (s SeatView) OnTask(now time.Time) string {
	if s.Arrived.IsZero() {
		return ""
	}
	return duration.HumanDuration(now.Sub(s.Lesson.Since))
}

// Late tells whether somebody has been on a task for so long that a trainer might ask.
func (s SeatView) Late(now time.Time) bool {
	return !s.Arrived.IsZero() && s.Lesson.Current() != nil && now.Sub(s.Lesson.Since) >= lateAfter
}

// LessonView is the progress in a lesson.
type LessonView struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	// Since is when the last task was done, the lesson was started, or somebody first logged in, whichever came last.
	Since time.Time  `json:"since"`
	Tasks []TaskView `json:"tasks"`
}

// TaskView is the progress in a task.
type TaskView struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	// Seen is the message of a task that is done; "" if it is not.
	Seen string `json:"seen,omitempty"`
	// Hints is how many hints were given.
	Hints int `json:"hints"`
}

// Done tells whether the task is done.
func (t TaskView) Done() bool { return t.Seen != "" }

// Hints counts the hints that were given.
func (l *LessonView) Hints() int {
	n := 0
	for _, t := range l.Tasks {
		n += t.Hints
	}
	return n
}

// Done counts the tasks that are done.
func (l *LessonView) Done() int {
	n := 0
	for _, t := range l.Tasks {
		if t.Done() {
			n++
		}
	}
	return n
}

// Current returns the task to do; nil if all are done.
func (l *LessonView) Current() *TaskView {
	for i, t := range l.Tasks {
		if !t.Done() {
			return &l.Tasks[i]
		}
	}
	return nil
}

// seatTimeout bounds the view of one seat, maxParallelSeats the seats that are viewed
// at once.
const (
	seatTimeout      = 10 * time.Second
	maxParallelSeats = 4
)

// Look returns the state of all seats.
func (r *Room) Look(ctx context.Context) (*View, error) {
	all, err := lessons.All()
	if err != nil {
		return nil, err
	}
	v := &View{At: time.Now(), Seats: make([]SeatView, len(r.Seats)), Lessons: len(all), Machine: ThisMachine()}
	var lookers errgroup.Group
	lookers.SetLimit(maxParallelSeats)
	for i, s := range r.Seats {
		lookers.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, seatTimeout)
			defer cancel()
			v.Seats[i] = r.viewSeat(ctx, s.Name, all)
			return nil
		})
	}
	return v, errors.Join(lookers.Wait(), ctx.Err())
}

func (r *Room) viewSeat(ctx context.Context, seat string, all []*lessons.Lesson) SeatView {
	v, s := SeatView{Name: seat, Finished: []string{}}, r.lessonsSeat(seat)
	if login, err := os.Stat(r.firstLoginFile(seat)); err == nil {
		v.Arrived = login.ModTime()
	}
	st, err := s.Glance(ctx)
	r.addPicture(ctx, &v)
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
		v.Lesson = newLessonView(st, p.Lessons[st.Lesson.ID])
		v.Lesson.Since = slices.MaxFunc([]time.Time{v.Lesson.Since, v.Arrived}, time.Time.Compare)
		switch {
		case errors.Is(st.Problem, state.ErrNone):
			v.Problem = "the labs of its lesson are not up; `lab classroom up` begins it again"
		case errors.As(st.Problem, new(lessons.NotYet)): // What the learner is told is no problem of the seat.
		case st.Problem != nil:
			v.Problem = st.Problem.Error()
		}
	}
	return v
}

// addPicture adds what is to be seen of the lab of a seat's lesson, if its agent serves a page.
func (r *Room) addPicture(ctx context.Context, v *SeatView) {
	window, err := r.openWindow(v.Name)
	if err != nil {
		return
	}
	things, err := window.Objects(ctx)
	if err != nil {
		return
	}
	v.Page, v.Picture = seatPath(v.Name), nodesAndServices(things)
}

// nodesAndServices are those of a picture. Of a source that does not answer only is known how they were.
func nodesAndServices(things []scene.Object) (shown []scene.Object) {
	for _, t := range things {
		if t.Kind != labscene.KindNode && t.Kind != labscene.KindService {
			continue
		}
		if slices.ContainsFunc(things, func(source scene.Object) bool {
			return source.Unknown != nil && slices.Contains(source.Unknown.Kinds, t.Kind)
		}) {
			t.Level, t.State = scene.LevelUnknown, "unknown, last known "+t.State
		}
		shown = append(shown, t)
	}
	return shown
}

// openWindow opens the page of the lab of a seat's lesson.
func (r *Room) openWindow(seat string) (console.Window, error) {
	return console.OpenWindow(filepath.Join(r.Home(seat), lessons.DefaultName))
}

func newLessonView(st *lessons.Status, p *lessons.LessonProgress) *LessonView {
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

// ThisMachine reads how busy the machine is; nil where that is unknown.
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
