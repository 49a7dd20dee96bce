package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) networksCommand() *cobra.Command {
	k := a.networkKind()
	return groupCommand("networks", "Where instances get their addresses from", `  fakecloud networks list
  fakecloud networks create backend --cidr 127.31.0.0/24
  fakecloud instances create node-9 --network backend`,
		a.networksList(),
		k.getCommand("Show networks", "  fakecloud networks get default -o yaml"),
		a.networksCreate(),
		k.updateCommand((*client.Client).UpdateNetwork),
		k.deleteCommand(
			"delete", "Delete networks that no instance is in", "  fakecloud networks delete backend",
			(*client.Client).DeleteNetwork,
		))
}

func (a *app) networkKind() resourceKind[api.Network] {
	return resourceKind[api.Network]{
		app: a, name: "network", group: "networks", refs: "NAME|ID", find: resolveNetwork, print: a.printNetworks,
		list: func(ctx context.Context, c *client.Client) ([]api.Network, error) {
			return c.ListNetworks(ctx, client.NetworkFilter{})
		},
		label:   func(n api.Network) string { return n.Name },
		id:      func(n api.Network) string { return n.ID },
		wrap:    func(items []api.Network) any { return api.NetworkList{Items: items} },
		version: func(n api.Network) int64 { return n.Version },
	}
}

func (a *app) networksList() *cobra.Command {
	var f client.NetworkFilter
	cmd := a.networkKind().listCommand(
		&cobra.Command{Short: "List networks, oldest first", Example: "  fakecloud networks list --tag tier=2"},
		func(ctx context.Context, c *client.Client) ([]api.Network, error) { return c.ListNetworks(ctx, f) },
		resourceInEvent(func(ev api.Event) *api.Network { return ev.Network }, func(n *api.Network) bool {
			return hasTags(n.Tags, f.Tags)
		}))
	addTagFlag(cmd, &f.Tags)
	return cmd
}

func (a *app) printNetworks(cmd *cobra.Command, value any, items []api.Network) error {
	var rows [][]string
	for _, n := range items {
		standard := "no"
		if n.Default {
			standard = "yes"
		}
		rows = append(rows, []string{n.Name, n.ID, n.Cidr, standard, a.formatAge(n.CreatedAt)})
	}
	return a.printOutput(cmd.OutOrStdout(), value, "NAME ID CIDR DEFAULT AGE", rows)
}

// resolveNetwork finds a network by name or ID.
func resolveNetwork(ctx context.Context, c *client.Client, ref string) (*api.Network, error) {
	return findByNameOrID(ctx, "network", "networks", "n-", ref, func(ctx context.Context) ([]api.Network, error) {
		return c.ListNetworks(ctx, client.NetworkFilter{Name: ref})
	}, c.GetNetwork)
}

func (a *app) networksCreate() *cobra.Command {
	var cidr string
	var tags map[string]string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a network", Args: cobra.ExactArgs(1),
		Example:           "  fakecloud networks create backend --cidr 127.31.0.0/24",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cidr == "" {
				return misuse("a network needs --cidr CIDR")
			}
			c, err := a.newClient()
			if err != nil {
				return usageError{err}
			}
			n, err := c.CreateNetwork(
				cmd.Context(), api.NetworkCreate{Name: args[0], Cidr: cidr, Tags: changedTags(cmd, "tag", tags)},
			)
			return a.networkKind().printOne(cmd, n, err)
		},
	}
	a.addOutput(cmd)
	cmd.Flags().StringVar(&cidr, "cidr", "", "its addresses, IPv4, from /16 to /30")
	cmd.Flags().StringToStringVar(&tags, "tag", nil, "KEY=VALUE; repeatable")
	return cmd
}
