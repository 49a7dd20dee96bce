package scene

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"
)

// KindSource is where the state of other objects comes from. A scene has only those sources that do not answer.
const KindSource Kind = "source"

// silenceBound is how old the last sign of a source may be before what it told counts as unknown.
const silenceBound = 5 * time.Second

var errNotAskedYet = errors.New("not asked yet since the lab's agent was started")

// Unknown tells since when objects of some kinds are shown as they were.
type Unknown struct {
	// Since is when the source last answered.
	Since time.Time `json:"since"`
	Kinds []Kind    `json:"kinds"`
}

// Source puts itself into a scene while it does not answer. Its methods may be called at the same time.
type Source struct {
	store Store
	name  string
	kinds []Kind

	mu       sync.Mutex
	answered time.Time
	broken   map[string]error // streams
}

// NewSource makes a source of objects of the kinds. The store has them as they were when it last answered; the zero
// time is for a store that has none.
func NewSource(store Store, name string, answered time.Time, kinds ...Kind) *Source {
	s := &Source{store: store, name: name, kinds: kinds, answered: answered, broken: map[string]error{}}
	if answered.IsZero() {
		s.answered = time.Now()
	}
	return s
}

// SetStream tells that a stream of the source's changes is open (nil) or broken.
func (s *Source) SetStream(stream string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.broken, stream)
	} else {
		s.broken[stream] = err
	}
}

// MarkUnasked tells that the source was not asked yet. It is to be called before Observe.
func (s *Source) MarkUnasked() error { return s.Observe(errNotAskedYet) }

// Observe tells what came of asking the source, which is to be done every PollInterval. With a broken stream, an
// answer proves nothing about what the stream has told.
func (s *Source) Observe(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := "does not answer"
	if err == nil {
		state = "answers, but does not tell its changes"
	}
	for _, broken := range s.broken {
		err = errors.Join(err, broken)
	}
	now := time.Now()
	id := string(KindSource) + "/" + s.name
	if err == nil {
		s.answered = now
		return s.store.Add(Change{Time: now, Gone: id})
	}
	if now.Sub(s.answered) < silenceBound {
		return nil
	}
	since := s.answered
	if known, ok := s.store.Get(id); ok && known.Unknown != nil { // Another process may have seen it last.
		since = known.Unknown.Since
	}
	t := Object{
		ID: id, Kind: KindSource, Name: s.name, State: state, Level: LevelUnknown,
		Reason: reasonOf(err), Unknown: &Unknown{since, s.kinds},
	}
	t.AddFact("asked again", "every "+PollInterval.String())
	return s.store.Add(Change{Time: now, Object: &t})
}

// reasonOf is the same for each time that a source does not answer for one reason: an error names other ports.
func reasonOf(err error) string {
	var number syscall.Errno
	switch {
	case errors.As(err, &number):
		return number.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	}
	return err.Error()
}
