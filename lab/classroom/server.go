package classroom

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/gliderlabs/ssh"
	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/lab/console"
)

// server is the room's server: it polls the seats, serves the page, and lets learners
// in.
type server struct {
	room *Room
	// decoyHash is compared with where there is no such seat, so that a refusal takes
	// the same time.
	decoyHash string
	view      atomic.Pointer[View]
	// mu guards sessions, the number of open sessions by seat.
	mu       sync.Mutex
	sessions map[string]int
}

// Serve serves the room's page and seats until ctx ends.
func (r *Room) Serve(ctx context.Context) error {
	// Under nohup a learner's shell would inherit that it cannot be hung up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	s := &server{room: r, sessions: map[string]int{}}
	text, err := writeLessonsSite(filepath.Join(r.dir, "site"))
	if err != nil {
		return err
	}
	pages, err := listenTCP(r.Listen, r.PagePort, "--page-port")
	if err != nil {
		return err
	}
	doors, err := listenTCP(r.Listen, r.SSHPort, "--ssh-port")
	if err != nil {
		return errors.Join(err, pages.Close())
	}
	door, err := s.newSSHServer(ctx)
	err = errors.Join(err, os.RemoveAll(r.firstLoginFile("")), os.MkdirAll(r.firstLoginFile(""), 0o700))
	if err == nil {
		err = s.updateView(ctx)
	}
	if err != nil {
		return errors.Join(err, pages.Close(), doors.Close())
	}
	slog.Info("the classroom is open", "page", r.Page(), "ssh", doors.Addr().String(), "seats", len(r.Seats))
	var parts errgroup.Group
	page := newPageHandler(
		s.currentView, s.openWindow, text, r.serverIdentity(), ownNames(r.Listen, r.PageURL, r.Hosts),
	)
	parts.Go(func() error { return servePage(ctx, pages, page) })
	parts.Go(func() error { return ignoreError(door.Serve(doors), ssh.ErrServerClosed, net.ErrClosed) })
	parts.Go(func() error { return pollUntilDone(ctx, s.updateView) })
	parts.Go(func() error {
		<-ctx.Done()
		// door does not know its listener before it serves, and would serve without end if that came after Close.
		return errors.Join(door.Close(), ignoreError(doors.Close(), net.ErrClosed))
	})
	return parts.Wait()
}

// firstLoginFile is written when somebody first logs in at a seat since the door was opened.
func (r *Room) firstLoginFile(seat string) string {
	return filepath.Join(r.processHost().Lab, "arrived", seat)
}

// updateView takes a new view of all seats that there are now.
func (s *server) updateView(ctx context.Context) error {
	now := &Room{dir: s.room.dir}
	if err := now.load(); err != nil {
		return err
	}
	v, err := now.Look(ctx)
	if err != nil {
		return err
	}
	s.view.Store(v)
	return nil
}

// openWindow opens the page of a seat's lab.
func (s *server) openWindow(seat string) (w console.Window, err error) {
	if !slices.ContainsFunc(s.view.Load().Seats, func(v SeatView) bool { return v.Name == seat }) {
		return w, fmt.Errorf("there is no seat %s", seat)
	}
	return s.room.openWindow(seat)
}

// currentView is the last view, with the numbers of open sessions.
func (s *server) currentView() *View {
	v := *s.view.Load()
	v.Seats = append([]SeatView{}, v.Seats...)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range v.Seats {
		v.Seats[i].Here = s.sessions[v.Seats[i].Name]
	}
	return &v
}
