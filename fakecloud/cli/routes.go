// This file answers: what can be done with routes from the command line?

package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) routes() *cobra.Command {
	return group("routes", "Routes, and whether they lead anywhere", `  fakecloud routes list
  fakecloud routes create node-1 --destination 10.244.1.0/24 --instance node-1`,
		a.routesList(), a.routesGet(), a.routesCreate(), a.routesUpdate(), a.routesDelete())
}

func (a *app) printRoutes(cmd *cobra.Command, value any, items []api.Route) error {
	var rows [][]string
	for _, r := range items {
		rows = append(rows, []string{r.Name, r.ID, r.Destination, r.InstanceID, string(r.State), a.age(r.CreatedAt), orDash(r.StateReason)})
	}
	return a.print(cmd.OutOrStdout(), value, "NAME ID DESTINATION INSTANCE STATE AGE REASON", rows)
}

func (a *app) routesList() *cobra.Command {
	var f client.RouteFilter
	var watch bool
	cmd := &cobra.Command{
		Use: "list", Short: "List routes, oldest first", Args: cobra.NoArgs,
		Example: "  fakecloud routes list --tag cluster=lab",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			if watch {
				return a.watchRoutes(cmd, c, f)
			}
			items, err := c.ListRoutes(cmd.Context(), f)
			if err != nil {
				return err
			}
			return a.printRoutes(cmd, api.RouteList{Items: orEmpty(items)}, items)
		},
	}
	a.addOutput(cmd)
	addWatch(cmd, &watch)
	cmd.Flags().StringArrayVar(&f.Tags, "tag", nil, "only those with this KEY or KEY=VALUE; repeatable")
	return cmd
}

// resolveRoute finds a route by name or ID.
func resolveRoute(ctx context.Context, c *client.Client, ref string) (*api.Route, error) {
	return named(ctx, "route", "routes", "r-", ref, func(ctx context.Context) ([]api.Route, error) {
		return c.ListRoutes(ctx, client.RouteFilter{Name: ref})
	}, c.GetRoute)
}

func (a *app) completeRoutes() cobra.CompletionFunc {
	return a.complete(func(ctx context.Context, c *client.Client) (names []string, err error) {
		items, err := c.ListRoutes(ctx, client.RouteFilter{})
		for _, r := range items {
			names = append(names, r.Name)
		}
		return names, err
	})
}

func (a *app) routesGet() *cobra.Command {
	cmd := &cobra.Command{
		Use: "get NAME|ID...", Short: "Show routes", Args: cobra.MinimumNArgs(1),
		Example: "  fakecloud routes get node-1 -o yaml", ValidArgsFunction: a.completeRoutes(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			found, err := each(args, func(ref string) (*api.Route, error) { return resolveRoute(cmd.Context(), c, ref) })
			switch {
			case len(found) == 0:
				return err
			case len(args) == 1:
				return a.printRoutes(cmd, found[0], found)
			}
			return errors.Join(err, a.printRoutes(cmd, api.RouteList{Items: found}, found))
		},
	}
	a.addOutput(cmd)
	return cmd
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
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			in, err := resolveInstance(cmd.Context(), c, instance)
			if err != nil {
				return err
			}
			body := api.RouteCreate{Name: args[0], Destination: destination, InstanceID: in.ID}
			if len(tags) > 0 {
				t := api.Tags(tags)
				body.Tags = &t
			}
			r, err := c.CreateRoute(cmd.Context(), body)
			if err != nil {
				return err
			}
			return a.printRoutes(cmd, r, []api.Route{*r})
		},
	}
	a.addOutput(cmd)
	cmd.Flags().StringVar(&destination, "destination", "", "where the packets are to, as a CIDR")
	cmd.Flags().StringVar(&instance, "instance", "", "name or ID of the instance that they go to")
	offer(cmd, "instance", a.completeInstances())
	cmd.Flags().StringToStringVar(&tags, "tag", nil, "KEY=VALUE; repeatable")
	return cmd
}

func (a *app) routesDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME|ID...", Short: "Delete routes", Args: cobra.MinimumNArgs(1),
		Example: "  fakecloud routes delete node-1", ValidArgsFunction: a.completeRoutes(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			_, err = each(args, func(ref string) (*api.Route, error) {
				r, err := resolveRoute(cmd.Context(), c, ref)
				if err == nil {
					err = c.DeleteRoute(cmd.Context(), r.ID)
				}
				return r, err
			})
			return err
		},
	}
}
