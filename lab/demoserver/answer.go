// Package demoserver answers over HTTP and UDP who a container is, and misbehaves as a client's
// commands say. The demo's own server (cmd/hello) and the simulated container
// (lab/kube/internal/runtime) say and do the same with it. They are in two modules of which
// neither may depend on the other, so this one is a module of its own, which both require.
package demoserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Identity is what a container says of itself, as text or as JSON.
type Identity struct {
	Pod       string            `json:"pod"`
	Namespace string            `json:"namespace"`
	Node      string            `json:"node"`
	Zone      string            `json:"zone"`
	PodIP     string            `json:"podIP"`
	Container string            `json:"container"`
	Image     string            `json:"image"`
	Env       map[string]string `json:"env,omitempty"`
	Files     map[string]string `json:"files,omitempty"`
	Request   RequestInfo       `json:"request"`
}

// RequestInfo is the request as the container has received it.
type RequestInfo struct {
	Method     string `json:"method"`
	Path       string `json:"path"`
	RemoteAddr string `json:"remoteAddr"`
	Host       string `json:"host"`
}

// Sentence returns the identity as one line for people.
func (i Identity) Sentence() string {
	zone := i.Zone
	if zone == "" {
		zone = "(no zone label yet)"
	}
	return fmt.Sprintf("Hello from pod %s (%s) on %s in zone %s\n", i.Pod, i.PodIP, i.Node, zone)
}

// Answerer is the http.Handler of one run of a container, with the faults that commands have set
// in that run. It carries out the commands of Help, and answers any other request with the
// identity, so that probes of any path succeed.
type Answerer struct {
	// Identity is called for each request. Its Env, Files and Request are left empty.
	Identity func() Identity
	Env      map[string]string
	// Files is called for each request that asks for JSON.
	Files func() map[string]string
	// Probes are those that the container declares, by kind.
	Probes map[string]Probe
	// Log writes a line to the container's log.
	Log func(line string)
	// Exit ends the container. It is called in a goroutine of its own.
	Exit func(code uint8, reason string)

	mu     sync.Mutex
	faults faultState
}

// ServeHTTP answers a probe, a command or any other request. It does not log probes that
// succeed: there may be one a second.
func (a *Answerer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if kinds := a.matchProbes(r); len(kinds) > 0 || isHealthCheck(r) {
		a.answerProbe(w, r, kinds)
		return
	}
	a.Log(fmt.Sprintf("%s %s from %s host %s", r.Method, r.URL.RequestURI(), r.RemoteAddr, r.Host))
	if a.serveCommand(w, r) {
		return
	}
	delay, err := parseDuration(r.URL.Query(), "delay", maxDelay)
	if err != nil {
		a.writeRefusal(w, r, refusal{http.StatusBadRequest, err.Error()})
		return
	}
	waitUnlessCancelled(r.Context(), a.currentFaults().currentDelay()+delay)
	a.writeIdentity(w, r)
}

// answerProbe fails a probe if one of the kinds that it may be is to fail.
func (a *Answerer) answerProbe(w http.ResponseWriter, r *http.Request, kinds []string) {
	waitUnlessCancelled(r.Context(), a.currentFaults().currentDelay())
	i := slices.IndexFunc(kinds, a.currentFaults().isProbeFailing)
	if i >= 0 {
		a.Log(fmt.Sprintf("%s %s: the %s probe fails, as it was told to", r.Method, r.URL.RequestURI(), kinds[i]))
	}
	switch {
	case isHealthCheck(r):
		writeHealth(w, r, i < 0)
	case i >= 0:
		http.Error(
			w, "The "+kinds[i]+" probe fails, as it was told to. POST /recover ends that.",
			http.StatusServiceUnavailable,
		)
	default:
		a.writeIdentity(w, r)
	}
}

// HealthCheckURI is where a grpc probe sends its request (grpc_health_v1.Health_Check_FullMethodName).
const HealthCheckURI = "/grpc.health.v1.Health/Check"

// isHealthCheck reports whether a request is a call of gRPC's health service.
func isHealthCheck(r *http.Request) bool { return r.ProtoMajor == 2 && r.URL.Path == HealthCheckURI }

// writeHealth answers a call of gRPC's health service with a HealthCheckResponse, whatever the service that
// it asks about. This module has no gRPC, and needs none for one message: a byte that says that it is not
// compressed, four with its length, and field 1, which is the status.
func writeHealth(w http.ResponseWriter, r *http.Request, healthy bool) {
	const serving, notServing, statusField = 1, 2, 1 << 3
	status := byte(serving)
	if !healthy {
		status = notServing
	}
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	_, _ = w.Write([]byte{0, 0, 0, 0, 2, statusField, status})
	w.Header().Set("Grpc-Status", "0")
}

// writeIdentity answers with the sentence, or with JSON if the request asks for that.
func (a *Answerer) writeIdentity(w http.ResponseWriter, r *http.Request) {
	id := a.Identity()
	if !wantsJSON(r) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, id.Sentence())
		return
	}
	id.Env, id.Files = a.Env, a.Files()
	id.Request = RequestInfo{Method: r.Method, Path: r.URL.Path, RemoteAddr: r.RemoteAddr, Host: r.Host}
	writeJSON(w, http.StatusOK, id)
}

func wantsJSON(r *http.Request) bool {
	return r.URL.Query().Get("format") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json")
}

func writeJSON(w http.ResponseWriter, code int, value any) {
	text, _ := json.Marshal(value) // It cannot fail: all values are structs of strings.
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)+1))
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n'))
}

// parseDuration returns the duration that a parameter of a request has, at most limit; zero
// without the parameter.
func parseDuration(query url.Values, name string, limit time.Duration) (time.Duration, error) {
	if !query.Has(name) {
		return 0, nil
	}
	text := query.Get(name)
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > limit {
		return 0, fmt.Errorf("%s=%q: a duration from 0s to %s is needed, such as 2s or 500ms", name, text, limit)
	}
	return d, nil
}

// waitUnlessCancelled waits for d, or until ctx is done because the client has gone.
func waitUnlessCancelled(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

const (
	maxDatagram = 1 << 16
	// maxPayload is how many bytes a UDP datagram over IPv4 can carry.
	maxPayload = 65507
)

// Echo answers each datagram with the sentence and the datagram's own bytes, until the socket is
// closed. It cuts off what does not fit into a datagram.
func (a *Answerer) Echo(udp net.PacketConn) {
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := udp.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			a.Log(fmt.Sprintf("udp: %v", err))
			continue
		}
		answer := append([]byte(a.Identity().Sentence()), buf[:n]...)
		_, _ = udp.WriteTo(answer[:min(len(answer), maxPayload)], from)
	}
}
