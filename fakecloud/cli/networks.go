package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
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
		k.createCommand(&cobra.Command{
			Use: "create NAME", Short: "Create a network", Example: "  fakecloud networks create backend --cidr 127.31.0.0/24",
		}),
		k.renameCommand(),
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
		get:    (*client.Client).GetNetwork,
		create: createBy((*client.Client).CreateNetwork), update: updateBy((*client.Client).UpdateNetwork),
	}
}
