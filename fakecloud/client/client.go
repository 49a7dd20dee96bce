// Package client is how Go programs talk to fakecloud: bearer token from a
// file that may change, retries of reads, paging, typed errors and the event
// stream. It is the only way into the cloud that ccm and lab use.
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	// pageSize is the largest page the API gives: the fewest calls for a list.
	pageSize = 500
	// readAttempts bounds how often one read is sent. Changes are sent once:
	// whether a failed one took effect is for the caller to find out.
	readAttempts = 3
	// maxErrorBody bounds what is kept of an answer that is no problem+json.
	maxErrorBody = 512

	defaultTimeout = 10 * time.Second
	defaultSilence = 45 * time.Second
)

// Config says where the cloud is and who is calling.
type Config struct {
	// URL is the cloud's base, e.g. http://127.0.0.1:8470.
	URL string
	// TokenFile holds the bearer token. It is read for every call, so that a
	// token can be rotated under a running process.
	TokenFile string
	// UserAgent names the caller in the cloud's log.
	UserAgent string
	// Timeout bounds one attempt of one call; 10 s when zero. The event stream
	// is bounded by Silence instead.
	Timeout time.Duration
	// Silence is how long the event stream may say nothing, not even that it
	// lives, before it counts as broken; 45 s when zero: three of the cloud's
	// heartbeats.
	Silence time.Duration
	// CAFile is a PEM bundle to verify an https URL with; the system's when
	// empty.
	CAFile string
	// Direct calls the cloud without the proxy that HTTP_PROXY and the like
	// name: for one on an address that only this machine reaches.
	Direct bool
	// Transport is http.DefaultTransport when nil. It does its own verifying and
	// its own dialling: CAFile or Direct beside it is refused.
	Transport http.RoundTripper
	// Wrap, unless nil, is given the transport that all this makes, the default
	// one too, and returns what the calls go through: to count them, or to hold
	// them back.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Client calls one cloud in the name of one token. Safe for concurrent use.
type Client struct {
	raw              *api.Client
	timeout, silence time.Duration
}

// New checks the configuration; it does not call the cloud.
func New(cfg Config) (*Client, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, fmt.Errorf("cloud URL %q: want http://host:port or https://host:port", cfg.URL)
	}
	if cfg.TokenFile == "" {
		return nil, errors.New("no token file given")
	}
	transport, err := cfg.transport()
	if err != nil {
		return nil, err
	}
	if cfg.Wrap != nil {
		if transport == nil {
			transport = http.DefaultTransport
		}
		transport = cfg.Wrap(transport)
	}
	raw, err := api.NewClient(cfg.URL,
		api.WithHTTPClient(&http.Client{Transport: transport}),
		api.WithRequestEditorFn(func(_ context.Context, req *http.Request) error {
			token, err := os.ReadFile(cfg.TokenFile)
			if err != nil {
				return fmt.Errorf("reading the cloud token: %w", err)
			}
			req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
			if cfg.UserAgent != "" {
				req.Header.Set("User-Agent", cfg.UserAgent)
			}
			setHeaders(req)
			return nil
		}))
	if err != nil {
		return nil, err
	}
	return &Client{raw: raw, timeout: cmp.Or(cfg.Timeout, defaultTimeout), silence: cmp.Or(cfg.Silence, defaultSilence)}, nil
}

