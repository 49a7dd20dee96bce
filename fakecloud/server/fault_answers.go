package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
)

// maxAnswer bounds the size of an answer that a fault stores or edits.
const maxAnswer = 16 << 20

var errTooLong = errors.New("the answer is too long for a fault to keep or change")

// bufferedAnswer is an http.ResponseWriter that keeps an answer instead of sending it.
type bufferedAnswer struct {
	header    http.Header
	status    int
	body      bytes.Buffer
	discarded bool // nobody will read it
	tooLong   bool // it did not fit
}

// Header implements http.ResponseWriter.
func (a *bufferedAnswer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *bufferedAnswer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write implements http.ResponseWriter.
func (a *bufferedAnswer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	switch {
	case a.discarded:
		return len(b), nil
	case a.tooLong || a.body.Len()+len(b) > maxAnswer:
		a.tooLong = true
		return 0, errTooLong
	}
	return a.body.Write(b)
}

// captureAnswer runs the operation and gives its answer; false if that is too long, which
// has been answered then. A conditional read is captured in full.
func (s *Server) captureAnswer(
	w http.ResponseWriter,
	r *http.Request,
	hit *faults.Hit,
	next http.Handler,
) (faults.Answer, bool) {
	a := &bufferedAnswer{header: http.Header{}}
	r.Header.Del("If-None-Match")
	next.ServeHTTP(a, r)
	if a.tooLong {
		s.answerProblem(w, r, http.StatusServiceUnavailable, api.Unavailable,
			fmt.Sprintf(
				"the answer has more than the %d bytes that fault %s can keep or change: ask for less at a time, or delete the fault",
				maxAnswer, hit.Fault,
			), nil)
		return faults.Answer{}, false
	}
	a.WriteHeader(http.StatusOK) // Of a handler that wrote nothing.
	return faults.Answer{Status: a.status, Header: a.header, Body: a.body.Bytes()}, true
}

// answerStale answers as the same request of the same token was first answered.
func (s *Server) answerStale(w http.ResponseWriter, r *http.Request, hit *faults.Hit, next http.Handler) {
	question := recordOf(r).principal.Project.ID + " " + recordOf(r).principal.Token + " " + r.URL.RequestURI()
	known, ok := hit.Answers.Get(question)
	if !ok {
		if known, ok = s.captureAnswer(w, r, hit, next); !ok {
			return
		}
		known = hit.Answers.Keep(question, known)
	}
	s.replayAnswer(w, r, known)
}

// answerEdited answers with items and fields left out.
func (s *Server) answerEdited(w http.ResponseWriter, r *http.Request, hit *faults.Hit, next http.Handler) {
	a, ok := s.captureAnswer(w, r, hit, next)
	if !ok {
		return
	}
	if a.Status < http.StatusMultipleChoices && a.Header.Get("Content-Type") == "application/json" {
		body, err := editAnswer(a.Body, hit.Effect)
		if err != nil {
			s.answerError(w, r, fmt.Errorf("changing an answer for fault %s: %w", hit.Fault, err))
			return
		}
		a.Body = body
	}
	s.replayAnswer(w, r, a)
}

func (s *Server) replayAnswer(w http.ResponseWriter, r *http.Request, a faults.Answer) {
	maps.Copy(w.Header(), a.Header)
	w.Header().Set("Content-Length", strconv.Itoa(len(a.Body))) // It may have been edited.
	w.WriteHeader(a.Status)
	if _, err := w.Write(a.Body); err != nil {
		s.log.Debug("the answer did not reach the caller", "requestId", recordOf(r).id, "err", err)
	}
}

// editAnswer removes items and fields from an answer. What it leaves keeps its bytes.
func editAnswer(body []byte, e faults.Effect) ([]byte, error) {
	var whole map[string]json.RawMessage
	if err := json.Unmarshal(body, &whole); err != nil {
		return nil, err
	}
	content, lists := whole["items"]
	if !lists {
		return omitFields(body, e.OmitFields)
	}
	var items []json.RawMessage
	if err := json.Unmarshal(content, &items); err != nil {
		return nil, err
	}
	if e.PartialList > 0 {
		items = items[:min(e.PartialList, len(items))]
		delete(whole, "nextPageToken")
	}
	for i := range items {
		var err error
		if items[i], err = omitFields(items[i], e.OmitFields); err != nil {
			return nil, err
		}
	}
	var err error
	if whole["items"], err = json.Marshal(items); err != nil {
		return nil, err
	}
	return json.Marshal(whole)
}

// omitFields removes fields from an object.
func omitFields(object []byte, fields []string) ([]byte, error) {
	for _, field := range fields {
		var err error
		if object, err = cutField(object, field); err != nil {
			return nil, err
		}
	}
	return object, nil
}

// cutField removes one field, by its dotted path. A list on the path has the field removed
// from each item. Keys of maps may have dots: if the whole path is a key, that key is
// removed.
func cutField(value json.RawMessage, path string) (json.RawMessage, error) {
	var list []json.RawMessage
	if json.Unmarshal(value, &list) == nil && list != nil {
		for i := range list {
			var err error
			if list[i], err = cutField(list[i], path); err != nil {
				return nil, err
			}
		}
		return json.Marshal(list)
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(value, &object) != nil || object == nil {
		return value, nil //nolint:nilerr // A value that is no object has no fields.
	}
	key, rest, deeper := strings.Cut(path, ".")
	_, whole := object[path]
	below, has := object[key]
	switch {
	case whole || !deeper:
		delete(object, path)
	case has:
		var err error
		if object[key], err = cutField(below, rest); err != nil {
			return nil, err
		}
	}
	return json.Marshal(object)
}
