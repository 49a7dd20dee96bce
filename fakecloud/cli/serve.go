package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
	"github.com/ccmlab/ccmlab/fakecloud/dns"
	"github.com/ccmlab/ccmlab/fakecloud/server"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

type serveOptions struct {
	cloud                               cloud.Config // what is told as it is
	listen, data, profile, project      string
	certFile, keyFile                   string
	selfSignedTLS                       bool
	sans, hosts                         []string
	tokens, dialects                    []string
	dns, dnsUpstream                    string
	defaultTags                         map[string]string
	instanceCIDR, loadBalancerCIDR      string
	loadBalancerMode, loadBalancerCIDR6 string
	loadBalancerInterface               string
	targetRanges                        []string
	logFormat, logLevel, clock          string
	rateLimit, rateBurst                int
}

func (a *app) serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the cloud until it is interrupted",
		Long: `Run the cloud until it is interrupted. Its state is in one file and survives
being killed at any point; what was under way goes on at the next start.`,
		Example: `  fakecloud serve
  fakecloud serve --data :memory: --profile realistic --log-format json
  fakecloud serve --listen 127.0.0.1:8471 --data lab.db --token operator:admin=lab.token --token ccm=ccm.token
  fakecloud serve --listen 0.0.0.0:8470 --tls-cert cloud.crt --tls-key cloud.key
  fakecloud serve --listen 0.0.0.0:8470 --tls-self-signed --tls-san cloud.example`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(
		&o.listen, "listen", defaultListen,
		"address and port of the API, on loopback unless it speaks TLS; port 0 takes any free one",
	)
	f.StringArrayVar(
		&o.dialects, "dialect", nil,
		"NAME[=ADDRESS] of another cloud's API to serve as well, for the same tokens, on loopback unless it speaks TLS: "+
			strings.Join(dialectDefaults(), ", ")+"; repeatable",
	)
	f.StringVar(
		&o.dns, "dns", "",
		"address and port where queries for the names of load balancers' addresses are answered, as "+
			"cip-127-30-64-1."+dns.Domain,
	)
	f.StringVar(
		&o.dnsUpstream, "dns-upstream", "", "address and port of the DNS server that --dns asks for names of other domains",
	)
	f.StringVar(&o.certFile, "tls-cert", "", "PEM certificate, and what it was signed by; makes the API HTTPS")
	f.StringVar(&o.keyFile, "tls-key", "", "PEM key of --tls-cert")
	f.BoolVar(
		&o.selfSignedTLS, "tls-self-signed", false,
		"make a CA and a certificate, and keep them beside the data; clients verify it with ca.crt",
	)
	f.StringArrayVar(
		&o.sans, "tls-san", nil,
		"IP address or DNS name that --tls-self-signed is for, beside localhost and that of --listen; repeatable",
	)
	f.StringArrayVar(
		&o.hosts, "host", nil,
		"DNS name by which clients reach the API, beside localhost and those of the certificate: under others, what needs no token is refused; repeatable",
	)
	f.StringVar(&o.data, "data", dataFile(), "file that holds the state, or :memory:; snapshots lie beside it")
	f.StringArrayVar(
		&o.tokens, "token", []string{"operator:admin=" + filepath.Join(stateDir(), "token")},
		"NAME[:ROLE]=FILE of a bearer token that is a viewer, editor (the default) or admin; a missing file is created with a new token; a token given at an earlier start and not now is not valid any more; repeatable",
	)
	f.StringVar(&o.profile, "profile", "fast", "how long things take: instant, fast or realistic")
	f.StringVar(&o.cloud.Region, "region", cloud.DefaultRegion, "the region's name")
	f.StringSliceVar(&o.cloud.Zones, "zones", nil, "the zones' names (default <region>a,<region>b,<region>c)")
	f.StringVar(&o.project, "project", "default", "the project's name")
	f.StringToStringVar(
		&o.defaultTags, "default-tag", nil, "KEY=VALUE set on each new resource that lacks the key; repeatable",
	)
	f.StringVar(
		&o.instanceCIDR, "instance-cidr", cloud.DefaultInstanceCIDR.String(),
		"the CIDR of each project's network \"default\", which they all share: where instances' addresses come from",
	)
	f.StringVar(
		&o.loadBalancerCIDR, "load-balancer-cidr", cloud.DefaultLoadBalancerCIDR.String(),
		"where load balancers' addresses come from",
	)
	f.StringVar(
		&o.loadBalancerCIDR6, "load-balancer-cidr6", "",
		"CIDR of the IPv6 addresses of load balancers that ask for one, e.g. ::1/128, the only one of loopback; empty: none",
	)
	f.StringVar(
		&o.loadBalancerMode, "load-balancer-mode", "",
		"where load balancers listen: loopback, on addresses that are there already, as all of 127/8 is on Linux; interface, on addresses that are added to --load-balancer-interface; none, nowhere, which their states say (default interface if --load-balancer-interface is given, loopback if not)",
	)
	f.StringVar(
		&o.loadBalancerInterface, "load-balancer-interface", "",
		"network interface that load balancers' addresses are added to, which needs CAP_NET_ADMIN",
	)
	f.StringArrayVar(
		&o.targetRanges, "target-range", nil,
		"CIDR of machines that may be instances and targets of load balancers, beside --instance-cidr; 127.0.0.0/16 and 169.254.0.0/16 need a range within them, such as 127.0.0.1/32; repeatable",
	)
	f.DurationVar(
		&o.cloud.Retention, "retention", cloud.DefaultRetention,
		"how long a terminated instance stays readable; 0s: not at all",
	)
	f.DurationVar(
		&o.cloud.AccessTokenLifetime, "access-token-lifetime", cloud.DefaultAccessTokenLifetime,
		"how long an access token is valid, which a dialect's clients get for a token by OAuth 2",
	)
	f.Int64Var(
		&o.cloud.Seed, "seed", 0,
		"repeats, in the order of the calls, drawn delays, made-up names and the random part of IDs (the rest of an ID is the time); 0 does not",
	)
	f.StringVar(
		&o.clock, "clock", "real",
		"real, or virtual: time stands still until \"fakecloud clock advance\" moves it, and is kept with the data; no health checks then",
	)
	f.IntVar(&o.rateLimit, "rate-limit", api.DefaultRateLimit, "calls a second that each token may make; 0: any number")
	f.IntVar(&o.rateBurst, "rate-burst", 1000, "calls that a token may make at once, before --rate-limit slows it down")
	f.Int64Var(
		&o.cloud.InstanceQuota, "instance-quota", cloud.DefaultQuotas[cloud.QuotaInstances],
		"how many instances a project may have, unless \"fakecloud quotas set\" says otherwise",
	)
	f.StringVar(
		&o.cloud.QuotaAdvice, "quota-advice", "",
		"what to do when a quota is used up, for the error, beside removing something; empty: have an admin raise it",
	)
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error; debug also logs the reads that go well")
	clikit.CompleteFlag(cmd, "dialect", dialectNames()...)
	clikit.CompleteFlag(cmd, "load-balancer-mode", balancerModes...)
	clikit.CompleteFlag(cmd, "profile", "instant", "fast", "realistic")
	clikit.CompleteFlag(cmd, "clock", "real", "virtual")
	clikit.CompleteFlag(cmd, "log-format", "text", "json")
	clikit.CompleteFlag(cmd, "log-level", "debug", "info", "warn", "error")
	return cmd
}

