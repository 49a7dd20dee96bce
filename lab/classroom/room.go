package classroom

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// serverComponent is the server's name among the room's processes.
const serverComponent = "classroom"

// processHost marks the room's processes. Its folder is not among those of labs, where
// a folder without a record counts as the remains of a lab.
func (r *Room) processHost() process.Host { return process.Host{Lab: filepath.Join(r.dir, ".server")} }

// Log is the path of the server's log.
func (r *Room) Log() string { return filepath.Join(r.processHost().Lab, "server.log") }

// Serving tells whether the server runs.
func (r *Room) Serving() (bool, error) {
	running, err := r.processHost().Running()
	return running[serverComponent] != nil, err
}

// StartServer records the room and starts its server, unless that runs already. It returns when the page and the
// door answer.
func (r *Room) StartServer(ctx context.Context) error {
	if err := r.save(); err != nil {
		return err
	}
	running, err := r.processHost().Running()
	if err != nil {
		return err
	}
	if p := running[serverComponent]; p != nil && r.checkServer(ctx) == nil {
		return nil
	}
	if err := r.StopServer(ctx); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.processHost().Lab, 0o700); err != nil {
		return err
	}
	p, err := r.processHost().Start(process.Spec{
		Component: serverComponent, Path: self, Args: []string{"classroom", "serve"},
		Env: append(process.Unmarked(), "CCMLAB_HOME="+filepath.Dir(r.dir)), LogFile: r.Log(),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, serverStartTimeout, fmt.Errorf("gave up after %s", serverStartTimeout))
	defer cancel()
	if err := local.Await(ctx, p, "the classroom's server", r.checkServer); err != nil {
		return errors.Join(err, r.StopServer(context.WithoutCancel(ctx)))
	}
	return nil
}

const (
	serverStartTimeout = 30 * time.Second
	stopGrace          = 10 * time.Second
)

// roomHeader carries the server's identity in each answer.
const roomHeader = "Ccmlab-Classroom"

// serverIdentity tells this room's server, with these addresses and names, from any other at the
// same address.
func (r *Room) serverIdentity() string {
	sum := sha256.Sum256(fmt.Appendf(
		nil, "%s %s %d %d %s %q", r.dir, r.Listen, r.PagePort, r.SSHPort, r.PageURL, r.Hosts,
	))
	return hex.EncodeToString(sum[:8])
}

// checkServer is an error unless this room's server answers.
func (r *Room) checkServer(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, r.ownPageURL(), nil)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK || res.Header.Get(roomHeader) != r.serverIdentity() {
		return fmt.Errorf("%s answers with %s, and is not this classroom's", r.Page(), res.Status)
	}
	return nil
}

// StopServer ends the server and with it all sessions.
func (r *Room) StopServer(ctx context.Context) error {
	running, err := r.processHost().Running()
	if err != nil || running[serverComponent] == nil {
		return err
	}
	return process.Stop(ctx, stopGrace, running[serverComponent])
}

// Stay waits until ctx ends, or returns an error when the server ends.
func (r *Room) Stay(ctx context.Context) error {
	running, err := r.processHost().Running()
	if err != nil {
		return err
	}
	if p := running[serverComponent]; p != nil {
		err = p.Wait(ctx)
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // It was told to.
	}
	return errors.Join(err, errors.New(
		"the classroom's server has ended; `lab classroom up` starts another, `lab classroom down` ends the labs\n"+
			process.LogHint(r.Log()),
	))
}

// Did is the result of a program at a seat.
type Did struct {
	Seat string
	// Output is what the program printed, Err why it failed.
	Output string
	Err    error
}

// Each runs a program at each of these seats, several at a time, and calls tell with
// each result.
func (r *Room) Each(ctx context.Context, seats []string, args []string, tell func(Did)) error {
	return r.runAtSeats(ctx, seats, max(2, runtime.NumCPU()), args, tell)
}

// runAtSeats is Each with so many at a time.
func (r *Room) runAtSeats(ctx context.Context, seats []string, parallel int, args []string, tell func(Did)) error {
	var (
		mu     sync.Mutex
		failed []string
		runs   errgroup.Group
	)
	runs.SetLimit(parallel)
	for _, seat := range seats {
		runs.Go(func() error {
			did := r.runAtSeat(ctx, seat, args)
			mu.Lock()
			defer mu.Unlock()
			if did.Err != nil {
				failed = append(failed, seat)
			}
			tell(did)
			return nil
		})
	}
	_ = runs.Wait() // None returns an error.
	if len(failed) > 0 {
		slices.Sort(failed)
		return errors.Join(fmt.Errorf(
			"%s: it failed at %d of %d seats: %s", args[0], len(failed), len(seats), strings.Join(failed, ", "),
		), ctx.Err())
	}
	return nil
}

func (r *Room) runAtSeat(ctx context.Context, seat string, args []string) Did {
	if ctx.Err() != nil {
		return Did{Seat: seat, Err: ctx.Err()}
	}
	cmd, err := r.Program(ctx, seat, args...)
	var out bytes.Buffer
	if err == nil {
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, stopGrace
		err = cmd.Run()
	}
	return Did{Seat: seat, Output: out.String(), Err: err}
}

// Begin starts a lesson at every seat where none is up: the one that was started there
// before, or else this one.
func (r *Room) Begin(ctx context.Context, lesson string, steps *ui.Steps) error {
	todo := map[string][]string{}
	for _, seat := range r.Names() {
		begun, there, err := r.currentLesson(seat)
		if err != nil {
			return fmt.Errorf("%s: %w", seat, err)
		}
		if id := cmp.Or(begun, lesson); !there && id != "" {
			todo[id] = append(todo[id], seat)
		}
	}
	var errs []error
	for id, seats := range todo {
		errs = append(errs, steps.Do("lesson "+id, func(note func(string)) (string, error) {
			return r.startLesson(ctx, id, seats, note)
		}))
	}
	return errors.Join(errs...)
}

