package cli

import (
	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) networksCommand() *cobra.Command {
	k := a.networkKind()
	return k.kindCommand(
		"Where instances get their addresses from", `  fakecloud networks list
  fakecloud networks create backend --cidr 127.31.0.0/24
  fakecloud instances create node-9 --network backend`, "backend",
		k.createCommand(&cobra.Command{
			Use: "create NAME", Short: "Create a network", Example: "  fakecloud networks create backend --cidr 127.31.0.0/24",
		}),
		k.renameCommand(),
	)
}

func (a *app) networkKind() resourceKind[api.Network] {
	return resourceKind[api.Network]{
		app: a, name: "network", group: "networks", prefix: "n-", refs: "NAME|ID",
		list: listBy((*client.Client).ListNetworks),
		get:  (*client.Client).GetNetwork, remove: (*client.Client).DeleteNetwork, removable: "networks that no instance is in",
		create: createBy((*client.Client).CreateNetwork), update: updateBy((*client.Client).UpdateNetwork),
	}
}
