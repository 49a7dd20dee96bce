// Package server is the cloud's front over HTTP: routing, authentication, rate limits,
// faults, validation against the spec, problem+json, the audit, metrics and the event
// stream. It decides nothing about resources: package cloud does. Begin with New, which
// lists the middleware in order, and handlers.go.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
)

const (
	maxBody           = 1 << 20
	readHeaderTimeout = 10 * time.Second
	// bodyTimeout bounds how long a client may take to send a body.
	bodyTimeout = 30 * time.Second
	// writeTimeout bounds how long an answer may take.
	writeTimeout = 30 * time.Second
	idleTimeout  = 2 * time.Minute
	// maxHeaderBytes bounds a request's line and headers together.
	maxHeaderBytes = 64 << 10
	// shutdownTimeout bounds how long the server waits for calls under way when it stops.
	// net/http takes a new connection that has sent nothing for such a call during 5 s.
	shutdownTimeout  = 8 * time.Second
	defaultHeartbeat = 15 * time.Second
)

// Config is what a server needs. Cloud and Faults are required;
// package fakecloud puts them together.
type Config struct {
	Cloud *cloud.Cloud
	// Faults are the rules in force. They are for FaultableOperations.
	Faults *faults.Rules
	Logger *slog.Logger // silent when nil
	// Certificate makes it HTTPS; plain HTTP when nil.
	Certificate *tls.Certificate
	// Hosts are names by which clients reach it, in lower case, beside localhost and those of the Certificate.
	Hosts []string
	// Heartbeat is the pause between an event stream's comment lines; 15 s when
	// zero.
	Heartbeat time.Duration
	// RateLimit is how many calls a second each token may make, and RateBurst how
	// many at once; no limit when RateLimit is zero.
	RateLimit, RateBurst int
	// StoreStats, when not nil, gives the store's counters for the metrics.
	StoreStats func() StoreStats
}

// Server serves one cloud.
type Server struct {
	cloud         *cloud.Cloud
	log           *slog.Logger
	cert          *tls.Certificate
	hosts         []string
	heartbeat     time.Duration
	stopping      context.Context // its end ends event streams and calls that wait
	stop          context.CancelFunc
	handler       http.Handler
	callsUnderWay atomic.Int64

	operations operations
	faults     *faults.Rules
	routes     map[*mux.Route]*operation // of the API and of the fronts
	fronts     []Front
	journal    *journal
	limits     rateLimits
	streams    heldCalls
	waiting    heldCalls
	metrics    *metrics
	docs       map[string]docsFile
	hub        eventHub
	countsAge  time.Duration
	maxCounted int
}

var _ serverInterface = (*Server)(nil)

// New builds the server's routes.
func New(cfg Config) (*Server, error) {
	if cfg.Cloud == nil || cfg.Faults == nil {
		return nil, errors.New("a server needs a cloud and faults")
	}
	s := &Server{
		cloud: cfg.Cloud, faults: cfg.Faults, log: cfg.Logger, cert: cfg.Certificate,
		hosts:     cfg.Hosts,
		heartbeat: cfg.Heartbeat, countsAge: defaultCountsAge, maxCounted: defaultMaxCounted,
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.heartbeat == 0 {
		s.heartbeat = defaultHeartbeat
	}
	s.hub = eventHub{cloud: s.cloud, log: s.log, maxEvents: tailEvents, maxBytes: tailBytes, timeout: eventTimeout}
	s.limits = newRateLimits(cfg.RateLimit, cfg.RateBurst)
	s.streams = newHeldCalls(maxStreams, "streams", "event streams")
	s.waiting = newHeldCalls(maxWaiting, "waiting", "calls that wait")
	s.stopping, s.stop = context.WithCancel(context.Background())
	spec, err := loadSpec()
	if err != nil {
		return nil, fmt.Errorf("the API's spec: %w", err)
	}
	s.operations = operationsOf(spec)
	router := mux.NewRouter().SkipClean(true)
	router.NotFoundHandler = s.throttleRefusals(s.answerNoSuchPath)
	router.MethodNotAllowedHandler = s.throttleRefusals(s.answerMethodNotAllowed(router))
	router.Use(s.admitCaller, s.injectFaults, s.requireRole, s.validateRequest, s.boundWaiting, s.readChangeConditions)
	if err := s.serveDocs(router); err != nil {
		return nil, err
	}
	registerHandlers(router, s, s.answerBadParameter)
	serveKind(s, router, "addresses", s.cloud.Addresses)
	serveKind(s, router, "certificates", s.cloud.Certificates)
	serveKind(s, router, "firewalls", s.cloud.Firewalls)
	serveKind(s, router, "networks", s.cloud.Networks)
	serveKind(s, router, "routes", s.cloud.Routes)
	if s.routes, err = s.operations.byRoute(router); err != nil {
		return nil, fmt.Errorf("the API's routes: %w", err)
	}
	s.metrics = newMetrics(s, cfg.StoreStats)
	if s.journal, err = newJournal(s.cloud, s.log, s.stopping.Done()); err != nil {
		return nil, fmt.Errorf("the audit: %w", err)
	}
	s.handler = s.recordRequests(s.recoverPanics(s.authenticateCaller(s.limitBody(router))))
	return s, nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Stop ends the event streams and the calls that faults hold.
func (s *Server) Stop() { s.stop() }

// Serve answers until ctx ends, then lets calls under way finish.
func (s *Server) Serve(ctx context.Context, l net.Listener) error { return s.serve(ctx, s, l) }

func (s *Server) serve(ctx context.Context, handler http.Handler, l net.Listener) error {
	defer s.Stop()
	h := &http.Server{
		Handler: handler, ReadHeaderTimeout: readHeaderTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	h.RegisterOnShutdown(s.stop)
	failed := make(chan error, 1)
	go func() {
		if s.cert == nil {
			failed <- h.Serve(l)
			return
		}
		h.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*s.cert}, MinVersion: tls.VersionTLS12}
		failed <- h.ServeTLS(l, "", "")
	}()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	err := h.Shutdown(end)
	switch {
	case err == nil:
	case s.callsUnderWay.Load() == 0: // net/http may wait for an HTTP/2 connection on which nothing happens.
		err = h.Close()
	default:
		err = errors.Join(fmt.Errorf("calls under way were cut off: %w", err), h.Close())
	}
	return errors.Join(err, s.journal.flush(end))
}
