package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

func (a *app) auditCommand() *cobra.Command {
	return groupCommand("audit", "Who called what, and what that cost", `  fakecloud audit list --token ccm --status 4xx
  fakecloud audit sum --by token,operation`, a.auditList(), a.auditSum())
}

// addAuditFlags adds the flags that list and sum share.
func (a *app) addAuditFlags(cmd *cobra.Command, f *client.AuditFilter) {
	cmd.Flags().StringVar(&f.Token, "token", "", "only calls of the token of this name")
	cmd.Flags().StringVar(&f.UserAgent, "user-agent", "", "only calls whose User-Agent begins like this")
	cmd.Flags().StringVar(&f.Operation, "operation", "", "only calls of this operation, by its operationId")
	clikit.CompleteFlagBy(cmd, "operation", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		operations, _ := server.AuditedOperations() // None to offer, if any error.
		return operations, cobra.ShellCompDirectiveNoFileComp
	})
	clikit.CompleteFlagBy(cmd, "token", a.tokenKind(new(string)).completeRefs())
}

func (a *app) auditList() *cobra.Command {
	var f client.AuditFilter
	var status string
	var since time.Duration
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List calls, newest first",
		Long: `List calls, newest first. Calls with the project's tokens are in it, refused
ones too; not so those of "fakecloud audit" and "fakecloud faults".`,
		Example: `  fakecloud audit list --limit 20
  fakecloud audit list --token ccm --status 4xx --since 10m
  fakecloud audit list --resource i-01jd3n6f0c5w3y -o json`,
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			if limit < 0 || since < 0 {
				return clikit.Usagef("--limit and --since cannot be negative")
			}
			if f.Status = api.ListAuditParamsStatus(status); status != "" && !f.Status.Valid() {
				return clikit.Usagef("--status %q: choose 2xx, 3xx, 4xx, 5xx or none", status)
			}
			if since > 0 {
				f.Since = a.cloudNow().Add(-since)
			}
			items, err := c.ListAudit(cmd.Context(), f, limit)
			if err != nil {
				return err
			}
			var rows [][]string
			for _, e := range items {
				rows = append(rows, []string{
					e.Time.Local().Format("15:04:05.000"), e.Token, e.UserAgent, e.Operation,
					orDash(e.Resource),
					outcomeText(e), fmt.Sprintf("%.1fms", e.DurationMilliseconds), fmt.Sprint(e.BytesIn),
					fmt.Sprint(e.BytesOut),
				})
			}
			return a.printOutput(
				cmd, api.AuditList{Items: orEmpty(items)},
				"TIME TOKEN +USER-AGENT OPERATION RESOURCE OUTCOME TOOK +IN +OUT", rows,
			)
		}),
	}
	a.addOutput(cmd)
	a.addAuditFlags(cmd, &f)
	cmd.Flags().StringVar(&f.Resource, "resource", "", "only calls about the resource of this ID")
	cmd.Flags().StringVar(
		&status, "status", "",
		"only calls answered with a status of this class: 2xx, 3xx, 4xx, 5xx, or none for those broken off",
	)
	cmd.Flags().DurationVar(&since, "since", 0, "only calls since this long ago, e.g. 10m")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most this many; 0: all")
	clikit.CompleteFlag(cmd, "status", "2xx", "3xx", "4xx", "5xx", "none")
	return cmd
}

// outcomeText is the status of a call, its problem code and the fault applied, if any.
func outcomeText(e api.AuditEntry) string {
	text := fmt.Sprint(e.Status)
	if e.Status == 0 {
		text = "broken-off"
	}
	if e.Code != "" {
		text += " " + e.Code
	}
	if e.Fault != "" {
		text += " " + e.Fault
	}
	return text
}

func (a *app) auditSum() *cobra.Command {
	var f client.AuditFilter
	var by []string
	cmd := &cobra.Command{
		Use: "sum", Short: "Sum calls by caller and operation, since the cloud's data was created",
		Example: `  fakecloud audit sum
  fakecloud audit sum --by user-agent
  fakecloud audit sum --token ccm --by operation -o json`,
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			var groups []api.AuditGroup
			for _, name := range by {
				g, ok := auditGroups[name]
				if !ok {
					return clikit.Usagef("--by %q: choose among token, user-agent and operation", name)
				}
				groups = append(groups, g)
			}
			items, err := c.SumAudit(cmd.Context(), f, groups...)
			if err != nil {
				return err
			}
			var rows [][]string
			for _, s := range items {
				rows = append(rows, []string{
					s.Token, s.UserAgent, s.Operation, fmt.Sprint(s.Calls),
					fmt.Sprint(s.Errors), fmt.Sprint(s.Faults),
					fmt.Sprint(s.Throttled), fmt.Sprintf("%.1fms", s.DurationMilliseconds), fmt.Sprint(s.BytesIn),
					fmt.Sprint(s.BytesOut),
				})
			}
			return a.printOutput(
				cmd, api.AuditSumList{Items: orEmpty(items)},
				"TOKEN USER-AGENT OPERATION CALLS ERRORS FAULTS THROTTLED TOOK IN OUT", rows,
			)
		}),
	}
	a.addOutput(cmd)
	a.addAuditFlags(cmd, &f)
	cmd.Flags().
		StringSliceVar(&by, "by", nil, "what to sum by: token, user-agent, operation; repeatable (default all three)")
	clikit.CompleteFlag(cmd, "by", "token", "user-agent", "operation")
	return cmd
}

var auditGroups = map[string]api.AuditGroup{
	"token": api.AuditByToken, "user-agent": api.AuditByUserAgent, "operation": api.AuditByOperation,
}