// startLesson starts a lesson at these seats. One at which it fails leaves the others
// alone, and is tried again when these are ready, by itself: what fails on a busy machine
// may work then.
func (r *Room) startLesson(
	ctx context.Context,
	id string,
	seats []string,
	note func(string),
) (summary string, err error) {
	ready := 0
	var failed []Did
	start := func(at []string, parallel int) {
		failed = nil
		_ = r.runAtSeats(ctx, at, parallel, []string{"lab", "lesson", "start", id, "--quiet"}, func(did Did) {
			if did.Err == nil {
				ready++
			} else {
				failed = append(failed, did)
			}
			note(fmt.Sprintf("%d of %d seats are ready", ready, len(seats)))
		}) // Its error tells less than failed does.
	}
	note(fmt.Sprintf("0 of %d seats are ready", len(seats)))
	start(seats, max(2, runtime.NumCPU()))
	if len(failed) > 0 && ctx.Err() == nil {
		note(fmt.Sprintf("%d of %d seats are ready; the others are tried again", ready, len(seats)))
		var again []string
		for _, did := range failed {
			again = append(again, did.Seat)
		}
		start(again, 1)
	}
	summary = fmt.Sprintf("begun at %d of %d seats", ready, len(seats))
	if len(failed) == 0 {
		return summary, ctx.Err()
	}
	var problems []error
	for _, did := range failed {
		problems = append(problems, fmt.Errorf("%s: %w\n%s", did.Seat, did.Err, process.LastLines(did.Output, 5)))
	}
	return summary, errors.Join(append(problems, fmt.Errorf(
		"lesson %s is begun at %d of %d seats, which learners can use; `lab classroom up` tries the others again",
		id, ready, len(seats),
	), ctx.Err())...)
}

// Missing counts the seats at which no lesson is up.
func (r *Room) Missing() (int, error) {
	missing := 0
	for _, seat := range r.Names() {
		_, there, err := r.currentLesson(seat)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", seat, err)
		}
		if !there {
			missing++
		}
	}
	return missing, nil
}

// currentLesson is the lesson of a seat, and whether its labs run.
func (r *Room) currentLesson(seat string) (lesson string, there bool, err error) {
	p, err := r.lessonsSeat(seat).Progress()
	if err != nil || p.Current == "" {
		return "", false, err
	}
	if p.Lessons[p.Current] == nil || p.Lessons[p.Current].Started.IsZero() {
		return p.Current, false, nil
	}
	for _, name := range p.Labs {
		dir := filepath.Join(r.Home(seat), name)
		running, err := process.Host{Lab: dir}.Running()
		if err != nil {
			return p.Current, false, err
		}
		// A machine, or a container, that was ended leaves the record of a lab.
		if l, err := state.OpenDir(dir); err != nil || l.Slot != 0 && len(running) == 0 {
			return p.Current, false, nil //nolint:nilerr // It is brought up anew, which says what is wrong.
		}
	}
	return p.Current, true, nil
}

// Labs is how many labs a lesson has at rest, and the most that it has at a time: a
// learner's own CCM is judged in one beside the lesson's, which is then taken down.
func Labs(lesson string) (atRest, most int, err error) {
	if lesson == "" {
		return 1, 1, nil
	}
	l, err := lessons.Find(lesson)
	if err != nil {
		return 0, 0, err
	}
	atRest = 1 + len(l.Others)
	return atRest, atRest + min(l.Step, 1), nil
}

// DefaultLesson is the lesson that a class begins with: of the course's first part, the one that builds on no other and
// takes the fewest labs and nodes.
func DefaultLesson() (*lessons.Lesson, error) {
	all, err := lessons.All()
	if err != nil {
		return nil, err
	}
	first := slices.DeleteFunc(slices.Clone(all), func(l *lessons.Lesson) bool {
		return l.Part != lessons.Parts[0] || len(l.BuildsOn) > 0 || l.Cluster != ""
	})
	return slices.MinFunc(first, func(a, b *lessons.Lesson) int {
		return cmp.Or(len(a.Others)-len(b.Others), a.Lab.Nodes-b.Lab.Nodes)
	}), nil
}

// Down takes down all labs of all seats, and the server. What learners have done and
// written stays unless deleting is set.
func (r *Room) Down(ctx context.Context, deleting bool, steps *ui.Steps) error {
	if err := steps.Do("door", func(func(string)) (string, error) { return "closed", r.StopServer(ctx) }); err != nil {
		return err
	}
	seats, err := filepath.Glob(r.workDir("*")) // Also of a record that is gone.
	if err != nil {
		return err
	}
	r.Seats = nil
	for _, work := range seats {
		r.Seats = append(r.Seats, Seat{Name: filepath.Base(filepath.Dir(work))})
	}
	if err := steps.Do("labs", func(note func(string)) (string, error) {
		ended := 0
		var problems []error
		err := r.Each(ctx, r.Names(), []string{"lab", "down", "--all", "--quiet"}, func(did Did) {
			ended++
			if did.Err != nil {
				problems = append(problems, fmt.Errorf("%s: %s", did.Seat, process.LastLines(did.Output, 5)))
			}
			note(fmt.Sprintf("%d of %d seats", ended, len(seats)))
		})
		return fmt.Sprintf("down, at %d seats", ended), errors.Join(append(problems, err)...)
	}); err != nil {
		return err
	}
	if deleting {
		return os.RemoveAll(r.dir)
	}
	return nil
}
