package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab/timeline"
)

func printTimeline(w io.Writer, entries []timeline.Entry) {
	for _, e := range entries {
		_, _ = fmt.Fprintln(w, timelineLine(e))
	}
}

func timelineLine(e timeline.Entry) string {
	return strings.TrimRight(fmt.Sprintf("%8.2f  %-22s %-16s %s", e.Seconds, e.Subject, e.What, e.Detail), " ")
}

func newWatch(o *options) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show what happened, and what happens, to nodes, services and the cloud",
		Example: `  lab watch
  lab watch --follow=false -o json   # what happened so far, one JSON object per line`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := o.open()
			if err != nil {
				return err
			}
			asJSON := cmd.Flag("output").Value.String() == "json"
			enc := json.NewEncoder(cmd.OutOrStdout())
			err = l.Timeline().Follow(cmd.Context(), follow, func(e timeline.Entry) error {
				if asJSON {
					return enc.Encode(e)
				}
				_, err := fmt.Fprintln(cmd.OutOrStdout(), timelineLine(e))
				return err
			})
			if errors.Is(err, context.Canceled) {
				return nil // Ctrl-C is how one ends it.
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", true, "wait for what comes")
	addOutput(cmd, "table", "json")
	return cmd
}
