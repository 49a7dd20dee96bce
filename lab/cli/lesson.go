package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/lessons/site"
	"github.com/ccmlab/ccmlab/lab/ui"
)

func newLesson(o *globalOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lesson",
		Short: "Learn what a cloud controller manager does, in lessons that check themselves",
		Long: `lesson brings a lab into the state a lesson begins with, tells its story, and says
what to do. Nothing has to be handed in: a task is done when the lab says so, and
that is seen by lesson watch as it happens, or by the next lesson status.

Lessons take place in a lab of their own, named "lesson" (--name gives another, and so
does LAB_NAME unless it names a lab that no lesson began), one at a time. They can be
taken in any order; what was done is remembered.

With --bundle a lesson needs neither a clone nor Go nor the internet. It is wanted
once: lab lesson start says what to type in a shell, which then has the bundle's lab.`,
		Example: `  lab lesson list
  lab lesson start taint
  eval "$(lab env --name lesson)"   # kubectl, fakecloud and lab speak to the lesson's lab
  lab lesson watch                  # in a second terminal: says when a task is done
  lab lesson hint                   # more with each
  lab lesson solve                  # type the solution of the current task
  lab lesson next
  ./lab lesson --bundle ccmlab-bundle.tar.gz start taint   # without internet`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newLessonList(o), newLessonStart(o), newLessonStatus(o), newLessonWatch(o), newLessonJudge(o),
		newLessonHint(o), newLessonSolve(o), newLessonReset(o), newLessonNext(o), newLessonStop(o),
		newLessonText(o), newLessonSite(o), newLessonVerify(o),
	)
	addBundleFlag(cmd, o)
	o.addNameFlag(cmd, lessons.DefaultName+", or LAB_NAME unless that names a lab that no lesson began")
	return cmd
}

// takeLearnersSeat opens the seat of --name, or of LAB_NAME, which may also be set for
// another lab in a learner's shell.
func takeLearnersSeat(cmd *cobra.Command, o *globalOptions) (*lessons.Seat, error) {
	name := lessons.DefaultName
	if v := os.Getenv("LAB_NAME"); v != "" && !cmd.Flags().Changed("name") {
		var err error
		if name, err = lessons.SeatName(v); err != nil {
			return nil, clikit.Usage(err)
		}
	}
	return takeSeat(cmd, o, name)
}

// takeSeat opens the seat of --name, or the one called name without the flag.
func takeSeat(cmd *cobra.Command, o *globalOptions, name string) (*lessons.Seat, error) {
	if cmd.Flags().Changed("name") {
		name = o.name
	}
	s, err := lessons.Take(name)
	if err != nil {
		return nil, clikit.Usage(err)
	}
	steps := o.newSteps()
	s.Tell = func(what string) { steps.Say("   %s", what) }
	return s, nil
}

// withSeat returns the function of a command that works at a learner's seat.
func withSeat(
	o *globalOptions,
	run func(cmd *cobra.Command, s *lessons.Seat, args []string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := takeLearnersSeat(cmd, o)
		if err != nil {
			return err
		}
		return run(cmd, s, args)
	}
}

// findLesson returns the lesson with an ID, or a usageError.
func findLesson(id string) (*lessons.Lesson, error) {
	l, err := lessons.Find(id)
	if err != nil {
		return nil, clikit.Usagef("%w%s", err, clikit.DidYouMean(id, lessonIDs()))
	}
	return l, nil
}

// lessonIDs returns the IDs of all lessons.
func lessonIDs() []string {
	all, err := lessons.All()
	if err != nil {
		return nil
	}
	var ids []string
	for _, l := range all {
		ids = append(ids, l.ID)
	}
	return ids
}

