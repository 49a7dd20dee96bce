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
	// maxEventChunk is how much is collected for one write to an event stream, in bytes.
	maxEventChunk = 256 << 10
	// maxUntoldEvents is after how many events that its filter leaves out a reader is sent
	// its position, so that it can resume. It is well below the number of events that are
	// kept.
	maxUntoldEvents = 1000
)

// streamEvents sends what is stored straight from the log. Once a reader has reached what the hub's tail holds, it is sent the rest from
// there. The events' numbers say where one ends and the other begins.
func (s *Server) streamEvents(w http.ResponseWriter, r *http.Request, params api.StreamEventsParams) {
	f, err := toEventFilter(recordOf(r).principal, params)
	if err != nil {
		s.answerError(w, r, err)
		return
	}
	s.holdOne(&s.streams, w, r, func() { s.sendStream(w, r, params, f) })
}

func (s *Server) sendStream(w http.ResponseWriter, r *http.Request, params api.StreamEventsParams, f eventFilter) {
	t, err := s.hub.joinTail(r.Context())
	if err != nil {
		s.answerError(w, r, err)
		return
	}
	defer s.hub.leaveTail(t)
	after, newest, err := s.startPosition(r, params)
	if err != nil {
		s.answerError(w, r, err)
		return
	}
	first, through, err := s.cloud.Events(r.Context(), cloud.Project{ID: f.project}, after)
	if err != nil {
		s.answerError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if recordOf(r).isHead {
		return
	}
	out := &eventWriter{
		w: w, control: http.NewResponseController(w), filter: f, hub: &s.hub, position: max(after, 0),
		toldPosition: max(after, 0), edit: func(m eventMessage) ([]byte, error) { return s.editMessage(r, m) },
	}
	out.buf = append(out.buf, ": connected\n\n"...)
	if newest {
		out.buf = fmt.Appendf(out.buf, "id: %d\n\n", after)
	}
	if err := s.sendEvents(r, t, out, first, through, params.Follow == nil || *params.Follow); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.hub.cutOff.Add(1)
		}
		s.log.Debug("an event stream was cut off", "requestId", recordOf(r).id, "err", err)
	}
}

// startPosition gives the number after which a stream starts, and whether the reader asked
// for the newest and so has to be sent that number.
func (s *Server) startPosition(r *http.Request, params api.StreamEventsParams) (after int64, newest bool, err error) {
	if params.LastEventID == nil && api.ValueOf(params.Newest) {
		after, err = s.cloud.LastEvent(r.Context())
		return after, true, err
	}
	if from := cmp.Or(params.LastEventID, params.After); from != nil && *from > 0 {
		return *from, false, nil
	}
	return cloud.Oldest, false, nil
}

// toEventFilter reads the filter of a stream, and refuses projects that the caller may not
// follow.
func toEventFilter(who *cloud.Principal, params api.StreamEventsParams) (eventFilter, error) {
	f := eventFilter{
		project:   who.Project.ID,
		resources: api.ValueOf(params.Resource), ids: api.ValueOf(params.ID),
		tags: mapSlice(api.ValueOf(params.Tag), cloud.ParseTagFilter),
	}
	if params.Project == nil || *params.Project == f.project {
		return f, nil
	}
	if !who.Role.Allows(cloud.Admin) {
		return f, &cloud.Error{
			Code:    cloud.Forbidden,
			Message: fmt.Sprintf("token %q may follow its own project only; others need an admin's token", who.Token),
			Fields:  []cloud.Field{{Path: "project", Message: "is not the token's"}},
		}
	}
	if f.project = *params.Project; f.project == "*" {
		f.project = ""
	}
	return f, nil
}

