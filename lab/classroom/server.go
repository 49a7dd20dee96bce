package classroom

// This file answers: what does the room's server do? It looks at the seats, and lets
// learners in.

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/gliderlabs/ssh"
	"golang.org/x/sync/errgroup"
)

// server is the room's.
type server struct {
	room *Room
	// nobody is compared with where there is no such seat, so that it takes as long.
	nobody string
	view   atomic.Pointer[View]
	// mu guards here, who is logged in, by seat.
	mu   sync.Mutex
	here map[string]int
}

// Serve has the room's page and seats be reached until ctx ends.
func (r *Room) Serve(ctx context.Context) error {
	// Under nohup a learner's shell would inherit that it cannot be hung up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	s := &server{room: r, here: map[string]int{}}
	if err := s.look(ctx); err != nil {
		return err
	}
	text, err := writeText(filepath.Join(r.dir, "site"))
	if err != nil {
		return err
	}
	pages, err := listen(r.Listen, r.PagePort)
	if err != nil {
		return err
	}
	doors, err := listen(r.Listen, r.SSHPort)
	if err != nil {
		return errors.Join(err, pages.Close())
	}
	door, err := s.door(ctx)
	if err != nil {
		return errors.Join(err, pages.Close(), doors.Close())
	}
	slog.Info("the classroom is open", "page", r.Page(), "ssh", doors.Addr().String(), "seats", len(r.Seats))
	var parts errgroup.Group
	parts.Go(func() error { return servePage(ctx, pages, routes(s.now, text, r.identity())) })
	parts.Go(func() error { return unless(door.Serve(doors), ssh.ErrServerClosed) })
	parts.Go(func() error { return keepLooking(ctx, s.look) })
	parts.Go(func() error {
		<-ctx.Done()
		return door.Close()
	})
	return parts.Wait()
}

// look sees how far everybody is, at the seats that there are by now.
func (s *server) look(ctx context.Context) error {
	now := &Room{dir: s.room.dir}
	if err := now.read(); err != nil {
		return err
	}
	v, err := now.Look(ctx)
	if err != nil {
		return err
	}
	s.view.Store(v)
	return nil
}

// now is the last view, with who is logged in.
func (s *server) now() *View {
	v := *s.view.Load()
	v.Seats = append([]SeatView{}, v.Seats...)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range v.Seats {
		v.Seats[i].Here = s.here[v.Seats[i].Name]
	}
	return &v
}