// completeLesson completes the ID of a lesson, with its title.
func completeLesson(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	all, err := lessons.All()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var ids []string
	for _, l := range all {
		ids = append(ids, l.ID+"\t"+l.Title)
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// listedLesson is a lesson in `lab lesson list -o json`.
type listedLesson struct {
	ID       string     `json:"id"`
	Title    string     `json:"title"`
	Summary  string     `json:"summary"`
	Minutes  int        `json:"minutes"`
	Cluster  string     `json:"cluster"`
	NeedsGo  bool       `json:"needsGo"`
	Tasks    int        `json:"tasks"`
	Done     int        `json:"done"`
	Current  bool       `json:"current"`
	Finished *time.Time `json:"finished,omitempty"`
}

func newLessonList(o *globalOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "Print every lesson, and what was done of it",
		Example: "  lab lesson list\n  lab lesson list -o json",
		RunE: withSeat(o, func(cmd *cobra.Command, s *lessons.Seat, _ []string) error {
			list, err := listLessons(s)
			if err != nil {
				return err
			}
			var rows [][]string
			for _, l := range list {
				needs := "-"
				if l.NeedsGo {
					needs = "Go"
				}
				rows = append(rows, []string{
					l.ID, l.Title, fmt.Sprint(l.Minutes), l.Cluster, needs, fmt.Sprint(l.Tasks), l.formatProgress(),
				})
			}
			return clikit.Print(cmd, list, func(w io.Writer) error {
				head := []string{"LESSON", "TITLE", "MINUTES", "CLUSTER", "NEEDS", "TASKS", "PROGRESS"}
				return clikit.WriteTable(w, head, rows)
			})
		}),
	}
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

// formatProgress describes how far the learner is in the lesson.
func (l listedLesson) formatProgress() string {
	text := ""
	switch {
	case l.Done > 0 && l.Done < l.Tasks:
		text = fmt.Sprintf("%d of %d", l.Done, l.Tasks)
	case l.Finished != nil:
		text = "finished"
	}
	if l.Current {
		text = strings.TrimPrefix(text+", current", ", ")
	}
	return cmp.Or(text, "-")
}

// listLessons returns all lessons, with the learner's progress.
func listLessons(s *lessons.Seat) ([]listedLesson, error) {
	all, err := lessons.All()
	if err != nil {
		return nil, err
	}
	p, err := s.Progress()
	if err != nil {
		return nil, err
	}
	var list []listedLesson
	for _, l := range all {
		listed := listedLesson{
			ID: l.ID, Title: l.Title, Summary: l.Summary, Minutes: l.Minutes,
			Cluster: cmp.Or(l.Cluster, cluster.KindEmbedded), NeedsGo: l.NeedsGo(),
			Tasks: len(l.Tasks), Current: p.Current == l.ID,
		}
		if lp := p.Lessons[l.ID]; lp != nil {
			listed.Done = len(lp.Done)
			if !lp.Finished.IsZero() {
				listed.Finished = &lp.Finished
			}
		}
		list = append(list, listed)
	}
	return list, nil
}

func newLessonStart(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "start ID",
		Short: "Bring the lab into the state a lesson begins with, and tell its story",
		Long: `start takes down what the last lesson left, brings the lab up as this lesson wants it,
in seconds, and prints the lesson up to its first task. What was done in this lesson
before is forgotten.`,
		Example:           "  lab lesson start taint",
		Args:              clikit.RequireArguments(1, 1),
		ValidArgsFunction: completeLesson,
		RunE: withSeat(o, func(cmd *cobra.Command, s *lessons.Seat, args []string) error {
			l, err := findLesson(args[0])
			if err != nil {
				return err
			}
			return startLesson(cmd, o, s, l)
		}),
	}
}

// startLesson brings the lab into the lesson's first state and prints the lesson up to
// its first task.
func startLesson(cmd *cobra.Command, o *globalOptions, s *lessons.Seat, l *lessons.Lesson) error {
	if err := s.Start(cmd.Context(), l, o.newSteps()); err != nil {
		return err
	}
	st, err := s.Glance(cmd.Context())
	if err != nil || o.quiet {
		return err
	}
	return printLesson(cmd.OutOrStdout(), st, s.Name())
}

func newLessonStatus(o *globalOptions) *cobra.Command {
	var fresh bool
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "See which tasks are done, and print the one to do now",
		Example: "  lab lesson status\n  lab lesson status -o json",
		RunE: withSeat(o, func(cmd *cobra.Command, s *lessons.Seat, _ []string) error {
			if fresh {
				return printNews(cmd, s)
			}
			st, err := s.Look(cmd.Context())
			if err != nil {
				return err
			}
			return clikit.Print(cmd, toLessonStatusOutput(st), func(w io.Writer) error { return printLessonStatus(w, st) })
		}),
	}
	cmd.Flags().BoolVar(
		&fresh, "new", false,
		"print only the tasks that are done since you were last told, and the next; nothing if there are none (for a shell's prompt)",
	)
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

func newLessonJudge(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "judge TEST...",
		Short: "Run single tests of the conformance suite on your own CCM, as it is now",
		Long: `judge compiles the CCM that you write in the current lesson, and runs single tests of
those that the lesson has it pass. The result is printed, and counts for no task: lesson
status and watch run all tests of a task, and begin with those that failed last time.`,
		Example: "  lab lesson judge node-addresses node-provider-id",
		Args:    clikit.RequireArguments(1, 0),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var tests []string
			if s, err := takeLearnersSeat(cmd, o); err == nil {
				tests, _ = judgedTests(s)
			}
			return without(tests, args), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: withSeat(o, func(cmd *cobra.Command, s *lessons.Seat, args []string) error {
			tests, err := judgedTests(s)
			if err != nil {
				return err
			}
			for _, id := range args {
				if !slices.Contains(tests, id) {
					return clikit.Usagef("no test %q is of this lesson%s", id, clikit.DidYouMean(id, tests))
				}
			}
			v, err := s.JudgeTests(cmd.Context(), args)
			if err != nil {
				return err
			}
			if _, err = fmt.Fprintln(cmd.OutOrStdout(), v.Said); err == nil && !v.Passed {
				err = silentError{errors.New("the CCM has not passed")}
			}
			return err
		}),
	}
}

