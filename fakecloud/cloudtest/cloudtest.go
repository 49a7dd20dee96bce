// Package cloudtest runs a cloud inside a test, in one line:
//
//	c := cloudtest.Start(t)
//
// It is the genuine cloud with its API over HTTP on a loopback address, its state in
// memory, and a project with an administrator's token: whatever the API can do is done
// with Cloud's embedded client. Nothing of it is left when the test ends, and many can
// run beside each other, in one process or in several. Begin with Start.
package cloudtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/server"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// ProjectName is the project that Cloud's tokens belong to.
const ProjectName = "default"

// awaitTimeout bounds Await. It is for a machine that is busy: what is awaited takes as
// long as the cloud's profile says, nothing in Start's default.
const awaitTimeout = 30 * time.Second

// Cloud is a running cloud. Its own methods end the test when the cloud refuses, so they are
// for the test's goroutine. The embedded client's return the error, and are for any.
type Cloud struct {
	// Client calls the cloud as an administrator of project ProjectName.
	*client.Client
	// URL is the base of the API, http://ADDRESS:PORT.
	URL string
	// TokenFile holds the administrator's token.
	TokenFile string
	// Project is the ID of project ProjectName.
	Project string

	dialectURLs map[string]string
	t           testing.TB
}

// DialectURL is where a dialect is spoken, http://ADDRESS:PORT.
func (c *Cloud) DialectURL(name string) string { return c.dialectURLs[name] }

// listenForDialects opens a listener for each dialect that an option asked for.
func (c *Cloud) listenForDialects(cfg *fakecloud.Config) error {
	c.dialectURLs = map[string]string{}
	for i := range cfg.Dialects {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		cfg.Dialects[i].Listener = l
		c.dialectURLs[cfg.Dialects[i].Name] = "http://" + l.Addr().String()
	}
	return nil
}

// Option changes what Start starts.
type Option func(*fakecloud.Config)

// Profile sets how long life cycles take: "instant", which is the default, "fast" or
// "realistic".
func Profile(name string) Option {
	return func(cfg *fakecloud.Config) {
		for _, p := range cloud.Profiles {
			if p.Name == name {
				cfg.Cloud.Profile = p
				return
			}
		}
		panic(fmt.Sprintf("cloudtest.Profile(%q): choose instant, fast or realistic", name))
	}
}

// VirtualClock has the cloud's time stand still until AdvanceClock moves it. Nothing
// becomes due by itself then, not even what takes no time.
func VirtualClock() Option {
	return func(cfg *fakecloud.Config) {
		cfg.StartClock = func(ctx context.Context, s *store.Store) (*cloud.VirtualTime, error) {
			return cloud.StartVirtualTime(ctx, s, time.Now())
		}
	}
}

// Zones replaces the cloud's three zones.
func Zones(names ...string) Option {
	return func(cfg *fakecloud.Config) { cfg.Cloud.Zones = names }
}

// Seed makes delays, made-up names and the random part of IDs repeatable.
func Seed(seed int64) Option {
	return func(cfg *fakecloud.Config) { cfg.Cloud.Seed = seed }
}

// RateLimit is how many calls a second each token may make, and burst how many at once.
// There is no limit without it.
func RateLimit(perSecond, burst int) Option {
	return func(cfg *fakecloud.Config) { cfg.API.RateLimit, cfg.API.RateBurst = perSecond, burst }
}

// IPv6 adds a pool of IPv6 addresses to the cloud. Nothing listens on them, as a machine has
// no such addresses by itself: it implies WithoutTraffic.
func IPv6() Option {
	return func(cfg *fakecloud.Config) {
		WithoutTraffic()(cfg)
		cfg.Cloud.LoadBalancerCIDR6 = netip.MustParsePrefix("fd00:30::/112")
	}
}

// WithoutTraffic is a cloud whose load balancers listen nowhere, and say so in their condition.
// Tests that send nothing through a balancer need no address of this machine then.
func WithoutTraffic() Option {
	return func(cfg *fakecloud.Config) { cfg.DataPlane = &dataplane.None{} }
}

// Dialect has the cloud speak another cloud's API as well, at Cloud.DialectURL.
func Dialect(d dialect.Dialect) Option {
	return func(cfg *fakecloud.Config) {
		cfg.Dialects = append(cfg.Dialects, fakecloud.DialectListener{Dialect: d})
	}
}

