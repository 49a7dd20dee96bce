package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) completeZones() cobra.CompletionFunc {
	return a.completeNames(func(ctx context.Context, c *client.Client) (names []string, err error) {
		zones, err := c.ListZones(ctx)
		for _, z := range zones {
			names = append(names, z.Name)
		}
		return names, err
	})
}

// catalogueCommand is the group of a command that lists what the cloud has of itself.
func catalogueCommand[T any](
	a *app,
	group, short, listShort string,
	list func(*client.Client, context.Context) ([]T, error),
) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: listShort, Example: "  fakecloud " + group + " list",
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			items, err := list(c, cmd.Context())
			if err != nil {
				return err
			}
			return resourceKind[T]{app: a}.printItems(cmd, itemList[T]{items}, items)
		}),
	}
	a.addOutput(cmd)
	return groupCommand(group, short, "  fakecloud "+group+" list -o yaml", cmd)
}

func (a *app) zonesCommand() *cobra.Command {
	return catalogueCommand(a, "zones", "The cloud's zones", "List the zones", (*client.Client).ListZones)
}

func (a *app) regionsCommand() *cobra.Command {
	return catalogueCommand(a, "regions", "The cloud's regions", "List the regions", (*client.Client).ListRegions)
}

func (a *app) instanceTypesCommand() *cobra.Command {
	return catalogueCommand(
		a, "instance-types", "The sizes that instances can have", "List the sizes of instances, the smallest first",
		(*client.Client).ListInstanceTypes,
	)
}

func (a *app) loadBalancerTypesCommand() *cobra.Command {
	return catalogueCommand(
		a, "load-balancer-types", "The types of load balancers that have limits",
		"List the types of load balancers, the smallest first", (*client.Client).ListLoadBalancerTypes,
	)
}