func (o *serveOptions) run(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	tokens, err := parseTokens(o.tokens)
	if err != nil {
		return err
	}
	log, err := o.logger(cmd)
	if err != nil {
		return err
	}
	if o.rateLimit < 0 || o.rateLimit > 0 && o.rateBurst < 1 {
		return clikit.Usagef(
			"--rate-limit %d, --rate-burst %d: give a limit of 0 or more, and a burst of 1 or more", o.rateLimit,
			o.rateBurst,
		)
	}
	if o.cloud.InstanceQuota < 1 || o.cloud.InstanceQuota > cloud.MaxQuota {
		return clikit.Usagef("--instance-quota %d: give 1 to %d", o.cloud.InstanceQuota, cloud.MaxQuota)
	}
	if err := o.checkBalancerMode(); err != nil {
		return err
	}
	cfg, err := o.cloudConfig(log)
	if err != nil {
		return err
	}
	cert, caFile, err := o.certificate()
	if err != nil {
		return err
	}
	listener, err := listen(ctx, "--listen", o.listen, cert != nil)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // Closed by the server, if it came to that.
	spoken, err := o.listenForDialects(ctx, cert != nil)
	defer func() { // Closed by the server, if it came to that.
		for _, d := range spoken {
			_ = d.Close()
		}
	}()
	if err != nil {
		return err
	}
	names, err := o.listenForDNS(ctx)
	if err != nil {
		return err
	}
	if names != nil {
		defer func() { _ = names.Close() }() // Closed by the server, if it came to that.
	}
	var given []cloud.GivenToken // read when the rest of the configuration is known to work
	f, err := fakecloud.New(ctx, fakecloud.Config{
		Data: o.data, Logger: log, Cloud: cfg, DataPlane: o.dataPlane(log), StartClock: o.startTime,
		SetUp: func(ctx context.Context, c *cloud.Cloud) (err error) {
			if given == nil {
				if given, err = readTokens(tokens); err != nil {
					return err
				}
			}
			return o.admit(ctx, c, given)
		},
		Dialects: spoken, DNS: names, RunCommand: newPageRunner(cmp.Or(caFile, o.certFile)),
		API: server.Config{
			Certificate: cert, Hosts: lowerCased(o.hosts), RateLimit: o.rateLimit, RateBurst: o.rateBurst,
		},
	})
	var senseless *fakecloud.ConfigError
	switch {
	case errors.As(err, &senseless):
		return clikit.Usage(err)
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	scheme, ca := "http", ""
	if cert != nil {
		scheme = "https"
	}
	if caFile != "" {
		ca = "; CA in " + caFile
	}
	return f.Run(ctx, listener, func() {
		_, _ = fmt.Fprintf(
			cmd.ErrOrStderr(), "fakecloud is ready at %s://%s; token in %s%s\n", scheme, listener.Addr(),
			tokens[0].file, ca,
		)
		for _, d := range spoken {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s is served at %s://%s\n", d.Name, scheme, d.Addr())
		}
		if names != nil {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "DNS is served at %s\n", names.Streams.Addr())
		}
	})
}

