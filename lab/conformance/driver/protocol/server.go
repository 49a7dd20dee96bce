package protocol

// A driver in Go: the protocol in front of what answers its operations.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"
)

// NewHandler answers by a driver's methods. To what Hello answers it adds the protocol's version, and it leaves out
// features that the suite does not know.
func NewHandler(d Operations) http.Handler {
	d = greeted{d}
	mux := http.NewServeMux()
	for id, answer := range answersOf(d) {
		o := OperationNamed(id)
		mux.HandleFunc(o.method+" "+o.path, func(w http.ResponseWriter, r *http.Request) {
			argument := r.PathValue(pathParameter)
			if o.query != "" {
				argument = r.URL.Query().Get(o.query)
			}
			v, err := answer(&request{r, argument})
			writeAnswer(w, v, err)
		})
	}
	return mux
}

// InProcess is the way to a driver that is in this process.
func InProcess(d Operations) http.RoundTripper { return inProcess{NewHandler(d)} }

type inProcess struct{ handler http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	p.handler.ServeHTTP(w, r)
	return w.Result(), nil
}

// greeted is a driver whose Hello is completed.
type greeted struct{ Operations }

// Hello implements Operations.
func (g greeted) Hello(ctx context.Context, hello Hello) (Driver, error) {
	if !slices.Contains(hello.Protocols, Version) {
		return Driver{}, fmt.Errorf("%w: this driver speaks version %q of the protocol, and the suite %q",
			ErrMalformed, Version, hello.Protocols)
	}
	described, err := g.Operations.Hello(ctx, hello)
	described.Protocol = Version
	if len(hello.Features) > 0 { // A suite of an earlier release may not know all, and one of the first does not say.
		described.Features = slices.DeleteFunc(described.Features, func(f string) bool {
			return !slices.Contains(hello.Features, f)
		})
	}
	return described, err
}

// request is one for an operation.
type request struct {
	*http.Request
	argument string // the one parameter of its path or its query
}

func (r *request) time() (time.Time, error) {
	at, err := time.Parse(time.RFC3339Nano, r.argument)
	if err != nil {
		err = fmt.Errorf("%w: the query: %w", ErrMalformed, err)
	}
	return at, err
}

func bodyOf[B any](r *request) (body B, err error) {
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return body, fmt.Errorf("%w: the request's body: %w", ErrMalformed, err)
	}
	return body, nil
}

// writeAnswer writes v, or no content if it is nil; if err is not nil, it writes that as a problem.
func writeAnswer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		status := http.StatusInternalServerError
		for is, its := range statuses {
			if errors.Is(err, is) {
				status = its
			}
		}
		writeJSON(w, status, "application/problem+json", Problem{
			Title: http.StatusText(status), Status: status, Detail: cmp.Or(err.Error(), "it did not work"),
		})
		return
	}
	if v == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	writeJSON(w, http.StatusOK, "application/json", withoutNull(v))
}

// withoutNull returns a struct in which no list is nil: in JSON, one that is required is [] and not null.
func withoutNull(v any) any {
	filled := reflect.New(reflect.TypeOf(v)).Elem()
	filled.Set(reflect.ValueOf(v))
	fillLists(filled)
	return filled.Interface()
}

func fillLists(v reflect.Value) {
	switch v.Kind() { //nolint:exhaustive // Others have no lists.
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanSet() {
				fillLists(field)
			}
		}
	case reflect.Slice:
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		for i := range v.Len() {
			fillLists(v.Index(i))
		}
	}
}

func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // Whoever asked has gone.
}

// Injected is what a driver has done to its cloud until it is lifted.
type Injected interface {
	// Hits is how many calls it has met.
	Hits(ctx context.Context) (int, error)
	// Lift ends it. It is called until it succeeds.
	Lift(ctx context.Context) error
}

// Injections holds what was injected, and answers the operations on it. A driver embeds it.
type Injections struct {
	mu     sync.Mutex
	serial int
	held   map[string]Injected // by ID
}

// Hold keeps what was injected until it is lifted. It takes, and returns, what an operation has for that.
func (s *Injections) Hold(i Injected, err error) (Injection, error) {
	if err != nil {
		return Injection{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	id := strconv.Itoa(s.serial)
	if s.held == nil {
		s.held = map[string]Injected{}
	}
	s.held[id] = i
	return Injection{ID: id}, nil
}

func (s *Injections) find(id string) (Injected, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.held[id]
	if !ok {
		return nil, ErrNotFound
	}
	return i, nil
}

// GetInjection implements Operations.
func (s *Injections) GetInjection(ctx context.Context, id string) (Hits, error) {
	i, err := s.find(id)
	if err != nil {
		return Hits{}, err
	}
	hits, err := i.Hits(ctx)
	return Hits{Hits: hits}, err
}

// LiftInjection implements Operations. One that is not held has been lifted before.
func (s *Injections) LiftInjection(ctx context.Context, id string) error {
	i, err := s.find(id)
	if err != nil {
		return nil //nolint:nilerr // As it should be.
	}
	if err := i.Lift(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, id)
	return nil
}

// RenewCredentials implements Operations, for what has a method Renew.
func (s *Injections) RenewCredentials(ctx context.Context, id string) error {
	i, _ := s.find(id)
	expiry, ok := i.(interface {
		Renew(ctx context.Context) error
	})
	if !ok {
		return ErrNotFound
	}
	return expiry.Renew(ctx)
}
