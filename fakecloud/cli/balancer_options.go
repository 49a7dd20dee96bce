package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

// balancerOptions are the flags of `load-balancers create` and `update`. Those with a field of
// the same meaning in the request set it.
type balancerOptions struct {
	request            api.LoadBalancerUpdate
	listeners, targets []string
	network            string
	check              string
	checkOptions       api.HealthCheck
	sources            []string
	proxyProtocol      string
	connectionLimit    int
}

func (a *app) addBalancerFlags(cmd *cobra.Command, o *balancerOptions) {
	f, u, h := cmd.Flags(), &o.request, &o.checkOptions
	f.StringArrayVar(
		&o.listeners, "listener", nil,
		"PORT:TARGETPORT[/PROTOCOL], e.g. 8080:30080 or 5353:30053/udp; PORT[/PROTOCOL] if both are the same; repeatable",
	)
	f.StringArrayVar(&o.targets, "target", nil, "name or ID of an instance; repeatable")
	addText(cmd, &u.Type, "type", "small, medium or large, which have limits, or unlimited (default unlimited)")
	addText(
		cmd, &u.Kind, "kind",
		"proxy, or network, which passes packets on as they are, so that targets see the client's address (default proxy)",
	)
	addText(
		cmd, &u.Scheme, "scheme",
		"public, or internal, which serves on its private address alone if it has one (default public)",
	)
	f.StringVar(&o.network, "network", "", "name or ID of a network to attach it to")
	addText(
		cmd, &u.PrivateAddress, "private-address",
		"its address in the network that it is attached to (default: the lowest free one)",
	)
	addText(
		cmd, &u.Algorithm, "algorithm", "round-robin (a proxy's default), least-connections or source-hash; "+
			"of network balancers flow-hash (the default) or source-hash",
	)
	f.StringVar(&o.proxyProtocol, "proxy-protocol", "", "v1 or v2: tell the targets of tcp listeners the client's address")
	f.IntVar(
		&o.connectionLimit, "connection-limit", 0,
		"refuse connections beyond this many at a time, per listener (default: no limit)",
	)
	f.StringSliceVar(&o.sources, "source-range", nil, "CIDR of those who may connect (default: everyone); repeatable")
	addSeconds := func(flag, usage string, set func(seconds int)) {
		addDuration(cmd, time.Second, math.MinInt64, flag, usage, "want whole seconds", set)
	}
	addSeconds(
		"client-affinity", "send a client's address to one target until it was idle for this long, e.g. 10m",
		func(n int) { u.ClientAffinitySeconds = &n },
	)
	addSeconds(
		"idle-timeout", "end connections that were idle for this long, e.g. 5m (default: tcp never, udp after 30s)",
		func(n int) { u.IdleTimeoutSeconds = &n },
	)
	addSeconds(
		"drain",
		"break tcp connections this long after their listener or target was removed, e.g. 30s (default: never)",
		func(n int) { u.DrainSeconds = &n },
	)
	f.StringVar(
		&o.check, "health-check", "", "tcp:PORT, http:PORT[/PATH] or none: send traffic only to targets that pass",
	)
	f.StringVar(
		&h.ExpectedCodes, "expected-codes", "", "statuses that pass an http check, e.g. 200-299,301 (default 200)",
	)
	addSeconds(
		"health-check-interval", "from one check to the next (default 5s)", func(n int) { h.IntervalSeconds = n },
	)
	addSeconds(
		"health-check-timeout", "how long one check may take (default 2s)", func(n int) { h.TimeoutSeconds = n },
	)
	f.IntVar(
		&h.HealthyThreshold, "healthy-threshold", 0, "this many successful checks in a row make a target healthy (default 2)",
	)
	f.IntVar(
		&h.UnhealthyThreshold, "unhealthy-threshold", 0,
		"this many failed checks in a row make a target unhealthy (default 2)",
	)
	addBool(cmd, &u.DeletionProtection, "deletion-protection", "refuse to delete it until this is set to false")
	addTags(cmd, &u.Tags, "tag", "KEY=VALUE; repeatable")
	clikit.CompleteFlag(cmd, "proxy-protocol", "v1", "v2")
	clikit.CompleteFlag(cmd, "scheme", "public", "internal")
	clikit.CompleteFlag(cmd, "type", "unlimited", "small", "medium", "large")
	clikit.CompleteFlag(cmd, "kind", "proxy", "network")
	clikit.CompleteFlag(cmd, "algorithm", "round-robin", "least-connections", "source-hash", "flow-hash")
	clikit.CompleteFlagBy(cmd, "target", a.instanceKind().completeRefs())
	clikit.CompleteFlagBy(cmd, "network", a.networkKind().completeRefs())
}

