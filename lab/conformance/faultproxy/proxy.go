// Package faultproxy stands between a CCM and any cloud that is reached over HTTP. It makes the faults
// that the suite knows and counts the CCM's calls, so that the cloud itself need not be able to do
// either. All that it must be told of the cloud is which paths are which resources.
//
// It knows no cloud and no CCM. Begin with Open; Gate is the part of it that works on
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
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// Proxy is a cloud for one CCM.
type Proxy struct {
	upstream *url.URL // the cloud's
	answers  map[string]protocol.ProxyAnswer
	rules    []compiledRule
	forward  *httputil.ReverseProxy
	server   *http.Server
	gate     *Gate
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

var _ conformance.Proxy = (*Proxy)(nil)

// Open listens on a free port of host, an address of this machine. asked says what the proxy must know of
// the cloud.
func Open(host string, asked protocol.Proxy) (*Proxy, error) {
	upstream, err := url.Parse(asked.Upstream)
	if err != nil {
		return nil, err
	}
	transport, err := newTransport(asked.CAFile)
	if err != nil {
		return nil, err
	}
	rules, err := compileRules(upstream, asked)
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
		upstream: upstream, answers: asked.Answers, rules: rules, gate: gate, slowDelay: conformance.SlowDelay,
		counted: conformance.Calls{Of: map[conformance.Thing]conformance.Count{}},
	}
	p.stopping, p.stop = context.WithCancel(context.Background())
	p.forward = &httputil.ReverseProxy{
		Rewrite:   p.rewriteRequest,
		Transport: transport,
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

// newTransport trusts what the certificate in caFile has signed; without a file, what the machine trusts.
func newTransport(caFile string) (*http.Transport, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if caFile == "" {
		return t, nil
	}
	signed, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(signed) {
		return nil, fmt.Errorf("%s has no certificate in it", caFile)
	}
	t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return t, nil
}

// compileRules returns the rules, or all that is wrong with what was asked for.
func compileRules(upstream *url.URL, asked protocol.Proxy) (rules []compiledRule, err error) {
	var errs []error
	if upstream.Host == "" || upstream.Scheme != "http" && upstream.Scheme != "https" {
		errs = append(errs, fmt.Errorf("the cloud's URL %q: want http://HOST or https://HOST", upstream))
	}
	if len(asked.Rules) == 0 {
		errs = append(errs, errors.New("there is no rule that says which calls are about which thing"))
	}
	for i, r := range asked.Rules {
		compiled, err := compileRule(r)
		if err != nil {
			name := strings.TrimSpace(r.Method + " " + r.Path)
			errs = append(errs, fmt.Errorf("rule %d, %s: %w", i+1, name, err))
		}
		rules = append(rules, compiled)
	}
	for _, kind := range slices.Sorted(maps.Keys(asked.Answers)) {
		// A driver of a later release has answers for kinds that this one does not know.
		known := slices.Contains(conformance.AllFaultKinds(), conformance.FaultKind(kind))
		if _, ok := conformance.FaultStatuses[conformance.FaultKind(kind)]; known && !ok {
			errs = append(errs, fmt.Errorf("an answer for fault %q: want one of %s", kind, refusalKinds()))
		}
	}
	return rules, errors.Join(errs...)
}

// URL is the cloud's for the CCM, and for nobody else.
func (p *Proxy) URL() string {
	u := *p.upstream
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
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = p.upstream.Scheme, p.upstream.Host, ""
	// What ReverseProxy cleans, the CCM may have meant.
	r.Out.URL.RawQuery = r.In.URL.RawQuery
}

// answerUnreachable answers a call when the proxy cannot reach the cloud.
func answerUnreachable(w http.ResponseWriter, _ *http.Request, err error) {
	if errors.Is(err, context.Canceled) { // By the CCM, which hears nothing any more.
		panic(http.ErrAbortHandler)
	}
	writeAnswer(w, conformance.FaultUnavailable, protocol.ProxyAnswer{
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
