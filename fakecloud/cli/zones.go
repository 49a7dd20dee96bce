package cli

import (
	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

func (a *app) zones() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List the zones", Args: cobra.NoArgs, Example: "  fakecloud zones list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			zones, err := c.ListZones(cmd.Context())
			if err != nil {
				return err
			}
			var rows [][]string
			for _, z := range zones {
				rows = append(rows, []string{z.Name, z.Region, string(z.State)})
			}
			return a.print(cmd.OutOrStdout(), api.ZoneList{Items: zones}, "NAME REGION STATE", rows)
		},
	}
	a.addOutput(list)
	return group("zones", "The cloud's zones", "  fakecloud zones list -o yaml", list)
}
