package cli

import (
	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) routesCommand() *cobra.Command {
	k := a.routeKind()
	return k.kindCommand(
		"Routes, and whether they lead anywhere", `  fakecloud routes list
  fakecloud routes create node-1 --destination 10.244.1.0/24 --instance node-1`, "node-1",
		k.createCommand(&cobra.Command{
			Use: "create NAME", Short: "Create a route",
			Example: "  fakecloud routes create node-1 --destination 10.244.1.0/24 --instance node-1",
		}),
		k.renameCommand(),
	)
}

func (a *app) routeKind() resourceKind[api.Route] {
	return resourceKind[api.Route]{
		app: a, name: "route", group: "routes", prefix: "r-", refs: "NAME|ID",
		list: listBy((*client.Client).ListRoutes),
		get:  (*client.Client).GetRoute, remove: (*client.Client).DeleteRoute,
		create: createBy((*client.Client).CreateRoute), update: updateBy((*client.Client).UpdateRoute),
	}
}
