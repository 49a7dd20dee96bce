package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

func (a *app) balancersHealth() *cobra.Command {
	var history bool
	cmd := &cobra.Command{
		Use: "health NAME|ID", Short: "Show the health of a load balancer's targets", Args: clikit.RequireArguments(1, 1),
		Example:           "  fakecloud load-balancers health web\n  fakecloud load-balancers health web --history",
		ValidArgsFunction: a.balancerKind().completeRefs(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			lb, err := a.balancerKind().findByRef(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			health, err := c.LoadBalancerHealth(cmd.Context(), lb.ID)
			if err != nil {
				return err
			}
			names := instanceNames{client: c}
			if a.output == "table" {
				var ids []string
				for _, t := range health.Targets {
					ids = append(ids, t.Name())
				}
				names.lookUpMissing(cmd.Context(), ids)
			}
			header, rows := "TARGET +ID HEALTH FOR REASON", a.healthRows
			if history {
				header, rows = "TARGET +ID +AT AGO CHANGE REASON", a.historyRows
			}
			var all [][]string
			for _, t := range health.Targets {
				for _, row := range rows(t) {
					all = append(all, append([]string{names.nameOf(t.Name()), t.Name()}, row...))
				}
			}
			return a.printOutput(cmd, health, header, all)
		}),
	}
	a.addOutput(cmd)
	cmd.Flags().BoolVar(
		&history, "history", false, "show each target's changes, the latest first (json and yaml always have them)",
	)
	return cmd
}

func (a *app) healthRows(t api.TargetHealth) [][]string {
	since := "-"
	if t.Since != nil {
		since = a.formatAge(*t.Since)
	}
	return [][]string{{string(t.Health), since, orDash(t.Reason)}}
}

// historyRows are the changes of a target's health. The health before the oldest known change
// is a dash.
func (a *app) historyRows(t api.TargetHealth) (rows [][]string) {
	for i, h := range t.History {
		before := "-"
		if i+1 < len(t.History) {
			before = string(t.History[i+1].Health)
		}
		rows = append(rows, []string{h.At.Local().
			Format(time.RFC3339), a.formatAge(h.At), before + " -> " + string(h.Health), orDash(h.Reason)})
	}
	if rows == nil {
		rows = [][]string{{"-", "-", "- -> " + string(t.Health), orDash(t.Reason)}}
	}
	return rows
}
