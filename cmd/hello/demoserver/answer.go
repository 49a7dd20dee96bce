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

// Identity is what a container tells about itself.
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
	Request   RequestSeen       `json:"request"`
}

// RequestSeen is the request that is answered.
type RequestSeen struct {
	Method     string `json:"method"`
	Path       string `json:"path"`
	RemoteAddr string `json:"remoteAddr"`
	Host       string `json:"host"`
}

// Sentence tells it to people.
func (i Identity) Sentence() string {
	zone := i.Zone
	if zone == "" {
		zone = "(no zone label yet)"
	}
	return fmt.Sprintf("Hello from pod %s (%s) on %s in zone %s\n", i.Pod, i.PodIP, i.Node, zone)
}

// Answerer is an http.Handler, and all that one run of a container remembers.
// It answers any request with the identity, so that any probe path succeeds,
// but for the commands of Help.
type Answerer struct {
	// Identity is asked at each request; Env, Files and Request are not its part.
	Identity func() Identity
	Env      map[string]string
	Files    func() map[string]string
	// Probes are the container's, by kind.
	Probes map[string]Probe
	// Log writes a line of the container's log.
	Log func(line string)
	// Exit ends the container. It is called on a goroutine of its own.
	Exit func(code uint8, reason string)

	mu   sync.Mutex
	told told
}

// ServeHTTP answers a probe, a command, or whatever else there is to ask. A probe
// that succeeds is not logged: there is one every second.
func (a *Answerer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if kinds := a.probedBy(r); len(kinds) > 0 {
		a.answerProbe(w, r, kinds)
		return
	}
	a.Log(fmt.Sprintf("%s %s from %s host %s", r.Method, r.URL.RequestURI(), r.RemoteAddr, r.Host))
	if a.command(w, r) {
		return
	}
	delay, err := duration(r.URL.Query(), "delay", maxDelay)
	if err != nil {
		a.refuse(w, r, refusal{http.StatusBadRequest, err.Error()})
		return
	}
	wait(r.Context(), a.now().late()+delay)
	a.answer(w, r)
}

func (a *Answerer) answerProbe(w http.ResponseWriter, r *http.Request, kinds []string) {
	wait(r.Context(), a.now().late())
	if i := slices.IndexFunc(kinds, a.now().fails); i >= 0 {
		a.Log(fmt.Sprintf("%s %s: the %s probe fails, as it was told to", r.Method, r.URL.RequestURI(), kinds[i]))
		http.Error(w, "The "+kinds[i]+" probe fails, as it was told to. POST /recover ends that.", http.StatusServiceUnavailable)
		return
	}
	a.answer(w, r)
}

func (a *Answerer) answer(w http.ResponseWriter, r *http.Request) {
	id := a.Identity()
	if !wantsJSON(r) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, id.Sentence())
		return
	}
	id.Env, id.Files = a.Env, a.Files()
	id.Request = RequestSeen{Method: r.Method, Path: r.URL.Path, RemoteAddr: r.RemoteAddr, Host: r.Host}
	writeJSON(w, http.StatusOK, id)
}

func wantsJSON(r *http.Request) bool {
	return r.URL.Query().Get("format") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json")
}

func writeJSON(w http.ResponseWriter, code int, value any) {
	text, _ := json.Marshal(value) // All are structs of strings.
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)+1))
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n'))
}

// duration is a parameter of a request, and zero when it is not there.
func duration(query url.Values, name string, most time.Duration) (time.Duration, error) {
	if !query.Has(name) {
		return 0, nil
	}
	text := query.Get(name)
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > most {
		return 0, fmt.Errorf("%s=%q: a duration from 0s to %s is needed, such as 2s or 500ms", name, text, most)
	}
	return d, nil
}

// wait returns early when whoever asked has gone.
func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

const (
	maxDatagram = 1 << 16
	// maxPayload is what one datagram over IPv4 can carry.
	maxPayload = 65507
)

// Echo answers each datagram with the sentence and what was in it, until the
// socket is closed. What would not fit any more is cut off.
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
