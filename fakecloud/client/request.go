package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
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

// createResource sends a POST. It repeats the call only if an idempotency key makes that safe.
func createResource[T any](ctx context.Context, c *Client, path string, body any) (*T, error) {
	if _, ok := ctx.Value(idempotencyKey{}).(string); ok {
		return sendWithRetries[T](ctx, c, http.MethodPost, path, nil, body)
	}
	return sendChange[T](ctx, c, http.MethodPost, path, body)
}

// sendChange sends a change once and decodes its answer.
func sendChange[T any](ctx context.Context, c *Client, method, path string, body any) (*T, error) {
	return sendOnce[T](ctx, c, method, path, nil, body)
}

// readResource sends a GET, with retries, and decodes its answer.
func readResource[T any](ctx context.Context, c *Client, path string, query url.Values) (*T, error) {
	return sendWithRetries[T](ctx, c, http.MethodGet, path, query, nil)
}

// listPage is a list, or a page of it.
type listPage[T any] struct {
	Items         []T    `json:"items"`
	NextPageToken string `json:"nextPageToken,omitempty"`
}

// readItems reads a list that has no pages.
func readItems[T any](ctx context.Context, c *Client, path string, query url.Values) ([]T, error) {
	list, err := readResource[listPage[T]](ctx, c, path, query)
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// readAllPages reads all pages of a list. An error on any page is an error: a partial list is
// never returned.
func readAllPages[T any](ctx context.Context, c *Client, path string, query url.Values) ([]T, error) {
	return readPagesWhile(ctx, c, path, query, func([]T) bool { return true })
}

// readPagesWhile is readAllPages that ends after a page of which more returns false. more may
// change the query for the next page.
func readPagesWhile[T any](
	ctx context.Context,
	c *Client,
	path string,
	query url.Values,
	more func(page []T) bool,
) ([]T, error) {
	var all []T
	for {
		list, err := readResource[listPage[T]](ctx, c, path, query)
		if err != nil {
			return nil, err
		}
		all = append(all, list.Items...)
		if !more(list.Items) || list.NextPageToken == "" {
			return all, nil
		}
		query.Set("pageToken", list.NextPageToken)
	}
}

var errNoID = errors.New("no ID given")

// pathOf puts IDs into the path of an operation. With an empty ID the path is empty, and a call of
// it fails without sending anything: the path would be another operation's.
func pathOf(format string, ids ...string) string {
	if slices.Contains(ids, "") {
		return ""
	}
	escaped := make([]any, len(ids))
	for i, id := range ids {
		escaped[i] = url.PathEscape(id)
	}
	return fmt.Sprintf(format, escaped...)
}

// textOf is a query parameter; nil, so that it is not sent, for the zero value.
func textOf[T comparable](v T) []string {
	var zero T
	if v == zero {
		return nil
	}
	return []string{fmt.Sprint(v)}
}

// textsOf is a query parameter that may be given several times.
func textsOf[T ~string](values []T) (all []string) {
	for _, v := range values {
		all = append(all, string(v))
	}
	return all
}

// sendWithRetries sends an idempotent call and decodes its answer. After a transport error,
// a 429 or a 5xx it sends the call again, up to readAttempts times in all; see OneAttempt and retryPause.
func sendWithRetries[T any](
	ctx context.Context,
	c *Client,
	method, path string,
	query url.Values,
	body any,
) (*T, error) {
	pause := newRetryPause(ctx)
	return backoff.Retry(ctx, func() (*T, error) {
		out, err := sendOnce[T](ctx, c, method, path, query, body)
		var e *Error
		switch {
		case err == nil:
			return out, nil
		case errors.Is(err, errNoID):
			return nil, backoff.Permanent(err)
		case errors.As(err, &e) && e.Status < 500 && e.Status != http.StatusTooManyRequests:
			return nil, backoff.Permanent(err)
		}
		pause.asked = 0
		if e != nil {
			pause.asked = e.RetryAfter
		}
		return nil, err
	}, backoff.WithMaxTries(attemptsFor(ctx)), backoff.WithBackOff(pause))
}

// maxRetryPause is the longest Retry-After that a call waits for. A longer one is left to the caller.
const maxRetryPause = time.Second

// retryPause is the time between two attempts: longer each time, and never shorter than the cloud asked for.
// There is no next attempt if the context would end before it.
type retryPause struct {
	backoff.ExponentialBackOff
	asked time.Duration
	ctx   context.Context //nolint:containedctx // It lives as long as the call.
}

func newRetryPause(ctx context.Context) *retryPause {
	return &retryPause{ctx: ctx, ExponentialBackOff: backoff.ExponentialBackOff{
		InitialInterval: 100 * time.Millisecond, Multiplier: 3, RandomizationFactor: 0.5, MaxInterval: time.Second,
	}}
}

// NextBackOff returns the time until the next attempt, or backoff.Stop.
func (p *retryPause) NextBackOff() time.Duration {
	next := max(p.asked, p.ExponentialBackOff.NextBackOff())
	if deadline, ok := p.ctx.Deadline(); p.asked > maxRetryPause || ok && time.Until(deadline) <= next {
		return backoff.Stop
	}
	return next
}

// attemptsFor is how often a read is sent at most.
func attemptsFor(ctx context.Context) uint {
	if ctx.Value(oneAttemptKey{}) != nil {
		return 1
	}
	return readAttempts
}

// sendOnce sends a call once and decodes its answer.
func sendOnce[T any](ctx context.Context, c *Client, method, path string, query url.Values, body any) (*T, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := c.send(ctx, method, path, query, body)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if op, ok := ctx.Value(operationKey{}).(*string); ok {
		*op = strings.TrimPrefix(resp.Header.Get("Operation-Location"), "/v1/operations/")
	}
	var out T
	if resp.StatusCode == http.StatusNoContent {
		return &out, nil
	}
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the cloud's answer to %s %s: %w", method, path, err)
	}
	if err := decodeWhole(content, &out); err != nil {
		return nil, fmt.Errorf(
			"the cloud's answer to %s %s is not what its API promises: %w", resp.Request.Method, resp.Request.URL.Path,
			err,
		)
	}
	return &out, nil
}

// send sends a request. An answer that is not a success is an error.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	if path == "" {
		return nil, errNoID
	}
	to, err := c.base.Parse("." + path)
	if err != nil {
		return nil, err
	}
	to.RawQuery = query.Encode()
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, to.String(), content)
	if err != nil {
		return nil, err
	}
	if err := c.setHeaders(req); err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if err := asError(resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

func (c *Client) setHeaders(req *http.Request) error {
	if c.tokenFile != "" {
		token, err := os.ReadFile(c.tokenFile)
		if err != nil {
			return fmt.Errorf("reading the cloud token: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	if c.userAgent != "" {
		req.Header.Set("User-Agent", c.userAgent)
	}
	if req.Body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if version, ok := req.Context().Value(ifMatchKey{}).(int64); ok {
		req.Header.Set("If-Match", `"`+strconv.FormatInt(version, 10)+`"`)
	}
	if key, ok := req.Context().Value(idempotencyKey{}).(string); ok {
		req.Header.Set("Idempotency-Key", key)
	}
	return nil
}

// asError is the error of an answer that is not a success, or nil.
func asError(resp *http.Response) error {
	if resp.StatusCode < 300 {
		return nil
	}
	e := &Error{Status: resp.StatusCode}
	if s, err := time.ParseDuration(resp.Header.Get("Retry-After") + "s"); err == nil {
		e.RetryAfter = s
	} else if at, err := http.ParseTime(resp.Header.Get("Retry-After")); err == nil {
		e.RetryAfter = time.Until(at)
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
