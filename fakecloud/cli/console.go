package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/console"
)

func (a *app) consoleCommand() *cobra.Command {
	renew := false
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Print a link that opens the cloud's page",
		Long: `Print a link to the page on which the cloud is one picture that moves:
instances by zone, load balancers with their targets' health and traffic, routes,
faults, and the story of what happened and who called. A slider goes back in time.
The link opens the page for ten minutes and has your token's rights, so it is for you
alone; a viewer's token opens a page that changes nothing. A page stays open for a day,
and ends with the token. With --renew, all earlier links and pages of the token end.`,
		Example: "  fakecloud console",
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			if _, err := c.Project(cmd.Context()); err != nil {
				return err
			}
			token, err := os.ReadFile(a.tokenFile)
			if err != nil {
				return err
			}
			transport, err := client.Config{CAFile: a.caFile}.NewTransport()
			if err != nil {
				return err
			}
			link, err := console.RequestLink(
				cmd.Context(), &http.Client{Transport: transport}, strings.TrimSuffix(a.url, "/")+console.Path+"/",
				strings.TrimSpace(string(token)), renew,
			)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), link)
			return err
		}),
	}
	cmd.Flags().BoolVar(&renew, "renew", false, "end all earlier links and pages of the token")
	return cmd
}

// newPageRunner returns what runs a command of this program for a person who looks at the page of the cloud.
func newPageRunner(caFile string) func(ctx context.Context, url, token string, command []string) error {
	return func(ctx context.Context, url, token string, command []string) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		file, err := os.CreateTemp("", "fakecloud-token-")
		if err != nil {
			return err
		}
		defer func() { _ = os.Remove(file.Name()) }() // For nobody else to read, meanwhile.
		_, err = file.WriteString(token)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, self, command[1:]...) // The first is this program's name.
		cmd.Env = append(
			os.Environ(), "FAKECLOUD_URL="+url, "FAKECLOUD_TOKEN_FILE="+file.Name(), "FAKECLOUD_CA_FILE="+caFile,
		)
		return console.RunCommand(cmd)
	}
}
