package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/ccmlab/ccmlab/cmd/hello/demoserver"
)

const (
	// lastAnswers is how long requests in progress have once draining is over:
	// less than the rest of a pod's usual 30 seconds.
	lastAnswers = 10 * time.Second
	// headerTimeout bounds what a client takes to say what it wants.
	headerTimeout = 30 * time.Second
)

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
	zone := newZoneFinder(o)
	answers := newAnswerer(o, zone.currentZone, portOf(tcp.Addr()), exited)
	server := &http.Server{Handler: handler(answers, &draining), ReadHeaderTimeout: headerTimeout}
	var served sync.WaitGroup
	polling, stopPolling := context.WithCancel(ctx)
	defer stopPolling()
	served.Go(func() { zone.pollNode(polling) })
	zone.waitForAnswer(ctx)
	served.Go(func() { answers.Echo(udp) })
	failed := make(chan error, 1)
	served.Go(func() { failed <- server.Serve(tcp) })
	fmt.Printf("listening on %s, TCP and UDP\n", tcp.Addr())
	err := awaitEnd(ctx, o.drain, &draining, exited, failed)
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAnswers)
	defer cancel()
	stopPolling()
	err = errors.Join(err, server.Shutdown(shutdown), udp.Close())
	served.Wait()
	return err
}

type exitError int

func (e exitError) Error() string { return fmt.Sprintf("asked to exit with code %d", int(e)) }

func portOf(address net.Addr) uint16 {
	at, _ := netip.ParseAddrPort(address.String())
	return at.Port()
}

// awaitEnd returns when it is time to stop listening.
func awaitEnd(ctx context.Context, drain time.Duration, draining *atomic.Bool, exited <-chan int, failed <-chan error) error {
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

// handler is the answerer's, and /client answers with the client's address alone.
func handler(answers *demoserver.Answerer, draining *atomic.Bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if draining.Load() {
			w.Header().Set("Connection", "close") // The next request goes to another pod.
		}
		if r.URL.Path == "/client" {
			_, _ = fmt.Fprintln(w, r.RemoteAddr)
			return
		}
		answers.ServeHTTP(w, r)
	})
}

// filesDir is where the demo's pods mount what they show. A container cannot tell
// a ConfigMap's volume from a Secret's, so it shows no other.
const filesDir = "/etc/demo"

// newAnswerer is what the simulated node knows of its containers, as far as a
// container can know it of itself: which probes there are, it cannot, so those at
// /startupz, /livez and /readyz, as the demo has them, are what can be told to fail.
func newAnswerer(o options, zone func() string, port uint16, exited chan<- int) *demoserver.Answerer {
	return &demoserver.Answerer{
		Identity: func() demoserver.Identity {
			id := o.identity
			id.Zone = zone()
			return id
		},
		Env: o.env,
		Files: func() map[string]string {
			return demoserver.Contents([]demoserver.Mounted{{Path: filesDir, Host: filesDir}})
		},
		Probes: map[string]demoserver.Probe{
			demoserver.Startup:   {Port: port, URI: "/startupz"},
			demoserver.Liveness:  {Port: port, URI: "/livez"},
			demoserver.Readiness: {Port: port, URI: "/readyz"},
		},
		Log: func(line string) { fmt.Println(line) },
		Exit: func(code uint8, _ string) {
			select {
			case exited <- int(code):
			default: // Somebody asked before.
			}
		},
	}
}