// Log has the cloud log to a handler; it is silent without.
func Log(h slog.Handler) Option {
	return func(cfg *fakecloud.Config) { cfg.Logger = slog.New(h) }
}

// Start runs a cloud until t and its subtests have ended. It ends t if the cloud does not
// start.
func Start(t testing.TB, options ...Option) *Cloud {
	t.Helper()
	c, stop, err := start(t, options)
	if err != nil {
		t.Fatalf("cloudtest: %v", err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("cloudtest: stopping the cloud: %v", err)
		}
	})
	return c
}

func start(t testing.TB, options []Option) (c *Cloud, stop func() error, err error) {
	listener, pools, err := claimAddresses()
	if err != nil {
		return nil, nil, err
	}
	c = &Cloud{
		URL: "http://" + listener.Addr().String(), TokenFile: filepath.Join(t.TempDir(), "admin.token"), t: t,
	}
	cfg := fakecloud.Config{
		Data: store.Memory,
		Cloud: cloud.Config{
			Profile: cloud.Profiles[0], Retention: cloud.DefaultRetention,
			InstanceCIDR: pools.instances, LoadBalancerCIDR: pools.balancers,
		},
		API: server.Config{Heartbeat: time.Second},
		SetUp: func(ctx context.Context, made *cloud.Cloud) error {
			secret, err := adminSecret(c.TokenFile)
			if err != nil {
				return err
			}
			project, err := made.EnsureProject(ctx, ProjectName, nil)
			if err != nil {
				return err
			}
			c.Project = project.ID
			return made.SetTokens(ctx, project, []cloud.GivenToken{{Name: "admin", Secret: secret, Role: cloud.Admin}})
		},
	}
	for _, option := range options {
		option(&cfg)
	}
	if err := c.listenForDialects(&cfg); err != nil {
		return nil, nil, errors.Join(err, listener.Close())
	}
	ctx, cancel := context.WithCancel(context.Background()) // t's own ends before its cleanups.
	made, err := fakecloud.New(ctx, cfg)
	if err != nil {
		cancel()
		return nil, nil, errors.Join(err, listener.Close())
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- made.Run(ctx, listener, func() { close(ready) }) }()
	stop = func() error {
		cancel()
		return errors.Join(<-ended, made.Close())
	}
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		return nil, nil, errors.Join(err, made.Close())
	}
	if c.Client, err = c.newClient(c.TokenFile, "cloudtest"); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return c, stop, nil
}

// adminSecret reads the administrator's token, and makes it if there is none.
func adminSecret(file string) (string, error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		content = []byte(cloud.NewSecret())
		err = os.WriteFile(file, content, 0o600)
	}
	return string(content), err
}

func (c *Cloud) newClient(tokenFile, userAgent string) (*client.Client, error) {
	return client.New(client.Config{URL: c.URL, TokenFile: tokenFile, UserAgent: userAgent, Direct: true})
}

// ClientAs returns a client with a token of its own, which carries name as the token's name
// and as the User-Agent: CountCalls(name) counts what it calls.
func (c *Cloud) ClientAs(name string, role api.Role) *client.Client {
	c.t.Helper()
	as, err := c.newClient(c.NewToken(name, role), name)
	if err != nil {
		c.t.Fatalf("cloudtest: a client as %s: %v", name, err)
	}
	return as
}

// NewToken makes a token of that name in project ProjectName, and returns the file that
// holds its secret.
func (c *Cloud) NewToken(name string, role api.Role) (file string) {
	c.t.Helper()
	made, err := c.CreateToken(c.t.Context(), c.Project, api.TokenCreate{Name: name, Role: role})
	if err != nil {
		c.t.Fatalf("cloudtest: token %s: %v", name, err)
	}
	file = filepath.Join(c.t.TempDir(), name+".token")
	if err := os.WriteFile(file, []byte(made.Secret), 0o600); err != nil {
		c.t.Fatalf("cloudtest: token %s: %v", name, err)
	}
	return file
}

// Fail puts a fault into force: which calls it matches, when, and what becomes of them.
func (c *Cloud) Fail(rule api.FaultCreate) *api.Fault {
	c.t.Helper()
	made, err := c.CreateFault(c.t.Context(), rule)
	if err != nil {
		c.t.Fatalf("cloudtest: fault: %v", err)
	}
	return made
}