func (cfg Config) transport() (http.RoundTripper, error) {
	switch {
	case cfg.CAFile == "" && !cfg.Direct:
		return cfg.Transport, nil
	case cfg.Transport != nil:
		return nil, errors.New("a CA file or a direct way, and a transport of its own: give one")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if cfg.Direct {
		transport.Proxy = nil
	}
	if cfg.CAFile == "" {
		return transport, nil
	}
	bundle, err := os.ReadFile(cfg.CAFile)
	if err != nil {
		return nil, fmt.Errorf("CA file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("CA file %s holds no PEM certificate", cfg.CAFile)
	}
	transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return transport, nil
}

// Error is an answer of the cloud that is not a success.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Problem is what the cloud said; its Code is empty if the answer was no
	// problem+json, so that something between here and the cloud may have
	// given it.
	Problem api.Problem
	// RetryAfter is how long the cloud asks to wait; 0 if it did not say.
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	p := e.Problem
	msg := p.Detail
	if p.Code != "" {
		msg = fmt.Sprintf("%s (%s, request %s)", p.Detail, p.Code, p.RequestID)
	}
	if p.Fields != nil {
		for _, f := range *p.Fields {
			switch said := strings.Contains(p.Detail, f.Message); {
			case !said:
				msg += fmt.Sprintf("; %s: %s", f.Field, f.Message)
			case !strings.Contains(p.Detail, f.Field):
				msg += "; in " + f.Field
			}
		}
	}
	return msg
}

// HasCode tells whether err is an answer of the cloud with this code.
func HasCode(err error, code api.ProblemCode) bool {
	var e *Error
	return errors.As(err, &e) && e.Problem.Code == code
}

// IsNotFound tells whether the cloud itself said that the resource does not
// exist. A 404 of anything else on the way is not that, nor is one for a path
// that the cloud's API does not have: it names no project that was looked in.
func IsNotFound(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == http.StatusNotFound && e.Problem.Code == api.NotFound && e.Problem.Project != nil
}

// ProjectOf is the project that the answer behind err speaks of, or "".
func ProjectOf(err error) string {
	var e *Error
	if errors.As(err, &e) && e.Problem.Project != nil {
		return *e.Problem.Project
	}
	return ""
}

type call func(context.Context) (*http.Response, error)

// read sends an idempotent call, again after a transport error, a 429 or a
// 5xx, and decodes its answer.
func read[T any](ctx context.Context, c *Client, do call) (*T, error) {
	return backoff.Retry(ctx, func() (*T, error) {
		out, err := write[T](ctx, c, do)
		var e *Error
		switch {
		case err == nil:
			return out, nil
		case errors.Is(err, errNoID):
			return nil, backoff.Permanent(err)
		case errors.As(err, &e) && e.Status < 500 && e.Status != http.StatusTooManyRequests:
			return nil, backoff.Permanent(err)
		case e != nil && e.RetryAfter > time.Second:
			return nil, backoff.Permanent(err) // The caller's own retry comes later than that.
		}
		return nil, err
	}, backoff.WithMaxTries(readAttempts), backoff.WithBackOff(&backoff.ExponentialBackOff{
		InitialInterval: 100 * time.Millisecond, Multiplier: 3, RandomizationFactor: 0.5, MaxInterval: time.Second,
	}))
}

// write sends a call once and decodes its answer.
func write[T any](ctx context.Context, c *Client, do call) (*T, error) {
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
		return nil, fmt.Errorf("the cloud's answer to %s %s is not what its API promises: %w", resp.Request.Method, resp.Request.URL.Path, err)
	}
	return &out, nil
}

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
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/problem+json") || json.Unmarshal(body, &e.Problem) != nil {
		e.Problem = api.Problem{Detail: fmt.Sprintf("%s %s: %s: %.*s", resp.Request.Method, resp.Request.URL.Path, resp.Status, maxErrorBody, strings.TrimSpace(string(body)))}
	}
	return e
}

// Project is the project that the token belongs to.
func (c *Client) Project(ctx context.Context) (*api.Project, error) {
	return read[api.Project](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.GetProject(ctx) })
}

// ListZones lists the zones of every region.
func (c *Client) ListZones(ctx context.Context) ([]api.Zone, error) {
	list, err := read[api.ZoneList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListZones(ctx) })
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Ready asks whether the cloud is ready. It needs no valid token.
func (c *Client) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := c.raw.GetReady(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	return asError(resp)
}

// optional is nil for the zero value: a query parameter that is not sent.
func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func optionalList[T any](v []T) *[]T {
	if len(v) == 0 {
		return nil
	}
	return &v
}