// judgedTests returns the IDs of the tests that the current lesson has a CCM pass.
func judgedTests(s *lessons.Seat) ([]string, error) {
	l, _, err := s.Current()
	if err != nil {
		return nil, err
	}
	if len(l.Tests()) == 0 {
		return nil, fmt.Errorf("in lesson %s no CCM of yours is judged", l.ID)
	}
	return l.Tests(), nil
}

// printNews prints tasks that were done since the learner was last told. It does not
// run the conformance suite on a learner's CCM, which would take too long for a shell's
// prompt.
func printNews(cmd *cobra.Command, s *lessons.Seat) error {
	st, err := s.News(cmd.Context())
	if err != nil || len(st.Fresh) == 0 {
		return err
	}
	return errors.Join(printNewlyDoneTasks(cmd.OutOrStdout(), st), printCurrentTask(cmd.OutOrStdout(), st))
}

// lessonWatchInterval is how often lesson watch looks. It is short enough for a learner
// to think that a task is noticed at once.
const lessonWatchInterval = time.Second

func newLessonWatch(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "watch",
		Short: "Say at once when a task is done, and print the next, until all are or Ctrl-C",
		Long: `watch looks once a second, and says what it saw of each task that is done. It ends when
the lesson is finished, when another is started, or by Ctrl-C.`,
		Example: "  lab lesson watch   # in a second terminal",
		RunE: withSeat(o, func(cmd *cobra.Command, s *lessons.Seat, _ []string) error {
			st, err := s.Look(cmd.Context())
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			if err := printLessonStatus(w, st); err != nil {
				return err
			}
			return watchLesson(cmd.Context(), w, s, st)
		}),
	}
}

