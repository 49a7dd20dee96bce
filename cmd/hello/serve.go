package main

// This file answers requests, and ends without losing one.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pires/go-proxyproto"
)

const (
	// maxDelay bounds ?delay=, so that a typing error cannot hold a connection
	// for an hour.
	maxDelay = 5 * time.Minute
	// lastAnswers is how long requests in progress have once draining is over:
	// less than the rest of a pod's usual 30 seconds.
	lastAnswers = 10 * time.Second
	// headerTimeout bounds what a client takes to say what it wants.
	headerTimeout = 30 * time.Second
	maxDatagram   = 1 << 16
)

// identity is what a container tells about itself. The simulated container of
// lab/kube tells the same; testdata/answers.golden holds both to it.
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

// serve closes both listeners. When ctx ends it serves on while whoever sends
// requests learns of it, then answers what it has begun.
func serve(ctx context.Context, o options, tcp net.Listener, udp net.PacketConn) error {
	if o.proxy {
		// A header is used where there is one: the kubelet's probes have none.
		tcp = &proxyproto.Listener{Listener: tcp, ReadHeaderTimeout: headerTimeout,
			ConnPolicy: func(proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) { return proxyproto.USE, nil }}
	}
	var draining atomic.Bool
	exited := make(chan int, 1)
	server := &http.Server{Handler: handler(o.identity, &draining, exited), ReadHeaderTimeout: headerTimeout}
	var served sync.WaitGroup
	served.Go(func() { echo(udp, o.identity) })
	failed := make(chan error, 1)
	served.Go(func() { failed <- server.Serve(tcp) })
	fmt.Printf("listening on %s, TCP and UDP\n", tcp.Addr())
	err := wait(ctx, o.drain, &draining, exited, failed)
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAnswers)
	defer cancel()
	err = errors.Join(err, server.Shutdown(shutdown), udp.Close())
	served.Wait()
	return err
}

type exitError int

func (e exitError) Error() string { return fmt.Sprintf("asked to exit with code %d", int(e)) }

// wait returns when it is time to stop listening.
func wait(ctx context.Context, drain time.Duration, draining *atomic.Bool, exited <-chan int, failed <-chan error) error {
	select {
	case err := <-failed:
		return err
	case code := <-exited:
		return exitError(code)
	case <-ctx.Done():
	}
	draining.Store(true)
	fmt.Printf("told to end: serving on for %s\n", drain)
	select {
	case err := <-failed:
		return err
	case code := <-exited:
		return exitError(code)
	case <-time.After(drain):
		return nil
	}
}

// handler answers everything with the container's identity, so that any probe
// path succeeds. /healthz answers ok, /client only the client's address;
// ?delay=2s holds the answer back, to show draining; POST /exit?code=N ends the
// container, to show restarts.
func handler(base identity, draining *atomic.Bool, exited chan<- int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if draining.Load() {
			w.Header().Set("Connection", "close") // The next request goes to another pod.
		}
		if r.URL.Path == "/healthz" {
			_, _ = io.WriteString(w, "ok\n")
			return
		}
		fmt.Printf("%s %s from %s host %s\n", r.Method, strconv.Quote(r.URL.RequestURI()), r.RemoteAddr, strconv.Quote(r.Host))
		if err := delay(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		switch {
		case r.URL.Path == "/client":
			_, _ = fmt.Fprintln(w, r.RemoteAddr)
		case r.URL.Path == "/exit" && r.Method == http.MethodPost:
			exit(w, r, exited)
		default:
			answer := base
			answer.Request = requestSeen{Method: r.Method, Path: r.URL.Path, RemoteAddr: r.RemoteAddr, Host: r.Host}
			write(w, r, answer)
		}
	})
}

func delay(r *http.Request) error {
	text := r.URL.Query().Get("delay")
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
	case <-r.Context().Done():
	}
	return nil
}

func exit(w http.ResponseWriter, r *http.Request, exited chan<- int) {
	code := uint64(0)
	if text := r.URL.Query().Get("code"); text != "" {
		var err error
		if code, err = strconv.ParseUint(text, 10, 8); err != nil {
			http.Error(w, fmt.Sprintf("code=%q: a number from 0 to 255 is needed", text), http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Connection", "close")
	_, _ = fmt.Fprintf(w, "container exits with code %d\n", code)
	select {
	case exited <- int(code):
	default: // Somebody asked before.
	}
}

func write(w http.ResponseWriter, r *http.Request, answer identity) {
	if r.URL.Query().Get("format") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, answer.sentence())
}

// echo answers each datagram with the sentence and what was in it. One that
// would not fit any more is cut.
func echo(udp net.PacketConn, id identity) {
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := udp.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "hello: udp:", err)
			continue
		}
		answer := append([]byte(id.sentence()), buf[:n]...)
		_, _ = udp.WriteTo(answer[:min(len(answer), maxPayload)], from)
	}
}

// maxPayload is what one datagram over IPv4 can carry.
const maxPayload = 65507
