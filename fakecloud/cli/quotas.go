package cli

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

func (a *app) quotasCommand() *cobra.Command {
	return groupCommand("quotas", "How much a project may have, and has", `  fakecloud quotas get
  fakecloud quotas set --project team-a --instances 100`,
		a.quotasGet(), a.quotasSet())
}

// printQuotas prints the result of a call, unless the call failed.
func (a *app) printQuotas(cmd *cobra.Command, q *api.Quotas, err error) error {
	if err != nil {
		return err
	}
	var rows [][]string
	for _, one := range []struct {
		name string
		api.Quota
	}{
		{"instances", q.Instances}, {"load-balancers", q.LoadBalancers}, {"routes", q.Routes}, {"networks", q.Networks},
		{"addresses", q.Addresses},
	} {
		rows = append(rows, []string{one.name, strconv.FormatInt(one.Used, 10), strconv.FormatInt(one.Limit, 10)})
	}
	return a.printOutput(cmd, q, "QUOTA USED LIMIT", rows)
}

func (a *app) quotasGet() *cobra.Command {
	var project string
	cmd := &cobra.Command{
		Use: "get", Aliases: []string{"list"}, Short: "Show what a project may have, and has",
		Long: "Show what a project may have, and has: your token's own or, for admins, any.",
		Example: `  fakecloud quotas get
  fakecloud quotas get --project team-a -o json`,
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			if project == "" {
				q, err := c.Quotas(cmd.Context())
				return a.printQuotas(cmd, q, err)
			}
			p, err := resolveProject(cmd.Context(), c, project)
			if err != nil {
				return err
			}
			q, err := c.ProjectQuotas(cmd.Context(), p.ID)
			return a.printQuotas(cmd, q, err)
		}),
	}
	a.addOutput(cmd)
	a.addProjectFlag(cmd, &project)
	return cmd
}

func (a *app) quotasSet() *cobra.Command {
	var project string
	var flags *requestReader
	cmd := &cobra.Command{
		Use: "set", Short: "Set how much a project may have; for admins",
		Long:    "Set how much a project may have; limits not given stay. One below what the project has stops creates only.",
		Example: "  fakecloud quotas set --project team-a --instances 100 --networks 5",
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			given, err := flags.read(cmd.Context(), c)
			if err != nil {
				return err
			}
			if len(given) == 0 {
				return clikit.Usagef("nothing to set: give --instances, --load-balancers, --routes, --networks or --addresses")
			}
			p, err := resolveProject(cmd.Context(), c, project)
			if err != nil {
				return err
			}
			u, err := decodeInto[api.QuotasUpdate](given)
			if err != nil {
				return err
			}
			q, err := c.UpdateProjectQuotas(cmd.Context(), p.ID, u)
			return a.printQuotas(cmd, q, err)
		}),
	}
	a.addOutput(cmd)
	a.addProjectFlag(cmd, &project)
	flags = a.addRequestFlags(cmd, "QuotasUpdate")
	return cmd
}
