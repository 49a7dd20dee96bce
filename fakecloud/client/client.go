// Package client is the Go client of fakecloud's REST API: a bearer token from a file that
// may change, retries of reads, paging, typed errors and the event stream. It is the only
// way into the cloud that ccm and lab use. It knows the API alone, nothing of how the cloud
// works inside.
//
// Begin with New and Client. Most operations are methods in operations.gen.go, generated from
// openapi.yaml with fakecloud/api/templates/client.tmpl; calls.go, audit.go and events.go have
// the others. read, create and change in request.go send every call of theirs.
package client

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

const (
	// pageSize is the largest page that the API allows, for the fewest calls.
	pageSize    = 500
	largestPage = "500"
	// readAttempts is how often one read is sent at most. Changes are sent once: the
	// caller has to find out whether a failed one took effect.
	readAttempts = 3
	// maxErrorBody is how many bytes an error keeps of an answer that is no
	// problem+json.
	maxErrorBody = 512

	defaultTimeout = 10 * time.Second
	defaultSilence = 45 * time.Second
)

// Config says where the cloud is and who calls it.
type Config struct {
	// URL is the cloud's base, e.g. http://127.0.0.1:8470.
	URL string
	// TokenFile holds the bearer token. It is read for every call, so that a
	// token can be rotated under a running process. It may be empty if Transport says
	// who calls.
	TokenFile string
	// UserAgent names the caller in the cloud's log.
	UserAgent string
	// Timeout is how long one attempt of a call may take; 10 s if zero. The event
	// stream has Silence instead.
	Timeout time.Duration
	// Silence is how long the event stream may send nothing, not even a heartbeat,
	// before it counts as broken; 45 s if zero: three of the cloud's heartbeats.
	Silence time.Duration
	// CAFile is a PEM bundle to verify an https URL with; the system's if empty. It is read for
	// every call, as TokenFile is.
	CAFile string
	// Report, unless nil, is told once why a CAFile that changed cannot be used, so that the one
	// before stays in use.
	Report func(error)
	// Direct calls the cloud without the proxy that HTTP_PROXY and the like name. It
	// is for a cloud on an address that only this machine reaches.
	Direct bool
	// Transport is http.DefaultTransport if nil. A given one verifies and dials by
	// itself, so New refuses CAFile or Direct together with it.
	Transport http.RoundTripper
	// Wrap, unless nil, gets the transport that the fields above make, and returns
	// the one that calls go through: to count calls, or to delay them.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Client calls one cloud in the name of one token. Safe for concurrent use.
type Client struct {
	base                 *url.URL // ends with a slash
	http                 *http.Client
	tokenFile, userAgent string
	timeout, silence     time.Duration
}

// New checks the configuration and makes a client. It does not call the cloud.
func New(cfg Config) (*Client, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, fmt.Errorf("cloud URL %q: want http://host:port or https://host:port", cfg.URL)
	}
	if cfg.TokenFile == "" && cfg.Transport == nil {
		return nil, errors.New("no token file given")
	}
	transport, err := cfg.NewTransport()
	if err != nil {
		return nil, err
	}
	if cfg.Wrap != nil {
		if transport == nil {
			transport = http.DefaultTransport
		}
		transport = cfg.Wrap(transport)
	}
	return &Client{
		base: base.JoinPath("/"), http: &http.Client{Transport: transport},
		tokenFile: cfg.TokenFile, userAgent: cfg.UserAgent,
		timeout: cmp.Or(cfg.Timeout, defaultTimeout), silence: cmp.Or(cfg.Silence, defaultSilence),
	}, nil
}

// NewTransport makes what calls go through, but for Wrap. It is nil for http.DefaultTransport.
func (cfg Config) NewTransport() (http.RoundTripper, error) {
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
	return newCATransport(cfg.CAFile, transport, cfg.Report)
}
