package console

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// inProcess makes the calls of a client without a network, for a person who looks at the page. Answers are
// read as they are written, those that go on for long, too.
type inProcess struct {
	api http.Handler
	who Session
}

// RoundTrip implements http.RoundTripper.
func (t inProcess) RoundTrip(req *http.Request) (*http.Response, error) {
	inner := req.Clone(req.Context())
	inner.RemoteAddr, inner.RequestURI = t.who.RemoteAddr, req.URL.RequestURI()
	inner.Header.Set("Authorization", "Bearer "+t.who.Token)
	if inner.Body == nil {
		inner.Body = http.NoBody
	}
	body, write := io.Pipe()
	a := &pipedAnswer{body: write, header: http.Header{}, begun: make(chan struct{})}
	go func() {
		defer func() {
			if failure := recover(); failure != nil { // As http.ErrAbortHandler, by which an answer is broken off.
				_ = write.CloseWithError(io.ErrUnexpectedEOF)
			}
			a.WriteHeader(http.StatusOK)
			_ = write.Close()
		}()
		t.api.ServeHTTP(a, inner)
	}()
	select {
	case <-a.begun:
	case <-req.Context().Done():
		_ = body.Close()
		return nil, req.Context().Err()
	}
	return &http.Response{
		Status: http.StatusText(a.status), StatusCode: a.status, Header: a.sent, Request: req, Body: body,
		ContentLength: -1, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// pipedAnswer is an answer that is read while it is written.
type pipedAnswer struct {
	body   *io.PipeWriter
	header http.Header

	once   sync.Once
	status int
	sent   http.Header
	begun  chan struct{}
}

func (a *pipedAnswer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *pipedAnswer) WriteHeader(status int) {
	a.once.Do(func() {
		a.status, a.sent = status, a.header.Clone()
		close(a.begun)
	})
}

// Write implements http.ResponseWriter.
func (a *pipedAnswer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// SetWriteDeadline lets answers go on for as long as somebody reads them.
func (a *pipedAnswer) SetWriteDeadline(time.Time) error { return nil }

// Flush implements http.Flusher: what is written can be read already.
func (a *pipedAnswer) Flush() { a.WriteHeader(http.StatusOK) }
