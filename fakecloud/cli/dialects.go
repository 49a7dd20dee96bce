package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/dialect/brightbox"
	"github.com/ccmlab/ccmlab/fakecloud/dialect/hcloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect/oci"
	"github.com/ccmlab/ccmlab/fakecloud/dialect/oxide"
)

// dialects are all that the cloud can speak, with where they are spoken unless somebody says
// otherwise.
var dialects = []struct {
	dialect.Dialect
	listen string
}{
	{brightbox.Dialect, "127.0.0.1:8473"},
	{hcloud.Dialect, "127.0.0.1:8471"},
	{oci.Dialect, "127.0.0.1:8474"},
	{oxide.Dialect, "127.0.0.1:8472"},
}

func dialectNames() (names []string) {
	for _, d := range dialects {
		names = append(names, d.Name)
	}
	return names
}

// dialectDefaults are the dialects with where each is spoken by default, for help.
func dialectDefaults() (all []string) {
	for _, d := range dialects {
		all = append(all, fmt.Sprintf("%s (%s)", d.Name, d.listen))
	}
	return all
}

func (a *app) dialectsCommand() *cobra.Command {
	cmd := catalogueCommand(
		a, "dialects", "The APIs of other clouds that this cloud serves",
		"List the dialects that are served", (*client.Client).ListDialects,
	)
	cmd.AddCommand(a.showDialectCommand())
	return cmd
}

func (a *app) showDialectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show what a dialect does, and what clients sent that it does not read",
		Args: clikit.RequireArguments(1, 1), Example: "  fakecloud dialects show hcloud",
		ValidArgsFunction: cobra.FixedCompletions(dialectNames(), cobra.ShellCompDirectiveNoFileComp),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			served, err := c.ListDialects(cmd.Context())
			if err != nil {
				return err
			}
			at := slices.IndexFunc(served, func(d api.Dialect) bool { return d.Name == args[0] })
			if at < 0 {
				return fmt.Errorf(
					"dialect %q is not served: start the cloud with `fakecloud serve --dialect NAME`, of %s", args[0],
					strings.Join(dialectNames(), ", "),
				)
			}
			return a.printDialect(cmd, served[at])
		}),
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) printDialect(cmd *cobra.Command, d api.Dialect) error {
	if a.output == "table" {
		out := cmd.OutOrStdout()
		_, _ = fmt.Fprintf(out, "%s at %s\n\nLimits:\n", d.Summary, d.URL)
		for _, l := range d.Limits {
			_, _ = fmt.Fprintf(out, "  - %s\n", l)
		}
		_, _ = fmt.Fprintf(out, "\nCalls, as faults name them:\n  %s\n\nSent by clients and ignored:\n",
			strings.Join(d.Calls, "\n  "))
	}
	var rows [][]string
	for _, u := range d.Unread {
		rows = append(rows, []string{u.Call, u.Field, strconv.FormatInt(u.Count, 10)})
	}
	return a.printOutput(cmd, d, "CALL FIELD COUNT", rows)
}
