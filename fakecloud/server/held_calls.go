package server

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	// maxStreams is how many event streams a token may have open.
	maxStreams = 64
	// maxWaiting is how many calls of a token may wait: for an operation, as they ask to, or because a fault holds them.
	maxWaiting = 256
	// heldRetryAfter is what a caller beyond that is told. When one of its calls will end is not known.
	heldRetryAfter = time.Second
)

// heldCalls counts calls that last long, by token: each holds a connection and a goroutine.
type heldCalls struct {
	most int
	kind string // the label of the metric
	what string // of the sentence that refuses

	mu      sync.Mutex
	byToken map[string]int
}

func newHeldCalls(most int, kind, what string) heldCalls {
	return heldCalls{most: most, kind: kind, what: what, byToken: map[string]int{}}
}

func (h *heldCalls) beginCall(token string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byToken[token] >= h.most {
		return false
	}
	h.byToken[token]++
	return true
}

func (h *heldCalls) endCall(token string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byToken[token]--; h.byToken[token] == 0 {
		delete(h.byToken, token)
	}
}

// holdOne runs a call that lasts long, or refuses it if the token has too many of them.
func (s *Server) holdOne(h *heldCalls, w http.ResponseWriter, r *http.Request, run func()) {
	who := recordOf(r).principal
	token := who.Project.ID + "/" + who.Token
	if !h.beginCall(token) {
		s.metrics.throttled.WithLabelValues(h.kind).Inc()
		s.answerTooMany(w, r, heldRetryAfter, fmt.Sprintf("%s of token %q, which may have %d", h.what, who.Token, h.most))
		return
	}
	defer h.endCall(token)
	run()
}

// boundWaiting refuses calls that ask to wait while too many of the token's do. It does so before anything is changed.
func (s *Server) boundWaiting(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := recordOf(r)
		wait := r.URL.Query().Get("wait")
		if _, waits := c.op.query["wait"]; !waits || wait == "" || wait == "0" || c.principal == nil {
			next.ServeHTTP(w, r)
			return
		}
		s.holdOne(&s.waiting, w, r, func() { next.ServeHTTP(w, r) })
	})
}
