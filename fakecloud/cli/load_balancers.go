// This file answers: what can be done with load balancers from the command
// line?

package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) loadBalancers() *cobra.Command {
	return group("load-balancers", "Load balancers, and what they carry", `  fakecloud load-balancers list
  fakecloud load-balancers create web --listener 8080:30080 --target node-1
  fakecloud load-balancers stats web`,
		a.balancersList(), a.balancersGet(), a.balancersCreate(), a.balancersDelete(), a.balancersStats(), a.balancersHealth())
}

func (a *app) printBalancers(cmd *cobra.Command, value any, items []api.LoadBalancer) error {
	var rows [][]string
	for _, lb := range items {
		var ports []string
		for _, l := range lb.Listeners {
			port := fmt.Sprintf("%d:%d/%s", l.Port, l.TargetPort, l.Protocol)
			if l.ProxyProtocol != "" {
				port += "+" + string(l.ProxyProtocol)
			}
			ports = append(ports, port)
		}
		rows = append(rows, []string{
			lb.Name, lb.ID, string(lb.State), lb.Address, strings.Join(ports, ","), strconv.Itoa(len(lb.Targets)),
			showCheck(lb.HealthCheck), showSources(lb.SourceRanges), showAffinity(lb.ClientAffinitySeconds), age(lb.CreatedAt), orDash(lb.StateReason),
		})
	}
	return a.print(cmd.OutOrStdout(), value, "NAME ID STATE ADDRESS PORTS TARGETS CHECK SOURCES AFFINITY AGE REASON", rows)
}

func showCheck(h *api.HealthCheck) string {
	if h == nil {
		return "-"
	}
	return fmt.Sprintf("%s:%d%s", h.Protocol, h.Port, h.Path)
}

func showSources(ranges []string) string {
	switch len(ranges) {
	case 0:
		return "any"
	case 1:
		return ranges[0]
	}
	return fmt.Sprintf("%s+%d", ranges[0], len(ranges)-1)
}

func showAffinity(seconds int) string {
	if seconds == 0 {
		return "-"
	}
	return fmt.Sprintf("%ds", seconds)
}

func (a *app) balancersList() *cobra.Command {
	var f client.LoadBalancerFilter
	cmd := &cobra.Command{
		Use: "list", Short: "List load balancers, oldest first", Args: cobra.NoArgs,
		Example: "  fakecloud load-balancers list --tag cluster=lab",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			items, err := c.ListLoadBalancers(cmd.Context(), f)
			if err != nil {
				return err
			}
			return a.printBalancers(cmd, api.LoadBalancerList{Items: orEmpty(items)}, items)
		},
	}
	a.addOutput(cmd)
	cmd.Flags().StringArrayVar(&f.Tags, "tag", nil, "only those with this KEY or KEY=VALUE; repeatable")
	return cmd
}

// resolveBalancer finds a load balancer by name or ID.
func resolveBalancer(ctx context.Context, c *client.Client, ref string) (*api.LoadBalancer, error) {
	if ref == "" {
		return nil, errNoRef
	}
	items, err := c.ListLoadBalancers(ctx, client.LoadBalancerFilter{Name: ref})
	switch {
	case err != nil:
		return nil, err
	case len(items) > 0: // Names are unique.
		return &items[0], nil
	case strings.HasPrefix(ref, "lb-"):
		return c.GetLoadBalancer(ctx, ref)
	}
	return nil, fmt.Errorf("no load balancer is named %q; `fakecloud load-balancers list` shows those there are", ref)
}

func (a *app) completeBalancers() cobra.CompletionFunc {
	return a.complete(func(ctx context.Context, c *client.Client) (names []string, err error) {
		items, err := c.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
		for _, lb := range items {
			names = append(names, lb.Name)
		}
		return names, err
	})
}

func (a *app) balancersGet() *cobra.Command {
	return a.eachBalancer("get", "Show load balancers", "  fakecloud load-balancers get web -o yaml", (*client.Client).GetLoadBalancer)
}

func (a *app) balancersDelete() *cobra.Command {
	return a.eachBalancer("delete", "Delete load balancers", "  fakecloud load-balancers delete web", (*client.Client).DeleteLoadBalancer)
}

