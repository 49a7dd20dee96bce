// Package fakecloud puts a cloud together from its parts: the store, the data
// plane, the domain (package cloud), the stored fault rules and the API over HTTP.
// It is the only place that does so: `fakecloud serve`, tests and benchmarks say in a
// Config what differs. What the parts do is none of its business. Begin with New.
package fakecloud

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/console"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/dns"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
	"github.com/ccmlab/ccmlab/fakecloud/server"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// DataPlane is a cloud.DataPlane that is closed with the cloud.
type DataPlane interface {
	cloud.DataPlane
	Close()
}

// Config is what differs between clouds.
type Config struct {
	// Data is the file that holds the state, or store.Memory.
	Data string
	// StoreOptions are for tests.
	StoreOptions []store.Option
	// DataPlane listens on this machine's addresses when nil.
	DataPlane DataPlane
	Logger    *slog.Logger // silent when nil

	// Cloud is without Store, DataPlane and Logger, which New sets. Its SnapshotDir is
	// beside the data when empty.
	Cloud cloud.Config
	// NoSnapshots makes a cloud that has no place for any.
	NoSnapshots bool
	// StartClock, unless nil, puts the stored state under a clock before the cloud
	// is made: its own virtual one, or the real one if the result is nil.
	StartClock func(context.Context, *store.Store) (*cloud.VirtualTime, error)
	// SetUp, unless nil, makes what must be there before the API is: projects and
	// tokens.
	SetUp func(context.Context, *cloud.Cloud) error

	// Dialects are the APIs of other clouds that are served beside this one's own.
	Dialects []DialectListener

	// DNS, unless nil, is where queries for the names of load balancers' addresses are answered.
	DNS *DNSListener

	// RunCommand, unless nil, runs a command of the CLI with a token: it is what the console's page does for
	// people. Without, the page changes nothing.
	RunCommand func(ctx context.Context, url, token string, command []string) error

	// API is without Cloud, Faults and StoreStats, which New sets, as it does with Logger
	// if that is nil.
	API server.Config
}

// DialectListener is a dialect, and where it is spoken.
type DialectListener struct {
	dialect.Dialect
	net.Listener
}

// DNSListener is one address, by UDP and TCP, and the server that knows names of other domains, if one does.
type DNSListener struct {
	Packets  net.PacketConn
	Streams  net.Listener
	Upstream string
}

// Close closes both.
func (l *DNSListener) Close() error { return errors.Join(l.Packets.Close(), l.Streams.Close()) }

// ConfigError means that Config.Cloud makes no sense.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// Fakecloud is a whole cloud. Close it when it is not needed any more.
type Fakecloud struct {
	Cloud *cloud.Cloud
	API   *API

	cfg      Config
	dialects []servedDialect
	serveDNS func(context.Context) error // nil unless there is DNS
	closers  []func() error              // in the order in which things were opened
}

type servedDialect struct {
	handler http.Handler
	net.Listener
}

// New opens the state and puts a cloud on top of it. Nothing happens in it by
// itself before Run.
func New(ctx context.Context, cfg Config) (made *Fakecloud, err error) {
	f := &Fakecloud{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	st, err := store.Open(ctx, cfg.Data, cfg.StoreOptions...)
	if err != nil {
		return nil, err
	}
	f.closers = append(f.closers, st.Close)
	cfg.Cloud.Store, cfg.Cloud.Logger = st, cfg.Logger
	if cfg.StartClock != nil {
		if cfg.Cloud.Virtual, err = cfg.StartClock(ctx, st); err != nil {
			return nil, err
		}
	}
	plane := cfg.DataPlane
	if plane == nil {
		plane = dataplane.New(dataplane.Options{Logger: cfg.Logger})
	}
	f.closers = append(f.closers, func() error { plane.Close(); return nil })
	cfg.Cloud.DataPlane = plane
	if err := f.chooseSnapshotDir(&cfg); err != nil {
		return nil, err
	}
	if f.Cloud, err = cloud.New(cfg.Cloud); err != nil {
		return nil, &ConfigError{err}
	}
	if cfg.SetUp != nil {
		if err := cfg.SetUp(ctx, f.Cloud); err != nil {
			return nil, err
		}
	}
	if cfg.API.Logger == nil {
		cfg.API.Logger = cfg.Logger
	}
	cfg.API.StoreStats = func() server.StoreStats { return server.StoreStats(st.Stats()) }
	if f.API, err = NewAPI(ctx, f.Cloud, cfg.API, cfg.fronts()...); err != nil {
		return nil, err
	}
	f.addDNS(cfg)
	return f, f.addDialects(cfg)
}

func (cfg Config) fronts() (all []server.Front) {
	for _, d := range cfg.Dialects {
		all = append(all, d.Front())
	}
	return all
}

func (f *Fakecloud) addDialects(cfg Config) error {
	scheme := "http"
	if cfg.API.Certificate != nil {
		scheme = "https"
	}
	for _, d := range cfg.Dialects {
		served, err := d.Serve(f.API.Server, f.Cloud, scheme+"://"+d.Addr().String())
		if err != nil {
			return err
		}
		f.dialects = append(f.dialects, servedDialect{served, d.Listener})
	}
	return nil
}

// addDNS has queries answered as long as the cloud runs.
func (f *Fakecloud) addDNS(cfg Config) {
	l := cfg.DNS
	if l == nil {
		return
	}
	s := &dns.Server{
		Pool: cfg.Cloud.LoadBalancerCIDR, Upstream: l.Upstream, Log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
	}
	f.serveDNS = func(ctx context.Context) error { return s.Serve(ctx, l.Packets, l.Streams) }
}

// chooseSnapshotDir has snapshots kept beside the data; those of a state in
// memory are gone with it.
func (f *Fakecloud) chooseSnapshotDir(cfg *Config) (err error) {
	switch {
	case cfg.NoSnapshots:
		cfg.Cloud.SnapshotDir = ""
		return nil
	case cfg.Cloud.SnapshotDir != "":
		return nil
	case cfg.Data != store.Memory:
		cfg.Cloud.SnapshotDir = cfg.Data + ".snapshots"
		return nil
	}
	if cfg.Cloud.SnapshotDir, err = os.MkdirTemp("", "fakecloud-snapshots-"); err != nil {
		return err
	}
	dir := cfg.Cloud.SnapshotDir
	f.closers = append(f.closers, func() error { return os.RemoveAll(dir) })
	return nil
}

// Run runs the cloud and its API until ctx ends or either fails. It calls ready
// once the previous balancers forward again.
func (f *Fakecloud) Run(ctx context.Context, l net.Listener, ready func()) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return f.Cloud.Run(ctx) })
	g.Go(func() error { return f.API.serveHandler(ctx, f.withConsole(ctx, l), l) })
	if f.serveDNS != nil {
		g.Go(func() error { return f.serveDNS(ctx) })
	}
	for _, d := range f.dialects {
		g.Go(func() error { return f.API.ServeFront(ctx, d.handler, d.Listener) })
	}
	g.Go(func() error {
		select {
		case <-f.Cloud.Ready():
			ready()
		case <-ctx.Done():
		}
		return nil
	})
	return g.Wait()
}

