// Package faultproxy stands between a CCM and any cloud that is reached over HTTP. It makes the faults
// that the suite knows and counts the CCM's calls, so that the cloud itself need not be able to do
// either. All that it must be told of the cloud is which paths are which resources.
//
// It knows no cloud and no CCM. Begin with Config and Open; Gate is the part of it that works on
// connections alone.
package faultproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// Config says what the proxy must know of a cloud.
type Config struct {
	// Upstream is the cloud's URL, http or https. The proxy's own has the same path.
	Upstream *url.URL
	// Roots signed the cloud's certificate; nil for those that the machine knows.
	Roots *x509.CertPool
	// Rules say which calls are about which thing. The first that fits a call counts.
	Rules []Rule
	// Answers are what the cloud answers when it refuses a call, by the kind of fault. Kinds that are
	// left out get a status and a sentence, except those of ownAnswerOnly, which are not made.
	Answers map[conformance.FaultKind]Answer
}

// Answer of the cloud.
type Answer struct {
	Status int // the kind's own when 0
	Header map[string]string
	Body   string // JSON, unless Header says otherwise
}

// Proxy is a cloud for one CCM. It has the roles FaultInjector, CallCounter and CallJournal.
type Proxy struct {
	config  Config
	rules   []compiledRule
	forward *httputil.ReverseProxy
	server  *http.Server
	gate    *Gate
	// slowDelay is how long an answer takes under conformance.FaultSlow.
	slowDelay time.Duration
	stopping  context.Context
	stop      context.CancelFunc
	serving   sync.WaitGroup

	mu      sync.Mutex
	faults  []*fault // those in force, the oldest first
	serial  int      // of faults and calls
	counted conformance.Calls
	journal []conformance.Call // by the time of their answers
}

var _ interface {
	conformance.FaultInjector
	conformance.CallCounter
	conformance.CallJournal
} = (*Proxy)(nil)

// slowDelay is that of conformance.FaultSlow.
const slowDelay = 30 * time.Second

// Open listens on a free port of host, an address of this machine.
func Open(host string, c Config) (*Proxy, error) {
	rules, err := c.compile()
	if err != nil {
		return nil, err
	}
	behind, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", "0"))
	if err != nil {
		return nil, fmt.Errorf("opening the fault proxy: %w", err)
	}
	gate, err := OpenGate(host, behind.Addr().String())
	if err != nil {
		return nil, errors.Join(err, behind.Close())
	}
	p := &Proxy{
		config: c, rules: rules, gate: gate, slowDelay: slowDelay,
		counted: conformance.Calls{Of: map[conformance.Thing]conformance.Count{}},
	}
	p.stopping, p.stop = context.WithCancel(context.Background())
	p.forward = &httputil.ReverseProxy{
		Rewrite:   p.rewriteRequest,
		Transport: c.transport(),
		// Streams are passed on as they come.
		FlushInterval: -1,
		ErrorLog:      log.New(slogWriter{}, "", 0),
		ErrorHandler:  answerUnreachable,
	}
	p.server = &http.Server{Handler: p, ErrorLog: log.New(slogWriter{}, "", 0), ReadHeaderTimeout: time.Minute}
	p.serving.Go(func() { _ = p.server.Serve(behind) })
	return p, nil
}

// slogWriter is where net/http writes what goes wrong on connections.
type slogWriter struct{}

func (slogWriter) Write(line []byte) (int, error) {
	slog.Debug("fault proxy: " + strings.TrimSpace(string(line)))
	return len(line), nil
}

func (c Config) transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if c.Roots != nil {
		t.TLSClientConfig = &tls.Config{RootCAs: c.Roots, MinVersion: tls.VersionTLS12}
	}
	return t
}

// compile returns the rules, or all that is wrong with the configuration.
func (c Config) compile() (rules []compiledRule, err error) {
	var errs []error
	if c.Upstream == nil || c.Upstream.Host == "" || c.Upstream.Scheme != "http" && c.Upstream.Scheme != "https" {
		errs = append(errs, fmt.Errorf("the cloud's URL %q: want http://HOST or https://HOST", c.Upstream))
	}
	if len(c.Rules) == 0 {
		errs = append(errs, errors.New("there is no rule that says which calls are about which thing"))
	}
	for i, r := range c.Rules {
		compiled, err := r.compile()
		if err != nil {
			errs = append(errs, fmt.Errorf("rule %d, %s: %w", i+1, r, err))
		}
		rules = append(rules, compiled)
	}
	for _, kind := range slices.Sorted(maps.Keys(c.Answers)) {
		if _, ok := statuses[kind]; !ok {
			errs = append(errs, fmt.Errorf("an answer for fault %q: want one of %s", kind, refusalKinds()))
		}
	}
	return rules, errors.Join(errs...)
}

// URL is the cloud's for the CCM, and for nobody else.
func (p *Proxy) URL() string {
	u := *p.config.Upstream
	u.Scheme, u.Host = "http", p.gate.Address()
	return strings.TrimSuffix(u.String(), "/")
}

// Close ends it, with all calls that are under way.
func (p *Proxy) Close() error {
	p.stop()
	err := errors.Join(p.gate.Close(), p.server.Close())
	p.serving.Wait()
	return err
}

func (p *Proxy) rewriteRequest(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = p.config.Upstream.Scheme, p.config.Upstream.Host, ""
	// What ReverseProxy cleans, the CCM may have meant.
	r.Out.URL.RawQuery = r.In.URL.RawQuery
}

// answerUnreachable answers a call when the proxy cannot reach the cloud.
func answerUnreachable(w http.ResponseWriter, _ *http.Request, err error) {
	if errors.Is(err, context.Canceled) { // By the CCM, which hears nothing any more.
		panic(http.ErrAbortHandler)
	}
	writeAnswer(w, conformance.FaultUnavailable, Answer{
		Status: http.StatusBadGateway, Body: sentence("the fault proxy does not reach the cloud: " + err.Error()),
	})
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call, met := p.beginCall(r)
	recorder := &answerRecorder{ResponseWriter: w, tell: func(status int) { p.endCall(call, met, status) }}
	// The handler may end by a panic, which is how net/http breaks an answer off.
	defer recorder.tellOnce(0)
	if met == nil {
		p.forward.ServeHTTP(recorder, r)
		return
	}
	p.applyFault(recorder, r, call, met)
}

// answerRecorder calls tell with the status of an answer as soon as that is known; 0 is no answer.
type answerRecorder struct {
	http.ResponseWriter
	tell func(status int)
	told bool
}

func (a *answerRecorder) tellOnce(status int) {
	if !a.told {
		a.told = true
		a.tell(status)
	}
}

// WriteHeader implements http.ResponseWriter.
func (a *answerRecorder) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		a.tellOnce(status)
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answerRecorder) Write(b []byte) (int, error) {
	a.tellOnce(http.StatusOK)
	return a.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (a *answerRecorder) Unwrap() http.ResponseWriter { return a.ResponseWriter }
