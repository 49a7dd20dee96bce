// Package driver has the suite see and steer a cloud through a driver that is a program of its own, in
// any language: it speaks the protocol of package protocol. Connect is the suite's side, whose Client
// has exactly the features that the driver names. Program starts a driver and ends it. A driver that is written in Go
// against the interface of package protocol is served by protocol.NewHandler.
//
// It knows no cloud. Begin with Connect; openapi.yaml of package protocol says what a driver answers.
package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// Address is where a driver listens.
type Address struct {
	network, target string
	token           string
}

// ParseAddress reads unix:///path or http://127.0.0.1:port. token is for the latter, which everybody on
// the machine can reach.
func ParseAddress(text, token string) (Address, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Address{}, fmt.Errorf("the driver's address %q: %w", text, err)
	}
	switch {
	case u.Scheme == "unix" && u.Host == "" && strings.HasPrefix(u.Path, "/"):
		return Address{network: "unix", target: u.Path}, nil
	case u.Scheme != "http" || u.Port() == "" || u.Path != "" && u.Path != "/":
		return Address{}, fmt.Errorf("the driver's address %q: want unix:///path or http://127.0.0.1:port", text)
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Hostname() != "localhost" && (err != nil || !ip.IsLoopback()) {
		return Address{}, fmt.Errorf("the driver's address %q: it is not this machine's own", text)
	}
	if token == "" {
		return Address{}, fmt.Errorf(
			"the driver's address %q: everybody on this machine can reach it, so that it must ask for a token: "+
				"give it to the suite in %s", text, protocol.EnvToken)
	}
	return Address{network: "tcp", target: u.Host, token: token}, nil
}

// IsAddress tells an address from a program's path.
func IsAddress(text string) bool { return strings.Contains(text, "://") }

// UnknownFeature says why a feature is left aside.
const UnknownFeature = "this suite does not know it: it is mistyped, or of a later release"

const (
	// startBound is how long a driver may take until it listens.
	startBound = 30 * time.Second
	// connectInterval is how often a driver that does not listen yet is tried.
	connectInterval = 50 * time.Millisecond
)

// Connect asks a driver what it can do. It waits for one that does not listen yet, unless ended says
// that there will be none; ended may be nil.
func Connect(
	ctx context.Context, a Address, hello protocol.Hello, ended func() error,
) (*conformance.Client, error) {
	cloud, err := connectBy(ctx, a.connection(ended), hello)
	if errors.Is(err, errNotListening) {
		err = fmt.Errorf("the driver on %s: %w", a.target, err)
	}
	return cloud, err
}

var errNotListening = fmt.Errorf("it does not listen after %s", startBound)

func connectBy(ctx context.Context, d *protocol.Connection, hello protocol.Hello) (*conformance.Client, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, startBound, errNotListening)
	defer cancel()
	var cloud *conformance.Client
	var last error
	err := wait.PollUntilContextCancel(bounded, connectInterval, true, func(ctx context.Context) (bool, error) {
		cloud, last = conformance.Connect(ctx, d, hello)
		return !errors.Is(last, syscall.ECONNREFUSED) && !errors.Is(last, syscall.ENOENT), nil
	})
	switch {
	case context.Cause(bounded) != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("%w: %w", context.Cause(bounded), last)
	case err != nil:
		return nil, err
	case last != nil:
		return nil, last
	}
	if seconds := cloud.Described().CallTimeoutSeconds; seconds > 0 {
		d.Timeout = time.Duration(seconds) * time.Second
	}
	return cloud, nil
}

// connection sends requests to the address.
func (a Address) connection(ended func() error) *protocol.Connection {
	return &protocol.Connection{
		Transport: &http.Transport{DialContext: a.dialer()}, Host: a.host(), Token: a.token,
		Timeout: protocol.DefaultTimeout, Ended: ended,
	}
}

// dialer connects to the address, whatever host a URL has.
func (a Address) dialer() func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, a.network, a.target)
	}
}

// host is what requests have as their host.
func (a Address) host() string {
	if a.network == "unix" {
		return "driver"
	}
	return cmp.Or(a.target, "driver")
}
