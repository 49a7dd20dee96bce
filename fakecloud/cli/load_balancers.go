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
  fakecloud load-balancers stats web --watch`,
		a.balancersList(), a.balancersGet(), a.balancersCreate(), a.balancersUpdate(), a.balancersDelete(), a.balancersStats(), a.balancersHealth())
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
			if l.ConnectionLimit > 0 {
				port += fmt.Sprintf("+max%d", l.ConnectionLimit)
			}
			ports = append(ports, port)
		}
		rows = append(rows, []string{
			lb.Name, lb.ID, string(lb.State), showAddresses(lb), strings.Join(ports, ","), strconv.Itoa(len(lb.Targets)),
			showCheck(lb.HealthCheck), showSources(lb.SourceRanges), showOptions(lb), a.age(lb.CreatedAt), orDash(lb.StateReason),
		})
	}
	return a.print(cmd.OutOrStdout(), value, "NAME +ID STATE ADDRESS PORTS TARGETS +CHECK +SOURCES +OPTIONS AGE REASON", rows)
}

func showAddresses(lb api.LoadBalancer) string {
	if lb.IPv6Address == nil {
		return lb.Address
	}
	return lb.Address + "," + *lb.IPv6Address
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

func (a *app) balancersList() *cobra.Command {
	var f client.LoadBalancerFilter
	var watch bool
	cmd := &cobra.Command{
		Use: "list", Short: "List load balancers, oldest first", Args: cobra.NoArgs,
		Example: "  fakecloud load-balancers list --tag cluster=lab",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			if watch {
				return a.watchBalancers(cmd, c, f)
			}
			items, err := c.ListLoadBalancers(cmd.Context(), f)
			if err != nil {
				return err
			}
			return a.printBalancers(cmd, api.LoadBalancerList{Items: orEmpty(items)}, items)
		},
	}
	a.addOutput(cmd)
	addWatch(cmd, &watch)
	cmd.Flags().StringArrayVar(&f.Tags, "tag", nil, "only those with this KEY or KEY=VALUE; repeatable")
	stateFlag(cmd, &f.States, "a load balancer", api.LoadBalancerProvisioning, api.LoadBalancerActive, api.LoadBalancerUpdating, api.LoadBalancerDeleting, api.LoadBalancerError)
	return cmd
}

// resolveBalancer finds a load balancer by name or ID.
func resolveBalancer(ctx context.Context, c *client.Client, ref string) (*api.LoadBalancer, error) {
	return named(ctx, "load balancer", "load-balancers", "lb-", ref, func(ctx context.Context) ([]api.LoadBalancer, error) {
		return c.ListLoadBalancers(ctx, client.LoadBalancerFilter{Name: ref})
	}, c.GetLoadBalancer)
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
	return a.eachBalancer("get", "Show load balancers", "  fakecloud load-balancers get web -o yaml", nil, (*client.Client).GetLoadBalancer)
}

func (a *app) balancersDelete() *cobra.Command {
	return a.eachBalancer("delete", "Delete load balancers", "  fakecloud load-balancers delete web --wait", &waiter{}, (*client.Client).DeleteLoadBalancer)
}

// eachBalancer is a command that does one thing with each balancer named, and
// can wait for it unless w is nil.
func (a *app) eachBalancer(verb, short, example string, w *waiter, do func(*client.Client, context.Context, string) (*api.LoadBalancer, error)) *cobra.Command {
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
				if w == nil {
					return do(c, cmd.Context(), lb.ID)
				}
				err = w.note(cmd.Context(), func(ctx context.Context) (id string, err error) {
					id = lb.ID
					lb, err = do(c, ctx, id)
					return id, err
				})
				return lb, err
			})
			if w != nil {
				err = errors.Join(err, w.awaitBalancers(cmd, c, done))
			}
			switch {
			case len(done) == 0:
				return err
			case len(args) == 1:
				return errors.Join(err, a.printBalancers(cmd, done[0], done))
			}
			return errors.Join(err, a.printBalancers(cmd, api.LoadBalancerList{Items: done}, done))
		},
	}
	a.addOutput(cmd)
	if w != nil {
		w.flags(a, cmd)
	}
	return cmd
}