// eachBalancer is a command that does one thing with each balancer named.
func (a *app) eachBalancer(verb, short, example string, do func(*client.Client, context.Context, string) (*api.LoadBalancer, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: verb + " NAME|ID...", Short: short, Args: cobra.MinimumNArgs(1), Example: example, ValidArgsFunction: a.completeBalancers(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			done, err := each(args, func(ref string) (*api.LoadBalancer, error) {
				lb, err := resolveBalancer(cmd.Context(), c, ref)
				if err != nil {
					return nil, err
				}
				return do(c, cmd.Context(), lb.ID)
			})
			switch {
			case len(done) == 0:
				return err
			case len(args) == 1:
				return a.printBalancers(cmd, done[0], done)
			}
			return errors.Join(err, a.printBalancers(cmd, api.LoadBalancerList{Items: done}, done))
		},
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) balancersCreate() *cobra.Command {
	var o balancerOptions
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a load balancer", Args: cobra.ExactArgs(1),
		Example: `  fakecloud load-balancers create web --listener 8080:30080 --target node-1 --target node-2
  fakecloud load-balancers create web --listener 8080:30080 --health-check http:10256/healthz --source-range 10.0.0.0/8
  fakecloud load-balancers create dns --listener 5353:30053/tcp --listener 5353:30053/udp`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := o.body(args[0])
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			if o.address != "" {
				r, err := resolveAddress(cmd.Context(), c, o.address)
				if err != nil {
					return err
				}
				body.AddressID = &r.ID
			}
			var ids []api.Target
			for _, ref := range o.targets {
				in, err := resolveInstance(cmd.Context(), c, ref)
				if err != nil {
					return err
				}
				ids = append(ids, api.Target{InstanceID: in.ID})
			}
			if len(ids) > 0 {
				body.Targets = &ids
			}
			lb, err := c.CreateLoadBalancer(cmd.Context(), body)
			if err != nil {
				return err
			}
			return a.printBalancers(cmd, lb, []api.LoadBalancer{*lb})
		},
	}
	a.addOutput(cmd)
	o.flags(cmd)
	return cmd
}

// balancerOptions are what a new load balancer can be asked for.
type balancerOptions struct {
	listeners, targets, sources          []string
	proxyProtocol, check, address        string
	affinity, interval, checkTimeout     time.Duration
	healthyThreshold, unhealthyThreshold int
	tags                                 map[string]string
}

func (o *balancerOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&o.listeners, "listener", nil, "PORT:TARGETPORT[/PROTOCOL], e.g. 8080:30080 or 5353:30053/udp; repeatable")
	f.StringArrayVar(&o.targets, "target", nil, "name or ID of an instance; repeatable")
	f.StringVar(&o.address, "address", "", "name, ID or IP of a reserved address (default: one of the pool, for as long as the balancer lives)")
	f.StringVar(&o.proxyProtocol, "proxy-protocol", "", "v1 or v2: tell the targets of tcp listeners who connected")
	f.StringSliceVar(&o.sources, "source-range", nil, "CIDR of those who may connect (default: everyone); repeatable")
	f.DurationVar(&o.affinity, "client-affinity", 0, "keep a client's address on one target until it has been silent for so long, e.g. 10m")
	f.StringVar(&o.check, "health-check", "", "tcp:PORT or http:PORT[/PATH]: send traffic only to targets that pass")
	f.DurationVar(&o.interval, "health-check-interval", 0, "from one check to the next (default 5s)")
	f.DurationVar(&o.checkTimeout, "health-check-timeout", 0, "how long one check may take (default 2s)")
	f.IntVar(&o.healthyThreshold, "healthy-threshold", 0, "so many good checks in a row make a target healthy (default 2)")
	f.IntVar(&o.unhealthyThreshold, "unhealthy-threshold", 0, "so many bad checks in a row make a target unhealthy (default 2)")
	f.StringToStringVar(&o.tags, "tag", nil, "KEY=VALUE; repeatable")
	noFiles(cmd, map[string][]string{"proxy-protocol": {"v1", "v2"}})
}

// body is the request, but for the targets, which have to be looked up.
func (o *balancerOptions) body(name string) (api.LoadBalancerCreate, error) {
	body := api.LoadBalancerCreate{Name: name}
	var err error
	if body.Listeners, err = o.parseListeners(); err != nil {
		return body, err
	}
	if body.HealthCheck, err = o.parseCheck(); err != nil {
		return body, err
	}
	if o.affinity != 0 {
		seconds, err := wholeSeconds("client-affinity", o.affinity)
		if err != nil {
			return body, err
		}
		body.ClientAffinitySeconds = &seconds
	}
	if len(o.sources) > 0 {
		body.SourceRanges = &o.sources
	}
	if len(o.tags) > 0 {
		t := api.Tags(o.tags)
		body.Tags = &t
	}
	return body, nil
}

