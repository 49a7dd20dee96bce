package server

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// readChangeConditions puts into the context what a change's headers ask for:
// Idempotency-Key and If-Match. The validator has checked their form.
func (s *Server) readChangeConditions(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req := cloud.Request{Key: r.Header.Get("Idempotency-Key")}
		if who := recordOf(r).principal; who != nil {
			req.Token = who.Token
		}
		if match := r.Header.Get("If-Match"); match != "" && match != "*" {
			v, err := strconv.ParseInt(strings.Trim(match, `"`), 10, 64)
			if err != nil {
				s.answerInvalidFields(w, r, []cloud.Field{{Path: "If-Match", Message: "is not a version"}}, 0)
				return
			}
			req.IfMatch = &v
		}
		if req.Key != "" && recordOf(r).op.json {
			body, err := io.ReadAll(r.Body) // The validator has read it: it is in memory.
			if err != nil {
				s.answerError(w, r, fmt.Errorf("reading a body again: %w", err))
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			sum := sha256.Sum256([]byte(r.Method + " " + r.URL.Path + "\n" + string(body)))
			req.Fingerprint = sum[:]
		}
		next.ServeHTTP(w, r.WithContext(cloud.WithRequest(r.Context(), req)))
	})
}

// answerResource answers with one resource, at a version, unless err.
func (s *Server) answerResource(
	w http.ResponseWriter,
	r *http.Request,
	status int,
	version int64,
	body any,
	err error,
) {
	if err != nil {
		s.answerError(w, r, err)
		return
	}
	tag := `"` + strconv.FormatInt(version, 10) + `"`
	w.Header().Set("ETag", tag)
	if r.Method == http.MethodGet && r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	s.answerJSON(w, r, status, body)
}

// answerCreated answers with a resource that was just made, says where it is, and
// whether an earlier request with the same idempotency key made it.
func (s *Server) answerCreated(
	w http.ResponseWriter,
	r *http.Request,
	location string,
	version int64,
	body any,
	outcome cloud.Outcome,
	err error,
) {
	if err == nil {
		w.Header().Set("Location", location)
		if outcome.Replayed {
			w.Header().Set("Idempotent-Replayed", "true")
		}
	}
	s.answerResource(w, r, http.StatusCreated, version, body, err)
}

// answerResult answers with what was found or done, unless err.
func (s *Server) answerResult(w http.ResponseWriter, r *http.Request, status int, body any, err error) {
	if err != nil {
		s.answerError(w, r, err)
		return
	}
	s.answerJSON(w, r, status, body)
}

// answerNoContent answers that there is nothing to tell, unless err.
func (s *Server) answerNoContent(w http.ResponseWriter, r *http.Request, err error) {
	if err != nil {
		s.answerError(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
