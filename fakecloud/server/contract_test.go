// This file answers: do all answers that the package's tests see keep to the
// spec, and did they see each operation succeed and fail in each documented way?

package server_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// contract is the spec, and what was seen of it.
type contract struct {
	spec   *openapi3.T
	router routers.Router

	mu    sync.Mutex
	seen  map[string]bool // "getInstance ok", "getInstance not-found"
	wrong []string
}

var theContract = newContract()

func newContract() *contract {
	spec, err := openapi3.NewLoader().LoadFromData(api.Spec)
	if err != nil {
		panic(err)
	}
	router, err := gorillamux.NewRouter(spec)
	if err != nil {
		panic(err)
	}
	return &contract{spec: spec, router: router, seen: map[string]bool{}}
}

// TestMain looks at what all tests together have seen; only when all ran.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if code == 0 && flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.fuzz").Value.String() == "" && flag.Lookup("test.list").Value.String() == "" {
		code = theContract.verdict()
	}
	os.Exit(code)
}

func (c *contract) verdict() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	wrong := slices.Clone(c.wrong)
	for _, want := range c.documented() {
		if !c.seen[want] {
			wrong = append(wrong, "the spec documents what no test has seen: "+want)
		}
	}
	slices.Sort(wrong)
	for _, w := range slices.Compact(wrong) {
		fmt.Println("--- FAIL: contract:", w)
	}
	return min(len(wrong), 1)
}

// documented are each operation's success, and the problems in its x-problems.
func (c *contract) documented() []string {
	var all []string
	for _, item := range c.spec.Paths.Map() {
		for _, op := range item.Operations() {
			all = append(all, op.OperationID+" ok")
			problems, _ := op.Extensions["x-problems"].([]any)
			for _, p := range problems {
				all = append(all, fmt.Sprintf("%s %v", op.OperationID, p))
			}
		}
	}
	return all
}

// watch is h with its answers looked at. Once a fault has been made, answers
// are what the fault says, and are let be.
func (c *contract) watch(h http.Handler) http.Handler {
	var mu sync.Mutex
	var faulty bool
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		faulty = faulty || r.Method == http.MethodPost && (r.URL.Path == "/v1/faults" || r.URL.Path == "/v1/scenarios")
		skip := faulty && !strings.HasPrefix(r.URL.Path, "/v1/faults") && !strings.HasPrefix(r.URL.Path, "/v1/scenarios")
		mu.Unlock()
		seen := &witness{ResponseWriter: w}
		h.ServeHTTP(seen, r)
		if !skip && seen.status != 0 {
			c.look(r, seen)
		}
	})
}

// witness keeps an answer while it passes, if it is JSON.
type witness struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (w *witness) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *witness) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if w.isJSON() {
		w.body.Write(b)
	}
	return w.ResponseWriter.Write(b)
}

func (w *witness) isJSON() bool { return strings.HasSuffix(w.Header().Get("Content-Type"), "json") }

func (w *witness) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (c *contract) look(r *http.Request, w *witness) {
	route, params, err := c.router.FindRoute(r)
	if err != nil {
		return // No path, or no method, of the API.
	}
	err = openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route},
		Status:                 w.status, Header: w.Header(), Body: io.NopCloser(bytes.NewReader(w.body.Bytes())),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, ExcludeResponseBody: !w.isJSON(), MultiError: true},
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.wrong = append(c.wrong, fmt.Sprintf("%s answered %d, which does not fit the spec: %v", route.Operation.OperationID, w.status, err))
	}
	if w.status < http.StatusBadRequest {
		c.seen[route.Operation.OperationID+" ok"] = true
		return
	}
	var p api.Problem
	if err := json.Unmarshal(w.body.Bytes(), &p); err == nil {
		c.seen[route.Operation.OperationID+" "+string(p.Code)] = true
	}
}