func lowerCased(names []string) (lower []string) {
	for _, n := range names {
		lower = append(lower, strings.ToLower(n))
	}
	return lower
}

// listenForDialects opens a listener for each dialect. Those that were opened are given with an
// error, too.
func (o *serveOptions) listenForDialects(
	ctx context.Context,
	secure bool,
) (spoken []fakecloud.DialectListener, err error) {
	for _, spec := range o.dialects {
		name, address, _ := strings.Cut(spec, "=")
		at := slices.Index(dialectNames(), name)
		switch {
		case at < 0:
			return spoken, clikit.Usagef("--dialect %q: choose %s", spec, strings.Join(dialectNames(), ", "))
		case slices.ContainsFunc(spoken, func(d fakecloud.DialectListener) bool { return d.Name == name }):
			return spoken, clikit.Usagef("--dialect: %q is given twice", name)
		}
		l, err := listen(ctx, "--dialect", cmp.Or(address, dialects[at].listen), secure)
		if err != nil {
			return spoken, err
		}
		spoken = append(spoken, fakecloud.DialectListener{Dialect: dialects[at].Dialect, Listener: l})
	}
	return spoken, nil
}

// listenForDNS opens what queries come to; nil if there are to be none.
func (o *serveOptions) listenForDNS(ctx context.Context) (*fakecloud.DNSListener, error) {
	if o.dns == "" {
		if o.dnsUpstream != "" {
			return nil, clikit.Usagef("--dns-upstream is for --dns")
		}
		return nil, nil
	}
	for flag, address := range map[string]string{"--dns": o.dns, "--dns-upstream": cmp.Or(o.dnsUpstream, o.dns)} {
		if _, err := netip.ParseAddrPort(address); err != nil {
			return nil, clikit.Usagef("%s %q: want ADDRESS:PORT, such as 127.0.0.1:8453", flag, address)
		}
	}
	var config net.ListenConfig
	streams, err := config.Listen(ctx, "tcp", o.dns)
	if err == nil {
		var packets net.PacketConn
		if packets, err = config.ListenPacket(ctx, "udp", streams.Addr().String()); err == nil {
			return &fakecloud.DNSListener{Packets: packets, Streams: streams, Upstream: o.dnsUpstream}, nil
		}
		_ = streams.Close()
	}
	return nil, fmt.Errorf("cannot serve DNS: %w; choose another address or port with --dns", err)
}

