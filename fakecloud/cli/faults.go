package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) faultsCommand() *cobra.Command {
	k := a.faultKind()
	get := k.getCommand("Show a fault rule", "  fakecloud faults get f-01jd3n9y5c7r -o yaml")
	get.Use, get.Args = "get ID", cobra.ExactArgs(1)
	return groupCommand("faults", "Calls and life cycles that go wrong, on purpose", `  fakecloud faults create --token ccm --status 503 --times 5
  fakecloud faults create --operation listInstances --empty-list
  fakecloud faults create --zone-outage nebula-1a --for 30s
  fakecloud faults list
  fakecloud faults delete --all`,
		k.listCommand(
			"List fault rules, oldest first, with how often each was applied", "  fakecloud faults list -o json",
		),
		get, a.faultsCreate(), a.faultsDelete())
}

func (a *app) faultKind() resourceKind[api.Fault] {
	return resourceKind[api.Fault]{
		app: a, refs: "ID", get: (*client.Client).GetFault,
		list: func(ctx context.Context, c *client.Client, _ string) ([]api.Fault, error) {
			return c.ListFaults(ctx)
		},
		columns: "ID MATCH EFFECT +WHEN HITS +MATCHED AGE",
		row:     a.faultRow,
	}
}

func (a *app) faultsDelete() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "delete ID... | --all", Short: "Lift faults",
		Long: `Lift faults. Calls and resources that they hold are let go of, and instances
that an outage took are started again.`,
		Example: `  fakecloud faults delete f-01jd3n9y5c7r
  fakecloud faults delete --all`, ValidArgsFunction: a.faultKind().completeRefs(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if all == (len(args) > 0) {
				return misuse("give the IDs of the faults to delete, or --all")
			}
			if all {
				return c.DeleteFaults(cmd.Context())
			}
			return doForEachRef(args, func(id string) error { return c.DeleteFault(cmd.Context(), id) })
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "all faults of the project")
	return cmd
}
