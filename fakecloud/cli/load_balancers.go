// This file answers: what can be done with load balancers from the command
// line?

package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) loadBalancers() *cobra.Command {
	return group("load-balancers", "Load balancers, and what they carry", `  fakecloud load-balancers list
  fakecloud load-balancers create web --listener 8080:30080 --target node-1
  fakecloud load-balancers stats web`,
		a.balancersList(), a.balancersGet(), a.balancersCreate(), a.balancersDelete(), a.balancersStats())
}

func (a *app) printBalancers(cmd *cobra.Command, value any, items []api.LoadBalancer) error {
	var rows [][]string
	for _, lb := range items {
		var ports []string
		for _, l := range lb.Listeners {
			ports = append(ports, fmt.Sprintf("%d:%d/%s", l.Port, l.TargetPort, l.Protocol))
		}
		reason := "-"
		if lb.StateReason != nil {
			reason = *lb.StateReason
		}
		rows = append(rows, []string{
			lb.Name, lb.ID, string(lb.State), lb.Address, strings.Join(ports, ","), strconv.Itoa(len(lb.Targets)), age(lb.CreatedAt), reason,
		})
	}
	return a.print(cmd.OutOrStdout(), value, "NAME ID STATE ADDRESS PORTS TARGETS AGE REASON", rows)
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
	var listeners, targets []string
	var tags map[string]string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a load balancer", Args: cobra.ExactArgs(1),
		Example:           "  fakecloud load-balancers create web --listener 8080:30080 --target node-1 --target node-2",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			body := api.LoadBalancerCreate{Name: args[0]}
			var err error
			if body.Listeners, err = parseListeners(listeners); err != nil {
				return err
			}
			if len(tags) > 0 {
				t := api.Tags(tags)
				body.Tags = &t
			}
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			var ids []api.Target
			for _, ref := range targets {
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
	cmd.Flags().StringArrayVar(&listeners, "listener", nil, "PORT:TARGETPORT, e.g. 8080:30080; repeatable")
	cmd.Flags().StringArrayVar(&targets, "target", nil, "name or ID of an instance; repeatable")
	cmd.Flags().StringToStringVar(&tags, "tag", nil, "KEY=VALUE; repeatable")
	return cmd
}

func parseListeners(specs []string) ([]api.Listener, error) {
	if len(specs) == 0 {
		return nil, misuse("a load balancer needs at least one --listener PORT:TARGETPORT")
	}
	var out []api.Listener
	for _, s := range specs {
		from, to, _ := strings.Cut(s, ":")
		port, err1 := strconv.Atoi(from)
		target, err2 := strconv.Atoi(to)
		if err := errors.Join(err1, err2); err != nil {
			return nil, misuse("--listener %q: want PORT:TARGETPORT, e.g. 8080:30080", s)
		}
		out = append(out, api.Listener{Protocol: api.ProtocolTCP, Port: port, TargetPort: target})
	}
	return out, nil
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
				for _, n := range []int64{l.Connections, l.ActiveConnections, l.FailedConnections, l.BytesIn, l.BytesOut} {
					row = append(row, strconv.FormatInt(n, 10))
				}
				rows = append(rows, row)
			}
			return a.print(cmd.OutOrStdout(), stats, "PORT CONNECTIONS ACTIVE FAILED BYTES-IN BYTES-OUT", rows)
		},
	}
	a.addOutput(cmd)
	return cmd
}
