package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
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

func (a *app) zonesCommand() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List the zones", Args: cobra.NoArgs, Example: "  fakecloud zones list",
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			zones, err := c.ListZones(cmd.Context())
			if err != nil {
				return err
			}
			var rows [][]string
			for _, z := range zones {
				rows = append(rows, []string{z.Name, z.Region, string(z.State)})
			}
			return a.printOutput(cmd.OutOrStdout(), api.ZoneList{Items: zones}, "NAME REGION STATE", rows)
		}),
	}
	a.addOutput(list)
	return groupCommand("zones", "The cloud's zones", "  fakecloud zones list -o yaml", list)
}

func (a *app) regionsCommand() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List the regions", Args: cobra.NoArgs, Example: "  fakecloud regions list",
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			regions, err := c.ListRegions(cmd.Context())
			if err != nil {
				return err
			}
			var rows [][]string
			for _, r := range regions {
				rows = append(rows, []string{r.Name})
			}
			return a.printOutput(cmd.OutOrStdout(), api.RegionList{Items: regions}, "NAME", rows)
		}),
	}
	a.addOutput(list)
	return groupCommand("regions", "The cloud's regions", "  fakecloud regions list -o yaml", list)
}

func (a *app) instanceTypesCommand() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List the sizes of instances, the smallest first", Args: cobra.NoArgs,
		Example: "  fakecloud instance-types list",
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			sizes, err := c.ListInstanceTypes(cmd.Context())
			if err != nil {
				return err
			}
			var rows [][]string
			for _, s := range sizes {
				rows = append(rows, []string{string(s.Name), strconv.Itoa(s.Vcpus), strconv.Itoa(s.MemoryMiB)})
			}
			return a.printOutput(cmd.OutOrStdout(), api.InstanceSizeList{Items: sizes}, "NAME VCPUS MEMORY-MIB", rows)
		}),
	}
	a.addOutput(list)
	return groupCommand(
		"instance-types", "The sizes that instances can have", "  fakecloud instance-types list -o yaml", list,
	)
}
