package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// printLesson prints a lesson from its beginning to its first task.
func printLesson(w io.Writer, st *lessons.Status, name string) error {
	l := st.Lesson
	text := fmt.Sprintf("# %s\n\n%s\n\n---\n", l.Title, l.Opening)
	if state.Seat() == "" { // A shell at a seat of a classroom speaks to the lesson's lab by itself.
		text += fmt.Sprintf(
			"\nIn the shell you work in:\n\n    eval \"$(%[1]s env --name %[2]s)\"\n\n"+
				"The picture of it, with this text beside it, is where `%[1]s console --name %[2]s` says.\n",
			invokedAs(), name,
		)
	}
	return errors.Join(ui.Markdown(w, text), printCurrentTask(w, st))
}

// printCurrentTask prints the task to do now, or that the lesson is finished.
func printCurrentTask(w io.Writer, st *lessons.Status) error {
	t := st.Current()
	if t == nil {
		return ui.Markdown(
			w, fmt.Sprintf("**Lesson %s is finished.** The next: `%s lesson next`.\n", st.Lesson.ID, invokedAs()),
		)
	}
	number := 0
	for i, ts := range st.Tasks {
		if ts.Task == t {
			number = i + 1
		}
	}
	return ui.Markdown(w, fmt.Sprintf("## Task %d of %d: %s\n\n%s\n", number, len(st.Tasks), t.Title, t.Do))
}

// printNewlyDoneTasks prints each task that has just been found done, and the lesson's
// text that follows it.
func printNewlyDoneTasks(w io.Writer, st *lessons.Status) error {
	var errs []error
	for _, ts := range st.Tasks {
		if !slices.Contains(st.Fresh, ts.Task) {
			continue
		}
		_, err := fmt.Fprintf(w, "%s %s\n  %s\n", ui.Paint(ui.Colored(w), "32", "✓"), ts.Title, ts.Done.Seen)
		errs = append(errs, err)
		if ts.After != "" {
			errs = append(errs, ui.Markdown(w, ts.After))
		}
	}
	return errors.Join(errs...)
}

// printLessonStatus prints which tasks are done, and the one to do now.
func printLessonStatus(w io.Writer, st *lessons.Status) error {
	p := newParagraphWriter(w)
	p.printLine("%s (%s)\n", p.bold(st.Lesson.Title), st.Lesson.ID)
	for i, t := range st.Tasks {
		switch {
		case t.Done != nil:
			p.printLine(" %s %d. %s\n      %s", ui.Paint(p.color, "32", "✓"), i+1, t.Title, t.Done.Seen)
		case t.Current:
			p.printLine(" %s %d. %s", ui.Paint(p.color, "33", "▸"), i+1, t.Title)
		default:
			p.printLine("   %d. %s", i+1, t.Title)
		}
	}
	if st.Problem != nil {
		p.printLine("\n%s", formatProblem(p.color, st.Problem))
	}
	errs := []error{p.err}
	for _, t := range st.Fresh {
		if t.After != "" {
			errs = append(errs, ui.Markdown(w, t.After))
		}
	}
	return errors.Join(append(errs, printCurrentTask(w, st))...)
}

// formatProblem says why a task does not count as done.
func formatProblem(color bool, err error) string {
	var not lessons.NotYet
	if errors.As(err, &not) {
		return ui.Paint(color, "33", "Not done yet: ") + err.Error()
	}
	var dead lessons.DeadEndError
	if errors.As(err, &dead) {
		return ui.Paint(color, "31", "This can no longer be done: ") + err.Error() + "."
	}
	return ui.Paint(color, "31", "It cannot be told whether that is done: ") + err.Error()
}

// taskOutput is a task in `lab lesson status -o json`.
type taskOutput struct {
	ID      string     `json:"id"`
	Title   string     `json:"title"`
	Do      string     `json:"do"`
	Done    bool       `json:"done"`
	Current bool       `json:"current"`
	Seen    string     `json:"seen,omitempty"`
	At      *time.Time `json:"at,omitempty"`
}

// lessonStatusOutput is what `lab lesson status -o json` prints.
type lessonStatusOutput struct {
	Lesson   string       `json:"lesson"`
	Title    string       `json:"title"`
	Finished bool         `json:"finished"`
	Problem  string       `json:"problem,omitempty"`
	Tasks    []taskOutput `json:"tasks"`
}

// toLessonStatusOutput converts a status to what -o json and -o yaml print.
func toLessonStatusOutput(st *lessons.Status) lessonStatusOutput {
	out := lessonStatusOutput{Lesson: st.Lesson.ID, Title: st.Lesson.Title, Finished: st.Finished()}
	if st.Problem != nil {
		out.Problem = st.Problem.Error()
	}
	for _, t := range st.Tasks {
		task := taskOutput{ID: t.ID, Title: t.Title, Do: t.Do, Current: t.Current}
		if t.Done != nil {
			task.Done, task.Seen, task.At = true, t.Done.Seen, &t.Done.At
		}
		out.Tasks = append(out.Tasks, task)
	}
	return out
}
