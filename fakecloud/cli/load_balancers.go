package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) loadBalancersCommand() *cobra.Command {
	k := a.balancerKind()
	return groupCommand("load-balancers", "Load balancers, and what they carry", `  fakecloud load-balancers list
  fakecloud load-balancers create web --listener 8080:30080 --target node-1
  fakecloud load-balancers stats web --watch`,
		a.balancersList(),
		k.actCommand(
			"get", "Show load balancers", "  fakecloud load-balancers get web -o yaml",
			(*client.Client).GetLoadBalancer,
		),
		a.balancersCreate(), a.balancersUpdate(),
		k.changeCommand(
			"delete", "Delete load balancers", "  fakecloud load-balancers delete web --wait",
			(*client.Client).DeleteLoadBalancer, (*waiter).awaitBalancers,
		),
		a.balancersStats(), a.balancersHealth())
}

func (a *app) balancerKind() resourceKind[api.LoadBalancer] {
	return resourceKind[api.LoadBalancer]{
		app: a, refs: "NAME|ID", find: resolveBalancer, print: a.printBalancers,
		list: func(ctx context.Context, c *client.Client) ([]api.LoadBalancer, error) {
			return c.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
		},
		label:   func(lb api.LoadBalancer) string { return lb.Name },
		id:      func(lb api.LoadBalancer) string { return lb.ID },
		wrap:    func(items []api.LoadBalancer) any { return api.LoadBalancerList{Items: items} },
		version: func(lb api.LoadBalancer) int64 { return lb.Version },
	}
}

func (a *app) balancersList() *cobra.Command {
	var f client.LoadBalancerFilter
	cmd := a.balancerKind().listCommand(
		&cobra.Command{
			Short: "List load balancers, oldest first", Example: "  fakecloud load-balancers list --tag cluster=lab",
		},
		func(ctx context.Context, c *client.Client) ([]api.LoadBalancer, error) {
			return c.ListLoadBalancers(ctx, f)
		},
		resourceInEvent(
			func(ev api.Event) *api.LoadBalancer { return ev.LoadBalancer },
			func(lb *api.LoadBalancer) bool { return hasTags(lb.Tags, f.Tags) },
		))
	addTagFlag(cmd, &f.Tags)
	addStateFlag(
		cmd, &f.States, "a load balancer", api.LoadBalancerProvisioning, api.LoadBalancerActive,
		api.LoadBalancerUpdating, api.LoadBalancerDeleting, api.LoadBalancerError,
	)
	return cmd
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
			lb.Name, lb.ID, string(lb.State), showAddresses(lb), strings.Join(ports, ","),
			strconv.Itoa(len(lb.Targets)),
			showCheck(lb.HealthCheck), showSources(lb.SourceRanges), showOptions(lb), a.formatAge(lb.CreatedAt),
			orDash(lb.StateReason),
		})
	}
	return a.printOutput(
		cmd.OutOrStdout(), value, "NAME +ID STATE ADDRESS PORTS TARGETS +CHECK +SOURCES +OPTIONS AGE REASON", rows,
	)
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

// resolveBalancer finds a load balancer by name or ID.
func resolveBalancer(ctx context.Context, c *client.Client, ref string) (*api.LoadBalancer, error) {
	return findByNameOrID(ctx, "load balancer", "load-balancers", "lb-", ref, func(ctx context.Context) ([]api.LoadBalancer, error) {
		return c.ListLoadBalancers(ctx, client.LoadBalancerFilter{Name: ref})
	}, c.GetLoadBalancer)
}
