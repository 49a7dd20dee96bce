package driver

// A driver in Go: the protocol in front of a conformance.Cloud.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// NewHandler answers for a cloud, which open opens at the first request. It fills in described: the protocol's
// version, and the features that the cloud declares or that follow from its roles.
func NewHandler(
	described protocol.Driver, open func(context.Context, protocol.Hello) (conformance.Cloud, error),
) http.Handler {
	h := &handler{described: described, open: open}
	mux := http.NewServeMux()
	for id, o := range operations() {
		mux.HandleFunc(o.method+" "+o.path, func(w http.ResponseWriter, r *http.Request) {
			argument := r.PathValue(pathParameter)
			if o.query != "" {
				argument = r.URL.Query().Get(o.query)
			}
			v, err := h.answer(r, id, argument)
			writeAnswer(w, v, err)
		})
	}
	return mux
}

type handler struct {
	described protocol.Driver
	open      func(context.Context, protocol.Hello) (conformance.Cloud, error)

	mu     sync.Mutex
	server *conformance.Server // nil before hello
}

var errNoHello = errors.New("the first request is /hello")

func (h *handler) answer(r *http.Request, id, argument string) (any, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if id == helloOperation {
		return h.hello(r.Context(), body)
	}
	h.mu.Lock()
	server := h.server
	h.mu.Unlock()
	if server == nil {
		return nil, errNoHello
	}
	return server.Answer(r.Context(), id, argument, body)
}

func (h *handler) hello(ctx context.Context, body []byte) (any, error) {
	var hello protocol.Hello
	if err := json.Unmarshal(body, &hello); err != nil {
		return nil, fmt.Errorf("%w: the request's body: %w", conformance.ErrMalformed, err)
	}
	if !slices.Contains(hello.Protocols, protocol.Version) {
		return nil, fmt.Errorf("%w: this driver speaks version %q of the protocol, and the suite %q",
			conformance.ErrMalformed, protocol.Version, hello.Protocols)
	}
	cloud, err := h.open(ctx, hello)
	if err != nil {
		return nil, err
	}
	server := conformance.NewServer(cloud)
	h.mu.Lock()
	h.server = server
	h.mu.Unlock()
	described := h.described
	described.Protocol, described.Features = protocol.Version, []string{}
	for _, f := range server.Features() {
		// A suite of an earlier release may not know all, and one of the first ones does not say.
		if len(hello.Features) == 0 || slices.Contains(hello.Features, string(f)) {
			described.Features = append(described.Features, string(f))
		}
	}
	return described, nil
}

// writeAnswer writes v, or no content if it is nil; if err is not nil, it writes that as a problem.
func writeAnswer(w http.ResponseWriter, v any, err error) {
	switch {
	case errors.Is(err, conformance.ErrNotFound):
		writeProblem(w, http.StatusNotFound, err)
	case errors.Is(err, conformance.ErrMalformed):
		writeProblem(w, http.StatusBadRequest, err)
	case errors.Is(err, errors.ErrUnsupported):
		writeProblem(w, http.StatusNotImplemented, err)
	case err != nil:
		writeProblem(w, http.StatusInternalServerError, err)
	case v == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		writeJSON(w, http.StatusOK, "application/json", v)
	}
}

func writeProblem(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, "application/problem+json", protocol.Problem{
		Title: http.StatusText(status), Status: status, Detail: cmp.Or(err.Error(), "it did not work"),
	})
}

func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // Whoever asked has gone.
}
