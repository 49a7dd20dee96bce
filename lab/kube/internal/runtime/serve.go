package runtime

// This file answers the requests that reach a container.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxDelay bounds ?delay=, so that a typing error cannot hold a connection for
// an hour.
const maxDelay = 5 * time.Minute

// identity is what a container tells about itself. The demo's own server,
// cmd/hello, tells the same; its testdata/answers.golden holds both to it.
type identity struct {
	Pod       string      `json:"pod"`
	Namespace string      `json:"namespace"`
	Node      string      `json:"node"`
	Zone      string      `json:"zone"`
	PodIP     string      `json:"podIP"`
	Container string      `json:"container"`
	Image     string      `json:"image"`
	Request   requestSeen `json:"request"`
}

type requestSeen struct {
	Method     string `json:"method"`
	Path       string `json:"path"`
	RemoteAddr string `json:"remoteAddr"`
	Host       string `json:"host"`
}

func (i identity) sentence() string {
	zone := i.Zone
	if zone == "" {
		zone = "(no zone label yet)"
	}
	return fmt.Sprintf("Hello from pod %s (%s) on %s in zone %s\n", i.Pod, i.PodIP, i.Node, zone)
}

// portServer serves all ports of one container.
type portServer struct {
	http      *http.Server
	listeners []net.Listener
}

// serve listens on all of the container's ports or on none. It needs r.mu, and
// r.ended runs only after it has returned.
func (r *Runtime) serve(c *container) (*portServer, error) {
	addresses := r.addresses(c)
	c.log.write(stdout, r.greeting(c))
	for _, p := range c.ports {
		if p.protocol() != protocolTCP {
			c.log.write(stderr, fmt.Sprintf("port %d/%s is not served: the simulated node serves TCP only", p.ContainerPort, p.protocol()))
		}
	}
	var listeners []net.Listener
	for _, address := range addresses {
		listener, err := net.Listen("tcp4", address.String())
		if err != nil {
			for _, opened := range listeners {
				_ = opened.Close()
			}
			return nil, fmt.Errorf("cannot serve port %d: %w", address.Port(), err)
		}
		listeners = append(listeners, listener)
		c.log.write(stdout, "listening on "+address.String())
	}
	if len(listeners) == 0 {
		return nil, nil
	}
	server := &portServer{listeners: listeners, http: &http.Server{
		Handler:           r.handler(c),
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0),
	}}
	for _, listener := range listeners {
		go func() { _ = server.http.Serve(listener) }()
	}
	return server, nil
}

func (r *Runtime) greeting(c *container) string {
	where := "host network of " + r.options.NodeName
	if !c.sandbox.hostNetwork {
		where = fmt.Sprintf("%s, realised as %s", c.sandbox.address, r.realised(c.sandbox))
	}
	return fmt.Sprintf("simulated container %s of pod %s on %s (%s): image %s is named, not run",
		c.name(), c.podName(), r.options.NodeName, where, c.image())
}

// handler answers everything with the container's identity, so that any probe
// path succeeds. POST /exit?code=N ends the container, to show restarts;
// ?delay=2s holds the answer back, to show draining.
func (r *Runtime) handler(c *container) http.Handler {
	pod := c.sandbox.config.GetMetadata()
	base := identity{
		Pod:       pod.GetName(),
		Namespace: pod.GetNamespace(),
		Node:      r.options.NodeName,
		PodIP:     r.options.NodeAddress.String(),
		Container: c.name(),
		Image:     c.image(),
	}
	if !c.sandbox.hostNetwork {
		base.PodIP = c.sandbox.address.String()
	}
	logFile := c.log
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		logFile.write(stdout, fmt.Sprintf("%s %s from %s host %s",
			request.Method, request.URL.RequestURI(), request.RemoteAddr, request.Host))
		if err := wait(request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if request.URL.Path == "/exit" && request.Method == http.MethodPost {
			r.exitOnRequest(c, w, request)
			return
		}
		answer := base
		answer.Zone = r.options.Zone()
		answer.Request = requestSeen{
			Method:     request.Method,
			Path:       request.URL.Path,
			RemoteAddr: request.RemoteAddr,
			Host:       request.Host,
		}
		write(w, request, answer)
	})
}

func wait(request *http.Request) error {
	text := request.URL.Query().Get("delay")
	if text == "" {
		return nil
	}
	delay, err := time.ParseDuration(text)
	if err != nil || delay < 0 || delay > maxDelay {
		return fmt.Errorf("delay=%q: a duration between 0s and %s is needed", text, maxDelay)
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-request.Context().Done():
	}
	return nil
}

func (r *Runtime) exitOnRequest(c *container, w http.ResponseWriter, request *http.Request) {
	code := uint64(0)
	if text := request.URL.Query().Get("code"); text != "" {
		var err error
		if code, err = strconv.ParseUint(text, 10, 8); err != nil {
			http.Error(w, fmt.Sprintf("code=%q: a number from 0 to 255 is needed", text), http.StatusBadRequest)
			return
		}
	}
	answer := fmt.Sprintf("container %s exits with code %d\n", c.name(), code)
	// With its length known the answer is complete once flushed, whatever then
	// becomes of the connection.
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	w.Header().Set("Connection", "close")
	_, _ = io.WriteString(w, answer)
	_ = http.NewResponseController(w).Flush()
	go r.end(c, int32(code), "asked to exit by "+request.RemoteAddr)
}

func write(w http.ResponseWriter, request *http.Request, answer identity) {
	if request.URL.Query().Get("format") == "json" || strings.Contains(request.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, answer.sentence())
}

// drain stops listening and waits for the requests in progress; it reports
// whether they all finished in time.
func (s *portServer) drain(grace time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	s.stopListening()
	return s.http.Shutdown(ctx) == nil
}

func (s *portServer) close() {
	s.stopListening()
	_ = s.http.Close()
}

// stopListening frees the ports at once. http.Server knows a listener only when
// its Serve has begun, and one that is closed before leaves it open for a moment.
func (s *portServer) stopListening() {
	for _, listener := range s.listeners {
		_ = listener.Close()
	}
}