// sendEvents sends the events from the first batch on. It returns nil when the stream has
// come to its end, or the reader has gone away.
func (s *Server) sendEvents(
	r *http.Request,
	t *eventTail,
	out *eventWriter,
	batch []cloud.Event,
	through int64,
	follow bool,
) error {
	for {
		messages, err := toEventMessages(batch)
		if err != nil {
			return err
		}
		if err := s.checkStillAdmitted(r); err != nil {
			return err
		}
		if err := out.sendMessages(messages, through); err != nil {
			return err
		}
		if follow && t.holdsAllAfter(out.position) {
			if err := s.followTail(r, t, out); !errors.Is(err, errBehind) {
				return err
			} // The log has what the tail has not: a burst of large events is no reader's fault.
		}
		if !follow && len(batch) == 0 {
			return out.sendPosition()
		}
		if batch, through, err = s.cloud.Events(
			r.Context(), cloud.Project{ID: out.filter.project}, out.position,
		); err != nil {
			return err // The reader learns why when it asks again.
		}
	}
}

// followTail sends the tail's messages until the stream ends.
func (s *Server) followTail(r *http.Request, t *eventTail, out *eventWriter) error {
	beat := time.NewTicker(s.heartbeat)
	defer beat.Stop()
	for {
		messages, through, changed, err := t.messagesAfter(out.position)
		if err != nil {
			return err
		}
		// With each batch and each beat.
		if err := s.checkStillAdmitted(r); err != nil {
			return err
		}
		if err := out.sendMessages(messages, through); err != nil {
			return err
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-s.stopping.Done():
			return nil
		case <-changed:
		case <-beat.C:
			if err := out.sendHeartbeat(); err != nil {
				return err
			}
		}
	}
}

var errNotAdmitted = errors.New("the token no longer has the rights that it had when the stream began")

// checkStillAdmitted authenticates the reader again: a stream does not outlive its token.
// The reader learns the reason when it connects again.
func (s *Server) checkStillAdmitted(r *http.Request) error {
	c := recordOf(r)
	now, err := s.cloud.Authenticate(r.Context(), c.secret)
	if err == nil && (now.Project.ID != c.principal.Project.ID || now.Token != c.principal.Token ||
		now.Role != c.principal.Role) {
		err = errNotAdmitted
	}
	return err
}

// eventWriter writes one reader's event stream.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	filter  eventFilter
	hub     *eventHub
	buf     []byte
	edit    func(eventMessage) ([]byte, error) // what a fault makes of a message
	// position is the number up to which all events were sent or left out, toldPosition
	// the last number that was sent.
	position, toldPosition int64
}

// sendMessages writes the messages that the reader wants. It also writes the reader's
// position if that is far ahead of what the reader was sent.
func (o *eventWriter) sendMessages(messages []eventMessage, through int64) error {
	n := int64(0)
	for _, m := range messages {
		if !o.filter.wantsMessage(m) {
			continue
		}
		data, err := o.edit(m)
		if err != nil {
			return err
		}
		o.buf = append(o.buf, data...)
		o.toldPosition = m.seq
		n++
		if len(o.buf) >= maxEventChunk {
			if err := o.flush(); err != nil {
				return err
			}
		}
	}
	o.hub.sent.Add(n)
	if o.position = through; o.position-o.toldPosition >= maxUntoldEvents {
		return o.sendPosition()
	}
	if len(o.buf) == 0 {
		return nil
	}
	return o.flush()
}

// sendPosition writes the number from which the reader can resume.
func (o *eventWriter) sendPosition() error {
	if o.position > o.toldPosition {
		o.toldPosition = o.position
		o.buf = fmt.Appendf(o.buf, "id: %d\n\n", o.position)
	}
	if len(o.buf) == 0 {
		return nil
	}
	return o.flush()
}

// sendHeartbeat shows that the stream is alive.
func (o *eventWriter) sendHeartbeat() error {
	if o.position > o.toldPosition {
		return o.sendPosition()
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
	if err := errors.Join(err, o.control.Flush()); err != nil {
		return err
	}
	// HTTP/2 resets a stream at its deadline, also one that has nothing to send.
	return o.control.SetWriteDeadline(time.Time{})
}
