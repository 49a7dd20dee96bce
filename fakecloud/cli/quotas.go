package cli

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) quotasCommand() *cobra.Command {
	return groupCommand("quotas", "How much a project may have, and has", `  fakecloud quotas get
  fakecloud quotas set --project team-a --instances 100`,
		a.quotasGet(), a.quotasSet())
}

func (a *app) printQuotas(cmd *cobra.Command, q *api.Quotas) error {
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
	return a.printOutput(cmd.OutOrStdout(), q, "QUOTA USED LIMIT", rows)
}

func (a *app) quotasGet() *cobra.Command {
	var project string
	cmd := &cobra.Command{
		Use: "get", Aliases: []string{"list"}, Short: "Show what a project may have, and has", Args: cobra.NoArgs,
		Long: "Show what a project may have, and has: your token's own or, for admins, any.",
		Example: `  fakecloud quotas get
  fakecloud quotas get --project team-a -o json`,
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			if project == "" {
				q, err := c.Quotas(cmd.Context())
				if err != nil {
					return err
				}
				return a.printQuotas(cmd, q)
			}
			p, err := resolveProject(cmd.Context(), c, project)
			if err != nil {
				return err
			}
			q, err := c.ProjectQuotas(cmd.Context(), p.ID)
			if err != nil {
				return err
			}
			return a.printQuotas(cmd, q)
		}),
	}
	a.addOutput(cmd)
	a.addProjectFlag(cmd, &project)
	return cmd
}

func (a *app) quotasSet() *cobra.Command {
	var project string
	var u api.QuotasUpdate
	limits := map[string]**api.QuotaLimit{
		"instances": &u.Instances, "load-balancers": &u.LoadBalancers, "routes": &u.Routes, "networks": &u.Networks,
		"addresses": &u.Addresses,
	}
	values := map[string]*int64{}
	cmd := &cobra.Command{
		Use: "set", Short: "Set how much a project may have; for admins", Args: cobra.NoArgs,
		Long:    "Set how much a project may have; limits not given stay. One below what the project has stops creates only.",
		Example: "  fakecloud quotas set --project team-a --instances 100 --networks 5",
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := false
			for name, limit := range limits {
				if cmd.Flags().Changed(name) {
					*limit, given = values[name], true
				}
			}
			if !given {
				return misuse("nothing to set: give --instances, --load-balancers, --routes, --networks or --addresses")
			}
			c, err := a.newClient()
			if err != nil {
				return usageError{err}
			}
			p, err := resolveProject(cmd.Context(), c, project)
			if err != nil {
				return err
			}
			q, err := c.UpdateProjectQuotas(cmd.Context(), p.ID, u)
			if err != nil {
				return err
			}
			return a.printQuotas(cmd, q)
		},
	}
	a.addOutput(cmd)
	a.addProjectFlag(cmd, &project)
	for name := range limits {
		values[name] = cmd.Flags().Int64(name, 0, "how many it may have")
	}
	return cmd
}
