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
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// connection sends requests to a driver.
type connection struct {
	client  http.Client
	host    string
	token   string
	timeout time.Duration
	// ended is an error when the driver's program has ended.
	ended func() error
}

// defaultCallTimeout is how long the suite waits for an answer unless the driver says.
const defaultCallTimeout = 5 * time.Minute

func newConnection(a Address, ended func() error) connection {
	return connection{
		client: http.Client{Transport: &http.Transport{DialContext: a.dialer()}}, host: a.host(), token: a.token,
		timeout: defaultCallTimeout, ended: ended,
	}
}

// maxAnswer bounds an answer. A thousand instances are a tenth of a megabyte.
const maxAnswer = 64 << 20

// operation says how to send the request for an operation of the protocol.
type operation struct {
	method, path string
	query        string // its parameter there; "" for none
}

const (
	helloOperation = "hello"
	// pathParameter is the name of the one parameter that paths have.
	pathParameter = "id"
)

// spec is openapi.yaml.
var spec = sync.OnceValue(func() *openapi3.T {
	spec, err := openapi3.NewLoader().LoadFromData(protocol.Spec)
	if err != nil {
		panic(err) // It is a part of this program, and tests read it.
	}
	return spec
})

// operations are the protocol's, by their ID.
var operations = sync.OnceValue(func() map[string]operation {
	all := map[string]operation{}
	for path, item := range spec().Paths.Map() {
		for method, o := range item.Operations() {
			one := operation{method: method, path: path}
			for _, p := range o.Parameters {
				one.query = p.Value.Name
			}
			all[o.OperationID] = one
		}
	}
	return all
})

// specRouter finds the operation of a request.
var specRouter = sync.OnceValues(func() (routers.Router, error) { return gorillamux.NewRouter(spec()) })

// request makes the request for an operation.
func (c *connection) request(ctx context.Context, id, argument string, body any) (*http.Request, error) {
	o := operations()[id]
	address := "http://" + c.host + strings.Replace(o.path, "{"+pathParameter+"}", url.PathEscape(argument), 1)
	if o.query != "" {
		address += "?" + url.Values{o.query: {argument}}.Encode()
	}
	content, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	if body == nil {
		content = nil
	}
	r, err := http.NewRequestWithContext(ctx, o.method, address, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	return r, nil
}

// send sends a request, and reads the whole answer. An answer of success that does not fit the protocol is an
// error.
func (c *connection) send(r *http.Request) (*http.Response, []byte, error) {
	resp, err := c.client.Do(r)
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

// Is tells that the one thing that was asked for is not there.
func (r *refusal) Is(target error) bool {
	return target == conformance.ErrNotFound && r.status == http.StatusNotFound
}

// Call implements conformance.Driver, within the time that a driver has for it. Errors say which request
// it was.
func (c *connection) Call(ctx context.Context, id, argument string, body, answer any) error {
	bounded, cancel := context.WithTimeoutCause(
		ctx, c.timeout, fmt.Errorf("it has not answered within %s", c.timeout))
	defer cancel()
	r, err := c.request(bounded, id, argument, body)
	if err != nil {
		return err
	}
	resp, text, err := c.send(r) //nolint:bodyclose // send closes it.
	switch {
	case err != nil:
		if ended := c.ended(); ended != nil {
			return ended
		}
		if bounded.Err() != nil { // Of ctx, if that has ended.
			err = context.Cause(bounded)
		}
		return fmt.Errorf("the driver: %w", err)
	case resp.StatusCode >= http.StatusBadRequest:
		return fmt.Errorf("the driver, %s %s: %w", r.Method, r.URL.Path, refusalOf(resp, text))
	case answer == nil:
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the driver's answer: %w", err)
	}
	return nil
}

// refusalOf reads the problem of a refusal; of a driver that writes none, what it says.
func refusalOf(resp *http.Response, body []byte) *refusal {
	var p protocol.Problem
	if json.Unmarshal(body, &p) == nil && p.Detail != "" {
		return &refusal{resp.StatusCode, p.Detail}
	}
	return &refusal{resp.StatusCode, fmt.Sprintf("%s: %.300q", resp.Status, strings.TrimSpace(string(body)))}
}
