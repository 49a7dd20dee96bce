// Package effects makes what a fault does to an HTTP call: it holds the call, breaks it off, keeps its
// answer to give that again, or leaves something out of the answer. The cloud's own faults and the
// conformance suite's fault proxy decide which call gets which effect.
//
// It knows net/http and JSON, and neither a cloud nor a rule. Begin with Hold, BreakOff, Capture and
// ShortenList.
package effects

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// ReadBody reads a request's body into memory: that a caller has gone is noticed only when nothing of
// its request is left to read. Whoever reads the body afterwards gets all of it, and the same error.
func ReadBody(r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	return err
}

// HoldForever holds a call until its caller goes away, the fault is lifted or the server stops.
const HoldForever time.Duration = -1

// Hold keeps a call waiting for d, or until lifted is closed. It returns false if the caller goes away
// before, or stopping is closed: then there is nobody to answer. ReadBody comes first.
func Hold(r *http.Request, d time.Duration, lifted, stopping <-chan struct{}) bool {
	var over <-chan time.Time
	if d != HoldForever {
		over = time.After(d)
	}
	select {
	case <-r.Context().Done():
		return false
	case <-stopping:
		return false
	case <-lifted:
	case <-over:
	}
	return true
}

// BreakOff ends a call without an answer. It resets the connection or, with HTTP/2, where calls share
// one, the call's stream.
func BreakOff(w http.ResponseWriter) error {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	below := conn
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		below = secure.NetConn()
	}
	if tcp, ok := below.(*net.TCPConn); ok {
		err = tcp.SetLinger(0) // Then closing resets the connection.
	}
	return errors.Join(err, below.Close())
}
