package driver

// Requests to a driver, and what its answers say.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// connection is a driver that is asked.
type connection struct {
	client  *protocol.Client
	timeout time.Duration
	// ended is an error when the driver's program has ended.
	ended func() error
}

// defaultCallTimeout is how long the suite waits for an answer unless the driver says.
const defaultCallTimeout = 5 * time.Minute

func newConnection(a Address, ended func() error) connection {
	doer := &checkingClient{http.Client{Transport: &http.Transport{DialContext: a.dialer()}}}
	client := &protocol.Client{Server: "http://" + a.host() + "/", Client: doer}
	if a.token != "" {
		client.RequestEditors = []protocol.RequestEditorFn{func(_ context.Context, r *http.Request) error {
			r.Header.Set("Authorization", "Bearer "+a.token)
			return nil
		}}
	}
	return connection{client: client, timeout: defaultCallTimeout, ended: ended}
}

// maxAnswer bounds an answer. A thousand instances are a tenth of a megabyte.
const maxAnswer = 64 << 20

// specRouter finds the operation of a request.
var specRouter = sync.OnceValues(func() (routers.Router, error) {
	spec, err := openapi3.NewLoader().LoadFromData(protocol.Spec)
	if err != nil {
		return nil, err
	}
	return gorillamux.NewRouter(spec)
})

// checkingClient reads answers whole. One of success that does not fit the protocol is an error.
type checkingClient struct{ http.Client }

// Do implements protocol.HttpRequestDoer.
func (c *checkingClient) Do(r *http.Request) (*http.Response, error) {
	resp, err := c.Client.Do(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if resp.StatusCode >= http.StatusBadRequest {
		return resp, nil
	}
	if err := checkAnswer(r, resp, body); err != nil {
		return nil, fmt.Errorf("its answer to %s %s does not fit the protocol: %w", r.Method, r.URL.Path, err)
	}
	return resp, nil
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
	return plainSchemaError(openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route},
		Status:                 resp.StatusCode, Header: resp.Header, Body: io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}))
}

// plainSchemaError says where in the answer the mistake is, and leaves out the schema.
func plainSchemaError(err error) error {
	var mistake *openapi3.SchemaError
	if errors.As(err, &mistake) {
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

// foundUnless404 tells an answer that something is not there from other errors.
func foundUnless404(err error) (found bool, _ error) {
	var no *refusal
	if errors.As(err, &no) && no.status == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

type sender = func(context.Context) (*http.Response, error)

// tell sends a request whose answer has nothing to say.
func (c *connection) tell(ctx context.Context, send sender) error {
	_, err := c.send(ctx, send)
	return err
}

// ask sends a request and reads its answer.
func ask[T any](ctx context.Context, c *connection, send sender) (answer T, err error) {
	body, err := c.send(ctx, send)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return answer, fmt.Errorf("the driver's answer: %w", err)
	}
	return answer, nil
}

// send sends a request, within the time that a driver has for it. Errors say which it was.
func (c *connection) send(ctx context.Context, send sender) ([]byte, error) {
	bounded, cancel := context.WithTimeoutCause(
		ctx, c.timeout, fmt.Errorf("it has not answered within %s", c.timeout))
	defer cancel()
	resp, err := send(bounded)
	if err != nil {
		if ended := c.ended(); ended != nil {
			return nil, ended
		}
		switch {
		case bounded.Err() != nil && ctx.Err() == nil:
			err = context.Cause(bounded)
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("the driver: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body) // It is in memory.
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return nil, fmt.Errorf("the driver, %s %s: %w", resp.Request.Method, resp.Request.URL.Path, refusalOf(resp, body))
	}
	return body, nil
}

// refusalOf reads the problem of a refusal; of a driver that writes none, what it says.
func refusalOf(resp *http.Response, body []byte) *refusal {
	var p protocol.Problem
	if json.Unmarshal(body, &p) == nil && p.Detail != "" {
		return &refusal{resp.StatusCode, p.Detail}
	}
	return &refusal{resp.StatusCode, fmt.Sprintf("%s: %.300q", resp.Status, strings.TrimSpace(string(body)))}
}
