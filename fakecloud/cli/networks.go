package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

func (a *app) networksCommand() *cobra.Command {
	k := a.networkKind()
	var f client.NetworkFilter
	return groupCommand("networks", "Where instances get their addresses from", `  fakecloud networks list
  fakecloud networks create backend --cidr 127.31.0.0/24
  fakecloud instances create node-9 --network backend`,
		filteredListCommand(
			k, "List networks, oldest first", "  fakecloud networks list --tag tier=2", &f, &f.Tags,
			(*client.Client).ListNetworks,
		),
		k.getCommand("Show networks", "  fakecloud networks get default -o yaml"),
		a.networksCreate(),
		k.updateCommand("tag", (*client.Client).UpdateNetwork),
		k.deleteCommand(
			"delete", "Delete networks that no instance is in", "  fakecloud networks delete backend",
			(*client.Client).DeleteNetwork,
		))
}

func (a *app) networkKind() resourceKind[api.Network] {
	return resourceKind[api.Network]{
		app: a, name: "network", group: "networks", prefix: "n-", refs: "NAME|ID",
		list: func(ctx context.Context, c *client.Client, name string) ([]api.Network, error) {
			return c.ListNetworks(ctx, client.NetworkFilter{Name: name})
		},
		get:     (*client.Client).GetNetwork,
		columns: "NAME ID CIDR DEFAULT AGE",
		row: func(n api.Network) []string {
			standard := "no"
			if n.Default {
				standard = "yes"
			}
			return []string{n.Name, n.ID, n.Cidr, standard, a.formatAge(n.CreatedAt)}
		},
	}
}

func (a *app) networksCreate() *cobra.Command {
	var body api.NetworkCreate
	cmd := a.networkKind().callCommand(&cobra.Command{
		Use: "create NAME", Short: "Create a network", Args: clikit.RequireArguments(1, 1),
		Example: "  fakecloud networks create backend --cidr 127.31.0.0/24",
	}, func(ctx context.Context, c *client.Client, args []string) (*api.Network, error) {
		if body.Cidr == "" {
			return nil, clikit.Usagef("a network needs --cidr CIDR")
		}
		body.Name = args[0]
		return c.CreateNetwork(ctx, body)
	})
	cmd.Flags().StringVar(&body.Cidr, "cidr", "", "its addresses, IPv4, from /16 to /30")
	addTags(cmd, &body.Tags, "tag", "KEY=VALUE; repeatable")
	return cmd
}