func (o *balancerOptions) parseListeners() ([]api.Listener, error) {
	if len(o.listeners) == 0 {
		return nil, misuse("a load balancer needs at least one --listener PORT:TARGETPORT")
	}
	var out []api.Listener
	for _, s := range o.listeners {
		ports, protocol, named := strings.Cut(s, "/")
		if !named {
			protocol = string(api.ProtocolTCP)
		}
		from, to, _ := strings.Cut(ports, ":")
		port, err1 := strconv.Atoi(from)
		target, err2 := strconv.Atoi(to)
		if err := errors.Join(err1, err2); err != nil || !api.Protocol(protocol).Valid() {
			return nil, misuse("--listener %q: want PORT:TARGETPORT[/PROTOCOL], e.g. 8080:30080 or 5353:30053/udp", s)
		}
		l := api.Listener{Protocol: api.Protocol(protocol), Port: port, TargetPort: target}
		if l.Protocol == api.ProtocolTCP {
			l.ProxyProtocol = api.ProxyProtocol(o.proxyProtocol)
		}
		out = append(out, l)
	}
	return out, nil
}

func (o *balancerOptions) parseCheck() (*api.HealthCheck, error) {
	if o.check == "" {
		if o.interval != 0 || o.checkTimeout != 0 || o.healthyThreshold != 0 || o.unhealthyThreshold != 0 {
			return nil, misuse("there is no check to set this for: give --health-check too")
		}
		return nil, nil
	}
	protocol, rest, _ := strings.Cut(o.check, ":")
	number, path, hasPath := strings.Cut(rest, "/")
	port, err := strconv.Atoi(number)
	h := &api.HealthCheck{Protocol: api.HealthCheckProtocol(protocol), Port: port, HealthyThreshold: o.healthyThreshold, UnhealthyThreshold: o.unhealthyThreshold}
	if err != nil || h.Protocol != api.HealthCheckTCP && h.Protocol != api.HealthCheckHTTP {
		return nil, misuse("--health-check %q: want tcp:PORT or http:PORT[/PATH], e.g. http:10256/healthz", o.check)
	}
	if hasPath {
		h.Path = "/" + path
	}
	if h.IntervalSeconds, err = wholeSeconds("health-check-interval", o.interval); err != nil {
		return nil, err
	}
	h.TimeoutSeconds, err = wholeSeconds("health-check-timeout", o.checkTimeout)
	return h, err
}

// wholeSeconds is how the API counts.
func wholeSeconds(flag string, d time.Duration) (int, error) {
	if d%time.Second != 0 {
		return 0, misuse("--%s %s: want whole seconds", flag, d)
	}
	return int(d / time.Second), nil
}

func (a *app) balancersStats() *cobra.Command {
	cmd := &cobra.Command{
		Use: "stats NAME|ID", Short: "Show what each listener carried since the cloud started", Args: cobra.ExactArgs(1),
		Long:    "Show what each listener carried since the cloud started. Bytes count once a connection's direction has ended.",
		Example: "  fakecloud load-balancers stats web -o json", ValidArgsFunction: a.completeBalancers(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			lb, err := resolveBalancer(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			stats, err := c.LoadBalancerStats(cmd.Context(), lb.ID)
			if err != nil {
				return err
			}
			var rows [][]string
			for _, l := range stats.Listeners {
				row := []string{fmt.Sprintf("%d/%s", l.Port, l.Protocol)}
				for _, n := range []int64{l.Connections, l.ActiveConnections, l.FailedConnections, l.RefusedConnections, l.BytesIn, l.BytesOut} {
					row = append(row, strconv.FormatInt(n, 10))
				}
				rows = append(rows, row)
			}
			return a.print(cmd.OutOrStdout(), stats, "PORT CONNECTIONS ACTIVE FAILED REFUSED BYTES-IN BYTES-OUT", rows)
		},
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) balancersHealth() *cobra.Command {
	cmd := &cobra.Command{
		Use: "health NAME|ID", Short: "Show what a load balancer knows of its targets", Args: cobra.ExactArgs(1),
		Example: "  fakecloud load-balancers health web", ValidArgsFunction: a.completeBalancers(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			lb, err := resolveBalancer(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			health, err := c.LoadBalancerHealth(cmd.Context(), lb.ID)
			if err != nil {
				return err
			}
			var rows [][]string
			for _, t := range health.Targets {
				since := "-"
				if t.Since != nil {
					since = age(*t.Since)
				}
				rows = append(rows, []string{t.InstanceID, string(t.Health), since, orDash(t.Reason)})
			}
			return a.print(cmd.OutOrStdout(), health, "INSTANCE HEALTH FOR REASON", rows)
		},
	}
	a.addOutput(cmd)
	return cmd
}
