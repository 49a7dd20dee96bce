package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

var eventKinds = []string{
	string(api.ResourceInstance), string(api.ResourceLoadBalancer), string(api.ResourceRoute),
	string(api.ResourceNetwork), string(api.ResourceAddress), string(api.ResourceFirewall),
	string(api.ResourceQuota),
}

// completeProjectIDs offers the projects whose events can be followed.
func (a *app) completeProjectIDs() cobra.CompletionFunc {
	return a.completeNames(func(ctx context.Context, c *client.Client) ([]string, error) {
		ids := []string{"*"}
		items, err := c.ListProjects(ctx, "")
		for _, p := range items {
			ids = append(ids, p.ID)
		}
		return ids, err
	})
}

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	var after int64
	var only client.EventFilter
	var kinds []string
	cmd := &cobra.Command{
		Use: "events", Short: "Show the cloud's changes, oldest first",
		Example: `  fakecloud events
  fakecloud events --follow --after 1767323045123 -o json
  fakecloud events --follow --resource load-balancer --tag cluster=lab
  fakecloud events --id i-01jd3n6f0c5w3y`,
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			for _, k := range kinds {
				only.Resources = append(only.Resources, api.ResourceKind(k))
			}
			show := a.eventPrinter(cmd.OutOrStdout())
			if !follow {
				return c.Watch(cmd.Context(), after, false, show, only)
			}
			err := c.Follow(cmd.Context(), after, show, reportStreamBreaks(cmd.ErrOrStderr()), only)
			if cmd.Context().Err() == nil {
				return err
			}
			return nil // Ctrl-C is how following ends.
		}),
	}
	a.addOutput(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow new events until interrupted")
	cmd.Flags().Int64Var(
		&after, "after", client.FromOldest, "only events with a greater sequence number; 0 starts with the oldest kept",
	)
	cmd.Flags().StringSliceVar(
		&kinds, "resource", nil, "only events of this kind of resource: "+strings.Join(eventKinds, ", ")+"; repeatable",
	)
	cmd.Flags().StringSliceVar(&only.IDs, "id", nil, "only events of the resource of this ID; repeatable")
	cmd.Flags().
		StringArrayVar(&only.Tags, "tag", nil, "only events of resources with this KEY=VALUE, or KEY; repeatable")
	cmd.Flags().StringVar(&only.Project, "project", "", "the project of this ID, or * for all (admins only)")
	clikit.CompleteFlag(cmd, "resource", eventKinds...)
	clikit.CompleteFlagBy(cmd, "project", a.completeProjectIDs())
	return cmd
}

// eventPrinter prints an event as a line, as a JSON object on a line, or as a YAML document.
func (a *app) eventPrinter(out io.Writer) func(api.Event) error {
	if a.output != "table" {
		return func(ev api.Event) error { return clikit.PrintRecord(out, a.output, ev) }
	}
	return func(ev api.Event) error {
		change := fmt.Sprintf("%s -> %s", orDash(ev.From), orDash(ev.To))
		if ev.Reason != "" {
			change += ": " + ev.Reason
		}
		_, err := fmt.Fprintf(out, "%-13d %s  %-7s  %-13s  %-20s  %s\n", ev.Seq, ev.Time.Local().
			Format("15:04:05.000"), ev.Type, ev.Resource, ev.Name, change)
		return err
	}
}

// reportStreamBreaks is an onBreak of client.Follow that prints each break of the stream.
func reportStreamBreaks(out io.Writer) func(error) {
	return func(err error) {
		if err != nil {
			_, _ = fmt.Fprintf(out, "the event stream broke, resuming: %v\n", err)
		}
	}
}

func orDash(s string) string { return cmp.Or(s, "-") }
