package classroom

// This file answers: how do many rooms come on one page? Each has a page of its own, and
// what that shows is asked for. What a room says is a stranger's: its learner may have
// put another program in the place of ours.

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

// Rooms are those on the page.
type Rooms struct {
	// From are the URLs of the rooms' pages.
	From []*url.URL
	// Service is the HOST:PORT of more: one at each address that the name has just then.
	Service string
	// Listen and Port are where the page is reached.
	Listen string
	Port   int

	// last is what was last seen of each.
	last map[string]seen
	view atomic.Pointer[View]
}

// seen is what was seen of a room, and when.
type seen struct {
	at    time.Time
	seats []SeatView
}

const (
	// askBound is how long a room may take to answer, asksAtOnce how many are asked.
	askBound   = 3 * time.Second
	asksAtOnce = 16
	// maxAnswer is far above what a room of as many seats as a machine can have says.
	maxAnswer = 1 << 20
)

// asker follows nobody elsewhere: a room must not have us ask others.
var asker = &http.Client{
	Timeout:       askBound,
	Transport:     &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// Serve has the page be reached until ctx ends.
func (r *Rooms) Serve(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "classroom-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	text, err := writeText(filepath.Join(dir, "site"))
	if err != nil {
		return err
	}
	if err := r.look(ctx); err != nil {
		return err
	}
	on, err := listen(r.Listen, r.Port)
	if err != nil {
		return err
	}
	slog.Info("the page is there", "address", on.Addr().String(), "seats", len(r.view.Load().Seats))
	ctx, stop := context.WithCancel(ctx)
	var parts errgroup.Group
	parts.Go(func() error {
		defer stop()
		return servePage(ctx, on, routes(r.view.Load, text, ""))
	})
	parts.Go(func() error { return keepLooking(ctx, r.look) })
	return parts.Wait()
}

// look asks all rooms that there are by now.
func (r *Rooms) look(ctx context.Context) error {
	all, err := lessons.All()
	if err != nil {
		return err
	}
	where := r.where(ctx)
	now := make([]seen, len(where))
	var asking errgroup.Group
	asking.SetLimit(asksAtOnce)
	for i, u := range where {
		asking.Go(func() error {
			now[i] = r.see(ctx, u)
			return nil
		})
	}
	_ = asking.Wait() // None returns an error.
	if ctx.Err() != nil {
		return ctx.Err()
	}
	v := &View{At: time.Now(), Lessons: len(all), Seats: []SeatView{}}
	r.last = map[string]seen{}
	names := map[string]int{}
	for i, u := range where {
		r.last[u.String()] = now[i]
		for _, s := range now[i].seats {
			names[s.Name]++
		}
	}
	for i, u := range where {
		for _, s := range now[i].seats {
			if names[s.Name] > 1 {
				s.Name = u.Host + "/" + s.Name
			}
			v.Seats = append(v.Seats, s)
		}
	}
	slices.SortStableFunc(v.Seats, func(a, b SeatView) int { return compareNames(a.Name, b.Name) })
	r.view.Store(v)
	return nil
}

// compareNames has seat-2 come before seat-10.
func compareNames(a, b string) int {
	nameA, numberA := numbered(a)
	nameB, numberB := numbered(b)
	return cmp.Or(strings.Compare(nameA, nameB), cmp.Compare(numberA, numberB))
}

func numbered(name string) (string, int) {
	i := strings.LastIndex(name, "-")
	n, err := strconv.Atoi(name[i+1:])
	if err != nil {
		return name, 0
	}
	return name[:i+1], n
}

// where are the rooms' pages, each once.
func (r *Rooms) where(ctx context.Context) []*url.URL {
	where := slices.Clone(r.From)
	if r.Service == "" {
		return where
	}
	host, port, _ := net.SplitHostPort(r.Service) // Who has set it has looked.
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, host)
	var none *net.DNSError
	if err != nil && (!errors.As(err, &none) || !none.IsNotFound) {
		slog.Error("asking for the rooms' addresses; those known are asked", "name", host, "error", err)
		for known := range r.last {
			if u, err := url.Parse(known); err == nil && !slices.ContainsFunc(r.From, func(o *url.URL) bool { return o.String() == known }) {
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

// see is a room now or, where it does not answer, as it was when it last did.
func (r *Rooms) see(ctx context.Context, where *url.URL) seen {
	seats, err := ask(ctx, where)
	if err == nil {
		return seen{time.Now(), seats}
	}
	last, known := r.last[where.String()]
	if !known {
		return seen{seats: []SeatView{{Name: where.Host, Finished: []string{}, Problem: "it is not reached: " + err.Error()}}}
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

// ask is what a room says of its seats.
func ask(ctx context.Context, where *url.URL) ([]SeatView, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where.JoinPath("progress.json").String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := asker.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", req.URL, res.Status)
	}
	var v View
	if err := json.NewDecoder(http.MaxBytesReader(nil, res.Body, maxAnswer)).Decode(&v); err != nil {
		return nil, fmt.Errorf("what %s says is no classroom: %w", req.URL, err)
	}
	for _, s := range v.Seats {
		if err := CheckName(s.Name); err != nil {
			return nil, fmt.Errorf("what %s says is no classroom: a seat is called %w", req.URL, err)
		}
	}
	return v.Seats, nil
}
