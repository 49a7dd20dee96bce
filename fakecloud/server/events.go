package server

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

const (
	// eventTimeout bounds one write to an event stream.
	eventTimeout = 10 * time.Second
	// eventChunk is how much is gathered for one write.
	eventChunk = 256 << 10
	// eventTell is after how many events that were not for a reader it is told
	// its place: well before they are not kept any more.
	eventTell = 1000
)

// StreamEvents implements api.ServerInterface. A reader is given what is stored
// straight from the log; once it has come up to what the hub's tail holds, it
// takes the rest from there. Numbers say where one ends and the other begins.
func (s *Server) StreamEvents(w http.ResponseWriter, r *http.Request, params api.StreamEventsParams) {
	f, err := eventFilterOf(callOf(r).who, params)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	t, err := s.hub.join(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer s.hub.leave(t)
	after, newest, err := s.startOf(r, params)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	first, through, err := s.cloud.Events(r.Context(), cloud.Project{ID: f.project}, after)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if callOf(r).head {
		return
	}
	out := &eventWriter{w: w, control: http.NewResponseController(w), filter: f, hub: &s.hub, at: max(after, 0), told: max(after, 0)}
	out.buf = append(out.buf, ": connected\n\n"...)
	if newest {
		out.buf = fmt.Appendf(out.buf, "id: %d\n\n", after)
	}
	if err := s.stream(r, t, out, first, through, params.Follow == nil || *params.Follow); err != nil {
		if errors.Is(err, errBehind) || errors.Is(err, os.ErrDeadlineExceeded) {
			s.hub.cutOff.Add(1)
		}
		s.log.Debug("an event stream was cut off", "requestId", callOf(r).id, "err", err)
	}
}

// startOf is the number after which a stream starts, and whether the reader has
// to be told because it asked for the newest.
func (s *Server) startOf(r *http.Request, params api.StreamEventsParams) (after int64, newest bool, err error) {
	if params.LastEventID == nil && value(params.Newest) {
		after, err = s.cloud.LastEvent(r.Context())
		return after, true, err
	}
	if from := cmp.Or(params.LastEventID, params.After); from != nil && *from > 0 {
		return *from, false, nil
	}
	return cloud.Oldest, false, nil
}

// eventFilterOf refuses what the caller may not see.
func eventFilterOf(who *cloud.Principal, params api.StreamEventsParams) (eventFilter, error) {
	f := eventFilter{
		project:   who.Project.ID,
		resources: each(value(params.Resource), func(k api.ResourceKind) cloud.Resource { return cloud.Resource(k) }),
		ids:       value(params.ID),
		tags:      each(value(params.Tag), cloud.ParseTagFilter),
	}
	if params.Project == nil || *params.Project == f.project {
		return f, nil
	}
	if !who.Role.Allows(cloud.Admin) {
		return f, &cloud.Error{
			Code: cloud.Forbidden, Message: fmt.Sprintf("token %q may follow its own project only: that of others is for admins", who.Token),
			Fields: []cloud.Field{{Path: "project", Message: "is not the token's"}},
		}
	}
	if f.project = *params.Project; f.project == "*" {
		f.project = ""
	}
	return f, nil
}

// stream sends the events from the first batch on. No error means that the
// stream came to its end, or that the reader went away.
func (s *Server) stream(r *http.Request, t *tail, out *eventWriter, batch []cloud.Event, through int64, follow bool) error {
	for {
		messages, err := messagesOf(batch)
		if err != nil {
			return err
		}
		if err := s.admitted(r); err != nil {
			return err
		}
		if err := out.send(messages, through); err != nil {
			return err
		}
		if follow && t.holds(out.at) {
			return s.follow(r, t, out)
		}
		if !follow && len(batch) == 0 {
			return out.tell()
		}
		if batch, through, err = s.cloud.Events(r.Context(), cloud.Project{ID: out.filter.project}, out.at); err != nil {
			return err // The reader learns why when it asks again.
		}
	}
}

// follow sends what the tail has, until the stream ends.
func (s *Server) follow(r *http.Request, t *tail, out *eventWriter) error {
	beat := time.NewTicker(s.beat)
	defer beat.Stop()
	for {
		messages, through, changed, err := t.after(out.at)
		if err != nil {
			return err
		}
		// With each batch and each beat.
		if err := s.admitted(r); err != nil {
			return err
		}
		if err := out.send(messages, through); err != nil {
			return err
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-s.stopping.Done():
			return nil
		case <-changed:
		case <-beat.C:
			if err := out.beat(); err != nil {
				return err
			}
		}
	}
}

var errNotAdmitted = errors.New("the token does not open any more what it did when the stream began")

// admitted looks again at who follows: a stream does not outlive its token, and
// the reader learns why when it comes again.
func (s *Server) admitted(r *http.Request) error {
	c := callOf(r)
	now, err := s.cloud.Authenticate(r.Context(), c.secret)
	if err == nil && (now.Project.ID != c.who.Project.ID || now.Token != c.who.Token || now.Role != c.who.Role) {
		err = errNotAdmitted
	}
	return err
}

// eventWriter writes one reader's stream.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	filter  eventFilter
	hub     *hub
	buf     []byte
	// at is the number up to which everything was looked at for this reader,
	// told the one that it knows of.
	at, told int64
}

// send writes those messages that the reader wants, and its place when it has
// not heard of it for long.
func (o *eventWriter) send(messages []message, through int64) error {
	n := int64(0)
	for _, m := range messages {
		if !o.filter.wants(m) {
			continue
		}
		o.buf = append(o.buf, m.data...)
		o.told = m.seq
		n++
		if len(o.buf) >= eventChunk {
			if err := o.flush(); err != nil {
				return err
			}
		}
	}
	o.hub.sent.Add(n)
	if o.at = through; o.at-o.told >= eventTell {
		return o.tell()
	}
	if len(o.buf) == 0 {
		return nil
	}
	return o.flush()
}

// tell says up to where the reader need not look again.
func (o *eventWriter) tell() error {
	if o.at > o.told {
		o.told = o.at
		o.buf = fmt.Appendf(o.buf, "id: %d\n\n", o.at)
	}
	if len(o.buf) == 0 {
		return nil
	}
	return o.flush()
}

// beat shows that the stream lives.
func (o *eventWriter) beat() error {
	if o.at > o.told {
		return o.tell()
	}
	o.buf = append(o.buf, ": still here\n\n"...)
	return o.flush()
}

func (o *eventWriter) flush() error {
	if err := o.control.SetWriteDeadline(time.Now().Add(o.hub.timeout)); err != nil {
		return err
	}
	_, err := o.w.Write(o.buf)
	o.buf = o.buf[:0]
	if err != nil {
		return err
	}
	return o.control.Flush()
}
