// This file answers: how are calls made to go wrong from the command line?

package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

func (a *app) faults() *cobra.Command {
	return group("faults", "Calls that go wrong, on purpose", `  fakecloud faults create --token ccm --status 503 --times 5
  fakecloud faults create --operation listInstances --empty-list
  fakecloud faults list
  fakecloud faults delete --all`,
		a.faultsList(), a.faultsGet(), a.faultsCreate(), a.faultsDelete())
}

func (a *app) printFaults(cmd *cobra.Command, value any, items []api.Fault) error {
	var rows [][]string
	for _, f := range items {
		hits := strconv.Itoa(f.Hits)
		if f.Times > 0 {
			hits += "/" + strconv.Itoa(f.Times)
		}
		rows = append(rows, []string{f.ID, matchText(f.Match), effectText(f.Effect), hits, age(f.CreatedAt)})
	}
	return a.print(cmd.OutOrStdout(), value, "ID MATCH EFFECT HITS AGE", rows)
}

func matchText(m api.FaultMatch) string {
	var parts []string
	if m.Token != "" {
		parts = append(parts, "token="+m.Token)
	}
	if len(m.Operations) > 0 {
		parts = append(parts, "operation="+strings.Join(m.Operations, "|"))
	}
	if m.Resource != "" {
		parts = append(parts, "resource="+m.Resource)
	}
	if len(parts) == 0 {
		return "every call"
	}
	return strings.Join(parts, " ")
}

func effectText(e api.FaultEffect) string {
	var parts []string
	if e.DelayMilliseconds > 0 {
		parts = append(parts, "delay="+(time.Duration(e.DelayMilliseconds)*time.Millisecond).String())
	}
	if e.Status != 0 {
		parts = append(parts, fmt.Sprintf("status=%d", e.Status))
	}
	if e.RetryAfterSeconds > 0 {
		parts = append(parts, fmt.Sprintf("retry-after=%ds", e.RetryAfterSeconds))
	}
	if e.Project != "" {
		parts = append(parts, "project="+e.Project)
	}
	for _, kind := range []struct {
		name string
		set  bool
	}{{"hang", e.Hang}, {"drop", e.Drop}, {"body", e.Body != nil}, {"empty-list", e.EmptyList}} {
		if kind.set {
			parts = append(parts, kind.name)
		}
	}
	return strings.Join(parts, " ")
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

func (a *app) faultsCreate() *cobra.Command {
	var f api.FaultCreate
	var delay, retryAfter time.Duration
	var body string
	cmd := &cobra.Command{
		Use: "create", Short: "Make calls go wrong", Args: cobra.NoArgs,
		Long: `Make calls go wrong: those of one token, of some operations or about one
resource; without any of these flags every call of the project, your own too,
but not those of "fakecloud faults" and "fakecloud audit". Nothing changes in
the cloud by a call that a fault answers or breaks off. A restart of the cloud
forgets all faults.`,
		Example: `  fakecloud faults create --token ccm --status 503 --times 5
  fakecloud faults create --token ccm --operation getInstance --status 404 --project p-other
  fakecloud faults create --operation createLoadBalancer --delay 3s
  fakecloud faults create --token ccm --status 429 --retry-after 5s
  fakecloud faults create --token ccm --hang`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkEffect(cmd, f.Times, delay, retryAfter); err != nil {
				return err
			}
			f.Effect.DelayMilliseconds, f.Effect.RetryAfterSeconds = int(delay.Milliseconds()), int(retryAfter.Seconds())
			if cmd.Flags().Changed("body") {
				f.Effect.Body = &body
			}
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			made, err := c.CreateFault(cmd.Context(), f)
			if err != nil {
				return err
			}
			return a.printFaults(cmd, made, []api.Fault{*made})
		},
	}
	a.addOutput(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.Match.Token, "token", "", "only calls of the token of this name")
	flags.StringSliceVar(&f.Match.Operations, "operation", nil, "only calls of this operation, by its operationId; repeatable")
	flags.StringVar(&f.Match.Resource, "resource", "", "only calls about the resource of this ID")
	flags.IntVar(&f.Times, "times", 0, "how many calls it is applied to (default: until it is deleted)")
	flags.DurationVar(&delay, "delay", 0, "wait this long before anything else")
	flags.IntVar(&f.Effect.Status, "status", 0, "answer with this status, 400 to 599")
	flags.DurationVar(&retryAfter, "retry-after", 0, "with --status, tell the caller to wait this long")
	flags.StringVar(&f.Effect.Project, "project", "", "with --status 404, the ID of the project that the answer names (default: the caller's)")
	flags.BoolVar(&f.Effect.Hang, "hang", false, "never answer")
	flags.BoolVar(&f.Effect.Drop, "drop", false, "reset the connection without an answer")
	flags.StringVar(&body, "body", "", "answer with status 200 and this text")
	flags.StringVar(&f.Effect.ContentType, "content-type", "", "with --body, its type (default application/json)")
	flags.BoolVar(&f.Effect.EmptyList, "empty-list", false, "answer lists as empty")
	err := cmd.RegisterFlagCompletionFunc("operation", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		operations, _ := server.Operations() // None to offer, if any error.
		return operations, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // The flag is missing: a mistake in this package.
	}
	return cmd
}

// checkEffect refuses flags that make no rule.
func checkEffect(cmd *cobra.Command, times int, delay, retryAfter time.Duration) error {
	changed := cmd.Flags().Changed
	ways := slices.DeleteFunc([]string{"status", "hang", "drop", "body", "empty-list"}, func(name string) bool { return !changed(name) })
	switch {
	case len(ways) > 1:
		return misuse("--%s and --%s: a call can end in one way only", ways[0], ways[1])
	case len(ways) == 0 && !changed("delay"):
		return misuse("a fault needs an effect: --delay, or one of --status, --hang, --drop, --body and --empty-list")
	case changed("delay") && (delay <= 0 || delay%time.Millisecond != 0):
		return misuse("--delay %s: give whole milliseconds, 1ms or more", delay)
	case changed("retry-after") && (retryAfter <= 0 || retryAfter%time.Second != 0):
		return misuse("--retry-after %s: give whole seconds, 1s or more", retryAfter)
	case changed("times") && times < 1:
		return misuse("--times %d: give 1 or more, or leave it out", times)
	}
	return nil
}

func (a *app) faultsDelete() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "delete ID... | --all", Short: "Lift faults",
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
				items, err := c.ListFaults(cmd.Context())
				if err != nil {
					return err
				}
				for _, f := range items {
					args = append(args, f.ID)
				}
			}
			_, err = each(args, func(id string) (*struct{}, error) {
				err := c.DeleteFault(cmd.Context(), id)
				if all && client.IsNotFound(err) {
					err = nil // Someone else lifted it meanwhile.
				}
				return &struct{}{}, err
			})
			return err
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all faults of the project")
	return cmd
}