// CountCalls returns how often the holder of a token called each operation since the cloud
// was started, as the cloud's audit counts them.
func (c *Cloud) CountCalls(token string) map[string]int {
	c.t.Helper()
	sums, err := c.SumAudit(c.t.Context(), client.AuditFilter{Token: token}, api.AuditByOperation)
	if err != nil {
		c.t.Fatalf("cloudtest: counting the calls of %s: %v", token, err)
	}
	counts := map[string]int{}
	for _, sum := range sums {
		counts[sum.Operation] = int(sum.Calls)
	}
	return counts
}

// RunInstance makes an instance of that name, and returns it when it runs.
func (c *Cloud) RunInstance(name string) *api.Instance {
	c.t.Helper()
	made, err := c.CreateInstance(c.t.Context(), api.InstanceCreate{Name: name})
	if err != nil {
		c.t.Fatalf("cloudtest: instance %s: %v", name, err)
	}
	return c.AwaitInstance(made.ID, api.InstanceRunning)
}

// AwaitInstance waits until an instance is in a state, and returns it.
func (c *Cloud) AwaitInstance(id string, state api.InstanceState) *api.Instance {
	c.t.Helper()
	return Await(c, "instance "+id+" to be "+string(state), func(ctx context.Context) (*api.Instance, error) {
		return c.GetInstance(ctx, id)
	}, func(in *api.Instance) bool { return in.State == state })
}

// AwaitLoadBalancer waits until a load balancer is in a state, and returns it.
func (c *Cloud) AwaitLoadBalancer(id string, state api.LoadBalancerState) *api.LoadBalancer {
	c.t.Helper()
	return Await(c, "load balancer "+id+" to be "+string(state), func(ctx context.Context) (*api.LoadBalancer, error) {
		return c.GetLoadBalancer(ctx, id)
	}, func(lb *api.LoadBalancer) bool { return lb.State == state })
}

// Await reads something of the cloud now and after each of the cloud's events, until it is
// as wanted, and returns it. It ends the test if reading fails, or after half a minute with
// what was read last; what names the wait there.
func Await[T any](c *Cloud, what string, read func(context.Context) (T, error), wanted func(T) bool) (last T) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), awaitTimeout)
	defer cancel()
	newest, err := c.NewestEvent(ctx) // Read first, so that no change is missed.
	if err == nil {
		last, err = read(ctx)
	}
	if err == nil && wanted(last) {
		return last
	}
	if err == nil {
		err = c.Watch(ctx, newest, true, func(api.Event) (err error) {
			if last, err = read(ctx); err == nil && wanted(last) {
				err = errAwaited
			}
			return err
		})
	}
	if !errors.Is(err, errAwaited) {
		c.t.Fatalf("cloudtest: waiting for %s: %v; it was %+v", what, err, last)
	}
	return last
}

// errAwaited ends an event stream that is not needed any more.
var errAwaited = errors.New("awaited")

// addressPools are where a cloud's instances and balancers get their addresses.
type addressPools struct{ instances, balancers netip.Prefix }

// Each cloud has a /20 of 127.232.0.0 to 127.254.255.255, where no lab of this project is. It
// is taken by listening on its first address and a port that is the same in all of them:
// whoever else tries fails, in this process or in another.
const (
	firstNet, lastNet = 232, 254
	netSize           = 16 // in /24
	netCount          = (lastNet - firstNet + 1) * 256 / netSize
	apiPort           = 8470
)

// claimAddresses finds a free /20 and listens there for the API. Where only 127.0.0.1 is an
// address of the machine (macOS), it listens there; balancers then tell that they cannot.
func claimAddresses() (net.Listener, addressPools, error) {
	first := os.Getpid() // Processes begin in different places.
	for n := range netCount {
		slot := (first + n) % netCount * netSize
		address := netip.AddrFrom4([4]byte{127, byte(firstNet + slot/256), byte(slot % 256), 1})
		l, err := net.Listen("tcp4", netip.AddrPortFrom(address, apiPort).String())
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			l, err = net.Listen("tcp4", "127.0.0.1:0")
		}
		return l, poolsOf(address), err
	}
	return nil, addressPools{}, fmt.Errorf("all %d ranges of addresses in 127.%d.0.0 to 127.%d.255.255 are taken",
		netCount, firstNet, lastNet)
}

// poolsOf gives instances the second quarter of a /20, and balancers its second half.
func poolsOf(first netip.Addr) addressPools {
	at := first.As4()
	prefix := func(third byte, bits int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{at[0], at[1], at[2] + third, 0}), bits)
	}
	return addressPools{instances: prefix(netSize/4, 22), balancers: prefix(netSize/2, 21)}
}
