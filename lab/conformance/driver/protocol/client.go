package protocol

// Requests to a driver, and what its answers say.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
)

// Caller has operations carried out.
type Caller interface {
	// Call has an operation carried out, given by its ID in openapi.yaml. argument is the parameter that its path or
	// its query has, body what is sent, and answer what is read into; each may be none.
	Call(ctx context.Context, operation, argument string, body, answer any) error
}

// Client has a method for each operation, which its Caller carries out.
type Client struct{ Caller }

// Unanswered answers no operation: each is errors.ErrUnsupported. A driver embeds it that answers some.
type Unanswered struct{ Client }

func tell(ctx context.Context, c Client, operation, argument string, body any) error {
	if c.Caller == nil {
		return fmt.Errorf("operation %s: %w", operation, errors.ErrUnsupported)
	}
	return c.Call(ctx, operation, argument, body, nil)
}

func ask[A any](ctx context.Context, c Client, operation, argument string, body any) (answer A, err error) {
	if c.Caller == nil {
		return answer, tell(ctx, c, operation, argument, body)
	}
	err = c.Call(ctx, operation, argument, body, &answer)
	return answer, err
}

// Errors of operations that are not carried out, besides the driver's own and errors.ErrUnsupported.
var (
	// ErrNotFound: the one thing that was asked for is not there.
	ErrNotFound = errors.New("there is none of this ID")
	// ErrMalformed: the request is not of the protocol.
	ErrMalformed = errors.New("not of the protocol")
)

// statuses of those errors.
var statuses = map[error]int{
	ErrNotFound: http.StatusNotFound, ErrMalformed: http.StatusBadRequest,
	errors.ErrUnsupported: http.StatusNotImplemented,
}

// Connection is a Caller that sends requests to a driver.
type Connection struct {
	Transport http.RoundTripper
	Host      string // what requests have as their host
	Token     string // "" for none
	Timeout   time.Duration
	// Ended is an error when the driver's program has ended; it may be nil.
	Ended func() error
}

// DefaultTimeout is how long the suite waits for an answer unless the driver says.
const DefaultTimeout = 5 * time.Minute

// maxAnswer bounds an answer. A thousand instances are a tenth of a megabyte.
const maxAnswer = 64 << 20

// Call implements Caller, within the time that a driver has for it. Errors say which request it was.
func (c *Connection) Call(ctx context.Context, operation, argument string, body, answer any) error {
	bounded, cancel := context.WithTimeoutCause(
		ctx, c.Timeout, fmt.Errorf("it has not answered within %s", c.Timeout))
	defer cancel()
	r, err := c.newRequest(bounded, operation, argument, body)
	if err != nil {
		return err
	}
	resp, text, err := c.send(r) //nolint:bodyclose // send closes it.
	if (err != nil || resp.StatusCode >= http.StatusBadRequest) && bounded.Err() != nil {
		err = context.Cause(bounded) // Of ctx, if that has ended.
	}
	switch {
	case err != nil:
		if c.Ended != nil {
			if ended := c.Ended(); ended != nil {
				return ended
			}
		}
		return fmt.Errorf("the driver: %w", err)
	case resp.StatusCode >= http.StatusBadRequest:
		return fmt.Errorf("the driver, %s %s: %w", r.Method, r.URL.Path, refusalFrom(resp, text))
	case answer == nil:
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the driver's answer: %w", err)
	}
	return nil
}

func (c *Connection) newRequest(ctx context.Context, operation, argument string, body any) (*http.Request, error) {
	o := OperationNamed(operation)
	address := "http://" + c.Host + strings.Replace(o.path, "{"+pathParameter+"}", url.PathEscape(argument), 1)
	if o.query != "" {
		address += "?" + url.Values{o.query: {argument}}.Encode()
	}
	var content io.Reader = http.NoBody
	if body != nil {
		text, err := json.Marshal(withoutNull(body))
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, o.method, address, content)
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.Token != "" {
		r.Header.Set("Authorization", "Bearer "+c.Token)
	}
	return r, nil
}

// send sends a request, and reads the whole answer. An answer of success that does not fit the protocol is an
// error.
func (c *Connection) send(r *http.Request) (*http.Response, []byte, error) {
	resp, err := (&http.Client{Transport: c.Transport}).Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil || resp.StatusCode >= http.StatusBadRequest {
		return resp, body, err
	}
	if err := checkAnswer(r, resp, body); err != nil {
		return nil, nil, fmt.Errorf("its answer to %s %s does not fit the protocol: %w", r.Method, r.URL.Path, err)
	}
	return resp, body, nil
}

func checkAnswer(r *http.Request, resp *http.Response, body []byte) error {
	router, err := specRouter()
	if err != nil {
		return err
	}
	route, params, err := router.FindRoute(r)
	if err != nil {
		return err
	}
	err = openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route},
		Status:                 resp.StatusCode, Header: resp.Header, Body: io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
	var mistake *openapi3.SchemaError
	if errors.As(err, &mistake) { // Where in the answer it is, without the schema.
		return fmt.Errorf("at /%s: %s", strings.Join(mistake.JSONPointer(), "/"), mistake.Reason)
	}
	return err
}

// refusal is an answer that is an error.
type refusal struct {
	status int
	detail string
}

func (r *refusal) Error() string { return r.detail }

// Is tells by the status which of the protocol's errors it is.
func (r *refusal) Is(target error) bool { return statuses[target] == r.status }

// refusalFrom reads the problem of a refusal; of a driver that writes none, what it says.
func refusalFrom(resp *http.Response, body []byte) *refusal {
	var p Problem
	if json.Unmarshal(body, &p) == nil && p.Detail != "" {
		return &refusal{resp.StatusCode, p.Detail}
	}
	return &refusal{resp.StatusCode, fmt.Sprintf("%s: %.300q", resp.Status, strings.TrimSpace(string(body)))}
}
