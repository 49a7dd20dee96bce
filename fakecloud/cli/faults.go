// This file answers: how are calls made to go wrong from the command line?

package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) faults() *cobra.Command {
	return group("faults", "Calls and life cycles that go wrong, on purpose", `  fakecloud faults create --token ccm --status 503 --times 5
  fakecloud faults create --operation listInstances --empty-list
  fakecloud faults create --zone-outage nebula-1a --for 30s
  fakecloud faults list
  fakecloud faults delete --all`,
		a.faultsList(), a.faultsGet(), a.faultsCreate(), a.faultsDelete())
}

func (a *app) faultsList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List fault rules, oldest first, with how often each was applied", Args: cobra.NoArgs,
		Example: "  fakecloud faults list -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			items, err := c.ListFaults(cmd.Context())
			if err != nil {
				return err
			}
			return a.printFaults(cmd, api.FaultList{Items: orEmpty(items)}, items)
		},
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) completeFaults() cobra.CompletionFunc {
	return a.complete(func(ctx context.Context, c *client.Client) (ids []string, err error) {
		items, err := c.ListFaults(ctx)
		for _, f := range items {
			ids = append(ids, f.ID)
		}
		return ids, err
	})
}

func (a *app) faultsGet() *cobra.Command {
	cmd := &cobra.Command{
		Use: "get ID", Short: "Show a fault rule", Args: cobra.ExactArgs(1),
		Example: "  fakecloud faults get f-01jd3n9y5c7r -o yaml", ValidArgsFunction: a.completeFaults(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			found, err := each(args, func(id string) (*api.Fault, error) { return c.GetFault(cmd.Context(), id) })
			if err != nil {
				return err
			}
			return a.printFaults(cmd, found[0], found)
		},
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) faultsDelete() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "delete ID... | --all", Short: "Lift faults",
		Long: `Lift faults. Calls and resources that they hold are let go of, and instances
that an outage took are started again.`,
		Example: `  fakecloud faults delete f-01jd3n9y5c7r
  fakecloud faults delete --all`, ValidArgsFunction: a.completeFaults(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return misuse("give the IDs of the faults to delete, or --all")
			}
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			if all {
				return c.DeleteFaults(cmd.Context())
			}
			_, err = each(args, func(id string) (*struct{}, error) { return &struct{}{}, c.DeleteFault(cmd.Context(), id) })
			return err
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all faults of the project")
	return cmd
}