// startTime puts the data under the clock asked for.
func (o *serveOptions) startTime(ctx context.Context, s *store.Store) (virtual *cloud.VirtualTime, err error) {
	if o.clock == "virtual" {
		virtual, err = cloud.StartVirtualTime(ctx, s, time.Now())
	} else {
		err = cloud.StartRealTime(ctx, s, time.Now())
	}
	if err != nil {
		return nil, fmt.Errorf("--clock %s, --data %s: %w", o.clock, o.data, err)
	}
	return virtual, nil
}

// admit sets up the project and those who may use it.
func (o *serveOptions) admit(ctx context.Context, c *cloud.Cloud, tokens []cloud.GivenToken) error {
	p, err := c.EnsureProject(ctx, o.project, o.defaultTags)
	var refused *cloud.Error
	switch {
	case errors.As(err, &refused):
		return clikit.Usagef("--project, --default-tag: %w", err)
	case err != nil:
		return err
	}
	if err := c.SetTokens(ctx, p, tokens); err != nil {
		return fmt.Errorf("--token: %w", err)
	}
	return nil
}

// readTokens reads the files, and creates those that are missing.
func readTokens(files []token) (tokens []cloud.GivenToken, err error) {
	for _, f := range files {
		t, err := f.read()
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, t)
	}
	return tokens, nil
}

func (o *serveOptions) logger(cmd *cobra.Command) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return nil, clikit.Usagef("--log-level %q: choose debug, info, warn or error", o.logLevel)
	}
	options := &slog.HandlerOptions{Level: level}
	switch o.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), options)), nil
	}
	return nil, clikit.Usagef("--log-format %q: choose text or json", o.logFormat)
}

func (o *serveOptions) cloudConfig(log *slog.Logger) (cloud.Config, error) {
	if o.clock != "real" && o.clock != "virtual" {
		return cloud.Config{}, clikit.Usagef("--clock %q: choose real or virtual", o.clock)
	}
	if o.cloud.AccessTokenLifetime < time.Second { // OAuth 2 counts it in seconds.
		return cloud.Config{}, clikit.Usagef("--access-token-lifetime %s: give one second or more", o.cloud.AccessTokenLifetime)
	}
	var err error
	cfg := o.cloud
	cfg.Logger = log
	if cfg.Profile, err = cloud.ProfileNamed(o.profile); err != nil {
		return cfg, clikit.Usagef("--profile: %w", err)
	}
	if cfg.InstanceCIDR, err = netip.ParsePrefix(o.instanceCIDR); err != nil {
		return cfg, clikit.Usagef("--instance-cidr: %w", err)
	}
	if cfg.LoadBalancerCIDR, err = netip.ParsePrefix(o.loadBalancerCIDR); err != nil {
		return cfg, clikit.Usagef("--load-balancer-cidr: %w", err)
	}
	for _, text := range o.targetRanges {
		r, err := netip.ParsePrefix(text)
		if err != nil {
			return cfg, clikit.Usagef("--target-range: %w", err)
		}
		cfg.TargetRanges = append(cfg.TargetRanges, r)
	}
	if o.loadBalancerCIDR6 != "" {
		if cfg.LoadBalancerCIDR6, err = netip.ParsePrefix(o.loadBalancerCIDR6); err != nil {
			return cfg, clikit.Usagef("--load-balancer-cidr6: %w", err)
		}
	}
	return cfg, nil
}

