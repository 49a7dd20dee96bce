package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// statuses gives the HTTP status of each of the cloud's refusals.
var statuses = map[cloud.Code]int{
	cloud.InvalidRequest:       http.StatusBadRequest,
	cloud.UnknownZone:          http.StatusBadRequest,
	cloud.UnknownInstance:      http.StatusBadRequest,
	cloud.UnknownNetwork:       http.StatusBadRequest,
	cloud.UnknownCertificate:   http.StatusBadRequest,
	cloud.UnknownAddress:       http.StatusBadRequest,
	cloud.ListenerConflict:     http.StatusBadRequest,
	cloud.Unauthenticated:      http.StatusUnauthorized,
	cloud.Forbidden:            http.StatusForbidden,
	cloud.NotFound:             http.StatusNotFound,
	cloud.NameTaken:            http.StatusConflict,
	cloud.WrongState:           http.StatusConflict,
	cloud.InUse:                http.StatusConflict,
	cloud.Protected:            http.StatusConflict,
	cloud.QuotaExceeded:        http.StatusConflict,
	cloud.AddressPoolExhausted: http.StatusConflict,
	cloud.AddressInUse:         http.StatusConflict,
	cloud.RouteConflict:        http.StatusConflict,
	cloud.NetworkConflict:      http.StatusConflict,
	cloud.VirtualClock:         http.StatusConflict,
	cloud.SnapshotUnusable:     http.StatusConflict,
	cloud.TooManyFaults:        http.StatusConflict,
	cloud.EventsExpired:        http.StatusGone,
	cloud.PreconditionFailed:   http.StatusPreconditionFailed,
	cloud.IdempotencyKeyReused: http.StatusUnprocessableEntity,
	cloud.Unavailable:          http.StatusServiceUnavailable,
	cloud.ZoneUnavailable:      http.StatusServiceUnavailable,
}

// buffers are for encoding answers before they are sent, so that their size is known. Very
// large buffers are not kept.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

const maxBuffer = 1 << 20

// unavailableRetryAfter is how many seconds a caller waits when the disk is full: the cloud itself tries every second, but
// somebody has to make room.
const unavailableRetryAfter = "5"

// challenge is the WWW-Authenticate header of answers with status 401.
const challenge = `Bearer realm="fakecloud"`

// answerError answers with the problem that an error means.
func (s *Server) answerError(w http.ResponseWriter, r *http.Request, err error) {
	var refused *cloud.Error
	if errors.As(err, &refused) {
		switch refused.Code {
		case cloud.Unauthenticated:
			w.Header().Set("WWW-Authenticate", challenge)
		case cloud.Unavailable:
			w.Header().Set("Retry-After", unavailableRetryAfter)
		}
		s.answerProblem(w, r, statuses[refused.Code], api.ProblemCode(refused.Code), refused.Message, refused.Fields)
		return
	}
	if r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		s.log.Debug("the caller went away", "requestId", recordOf(r).id)
	} else {
		s.log.Error("a call failed", "requestId", recordOf(r).id, "err", err)
	}
	s.answerProblem(
		w, r, http.StatusInternalServerError, api.Internal, "the cloud failed; its log has more under this request ID",
		nil,
	)
}

// answerProblem answers with problem+json that names the caller's project.
func (s *Server) answerProblem(
	w http.ResponseWriter,
	r *http.Request,
	status int,
	code api.ProblemCode,
	detail string,
	fields []cloud.Field,
) {
	p := s.newProblem(r, status, code, detail, fields)
	if who := recordOf(r).principal; who != nil {
		p.Project = &who.Project.ID
	}
	s.writeProblem(w, r, p)
}

// What a refusal repeats of a request is bounded, in bytes: a field's path, its message, and all of them.
const (
	maxEcho    = 300
	maxMessage = 1 << 10
	maxDetail  = 8 << 10
)

// shorten cuts a text that is longer.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

func (s *Server) newProblem(
	r *http.Request,
	status int,
	code api.ProblemCode,
	detail string,
	fields []cloud.Field,
) api.Problem {
	recordOf(r).code = code
	p := api.Problem{
		Type: "urn:fakecloud:problem:" + string(code), Title: http.StatusText(status), Status: status,
		Code: code, Detail: shorten(detail, maxDetail), RequestID: recordOf(r).id,
	}
	if len(fields) > 0 {
		list := mapSlice(fields[:min(len(fields), maxOffences)], func(f cloud.Field) api.ProblemField {
			return api.ProblemField{Field: shorten(f.Path, maxEcho), Message: shorten(f.Message, maxMessage)}
		})
		p.Fields = &list
	}
	return p
}

func (s *Server) writeProblem(w http.ResponseWriter, r *http.Request, p api.Problem) {
	if f := recordOf(r).front; f != nil {
		f.Refuse(w, r, p)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	s.encodeJSON(w, r, p.Status, p)
}

// answerJSON answers with JSON.
func (s *Server) answerJSON(w http.ResponseWriter, r *http.Request, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	s.encodeJSON(w, r, status, body)
}

func (s *Server) encodeJSON(w http.ResponseWriter, r *http.Request, status int, body any) {
	buf := buffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= maxBuffer {
			buf.Reset()
			buffers.Put(buf)
		}
	}()
	if err := json.NewEncoder(buf).Encode(body); err != nil {
		panic(fmt.Errorf("an answer that is no JSON: %w", err)) // All of the API's types can be encoded.
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(buf.Len()))
	w.WriteHeader(status)
	if _, err := w.Write(buf.Bytes()); err != nil {
		s.log.Debug("the answer did not reach the caller", "requestId", recordOf(r).id, "err", err)
	}
}