// watchLesson prints each task as it is done, and the next one, until the lesson is
// finished or another is started.
func watchLesson(ctx context.Context, w io.Writer, s *lessons.Seat, st *lessons.Status) error {
	lesson, lastProblem := st.Lesson, ""
	tick := time.NewTicker(lessonWatchInterval)
	defer tick.Stop()
	for !st.Finished() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		next, err := s.Look(ctx)
		if err != nil {
			return err
		}
		if next.Lesson != lesson {
			_, err := fmt.Fprintf(w, "Lesson %s was started elsewhere.\n", next.Lesson.ID)
			return err
		}
		if next.Problem != nil && next.Problem.Error() != lastProblem && ctx.Err() == nil {
			lastProblem = next.Problem.Error()
			if _, err := fmt.Fprintln(w, formatProblem(ui.Colored(w), next.Problem)); err != nil {
				return err
			}
		}
		// Another command may have noticed it first, so next.Fresh may lack tasks.
		if next.Current() != st.Current() {
			next.Fresh = newlyDoneTasks(st, next)
			if err := errors.Join(printNewlyDoneTasks(w, next), printCurrentTask(w, next)); err != nil {
				return err
			}
		}
		st = next
	}
	return nil
}

// newlyDoneTasks returns the tasks that are done in now and were not in before.
func newlyDoneTasks(before, now *lessons.Status) []*lessons.Task {
	var fresh []*lessons.Task
	for i, t := range now.Tasks {
		if t.Done != nil && before.Tasks[i].Done == nil {
			fresh = append(fresh, t.Task)
		}
	}
	return fresh
}

func newLessonHint(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "hint",
		Short:   "Give a hint for the current task; each time a plainer one",
		Example: "  lab lesson hint",
		RunE: withSeat(o, func(cmd *cobra.Command, s *lessons.Seat, _ []string) error {
			t, hint, number, err := s.Hint(cmd.Context())
			if err != nil {
				return err
			}
			if t == nil {
				return ui.Markdown(cmd.OutOrStdout(), "Every task is done.\n")
			}
			text := fmt.Sprintf("**Hint %d of %d** for *%s*\n\n%s\n", number, len(t.Hints), t.Title, hint)
			if number == len(t.Hints) {
				text += fmt.Sprintf("\nThat was the last; `%s lesson solve --print` shows the solution.\n", invokedAs())
			}
			return ui.Markdown(cmd.OutOrStdout(), text)
		}),
	}
}

func newLessonSolve(o *globalOptions) *cobra.Command {
	var all, printOnly bool
	cmd := &cobra.Command{
		Use:     "solve",
		Short:   "Type the solution of the current task, or print it",
		Example: "  lab lesson solve\n  lab lesson solve --print\n  lab lesson solve --all",
		RunE: withSeat(o, func(cmd *cobra.Command, s *lessons.Seat, _ []string) error {
			st, err := s.Glance(cmd.Context())
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			for st.Current() != nil {
				t := st.Current()
				// Printed as it is, to be copied: a Markdown renderer would break its lines.
				if _, err := fmt.Fprintf(
					w, "# The solution of %s:\n\n%s\n", t.Title, strings.TrimSpace(t.Solution)+"\n",
				); err != nil || printOnly {
					return err
				}
				if st, err = s.Solve(
					cmd.Context(), func(line string) { _, _ = fmt.Fprintln(w, "  "+line) },
				); err != nil {
					return err
				}
				if err := printNewlyDoneTasks(w, st); err != nil || !all {
					return errors.Join(err, printCurrentTask(w, st))
				}
			}
			return printCurrentTask(w, st)
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "solve every task that is left")
	cmd.Flags().BoolVar(&printOnly, "print", false, "print the solution, and type nothing")
	cmd.MarkFlagsMutuallyExclusive("all", "print")
	return cmd
}

func newLessonReset(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "reset",
		Short:   "Begin the current lesson again, from exactly the state it began with",
		Example: "  lab lesson reset",
		RunE: withSeat(o, func(cmd *cobra.Command, s *lessons.Seat, _ []string) error {
			p, err := s.Progress()
			if err != nil {
				return err
			}
			if p.Current == "" {
				return lessons.ErrNone
			}
			l, err := lessons.Find(p.Current)
			if err != nil {
				return err
			}
			return startLesson(cmd, o, s, l)
		}),
	}
}

func newLessonNext(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "next",
		Short:   "Start the next lesson that is not finished",
		Example: "  lab lesson next",
		RunE: withSeat(o, func(cmd *cobra.Command, s *lessons.Seat, _ []string) error {
			if _, _, err := s.Current(); err == nil { // This records what was done since the last look.
				if _, err := s.Glance(cmd.Context()); err != nil {
					return err
				}
			}
			l, unfit, err := s.Next(cmd.Context())
			if err != nil {
				return err
			}
			for _, why := range unfit {
				o.newSteps().Say("Passed over: %s", why)
			}
			if l == nil && len(unfit) > 0 {
				return errors.New("every other lesson is finished; `lab lesson start ID` begins any of them again")
			}
			if l == nil {
				return ui.Markdown(
					cmd.OutOrStdout(),
					"**Every lesson is finished.** `lab lesson start ID` begins any of them again.\n",
				)
			}
			return startLesson(cmd, o, s, l)
		}),
	}
}

