package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) routesCommand() *cobra.Command {
	k := a.routeKind()
	return groupCommand("routes", "Routes, and whether they lead anywhere", `  fakecloud routes list
  fakecloud routes create node-1 --destination 10.244.1.0/24 --instance node-1`,
		a.routesList(),
		k.getCommand("Show routes", "  fakecloud routes get node-1 -o yaml"),
		a.routesCreate(),
		k.updateCommand((*client.Client).UpdateRoute),
		k.deleteCommand("delete", "Delete routes", "  fakecloud routes delete node-1", (*client.Client).DeleteRoute))
}

func (a *app) routeKind() resourceKind[api.Route] {
	return resourceKind[api.Route]{
		app: a, name: "route", group: "routes", refs: "NAME|ID", find: resolveRoute, print: a.printRoutes,
		list: func(ctx context.Context, c *client.Client) ([]api.Route, error) {
			return c.ListRoutes(ctx, client.RouteFilter{})
		},
		label:   func(r api.Route) string { return r.Name },
		id:      func(r api.Route) string { return r.ID },
		wrap:    func(items []api.Route) any { return api.RouteList{Items: items} },
		version: func(r api.Route) int64 { return r.Version },
	}
}

func (a *app) routesList() *cobra.Command {
	var f client.RouteFilter
	cmd := a.routeKind().listCommand(
		&cobra.Command{Short: "List routes, oldest first", Example: "  fakecloud routes list --tag cluster=lab"},
		func(ctx context.Context, c *client.Client) ([]api.Route, error) { return c.ListRoutes(ctx, f) },
		resourceInEvent(func(ev api.Event) *api.Route { return ev.Route }, func(r *api.Route) bool {
			return hasTags(r.Tags, f.Tags)
		}))
	addTagFlag(cmd, &f.Tags)
	return cmd
}

func (a *app) printRoutes(cmd *cobra.Command, value any, items []api.Route) error {
	var rows [][]string
	for _, r := range items {
		rows = append(rows, []string{
			r.Name, r.ID, r.Destination, r.InstanceID, string(r.State), a.formatAge(r.CreatedAt), orDash(r.StateReason),
		})
	}
	return a.printOutput(cmd.OutOrStdout(), value, "NAME ID DESTINATION INSTANCE STATE AGE REASON", rows)
}

// resolveRoute finds a route by name or ID.
func resolveRoute(ctx context.Context, c *client.Client, ref string) (*api.Route, error) {
	return findByNameOrID(ctx, "route", "routes", "r-", ref, func(ctx context.Context) ([]api.Route, error) {
		return c.ListRoutes(ctx, client.RouteFilter{Name: ref})
	}, c.GetRoute)
}

func (a *app) routesCreate() *cobra.Command {
	var destination, instance string
	var tags map[string]string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a route", Args: cobra.ExactArgs(1),
		Example:           "  fakecloud routes create node-1 --destination 10.244.1.0/24 --instance node-1",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if destination == "" || instance == "" {
				return misuse("a route needs --destination CIDR and --instance NAME|ID")
			}
			c, err := a.newClient()
			if err != nil {
				return usageError{err}
			}
			in, err := resolveInstance(cmd.Context(), c, instance)
			if err != nil {
				return err
			}
			r, err := c.CreateRoute(
				cmd.Context(),
				api.RouteCreate{Name: args[0], Destination: destination, InstanceID: in.ID, Tags: someTags(tags)},
			)
			return a.routeKind().printOne(cmd, r, err)
		},
	}
	a.addOutput(cmd)
	cmd.Flags().StringVar(&destination, "destination", "", "where the packets are to, as a CIDR")
	cmd.Flags().StringVar(&instance, "instance", "", "name or ID of the instance that they go to")
	completeFlag(cmd, "instance", a.instanceKind().completeRefs())
	cmd.Flags().StringToStringVar(&tags, "tag", nil, "KEY=VALUE; repeatable")
	return cmd
}