// certificate is what makes the API HTTPS, or nil, and the file of its CA if
// that is our own.
func (o *serveOptions) certificate() (cert *tls.Certificate, caFile string, err error) {
	switch {
	case len(o.sans) > 0 && !o.selfSignedTLS:
		return nil, "", clikit.Usagef("--tls-san is for --tls-self-signed: a certificate of your own has its names already")
	case o.selfSignedTLS && (o.certFile != "" || o.keyFile != ""):
		return nil, "", clikit.Usagef("--tls-self-signed, and --tls-cert or --tls-key: give one or the other")
	case o.selfSignedTLS:
		return o.selfSigned(time.Now())
	case o.certFile == "" && o.keyFile == "":
		return nil, "", nil
	case o.certFile == "" || o.keyFile == "":
		return nil, "", clikit.Usagef("TLS needs both --tls-cert and --tls-key")
	}
	pair, err := tls.LoadX509KeyPair(o.certFile, o.keyFile)
	if err != nil {
		return nil, "", fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	return &pair, "", nil
}

// listen refuses addresses that others can reach, unless the API is to speak
// TLS.
func listen(ctx context.Context, flag, address string, secure bool) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, clikit.Usagef("%s %q: want host:port, such as %s", flag, address, defaultListen)
	}
	ip, err := netip.ParseAddr(host)
	if !secure && host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return nil, clikit.Usagef(
			"%s %q: only loopback addresses, such as %s: without TLS (--tls-cert and --tls-key, or --tls-self-signed) the token would cross the network in the clear",
			flag, address, defaultListen,
		)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf(
			"the API cannot listen: %w; stop what holds that port, or choose another with %s", err, flag,
		)
	}
	return l, nil
}

func parseTokens(specs []string) ([]token, error) {
	var tokens []token
	seen := map[string]bool{}
	for _, spec := range specs {
		who, file, ok := strings.Cut(spec, "=")
		name, role, given := strings.Cut(who, ":")
		if !given {
			role = string(cloud.Editor)
		}
		if !ok || name == "" || file == "" {
			return nil, clikit.Usagef("--token %q: want NAME=FILE or NAME:ROLE=FILE", spec)
		}
		if !cloud.Role(role).Valid() {
			return nil, clikit.Usagef("--token %q: no role %q: choose viewer, editor or admin", spec, role)
		}
		if seen[name] {
			return nil, clikit.Usagef("--token: %q is named twice", name)
		}
		seen[name] = true
		tokens = append(tokens, token{name, file, cloud.Role(role)})
	}
	return tokens, nil
}

const (
	modeLoopback  = "loopback"
	modeInterface = "interface"
	modeNone      = "none"
)

// balancerModes are the values of --load-balancer-mode.
var balancerModes = []string{modeLoopback, modeInterface, modeNone}

// checkBalancerMode refuses modes that there are not, and those that the
// interface contradicts. Without a mode, the interface decides.
func (o *serveOptions) checkBalancerMode() error {
	switch given := o.loadBalancerInterface != ""; {
	case o.loadBalancerMode != "" && !slices.Contains(balancerModes, o.loadBalancerMode):
		return clikit.Usagef("--load-balancer-mode %q: choose %s", o.loadBalancerMode, strings.Join(balancerModes, ", "))
	case o.loadBalancerMode == modeInterface && !given:
		return clikit.Usagef("--load-balancer-mode %s: name the interface with --load-balancer-interface", modeInterface)
	case o.loadBalancerMode != "" && o.loadBalancerMode != modeInterface && given:
		return clikit.Usagef(
			"--load-balancer-mode %s and --load-balancer-interface %s: leave out one of them", o.loadBalancerMode,
			o.loadBalancerInterface,
		)
	}
	return nil
}

func (o *serveOptions) dataPlane(log *slog.Logger) fakecloud.DataPlane {
	if o.loadBalancerMode == modeNone {
		return &dataplane.None{}
	}
	return dataplane.New(dataplane.Options{Logger: log, Interface: o.loadBalancerInterface})
}

// token is a bearer token, by name and role, and the file that holds it.
type token struct {
	name, file string
	role       cloud.Role
}

// read returns the token in the file. If the file is missing, it is created with a new
// secret.
func (t token) read() (cloud.GivenToken, error) {
	content, err := os.ReadFile(t.file)
	if errors.Is(err, os.ErrNotExist) {
		content = []byte(cloud.NewSecret() + "\n")
		err = writeSecret(t.file, content)
	}
	if err != nil {
		return cloud.GivenToken{}, fmt.Errorf("token %s: %w", t.name, err)
	}
	return cloud.GivenToken{Name: t.name, Role: t.role, Secret: strings.TrimSpace(string(content))}, nil
}

// writeSecret writes a file that only its owner can read, completely or not at all.
func writeSecret(path string, content []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".token-*") // With mode 0600.
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return store.SyncFile(dir) // Or a power cut may undo the rename.
}
