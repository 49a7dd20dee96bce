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

	"github.com/ccmlab/ccmlab/lab/demoserver"
)

const (
	// shutdownTimeout is how long requests in progress have once draining is over. With the
	// default drain it ends within a pod's usual 30 seconds.
	shutdownTimeout = 10 * time.Second
	// headerTimeout is how long a client has to send a request's header.
	headerTimeout = 30 * time.Second
)

// serveUntilEnd serves on both listeners until ctx ends, a listener fails or a command says to
// exit, and closes them. When ctx ends it goes on serving for o.drain, while load balancers take
// the pod out, and then answers the requests in progress.
func serveUntilEnd(ctx context.Context, o options, tcp net.Listener, udp net.PacketConn) error {
	if o.proxy {
		// A header is used where there is one: the kubelet's probes have none.
		tcp = &proxyproto.Listener{Listener: tcp, ReadHeaderTimeout: headerTimeout,
			ConnPolicy: func(proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) { return proxyproto.USE, nil }}
	}
	var draining atomic.Bool
	exited := make(chan int, 1)
	zone := newZoneFinder(o)
	answers := newAnswerer(o, zone.currentZone, portNumber(tcp.Addr()), exited)
	server := &http.Server{Handler: newHandler(answers, &draining), ReadHeaderTimeout: headerTimeout}
	var served sync.WaitGroup
	polling, stopPolling := context.WithCancel(ctx)
	defer stopPolling()
	served.Go(func() { zone.pollNode(polling) })
	zone.waitForAnswer(ctx)
	served.Go(func() { answers.Echo(udp) })
	failed := make(chan error, 1)
	served.Go(func() { failed <- server.Serve(tcp) })
	fmt.Printf("listening on %s, TCP and UDP\n", tcp.Addr())
	err := waitForEnd(ctx, o.drain, &draining, exited, failed)
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	stopPolling()
	err = errors.Join(err, server.Shutdown(shutdown), udp.Close())
	served.Wait()
	return err
}

// exitError is the exit code that a POST /exit has asked for.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("asked to exit with code %d", int(e)) }

func portNumber(address net.Addr) uint16 {
	at, _ := netip.ParseAddrPort(address.String())
	return at.Port()
}

// waitForEnd returns when it is time to stop listening: after the drain that follows the end of
// ctx, or at once, with an error, on a failure or a POST /exit.
func waitForEnd(
	ctx context.Context,
	drain time.Duration,
	draining *atomic.Bool,
	exited <-chan int,
	failed <-chan error,
) error {
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

// newHandler returns the answerer with one more path: /client answers with the client's address
// and nothing else.
func newHandler(answers *demoserver.Answerer, draining *atomic.Bool) http.Handler {
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

// filesDir is where the demo's pods mount what they show. No other folder is shown: a container
// cannot tell a ConfigMap's volume from a Secret's.
const filesDir = "/etc/demo"

// newAnswerer returns the answerer for this container. A simulated node knows which probes a
// container declares; a real container does not, and assumes the demo's: /startupz, /livez and
// /readyz.
func newAnswerer(o options, zone func() string, port uint16, exited chan<- int) *demoserver.Answerer {
	return &demoserver.Answerer{
		Identity: func() demoserver.Identity {
			id := o.identity
			id.Zone = zone()
			return id
		},
		Env: o.env,
		Files: func() map[string]string {
			return demoserver.ReadVolumes([]demoserver.VolumeMount{{Path: filesDir, Host: filesDir}})
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
			default: // An exit is under way.
			}
		},
	}
}
