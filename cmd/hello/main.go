// hello is the demo's server: it answers over HTTP and UDP which pod it is. It runs in real
// containers, and answers there what the simulated containers of an embedded cluster answer, the
// commands that make it misbehave included: GET /help lists them. Begin with serveUntilEnd; what
// is answered is package demoserver.
//
// Its environment:
//
//	PORT            the port to listen on, TCP and UDP (8080)
//	POD_NAME, POD_NAMESPACE, POD_IP, NODE_NAME, ZONE    what to answer; without ZONE,
//	                the zone comes from the Node's label in the API server (see zone.go)
//	GREETING        shown beside these in answers in JSON
//	SHOW_ENV        names of more variables to show, separated by commas
//	PROXY_PROTOCOL  1: take the client's address from a PROXY header, v1 or v2, where there is one
//	DRAIN_SECONDS   how long to serve on after SIGTERM, while balancers still send requests (5)
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ccmlab/ccmlab/lab/demoserver"
)

func main() {
	err := run(os.Environ())
	var exit exitError
	if errors.As(err, &exit) {
		os.Exit(int(exit))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

type options struct {
	identity demoserver.Identity
	port     uint16
	// env are the environment's variables that are shown.
	env   map[string]string
	proxy bool
	drain time.Duration
	// nodeURL and credentials are for a pod without a zone label: see zoneFinder.
	nodeURL, credentials string
	zoneTimeout          time.Duration
}

func run(environment []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parseOptions(environment)
	if err != nil {
		return err
	}
	address := net.JoinHostPort("", strconv.Itoa(int(o.port)))
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	udp, err := net.ListenPacket("udp", address)
	if err != nil {
		return errors.Join(err, tcp.Close())
	}
	return serveUntilEnd(ctx, o, tcp, udp)
}

// maxDrain bounds DRAIN_SECONDS. A pod has 30 seconds to end in by default.
const maxDrain = time.Hour

// parseOptions reads the options from the environment. Its error names every mistake.
func parseOptions(environment []string) (options, error) {
	env := map[string]string{}
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	get := func(key, otherwise string) string { return cmp.Or(env[key], otherwise) }
	host, _ := os.Hostname() // In a pod this is the pod's name.
	o := options{identity: demoserver.Identity{
		Pod: get("POD_NAME", host), Namespace: get("POD_NAMESPACE", "default"), PodIP: get("POD_IP", "unknown address"),
		Node: get("NODE_NAME", "an unknown node"), Zone: env["ZONE"], Container: "hello", Image: "ccmlab/hello",
	}, env: shownVariables(env), nodeURL: nodeURL(env), credentials: serviceAccountDir, zoneTimeout: defaultZoneTimeout}
	port, portErr := strconv.ParseUint(get("PORT", "8080"), 10, 16)
	if portErr != nil || port == 0 {
		portErr = fmt.Errorf("PORT=%q: a number from 1 to 65535 is needed", env["PORT"])
	}
	proxy, proxyErr := strconv.ParseBool(get("PROXY_PROTOCOL", "0"))
	if proxyErr != nil {
		proxyErr = fmt.Errorf("PROXY_PROTOCOL=%q: 0 or 1 is needed", env["PROXY_PROTOCOL"])
	}
	seconds, drainErr := strconv.ParseUint(get("DRAIN_SECONDS", "5"), 10, 16)
	if drainErr != nil || seconds > uint64(maxDrain/time.Second) {
		drainErr = fmt.Errorf(
			"DRAIN_SECONDS=%q: a number from 0 to %d is needed", env["DRAIN_SECONDS"], maxDrain/time.Second,
		)
	}
	o.port, o.proxy, o.drain = uint16(port), proxy, time.Duration(seconds)*time.Second
	return o, errors.Join(portErr, proxyErr, drainErr)
}

// alwaysShown names the variables that the demo itself sets.
const alwaysShown = "POD_NAME,POD_NAMESPACE,POD_IP,NODE_NAME,ZONE,GREETING"

// shownVariables returns the variables of alwaysShown and of SHOW_ENV. Others are not shown: a
// container cannot know which of its variables come from a Secret, and whoever reaches the port
// reads what is shown.
func shownVariables(env map[string]string) map[string]string {
	variables := map[string]string{}
	for name := range strings.SplitSeq(alwaysShown+","+env["SHOW_ENV"], ",") {
		if value, set := env[strings.TrimSpace(name)]; set {
			variables[strings.TrimSpace(name)] = demoserver.Shorten(value)
		}
	}
	return variables
}