// updateRequest makes the request of the flags that were given, and finds the network and the
// targets that they name. has is the balancer as it is.
func (a *app) updateRequest(
	cmd *cobra.Command,
	c *client.Client,
	o *balancerOptions,
	has api.LoadBalancer,
) (api.LoadBalancerUpdate, error) {
	u, given := o.request, cmd.Flags().Changed
	var err error
	if given("listener") || given("proxy-protocol") || given("connection-limit") {
		if u.Listeners, err = o.withListeners(given, has.Listeners); err != nil {
			return u, err
		}
	}
	if given("source-range") {
		u.SourceRanges = new(orEmpty(o.sources))
	}
	if u.HealthCheck, err = o.withHealthCheck(given, has.HealthCheck); err != nil {
		return u, err
	}
	if given("network") {
		u.NetworkID = new(string)
	}
	if o.network != "" {
		n, err := a.networkKind().findByRef(cmd.Context(), c, o.network)
		if err != nil {
			return u, err
		}
		*u.NetworkID = n.ID
	}
	u.Targets, err = o.findTargets(cmd.Context(), c)
	return u, err
}

// withListeners are the listeners given or, if none was, the present ones, with the listener
// options that were given.
func (o *balancerOptions) withListeners(given func(string) bool, has []api.Listener) (*api.Listeners, error) {
	listeners, err := parseListeners(o.listeners)
	if err != nil {
		return nil, err
	}
	if !given("listener") {
		listeners = slices.Clone(has)
	}
	for i := range listeners {
		if given("proxy-protocol") && listeners[i].Protocol != api.ProtocolUDP {
			listeners[i].ProxyProtocol = api.ProxyProtocol(o.proxyProtocol)
		}
		if given("connection-limit") {
			listeners[i].ConnectionLimit = o.connectionLimit
		}
	}
	return &listeners, nil
}

func parseListeners(given []string) ([]api.Listener, error) {
	var out []api.Listener
	for _, s := range given {
		ports, protocol, named := strings.Cut(s, "/")
		if !named {
			protocol = string(api.ProtocolTCP)
		}
		from, to, _ := strings.Cut(ports, ":")
		to = cmp.Or(to, from)
		port, err1 := strconv.Atoi(from)
		target, err2 := strconv.Atoi(to)
		if err := errors.Join(err1, err2); err != nil || !api.Protocol(protocol).Valid() {
			return nil, clikit.Usagef(
				"--listener %q: want PORT:TARGETPORT[/PROTOCOL] or PORT[/PROTOCOL], e.g. 8080:30080 or 5353:30053/udp", s,
			)
		}
		out = append(out, api.Listener{Protocol: api.Protocol(protocol), Port: port, TargetPort: target})
	}
	return out, nil
}

