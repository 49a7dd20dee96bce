// This file answers: what can be done with networks from the command line, and
// how are resources renamed and tagged?

package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) networks() *cobra.Command {
	return group("networks", "Where instances get their addresses from", `  fakecloud networks list
  fakecloud networks create backend --cidr 127.31.0.0/24
  fakecloud instances create node-9 --network backend`,
		a.networksList(), a.networksGet(), a.networksCreate(), a.networksUpdate(), a.networksDelete())
}

func (a *app) printNetworks(cmd *cobra.Command, value any, items []api.Network) error {
	var rows [][]string
	for _, n := range items {
		standard := "no"
		if n.Default {
			standard = "yes"
		}
		rows = append(rows, []string{n.Name, n.ID, n.Cidr, standard, a.age(n.CreatedAt)})
	}
	return a.print(cmd.OutOrStdout(), value, "NAME ID CIDR DEFAULT AGE", rows)
}

func (a *app) networksList() *cobra.Command {
	var f client.NetworkFilter
	var watch bool
	cmd := &cobra.Command{
		Use: "list", Short: "List networks, oldest first", Args: cobra.NoArgs,
		Example: "  fakecloud networks list --tag tier=2",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			if watch {
				return a.watchNetworks(cmd, c, f)
			}
			items, err := c.ListNetworks(cmd.Context(), f)
			if err != nil {
				return err
			}
			return a.printNetworks(cmd, api.NetworkList{Items: orEmpty(items)}, items)
		},
	}
	a.addOutput(cmd)
	addWatch(cmd, &watch)
	cmd.Flags().StringArrayVar(&f.Tags, "tag", nil, "only those with this KEY or KEY=VALUE; repeatable")
	return cmd
}

// resolveNetwork finds a network by name or ID.
func resolveNetwork(ctx context.Context, c *client.Client, ref string) (*api.Network, error) {
	return named(ctx, "network", "networks", "n-", ref, func(ctx context.Context) ([]api.Network, error) {
		return c.ListNetworks(ctx, client.NetworkFilter{Name: ref})
	}, c.GetNetwork)
}

func (a *app) completeNetworks() cobra.CompletionFunc {
	return a.complete(func(ctx context.Context, c *client.Client) (names []string, err error) {
		items, err := c.ListNetworks(ctx, client.NetworkFilter{})
		for _, n := range items {
			names = append(names, n.Name)
		}
		return names, err
	})
}

func (a *app) networksGet() *cobra.Command {
	cmd := &cobra.Command{
		Use: "get NAME|ID...", Short: "Show networks", Args: cobra.MinimumNArgs(1),
		Example: "  fakecloud networks get default -o yaml", ValidArgsFunction: a.completeNetworks(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			found, err := each(args, func(ref string) (*api.Network, error) { return resolveNetwork(cmd.Context(), c, ref) })
			switch {
			case len(found) == 0:
				return err
			case len(args) == 1:
				return a.printNetworks(cmd, found[0], found)
			}
			return errors.Join(err, a.printNetworks(cmd, api.NetworkList{Items: found}, found))
		},
	}
	a.addOutput(cmd)
	return cmd
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
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			n, err := c.CreateNetwork(cmd.Context(), api.NetworkCreate{Name: args[0], Cidr: cidr, Tags: changedTags(cmd, "tag", tags)})
			if err != nil {
				return err
			}
			return a.printNetworks(cmd, n, []api.Network{*n})
		},
	}
	a.addOutput(cmd)
	cmd.Flags().StringVar(&cidr, "cidr", "", "its addresses, IPv4, from /16 to /30")
	cmd.Flags().StringToStringVar(&tags, "tag", nil, "KEY=VALUE; repeatable")
	return cmd
}

func (a *app) networksDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME|ID...", Short: "Delete networks that no instance is in", Args: cobra.MinimumNArgs(1),
		Example: "  fakecloud networks delete backend", ValidArgsFunction: a.completeNetworks(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			_, err = each(args, func(ref string) (*api.Network, error) {
				n, err := resolveNetwork(cmd.Context(), c, ref)
				if err == nil {
					err = c.DeleteNetwork(cmd.Context(), n.ID)
				}
				return n, err
			})
			return err
		},
	}
}

func (a *app) networksUpdate() *cobra.Command {
	return a.update("networks", "network", a.completeNetworks(), func(cmd *cobra.Command, c *client.Client, ref string, u api.ResourceUpdate) error {
		n, err := resolveNetwork(cmd.Context(), c, ref)
		if err != nil {
			return err
		}
		if n, err = c.UpdateNetwork(cmd.Context(), n.ID, u); err != nil {
			return err
		}
		return a.printNetworks(cmd, n, []api.Network{*n})
	})
}

func (a *app) instancesUpdate() *cobra.Command {
	return a.update("instances", "instance", a.completeInstances(), func(cmd *cobra.Command, c *client.Client, ref string, u api.ResourceUpdate) error {
		in, err := resolveInstance(cmd.Context(), c, ref)
		if err != nil {
			return err
		}
		if in, err = c.UpdateInstance(cmd.Context(), in.ID, u); err != nil {
			return err
		}
		return a.printInstances(cmd, in, []api.Instance{*in})
	})
}

func (a *app) routesUpdate() *cobra.Command {
	return a.update("routes", "route", a.completeRoutes(), func(cmd *cobra.Command, c *client.Client, ref string, u api.ResourceUpdate) error {
		r, err := resolveRoute(cmd.Context(), c, ref)
		if err != nil {
			return err
		}
		if r, err = c.UpdateRoute(cmd.Context(), r.ID, u); err != nil {
			return err
		}
		return a.printRoutes(cmd, r, []api.Route{*r})
	})
}

// update is the command that renames and tags one kind of resource.
func (a *app) update(group, kind string, complete cobra.CompletionFunc, do func(cmd *cobra.Command, c *client.Client, ref string, u api.ResourceUpdate) error) *cobra.Command {
	var name string
	var tags map[string]string
	var noTags bool
	cmd := &cobra.Command{
		Use: "update NAME|ID", Short: "Rename one " + kind + ", or replace its tags", Args: cobra.ExactArgs(1),
		Example: fmt.Sprintf(`  fakecloud %s update one --name other
  fakecloud %s update one --tag a=b --tag c=d`, group, group),
		ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			var u api.ResourceUpdate
			var err error
			if u.Tags, err = newTags(cmd, "tag", tags, noTags); err != nil {
				return err
			}
			if cmd.Flags().Changed("name") {
				u.Name = &name
			}
			if u == (api.ResourceUpdate{}) {
				return misuse("nothing to update: give --name, --tag or --no-tags")
			}
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			return do(cmd, c, args[0], u)
		},
	}
	a.addOutput(cmd)
	cmd.Flags().StringVar(&name, "name", "", "a new name")
	cmd.Flags().StringToStringVar(&tags, "tag", nil, "KEY=VALUE, in place of all the tags before; repeatable")
	cmd.Flags().BoolVar(&noTags, "no-tags", false, "remove all tags")
	noFiles(cmd, map[string][]string{"name": nil, "tag": nil})
	return cmd
}