// withConsole is the API with the console's page beside it. Pages that are open are left when ctx ends.
func (f *Fakecloud) withConsole(ctx context.Context, l net.Listener) http.Handler {
	cfg := console.CloudConfig{
		API: f.API, HTTPS: f.cfg.API.Certificate != nil, RateLimit: f.cfg.API.RateLimit,
		Log: cmp.Or(f.cfg.Logger, slog.New(slog.DiscardHandler)), Access: f.consoleAccess, IsHost: f.API.IsOwnHost,
	}
	if run := f.cfg.RunCommand; run != nil {
		scheme := "http://"
		if cfg.HTTPS {
			scheme = "https://"
		}
		cfg.Run = func(ctx context.Context, token string, command []string) error {
			return run(ctx, scheme+l.Addr().String(), token, command)
		}
	}
	page := console.NewCloudPage(cfg).Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == console.Path:
			http.Redirect(w, r, console.Path+"/", http.StatusMovedPermanently)
		case strings.HasPrefix(r.URL.Path, console.Path+"/"):
			viewing, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(ctx, cancel)()
			page.ServeHTTP(w, r.WithContext(viewing))
		default:
			f.API.ServeHTTP(w, r)
		}
	})
}

func (f *Fakecloud) consoleAccess(ctx context.Context, token string) console.Access {
	who, err := f.Cloud.Authenticate(ctx, token)
	switch {
	case err != nil:
		return console.NoAccess
	case who.Role == cloud.Viewer:
		return console.MayRead
	}
	return console.MayChange
}

// Close closes what New opened, the latest first. Run must have returned.
func (f *Fakecloud) Close() error {
	var errs []error
	for i := len(f.closers) - 1; i >= 0; i-- {
		errs = append(errs, f.closers[i]())
	}
	f.closers = nil
	return errors.Join(errs...)
}

// API is a cloud's front over HTTP, with the faults that it serves.
type API struct {
	*server.Server
	faults *faults.Rules
}

// NewAPI brings the stored fault rules of a cloud into force and serves the
// cloud with them. It sets cfg's Cloud and Faults. The rules of an API
// take the place of those of the cloud's API before. Rules can name the calls of fronts, too.
func NewAPI(ctx context.Context, c *cloud.Cloud, cfg server.Config, fronts ...server.Front) (*API, error) {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	operations, err := server.FaultableOperations()
	if err != nil {
		return nil, err
	}
	for _, f := range fronts {
		maps.Copy(operations, f.FaultOperations())
	}
	rules, err := faults.Open(ctx, c, operations, log)
	if err != nil {
		return nil, err
	}
	cfg.Cloud, cfg.Faults = c, rules
	srv, err := server.New(cfg)
	if err != nil {
		return nil, err
	}
	return &API{Server: srv, faults: rules}, nil
}

// Serve answers calls until ctx ends, lets those under way finish, and stops.
func (a *API) Serve(ctx context.Context, l net.Listener) error {
	return a.serveHandler(ctx, a.Server, l)
}

func (a *API) serveHandler(ctx context.Context, handler http.Handler, l net.Listener) error {
	defer a.Stop()
	return a.ServeFront(ctx, handler, l)
}

// Stop ends the event streams and the calls that faults hold, and stores what faults
// counted.
func (a *API) Stop() {
	a.Server.Stop()
	a.faults.Close()
}