// withHealthCheck is the health check given or, if none was, the present one, with the check
// options that were given. It is nil if no flag of a health check was given.
func (o *balancerOptions) withHealthCheck(given func(string) bool, has *api.HealthCheck) (*api.HealthCheck, error) {
	some := slices.ContainsFunc([]string{
		"expected-codes", "health-check-interval", "health-check-timeout", "healthy-threshold", "unhealthy-threshold",
	}, given)
	var h api.HealthCheck
	switch {
	case given("health-check"):
		var err error
		if h, err = parseHealthCheck(o.check); err != nil {
			return nil, err
		}
	case !some:
		return nil, nil
	case has == nil:
		return nil, clikit.Usagef("there is no check to set this for: give --health-check too")
	default:
		h = *has
	}
	options := o.checkOptions
	h.IntervalSeconds = cmp.Or(options.IntervalSeconds, h.IntervalSeconds)
	h.TimeoutSeconds = cmp.Or(options.TimeoutSeconds, h.TimeoutSeconds)
	h.HealthyThreshold = cmp.Or(options.HealthyThreshold, h.HealthyThreshold)
	h.UnhealthyThreshold = cmp.Or(options.UnhealthyThreshold, h.UnhealthyThreshold)
	if given("expected-codes") {
		h.ExpectedCodes = options.ExpectedCodes
	}
	return &h, nil
}

func parseHealthCheck(s string) (api.HealthCheck, error) {
	if s == string(api.HealthCheckNone) {
		return api.HealthCheck{Protocol: api.HealthCheckNone}, nil
	}
	protocol, rest, _ := strings.Cut(s, ":")
	number, path, hasPath := strings.Cut(rest, "/")
	port, err := strconv.Atoi(number)
	h := api.HealthCheck{Protocol: api.HealthCheckProtocol(protocol), Port: port}
	if err != nil || h.Protocol != api.HealthCheckTCP && h.Protocol != api.HealthCheckHTTP {
		return h, clikit.Usagef("--health-check %q: want tcp:PORT or http:PORT[/PATH], e.g. http:10256/healthz, or none", s)
	}
	if hasPath {
		h.Path = "/" + path
	}
	return h, nil
}

// findTargets finds the instances given with --target. It returns nil if none was given.
func (o *balancerOptions) findTargets(ctx context.Context, c *client.Client) (*api.Targets, error) {
	var found api.Targets
	for _, ref := range o.targets {
		in, err := resolveInstance(ctx, c, ref)
		if err != nil {
			return nil, err
		}
		found = append(found, api.Target{InstanceID: in.ID})
	}
	if found == nil {
		return nil, nil
	}
	return &found, nil
}

func (a *app) balancersCreate() *cobra.Command {
	var o balancerOptions
	var w waiter
	var address string
	var families []string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a load balancer", Args: clikit.RequireArguments(1, 1),
		Example: `  fakecloud load-balancers create web --listener 8080:30080 --target node-1 --target node-2
  fakecloud load-balancers create web --listener 8080:30080 --health-check http:10256/healthz --source-range 10.0.0.0/8
  fakecloud load-balancers create web --listener 8080:30080 --address shop --algorithm least-connections --drain 30s
  fakecloud load-balancers create web --kind network --listener 80 --target node-1 --target node-2
  fakecloud load-balancers create dns --listener 5353:30053/tcp --listener 5353:30053/udp --ip-family ipv4,ipv6`,
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			u, err := a.updateRequest(cmd, c, &o, api.LoadBalancer{})
			if err != nil {
				return err
			}
			body, err := decodeInto[api.LoadBalancerCreate](u) // It has all fields of an update.
			if err != nil {
				return err
			}
			body.Name, body.Listeners = args[0], orEmpty(body.Listeners)
			if address != "" {
				r, err := resolveAddress(cmd.Context(), c, address)
				if err != nil {
					return err
				}
				body.AddressID = &r.ID
			}
			if cmd.Flags().Changed("ip-family") {
				body.IPFamilies = &api.IPFamilies{}
				for _, f := range families {
					*body.IPFamilies = append(*body.IPFamilies, api.IPFamily(f))
				}
			}
			return a.balancerKind().changeOne(cmd, c, &w, (*waiter).awaitBalancers,
				func(ctx context.Context) (*api.LoadBalancer, error) { return c.CreateLoadBalancer(ctx, body) })
		}),
	}
	a.addOutput(cmd)
	w.addFlags(a, cmd)
	a.addBalancerFlags(cmd, &o)
	cmd.Flags().StringVar(
		&address, "address", "",
		"name, ID or IP of a reserved address (default: one of the pool, for as long as the balancer lives)",
	)
	cmd.Flags().StringSliceVar(
		&families, "ip-family", nil,
		"ipv4, or ipv4,ipv6 for an IPv6 address too, which is one of the pool (default ipv4)",
	)
	clikit.CompleteFlag(cmd, "ip-family", "ipv4", "ipv4,ipv6")
	clikit.CompleteFlagBy(cmd, "address", a.addressKind().completeRefs())
	return cmd
}

