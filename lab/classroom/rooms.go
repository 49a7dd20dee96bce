package classroom

// Many rooms on one page: each room serves its own page, and this one polls them. A
// room's answer is untrusted input, since its learner may have replaced our program.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/lab/lessons"
)

// Rooms are the rooms on one page.
type Rooms struct {
	// From are the URLs of the rooms' pages.
	From []*url.URL
	// Service is the HOST:PORT of further rooms: one at each address that the name
	// currently resolves to.
	Service string
	// Listen and Port are the page's address.
	Listen string
	Port   int
	// Hosts are further names under which it answers.
	Hosts []string

	// snapshots are the last known state of each room, by URL.
	snapshots map[string]roomSnapshot
	view      atomic.Pointer[View]
}

// roomSnapshot is what a room answered, and when.
type roomSnapshot struct {
	at    time.Time
	seats []SeatView
}

const (
	// roomTimeout bounds a room's answer, maxParallelRooms the rooms that are polled at
	// once.
	roomTimeout      = 3 * time.Second
	maxParallelRooms = 16
	// maxResponseBytes is far above the answer of the largest room that a machine can
	// hold.
	maxResponseBytes = 1 << 20
)

// roomClient follows no redirects: a room must not direct our requests to others.
var roomClient = &http.Client{
	Timeout:       roomTimeout,
	Transport:     &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// Serve serves the page until ctx ends.
func (r *Rooms) Serve(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "classroom-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	text, err := writeLessonsSite(filepath.Join(dir, "site"))
	if err != nil {
		return err
	}
	if err := r.pollRooms(ctx); err != nil {
		return err
	}
	on, err := listenTCP(r.Listen, r.Port, "--port")
	if err != nil {
		return err
	}
	slog.Info("the page is there", "address", on.Addr().String(), "seats", len(r.view.Load().Seats))
	ctx, stop := context.WithCancel(ctx)
	var parts errgroup.Group
	parts.Go(func() error {
		defer stop()
		return servePage(ctx, on, newPageHandler(r.view.Load, nil, text, "", ownNames(r.Listen, "", r.Hosts)))
	})
	parts.Go(func() error { return pollUntilDone(ctx, r.pollRooms) })
	return parts.Wait()
}

// pollRooms updates the view from all rooms that there are now.
func (r *Rooms) pollRooms(ctx context.Context) error {
	all, err := lessons.All()
	if err != nil {
		return err
	}
	where := r.pageURLs(ctx)
	now := make([]roomSnapshot, len(where))
	var asking errgroup.Group
	asking.SetLimit(maxParallelRooms)
	for i, u := range where {
		asking.Go(func() error {
			now[i] = r.snapshotRoom(ctx, u)
			return nil
		})
	}
	_ = asking.Wait() // None returns an error.
	if ctx.Err() != nil {
		return ctx.Err()
	}
	v := &View{At: time.Now(), Lessons: len(all), Seats: []SeatView{}}
	r.snapshots = map[string]roomSnapshot{}
	names := map[string]int{}
	for i, u := range where {
		r.snapshots[u.String()] = now[i]
		for _, s := range now[i].seats {
			names[s.Name]++
		}
	}
	for i, u := range where {
		for _, s := range now[i].seats {
			if s.Page != "" { // It is below its room's, and a room's word for it is not taken.
				s.Page = u.JoinPath(seatPath(s.Name)).String()
			}
			if names[s.Name] > 1 {
				s.Name = u.Host + "/" + s.Name
			}
			v.Seats = append(v.Seats, s)
		}
	}
	slices.SortStableFunc(v.Seats, func(a, b SeatView) int { return compareSeatNames(a.Name, b.Name) })
	r.view.Store(v)
	return nil
}

// compareSeatNames sorts seat-2 before seat-10.
func compareSeatNames(a, b string) int {
	nameA, numberA := splitNumber(a)
	nameB, numberB := splitNumber(b)
	return cmp.Or(strings.Compare(nameA, nameB), cmp.Compare(numberA, numberB))
}

func splitNumber(name string) (string, int) {
	i := strings.LastIndex(name, "-")
	n, err := strconv.Atoi(name[i+1:])
	if err != nil {
		return name, 0
	}
	return name[:i+1], n
}

// pageURLs returns the URL of each room's page, once each.
func (r *Rooms) pageURLs(ctx context.Context) []*url.URL {
	where := slices.Clone(r.From)
	if r.Service == "" {
		return where
	}
	host, port, _ := net.SplitHostPort(r.Service) // Who has set it has looked.
	ctx, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, host)
	var none *net.DNSError
	if err != nil && (!errors.As(err, &none) || !none.IsNotFound) {
		slog.Error("asking for the rooms' addresses; those known are asked", "name", host, "error", err)
		for known := range r.snapshots {
			if u, err := url.Parse(known); err == nil && !slices.ContainsFunc(r.From, func(o *url.URL) bool {
				return o.String() == known
			}) {
				where = append(where, u)
			}
		}
		return where
	}
	slices.Sort(addresses)
	for _, address := range slices.Compact(addresses) {
		where = append(where, &url.URL{Scheme: "http", Host: net.JoinHostPort(address, port), Path: "/"})
	}
	return where
}

// snapshotRoom returns a room's current state or, if it does not answer, the last known
// one with the problem.
func (r *Rooms) snapshotRoom(ctx context.Context, where *url.URL) roomSnapshot {
	seats, err := fetchSeats(ctx, where)
	if err == nil {
		return roomSnapshot{time.Now(), seats}
	}
	last, known := r.snapshots[where.String()]
	if !known {
		return roomSnapshot{
			seats: []SeatView{{Name: where.Host, Finished: []string{}, Problem: "it is not reached: " + err.Error()}},
		}
	}
	last.seats = slices.Clone(last.seats)
	for i := range last.seats {
		s := &last.seats[i]
		s.Here, s.Problem = 0, "it is not reached: "+err.Error()
		if !last.at.IsZero() {
			s.Problem = fmt.Sprintf("it is not reached since %s: %v", last.at.Format(time.TimeOnly), err)
		}
	}
	return last
}

// fetchSeats asks a room for the state of its seats.
func fetchSeats(ctx context.Context, where *url.URL) ([]SeatView, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where.JoinPath("progress.json").String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := roomClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", req.URL, res.Status)
	}
	var v View
	if err := json.NewDecoder(http.MaxBytesReader(nil, res.Body, maxResponseBytes)).Decode(&v); err != nil {
		return nil, fmt.Errorf("what %s says is no classroom: %w", req.URL, err)
	}
	for _, s := range v.Seats {
		if err := CheckName(s.Name); err != nil {
			return nil, fmt.Errorf("what %s says is no classroom: a seat is called %w", req.URL, err)
		}
	}
	return v.Seats, nil
}
