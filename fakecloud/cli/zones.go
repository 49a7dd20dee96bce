package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) completeZones() cobra.CompletionFunc {
	return a.complete(func(ctx context.Context, c *client.Client) (names []string, err error) {
		zones, err := c.ListZones(ctx)
		for _, z := range zones {
			names = append(names, z.Name)
		}
		return names, err
	})
}

func (a *app) zones() *cobra.Command {
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
			return a.print(cmd.OutOrStdout(), api.ZoneList{Items: zones}, "NAME REGION STATE", rows)
		}),
	}
	a.addOutput(list)
	return group("zones", "The cloud's zones", "  fakecloud zones list -o yaml", list)
}