func (a *app) balancersUpdate() *cobra.Command {
	var o balancerOptions
	var w waiter
	var noListeners, noTargets bool
	cmd := &cobra.Command{
		Use: "update NAME|ID", Short: "Change a load balancer", Args: clikit.RequireArguments(1, 1),
		Long: "Change a load balancer. What is given replaces what it has: all listeners, all targets, all source ranges\n" +
			"(--source-range \"\" lets everyone in), all tags; --network \"\" detaches it. What is not given stays as it is.",
		Example: `  fakecloud load-balancers update web --target node-1 --target node-3 --drain 30s
  fakecloud load-balancers update web --algorithm source-hash --connection-limit 100
  fakecloud load-balancers update web --health-check none
  fakecloud load-balancers update web --network default --scheme internal`,
		ValidArgsFunction: a.balancerKind().completeRefs(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if noTargets && len(o.targets) > 0 {
				return clikit.Usagef("--no-targets, and a --target: give one of the two")
			}
			if noListeners && len(o.listeners) > 0 {
				return clikit.Usagef("--no-listeners, and a --listener: give one of the two")
			}
			k := a.balancerKind()
			lb, err := k.findByRef(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			u, err := a.updateRequest(cmd, c, &o, *lb)
			if err != nil {
				return err
			}
			if noTargets {
				u.Targets = &api.Targets{}
			}
			if noListeners {
				u.Listeners = &api.Listeners{}
			}
			if reflect.ValueOf(u).IsZero() {
				return clikit.Usagef("nothing to change: see `%s --help`", cmd.CommandPath())
			}
			return k.changeOne(cmd, c, &w, (*waiter).awaitBalancers,
				func(ctx context.Context) (*api.LoadBalancer, error) { return c.UpdateLoadBalancer(ctx, lb.ID, u) })
		}),
	}
	a.addOutput(cmd)
	w.addFlags(a, cmd)
	a.addBalancerFlags(cmd, &o)
	addText(cmd, &o.request.Name, "name", "the new name")
	cmd.Flags().BoolVar(&noListeners, "no-listeners", false, "remove all listeners: it only holds its address")
	cmd.Flags().BoolVar(&noTargets, "no-targets", false, "remove all targets")
	return cmd
}

// showOptions names the options that differ from their defaults.
func showOptions(lb api.LoadBalancer) string {
	var out []string
	if lb.Type != api.LoadBalancerUnlimited {
		out = append(out, string(lb.Type))
	}
	if lb.Kind == api.KindNetwork {
		out = append(out, string(lb.Kind))
	}
	if lb.Scheme == api.SchemeInternal {
		out = append(out, string(lb.Scheme))
	}
	if lb.Algorithm != api.AlgorithmRoundRobin && lb.Algorithm != api.AlgorithmFlowHash {
		out = append(out, string(lb.Algorithm))
	}
	for _, o := range []struct {
		name    string
		seconds int
	}{{"affinity", lb.ClientAffinitySeconds}, {"idle", lb.IdleTimeoutSeconds}, {"drain", lb.DrainSeconds}} {
		if o.seconds > 0 {
			out = append(out, fmt.Sprintf("%s=%ds", o.name, o.seconds))
		}
	}
	if lb.DeletionProtection {
		out = append(out, "protected")
	}
	return cmp.Or(strings.Join(out, ","), "-")
}
