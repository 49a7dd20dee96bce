package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
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
		a.routesCreate(),
		k.updateCommand("tag", (*client.Client).UpdateRoute),
		k.deleteCommand("delete", "Delete routes", "  fakecloud routes delete node-1", (*client.Client).DeleteRoute))
}

func (a *app) routeKind() resourceKind[api.Route] {
	return resourceKind[api.Route]{
		app: a, name: "route", group: "routes", prefix: "r-", refs: "NAME|ID",
		list: func(ctx context.Context, c *client.Client, name string) ([]api.Route, error) {
			return c.ListRoutes(ctx, client.RouteFilter{Name: name})
		},
		get:     (*client.Client).GetRoute,
		columns: "NAME ID DESTINATION INSTANCE STATE AGE REASON",
		row: func(r api.Route) []string {
			return []string{
				r.Name, r.ID, r.Destination, r.InstanceID, string(r.State), a.formatAge(r.CreatedAt),
				orDash(r.StateReason),
			}
		},
	}
}

func (a *app) routesCreate() *cobra.Command {
	var body api.RouteCreate
	var instance string
	cmd := a.routeKind().callCommand(&cobra.Command{
		Use: "create NAME", Short: "Create a route", Args: clikit.RequireArguments(1, 1),
		Example: "  fakecloud routes create node-1 --destination 10.244.1.0/24 --instance node-1",
	}, func(ctx context.Context, c *client.Client, args []string) (*api.Route, error) {
		if body.Destination == "" || instance == "" {
			return nil, clikit.Usagef("a route needs --destination CIDR and --instance NAME|ID")
		}
		in, err := resolveInstance(ctx, c, instance)
		if err != nil {
			return nil, err
		}
		body.Name, body.InstanceID = args[0], in.ID
		return c.CreateRoute(ctx, body)
	})
	cmd.Flags().StringVar(&body.Destination, "destination", "", "where the packets are to, as a CIDR")
	cmd.Flags().StringVar(&instance, "instance", "", "name or ID of the instance that they go to")
	clikit.CompleteFlagBy(cmd, "instance", a.instanceKind().completeRefs())
	addTags(cmd, &body.Tags, "tag", "KEY=VALUE; repeatable")
	return cmd
}
