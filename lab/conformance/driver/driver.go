// Package driver has the suite see and steer a cloud through a driver that is a program of its own, in
// any language: it speaks the protocol of package protocol. Connect is the suite's side, whose Cloud
// has exactly the features that the driver names. Program starts a driver and ends it. NewHandler is the
// other side, for a driver that is written in Go against the interfaces of package conformance.
//
// It knows no cloud. Begin with Connect; openapi.yaml of package protocol says what a driver answers.
package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
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

// Cloud is what a driver sees and steers. It has the roles that the driver names, and FaultInjector,
// CallCounter and CallJournal also where a proxy was opened.
type Cloud struct {
	*conformance.Client
	driver *remoteDriver
}

// remoteDriver is a program that answers the protocol's operations.
type remoteDriver struct {
	connection
	described protocol.Driver
}

// knownFeatures are all that a driver can name.
func knownFeatures() (names []string) {
	for _, f := range append(conformance.AllFeatures(), conformance.RoleInstanceBatches, conformance.RoleCallJournal) {
		names = append(names, string(f))
	}
	return names
}

// Features implements conformance.Driver. What a driver of a later release can do beyond what this suite knows
// is not among them.
func (r *remoteDriver) Features() (features []conformance.Feature) {
	for _, name := range r.described.Features {
		if slices.Contains(knownFeatures(), name) {
			features = append(features, conformance.Feature(name))
		}
	}
	return features
}

// UnknownFeature says why a feature is left aside.
const UnknownFeature = "this suite does not know it: it is mistyped, or of a later release"

// UnknownFeatures are those that the driver names, or has an answer of its proxy for, and this suite does not know.
func (c *Cloud) UnknownFeatures() []string {
	named := slices.Clone(c.Described().Features)
	if proxy := c.Described().Proxy; proxy != nil {
		for _, kind := range slices.Sorted(maps.Keys(proxy.Answers)) {
			named = append(named, string(conformance.FaultFeature(conformance.FaultKind(kind))))
		}
	}
	return slices.DeleteFunc(named, func(name string) bool { return slices.Contains(knownFeatures(), name) })
}

// startBound is how long a driver may take until it listens.
const startBound = 30 * time.Second

// Connect asks a driver what it can do. It waits for one that does not listen yet, unless ended says
// that there will be none; ended may be nil.
func Connect(ctx context.Context, a Address, hello protocol.Hello, ended func() error) (*Cloud, error) {
	if ended == nil {
		ended = func() error { return nil }
	}
	d := &remoteDriver{connection: newConnection(a, ended)}
	hello.Protocols, hello.Features = []string{protocol.Version}, knownFeatures()
	bounded, cancel := context.WithTimeoutCause(
		ctx, startBound, fmt.Errorf("the driver does not listen on %s after %s", a.target, startBound))
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(bounded, connectInterval, true, func(ctx context.Context) (done bool, err error) {
		last = d.Call(ctx, helloOperation, "", hello, &d.described)
		notYet := errors.Is(last, syscall.ECONNREFUSED) || errors.Is(last, syscall.ENOENT)
		if err := ended(); err != nil && notYet {
			return false, err
		}
		return !notYet, nil
	})
	switch {
	case context.Cause(bounded) != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("%w: %w", context.Cause(bounded), last)
	case err != nil:
		return nil, err
	case last != nil:
		return nil, last
	}
	if d.described.CallTimeoutSeconds > 0 {
		d.timeout = time.Duration(d.described.CallTimeoutSeconds) * time.Second
	}
	return &Cloud{conformance.NewClient(d), d}, checkDescription(d.described)
}

// connectInterval is how often a driver that does not listen yet is tried.
const connectInterval = 50 * time.Millisecond

// checkDescription returns an error when the driver's version of the protocol is another one.
func checkDescription(d protocol.Driver) error {
	if d.Protocol != protocol.Version {
		return fmt.Errorf(
			"the driver %s speaks version %q of the protocol, and this suite %q: one of them must be of another release",
			d.Name, d.Protocol, protocol.Version)
	}
	return nil
}

// Described is what the driver says of itself.
func (c *Cloud) Described() protocol.Driver { return c.driver.described }

// Healthy returns an error when the driver does not work any more.
func (c *Cloud) Healthy(ctx context.Context) error {
	if err := c.driver.ended(); err != nil {
		return err
	}
	_, err := c.ListBalancers(ctx)
	return err
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
