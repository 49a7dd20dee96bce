package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/lab/console"
	"github.com/ccmlab/ccmlab/lab/console/labscene"
)

func newConsole(o *globalOptions) *cobra.Command {
	var readOnly, renew bool
	cmd := &cobra.Command{
		Use:   "console [RECORDING]",
		Short: "Print a link to the lab's page, or serve a recording",
		Long: `console prints a link to the page on which the lab's cloud and cluster are one
picture that moves: instances with their nodes and pods, Services with their load
balancers, taints, health and traffic, beside the story of what happened. A slider goes
back in time. The lab's agent serves it on the loopback address. The link is for you
alone: with the page come buttons that stop and start instances and the CCM, each with
the command that does the same. With --read-only it prints a link to a page without
them, to project or to give away.

A link opens the page for a day, and a page stays open for a day, unless the agent ends
before. With --renew, all earlier links and pages of the lab end.

With -o json it prints the picture itself, as it is now.

With a file that ` + "`lab record`" + ` wrote, it serves that until Ctrl-C. A browser opens such a
file without it, too.`,
		Example: `  lab console
  lab console --read-only
  lab console --renew
  lab console -o json | jq -r '.[] | select(.level == "bad") | .id'
  lab record -o lab.html && lab console lab.html`,
		Args: clikit.RequireArguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return console.ServeRecording(cmd.Context(), args[0], func(url string) {
					_, _ = fmt.Fprintln(cmd.OutOrStdout(), url) // The page is served even if nobody reads the URL.
				})
			}
			l, err := o.openLab()
			if err != nil {
				return err
			}
			if clikit.Output(cmd) == "json" {
				changes, err := labscene.Read(console.SceneFile(l))
				if err != nil {
					return err
				}
				return clikit.PrintData(cmd.OutOrStdout(), "json", scene.Fold(changes).Objects())
			}
			url, err := console.Link(cmd.Context(), l, readOnly, renew)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), url)
			return err
		},
	}
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "a link to a page that changes nothing")
	cmd.Flags().BoolVar(&renew, "renew", false, "end all earlier links and pages of the lab")
	clikit.AddOutput(cmd, "table", "json")
	return cmd
}

func newRecord(o *globalOptions) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "record -o FILE",
		Short: "Write what has happened in the lab as a page that needs nothing else",
		Long: `record writes one HTML file with the picture, the story and the slider of the lab's page,
from the lab's start until now. It opens in any browser, without a lab and without a
network. Names, addresses and the cloud's calls are in it, and no credentials.`,
		Example: "  lab record -o lab.html",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return clikit.Usagef("record where? give -o FILE, such as -o lab.html")
			}
			l, err := o.openLab()
			if err != nil {
				return err
			}
			size, err := console.WriteRecording(cmd.Context(), file, l, func(text string) {
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "lab:", text)
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s, %d kB; a browser opens it\n", file, size>>10)
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "the `FILE` to write")
	return cmd
}