func newLessonStop(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "stop",
		Short:   "Take the lesson's lab down; what was done is remembered",
		Example: "  lab lesson stop",
		RunE: withSeat(o, func(cmd *cobra.Command, s *lessons.Seat, _ []string) error {
			return s.Stop(cmd.Context(), o.newSteps())
		}),
	}
}

func newLessonText(o *globalOptions) *cobra.Command {
	var trainer bool
	cmd := &cobra.Command{
		Use:   "text [ID]",
		Short: "Print the whole text of a lesson with its tasks; without an ID the text that led to the current task",
		Example: "  lab lesson text   # what you read last, and the current task\n" +
			"  lab lesson text taint | less -R\n  lab lesson text taint --trainer",
		Args:              clikit.RequireArguments(0, 1),
		ValidArgsFunction: completeLesson,
		RunE: withSeat(o, func(cmd *cobra.Command, s *lessons.Seat, args []string) error {
			if len(args) == 0 && !trainer {
				return printCurrentText(cmd, s)
			}
			l, err := chosenLesson(s, args)
			if err != nil {
				return err
			}
			if trainer {
				return ui.Markdown(cmd.OutOrStdout(), l.Trainer)
			}
			text := "# " + l.Title + "\n\n" + l.Opening
			for i, t := range l.Tasks {
				text += fmt.Sprintf("\n\n## Task %d: %s\n\n%s\n\n%s", i+1, t.Title, t.Do, t.After)
			}
			return ui.Markdown(cmd.OutOrStdout(), text)
		}),
	}
	cmd.Flags().BoolVar(&trainer, "trainer", false, "print the trainer's notes instead")
	return cmd
}

// chosenLesson returns the lesson whose ID is the argument, or without one the current.
func chosenLesson(s *lessons.Seat, args []string) (*lessons.Lesson, error) {
	if len(args) == 0 {
		l, _, err := s.Current()
		return l, err
	}
	l, err := findLesson(args[0])
	if err != nil {
		return nil, err
	}
	return s.Find(l.ID)
}

// printCurrentText prints the text that led to the current task, and the task.
func printCurrentText(cmd *cobra.Command, s *lessons.Seat) error {
	st, err := s.Glance(cmd.Context())
	if err != nil {
		return err
	}
	text := "# " + st.Lesson.Title + "\n\n" + st.TextBefore() + "\n"
	return errors.Join(ui.Markdown(cmd.OutOrStdout(), text), printCurrentTask(cmd.OutOrStdout(), st))
}

func newLessonSite(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "site FOLDER",
		Short: "Write the lessons as pages for a browser, to read and to print",
		Long: `site writes a static site into a folder: a list of the lessons, a page for each, all of
them as a hand-out, and the trainer's notes. Its pages work from a file, and load nothing
from elsewhere.`,
		Example: "  lab lesson site lessons-site && xdg-open lessons-site/index.html",
		Args:    clikit.RequireArguments(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			all, err := lessons.All()
			if err != nil {
				return err
			}
			if err := site.Write(args[0], all); err != nil {
				return err
			}
			o.newSteps().Say("%s", filepath.Join(args[0], "index.html"))
			return nil
		},
	}
}
