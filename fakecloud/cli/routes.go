package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) routesCommand() *cobra.Command {
	k := a.routeKind()
	var f client.RouteFilter
	return groupCommand("routes", "Routes, and whether they lead anywhere", `  fakecloud routes list
  fakecloud routes create node-1 --destination 10.244.1.0/24 --instance node-1`,
		filteredListCommand(
			k, "List routes, oldest first", "  fakecloud routes list --tag cluster=lab", &f, &f.Tags,
			(*client.Client).ListRoutes,
		),
		k.getCommand("Show routes", "  fakecloud routes get node-1 -o yaml"),
		k.createCommand(&cobra.Command{
			Use: "create NAME", Short: "Create a route",
			Example: "  fakecloud routes create node-1 --destination 10.244.1.0/24 --instance node-1",
		}),
		k.renameCommand(),
		k.deleteCommand("delete", "Delete routes", "  fakecloud routes delete node-1", (*client.Client).DeleteRoute))
}

func (a *app) routeKind() resourceKind[api.Route] {
	return resourceKind[api.Route]{
		app: a, name: "route", group: "routes", prefix: "r-", refs: "NAME|ID",
		list: func(ctx context.Context, c *client.Client, name string) ([]api.Route, error) {
			return c.ListRoutes(ctx, client.RouteFilter{Name: name})
		},
		get:    (*client.Client).GetRoute,
		create: createBy((*client.Client).CreateRoute), update: updateBy((*client.Client).UpdateRoute),
	}
}
