package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

type (
	ifMatchKey     struct{}
	idempotencyKey struct{}
	oneAttemptKey  struct{}
)

// IfMatch returns a context in which changes apply only to this version of the resource. If
// the resource has another version, they fail with api.PreconditionFailed (see HasCode).
func IfMatch(ctx context.Context, version int64) context.Context {
	return context.WithValue(ctx, ifMatchKey{}, version)
}

// IdempotencyKey returns a context in which a create takes effect once, however often it is
// sent, for 24 hours. So the client may repeat it as it repeats reads.
func IdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, idempotencyKey{}, key)
}

// OneAttempt returns a context in which reads are sent once, as changes are. It is for callers
// that try again by themselves, at a pace of their own.
func OneAttempt(ctx context.Context) context.Context {
	return context.WithValue(ctx, oneAttemptKey{}, true)
}

func setHeaders(req *http.Request) {
	if version, ok := req.Context().Value(ifMatchKey{}).(int64); ok {
		req.Header.Set("If-Match", `"`+strconv.FormatInt(version, 10)+`"`)
	}
	if key, ok := req.Context().Value(idempotencyKey{}).(string); ok {
		req.Header.Set("Idempotency-Key", key)
	}
}

// sendCreate sends a create. It repeats the call only if an idempotency key makes that safe.
func sendCreate[T any](ctx context.Context, c *Client, do call) (*T, error) {
	if _, ok := ctx.Value(idempotencyKey{}).(string); ok {
		return readWithRetries[T](ctx, c, do)
	}
	return sendOnce[T](ctx, c, do)
}

// readAllPages reads all pages of a list. read gets the page of a token; split returns the
// page's items and the token of the next page, nil or "" on the last one.
func readAllPages[L, T any](read func(token *string) (*L, error), split func(*L) ([]T, *string)) ([]T, error) {
	var all []T
	var token *string
	for {
		list, err := read(token)
		if err != nil {
			return nil, err
		}
		items, next := split(list)
		all = append(all, items...)
		if next == nil || *next == "" {
			return all, nil
		}
		token = next
	}
}

var errNoID = errors.New("no ID given")

// callWithID is a call about one resource. With an empty ID it fails without sending
// anything, because the path would be another one.
func callWithID(id string, do func(context.Context, string, ...api.RequestEditorFn) (*http.Response, error)) call {
	return func(ctx context.Context) (*http.Response, error) {
		if id == "" {
			return nil, errNoID
		}
		return do(ctx, id)
	}
}

// changeWithID is callWithID for a change, whose headers setHeaders takes from the context.
func changeWithID[P any](
	id string,
	do func(context.Context, string, *P, ...api.RequestEditorFn) (*http.Response, error),
) call {
	return callWithID(id, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
		return do(ctx, id, new(P), edit...)
	})
}

// call sends one request.
type call func(context.Context) (*http.Response, error)

// readWithRetries sends an idempotent call and decodes its answer. After a transport error,
// a 429 or a 5xx it sends the call again, up to readAttempts times in all; see OneAttempt.
func readWithRetries[T any](ctx context.Context, c *Client, do call) (*T, error) {
	return backoff.Retry(ctx, func() (*T, error) {
		out, err := sendOnce[T](ctx, c, do)
		var e *Error
		switch {
		case err == nil:
			return out, nil
		case errors.Is(err, errNoID):
			return nil, backoff.Permanent(err)
		case errors.As(err, &e) && e.Status < 500 && e.Status != http.StatusTooManyRequests:
			return nil, backoff.Permanent(err)
		case e != nil && e.RetryAfter > time.Second:
			return nil, backoff.Permanent(err) // Longer than retries here would wait.
		}
		return nil, err
	}, backoff.WithMaxTries(attemptsFor(ctx)), backoff.WithBackOff(&backoff.ExponentialBackOff{
		InitialInterval: 100 * time.Millisecond, Multiplier: 3, RandomizationFactor: 0.5, MaxInterval: time.Second,
	}))
}

// attemptsFor is how often a read is sent at most.
func attemptsFor(ctx context.Context) uint {
	if ctx.Value(oneAttemptKey{}) != nil {
		return 1
	}
	return readAttempts
}

// sendOnce sends a call once and decodes its answer.
func sendOnce[T any](ctx context.Context, c *Client, do call) (*T, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := do(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := asError(resp); err != nil {
		return nil, err
	}
	if op, ok := ctx.Value(operationKey{}).(*string); ok {
		*op = strings.TrimPrefix(resp.Header.Get("Operation-Location"), "/v1/operations/")
	}
	var out T
	if resp.StatusCode == http.StatusNoContent {
		return &out, nil
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return nil, fmt.Errorf(
			"the cloud's answer to %s %s is not what its API promises: %w", resp.Request.Method, resp.Request.URL.Path,
			err,
		)
	}
	return &out, nil
}

// asError is the error of an answer that is not a success, or nil.
func asError(resp *http.Response) error {
	if resp.StatusCode < 300 {
		return nil
	}
	e := &Error{Status: resp.StatusCode}
	if s, err := time.ParseDuration(resp.Header.Get("Retry-After") + "s"); err == nil {
		e.RetryAfter = s
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("reading the cloud's %s: %w", resp.Status, err)
	}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/problem+json") ||
		json.Unmarshal(body, &e.Problem) != nil {
		e.Problem = api.Problem{Detail: fmt.Sprintf(
			"%s %s: %s: %.*s", resp.Request.Method, resp.Request.URL.Path, resp.Status, maxErrorBody,
			strings.TrimSpace(string(body)),
		)}
	}
	return e
}

// optionalParam is a query parameter; nil, so that it is not sent, for the zero value.
func optionalParam[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func optionalListParam[T any](v []T) *[]T {
	if len(v) == 0 {
		return nil
	}
	return &v
}
